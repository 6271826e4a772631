"""Exact lines on a CUDA machine: torch's real mode, its real warnings, and recordings of the handed cases."""

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch

from tracer.recording import stacks
from tracer.recording.ledger import forbid_syncs
from tracer.recording.syncwatch import WATCH

pytestmark = pytest.mark.gpu

CASES = Path(os.environ.get("TRACER_CASES", Path(__file__).resolve().parents[3] / "shared" / "cases"))


@pytest.fixture
def heard():
    found = []

    def hear(what, start_ns, end_ns):
        found.append((what, start_ns, stacks.catch()))

    assert WATCH.prepare() == ""
    WATCH.listen(hear)
    yield found
    WATCH.unlisten(hear)
    assert WATCH.broken == ""


@pytest.fixture
def x():
    return torch.arange(8.0, device="cuda")


def lines_of(found):
    named = stacks.symbolize([entry[2] for entry in found])
    ours = [[line for file, line, name in frames if file == __file__ and name != "hear"] for frames in named]
    return [lines[0] if lines else None for lines in ours]


def line_of(function, offset):
    return function.__code__.co_firstlineno + offset


def reads(x):
    x[0].item()
    bool(x[0] > 0)
    x.nonzero()
    x[x > 2]
    x.cpu()
    torch.tensor([1.0, 2.0], device="cuda")
    x.unique()


def test_every_read_is_heard_at_its_line_whatever_the_filters_are(heard, x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reads(x)

    assert sorted(set(lines_of(heard))) == [line_of(reads, offset) for offset in range(1, 8)]


def test_the_program_s_mode_is_its_own(heard, x):
    assert torch.cuda.get_sync_debug_mode() == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        with pytest.raises(RuntimeError, match="synchronizing"):
            x[0].item()
        torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x[0].item()
    torch.cuda.set_sync_debug_mode(0)

    assert len([w for w in caught if "synchronizing" in str(w.message)]) == 1
    assert caught[-1].filename == __file__
    assert torch.cuda.get_sync_debug_mode() == 0


def explicit(x):
    torch.cuda.synchronize()
    torch.cuda.current_stream().synchronize()
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    torch.cuda.empty_cache()


def test_what_torch_s_mode_does_not_see_is_heard_too(heard, x):
    explicit(x)

    assert [what for what, _, _ in heard] == [
        "torch.cuda.synchronize",
        "sync",
        "Event.synchronize",
        "torch.cuda.empty_cache",
    ]
    assert lines_of(heard) == [line_of(explicit, offset) for offset in (1, 2, 5, 6)]


def test_a_read_in_a_python_backward_is_heard_there(heard, x):
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value * 2

        @staticmethod
        def backward(ctx, grad):
            grad.sum().item()
            return grad

    Reads.apply(x.requires_grad_()).sum().backward()

    assert lines_of(heard) == [line_of(Reads.backward, 2)]


def test_a_wait_in_a_c_backward_is_heard_at_the_call_of_backward(heard, x):
    y = x.requires_grad_()[x > 2].sum()
    heard.clear()
    y.backward()

    lines = set(lines_of(heard))
    assert lines == {line_of(test_a_wait_in_a_c_backward_is_heard_at_the_call_of_backward, 3)}


def test_forbidden_syncs_name_their_line(x):
    with pytest.raises(AssertionError, match=r"test_lines\.py"), forbid_syncs():
        x.sum().item()
    with forbid_syncs() as seen:
        x.add_(1)
    assert seen == []


def test_no_context_is_made_and_a_fork_works():
    code = """
        import os, torch
        from tracer.recording.syncwatch import WATCH
        assert WATCH.prepare() == ""
        heard = []
        WATCH.listen(lambda *what: heard.append(what))
        assert not torch.cuda.is_initialized()
        if not os.fork():
            torch.ones(1, device="cuda").item()
            os._exit(len(heard))
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        assert not torch.cuda.is_initialized()
        torch.ones(1, device="cuda").item()
        print(len(heard))
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )

    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize("case", ["IS01", "IS11", "PC01", "AL01", "LB02"])
def test_a_handed_case_gets_its_lines(case, tmp_path):
    from tests.bench.exact_lines import judge, record

    script = CASES / "inputs" / f"{case}.py"

    found = judge(script, record(script, tmp_path))

    # An allocation that does not wait (AL01 line 22) need not be among the stalls.
    wanted = {line for line, kind in found["expected"].items() if kind != "alloc.malloc"}
    assert wanted <= set(found["together"]["expected_found"]), found


def test_compiled_code_stays_whole_while_lines_are_recorded(tmp_path):
    code = """
        import torch
        def f(x):
            y = x * 2
            return y.to(torch.float64, non_blocking=True).cos() + 1
        compiled = torch.compile(f, fullgraph=True)
        x = torch.ones(8, device="cuda")
        before = compiled(x)
        counters = torch._dynamo.utils.counters
        for _ in range(30):
            after = compiled(x)
        torch.cuda.synchronize()
        assert torch.equal(before, after)
        print("frames", counters["stats"].get("unique_graphs"), counters["frames"].get("total"))
    """
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(code))
    plain = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=200)
    command = [sys.executable, "-m", "tracer", "run", f"output.folder={tmp_path}", "output.formats=['json']", "--"]
    traced = subprocess.run([*command, sys.executable, str(program)], capture_output=True, text=True, timeout=200)

    line = [line for line in plain.stdout.splitlines() if line.startswith("frames")]
    assert line
    assert [line for line in traced.stdout.splitlines() if line.startswith("frames")] == line, traced.stderr
