"""The static half: timers in source text. Each text is a program of some lines."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from dataclasses import replace

import pytest

from tests.conftest import CPU, GPU, make_timeline
from tests.shared import CASES
from tests.timer_table import OWN, compare, static_verdicts, truths
from tracer.analysis.source_file import read_source
from tracer.analysis.source_timers import find_timers
from tracer.analysis.sources import Sources
from tracer.auditor import audit
from tracer.checking import check_paths
from tracer.commands import main
from tracer.trace import Kind

HEAD = "import time\nimport torch\nx = torch.randn(8, device='cuda')\n"


def found(body: str) -> list[tuple[str, int]]:
    """(class word, line of the body) of all findings."""
    from tracer.plugins import modules_in

    source = read_source("f.py", HEAD + textwrap.dedent(body))
    assert source is not None
    scans = [m.scan for m in modules_in("tracer.rules") if hasattr(m, "scan")]
    return sorted((f.kind, f.place.line - HEAD.count("\n")) for scan in scans for f in scan(source))


LYING = {
    "plain": "t0 = time.perf_counter()\ny = model(x)\nt1 = time.perf_counter()\nprint(t1 - t0)",
    "subtracted in place": "t0 = time.time()\ny = model(x)\nz = 1\nprint(time.time() - t0)",
    "in a function": "def f():\n    t0 = time.time()\n    y = x @ x\n    return time.time() - t0",
    "arithmetic on what was moved": (
        "def f(y):\n    y = y.cuda()\n    t0 = time.time()\n    z = y * y\n    w = z * y\n    d = time.time() - t0"
    ),
    "attribute": "self.t0 = time.monotonic()\nloss.backward()\nself.took = time.monotonic() - self.t0",
    "wait before the work": "t0 = time.time()\ntorch.cuda.synchronize()\ny = model(x)\nd = time.time() - t0",
    "arithmetic on tensors": "y = x * 2\nt0 = time.time()\nz = y * y\nw = z + y\nd = time.time() - t0",
    "dates that are subtracted": (
        "t0 = datetime.datetime.now()\ny = model(x)\nz = 1\nprint(datetime.datetime.now() - t0)"
    ),
    "tensors of the module, in a function": (
        "def f():\n    t0 = time.time()\n    y = x * 3\n    return time.time() - t0"
    ),
    "in a loop": "for i in range(9):\n    t0 = time.time()\n    step(x)\n    d = time.time() - t0",
}
HONEST = {
    "synchronize": "t0 = time.time()\ny = model(x)\ntorch.cuda.synchronize()\nd = time.time() - t0",
    "item": "t0 = time.time()\ny = model(x).sum().item()\nd = time.time() - t0",
    "cpu": "t0 = time.time()\ny = model(x)\nz = y.cpu()\nd = time.time() - t0",
    "event wait": "t0 = time.time()\ny = model(x)\nev.synchronize()\nd = time.time() - t0",
    "own helper": (
        "def now():\n    torch.cuda.synchronize()\n    return time.time()\nt0 = now()\ny = model(x)\nd = now() - t0"
    ),
    "helper that waits": (
        "def wait():\n    torch.cuda.synchronize()\nt0 = time.time()\ny = f(x)\nwait()\nd = time.time() - t0"
    ),
    "conditional wait": "t0 = time.time()\ny = f(x)\nif cuda:\n    torch.cuda.synchronize()\nd = time.time() - t0",
    "nothing on the GPU": "t0 = time.time()\nprint('x', len(str(3)))\nd = time.time() - t0",
    "do_bench": "t0 = time.time()\nms = do_bench(lambda: f(x))\nd = time.time() - t0",
    "dates": "a = time.time()\ny = f(x)\nlog(time.time())",
    "a condition on a tensor": "t0 = time.time()\nif f(x).max() > 1:\n    pass\nd = time.time() - t0",
    "a while loop on a tensor": "t0 = time.time()\nwhile f(x).any():\n    pass\nd = time.time() - t0",
    "events, waited": "e0.record()\ny = f(x)\ne1.record()\ne1.synchronize()\nms = e0.elapsed_time(e1)",
    "events, waited, then more work": (
        "e0.record()\ny = f(x)\ne1.record()\ntorch.cuda.synchronize()\nz = f(x)\nms = e0.elapsed_time(e1)"
    ),
}


@pytest.mark.parametrize("body", LYING.values(), ids=LYING)
def test_a_timer_that_nothing_waits_for_is_named_at_its_end(body):
    kinds = found(body)

    end = max(
        line for line, text in enumerate(body.splitlines(), 1) if re.search(r"(time|monotonic|counter|now)\(\)", text)
    )
    assert kinds == [("bench.no_sync", end)]


@pytest.mark.parametrize("body", HONEST.values(), ids=HONEST)
def test_honest_timers_are_left_alone(body):
    assert found(body) == []


def test_work_before_the_start_is_named_at_the_start():
    assert found("y = model(x)\nt0 = time.time()\nz = f(x)\ntorch.cuda.synchronize()\nd = time.time() - t0") == [
        ("bench.dirty_start", 2)
    ]


def test_events_asked_too_early_are_named():
    assert found("e0.record()\ny = f(x)\ne1.record()\nms = e0.elapsed_time(e1)") == [("bench.event_not_ready", 4)]


def test_the_switch_is_named_where_it_is_set():
    assert found("import os\nos.environ['CUDA_LAUNCH_BLOCKING'] = '1'") == [("bench.launch_blocking", 2)]


def test_columns_cover_the_read():
    (timer,) = find_timers(ast.parse("t0 = time.time()\ny = f(x)\nd = time.time() - t0"))

    assert (timer.end.column, timer.end.end_column) == (5, 16)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("BM01", {("bench.no_sync", 25)}),
        ("BM02", {("bench.dirty_start", 21)}),
        ("BM03", set()),
        ("BM06", {("bench.event_not_ready", 24)}),
        ("BM07", set()),
        ("BM08", set()),
        ("BM10", {("bench.no_sync", 24), ("bench.misattributed", 26)}),
        ("BM11", set()),
        ("BM12", {("bench.launch_blocking", 4), ("bench.launch_blocking", 16)}),
    ],
)
def test_handed_cases(case, expected):
    audit = check_paths([str(CASES / "inputs" / f"{case}.py")])

    assert {(f.kind, f.place.line) for f in audit.findings} == expected


@pytest.mark.parametrize("program", sorted((OWN / "text").glob("*.py")), ids=lambda program: program.stem)
def test_timers_are_known_however_they_are_written(program):
    assert [row for row in compare(truths(program), static_verdicts(program)) if row[3] != "right"] == []


SWITCHES = {
    "os.environ['CUDA_LAUNCH_BLOCKING'] = '1'": True,
    "os.environ.setdefault('CUDA_LAUNCH_BLOCKING', '1')": True,
    "os.environ.update(CUDA_LAUNCH_BLOCKING='1')": True,
    "os.putenv('CUDA_LAUNCH_BLOCKING', '1')": True,
    "if cuda: os.environ['CUDA_LAUNCH_BLOCKING'] = '1'": True,
    "if options.debug: os.environ['CUDA_LAUNCH_BLOCKING'] = '1'": False,
    "os.environ['CUDA_LAUNCH_BLOCKING'] = '0'": False,
    "blocking = os.environ.get('CUDA_LAUNCH_BLOCKING', '0') == '1'": False,
    "print('CUDA_LAUNCH_BLOCKING', '1')": False,
    "env = {**os.environ, 'CUDA_LAUNCH_BLOCKING': '1'}": False,
    "subprocess.run(['train'], env={'CUDA_LAUNCH_BLOCKING': '1'})": False,
}


@pytest.mark.parametrize(("text", "switched"), SWITCHES.items())
def test_a_switch_is_one_that_this_program_throws_for_itself(text, switched):
    assert found(text) == ([("bench.launch_blocking", 1)] if switched else [])


CALLED = {
    "from time import {}": "{}()",
    "from time import {} as now": "now()",
    "import time as clock": "clock.{}()",
    "def outer():\n    from time import {} as tick": "tick()",
    "tick = time.{}": "tick()",
    "def outer(tick=time.{}): pass": "tick()",
}


@pytest.mark.parametrize("clock", ["time", "perf_counter", "monotonic_ns", "process_time"])
@pytest.mark.parametrize("written", CALLED)
def test_a_clock_is_known_by_any_name(written, clock):
    call = CALLED[written].format(clock)
    before = f"{written.format(clock)}\n"

    assert found(f"{before}t0 = {call}\ny = model(x)\nprint({call} - t0)") == [
        ("bench.no_sync", before.count("\n") + 3)
    ]
    assert found(f"{before}t0 = {call}\ny = model(x).item()\nprint({call} - t0)") == []


GENERATED = {
    "a long sum": "x = " + " + ".join(["1"] * 30_000),
    "brackets": "x = " + "(" * 5_000 + ")" * 5_000,
    "calls": "x = " + "f(" * 150 + ")" * 150,
    "elifs": "if x:\n    pass\n" + "".join(f"elif x == {n}:\n    pass\n" for n in range(2_000)),
}


@pytest.mark.parametrize("name", GENERATED)
def test_generated_code_that_is_nested_too_deep_costs_only_itself(tmp_path, capsys, name):
    (tmp_path / "generated.py").write_text(HEAD + GENERATED[name])
    (tmp_path / "lying.py").write_text(HEAD + LYING["plain"])

    assert main(["check", str(tmp_path)]) == 1
    assert "1 finding in 2 files" in capsys.readouterr().out
    places = Sources({"generated.py": HEAD + GENERATED[name]})
    assert places.columns_on("generated.py", 1, frozenset({"item"})) is None


@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b"# -*- coding: latin-1 -*-\nname = '\xe9'\n"])
def test_a_file_is_read_in_the_encoding_that_it_declares(tmp_path, capsys, start):
    (tmp_path / "lying.py").write_bytes(start + (HEAD + LYING["plain"]).encode())

    assert main(["check", str(tmp_path)]) == 1
    assert "not looked at" not in capsys.readouterr().out


def test_the_command_walks_a_folder_and_says_what_it_could_not_read(tmp_path, capsys):
    (tmp_path / "lying.py").write_text(HEAD + LYING["plain"])
    (tmp_path / "honest.py").write_text(HEAD + HONEST["item"])
    (tmp_path / "broken.py").write_text("def (:")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "lying.py").write_text(HEAD + LYING["plain"])

    status = main(["check", str(tmp_path)])

    out = capsys.readouterr().out
    assert status == 1
    assert re.search(r"lying\.py:6:6: TIME001 .*may stop before", out)
    assert "broken.py was not looked at" in out
    assert "1 finding in 3 files" in out


def test_json_has_findings_as_in_the_audit(tmp_path, capsys):
    (tmp_path / "lying.py").write_text(HEAD + LYING["plain"])

    status = main(["check", str(tmp_path), "--format", "json"])

    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert status == 1
    assert (finding["rule"], finding["kind"], finding["place"]["line"]) == ("TIME001", "bench.no_sync", 6)
    assert finding["place"]["excerpt"] == "t1 = time.perf_counter()"


def test_nothing_found_is_status_0_and_a_missing_path_2(tmp_path, capsys):
    (tmp_path / "honest.py").write_text(HEAD + HONEST["cpu"])

    assert main(["check", str(tmp_path)]) == 0
    assert main(["check", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["def (:", "print 'old'", "x = '\0'", "x = " + " + ".join(["1"] * 30_000)])
def test_a_source_in_a_trace_that_is_no_python_of_ours_is_passed_over(text):
    launches = [
        row
        for n in range(40)
        for row in (
            (Kind.CALL, "cudaLaunchKernel", CPU, 1_000 * n, 1_000 * n + 900, n + 1),
            (Kind.KERNEL, "k", GPU, 1_000 * n + 10, 1_000 * n + 890, n + 1),
        )
    ]
    trace = make_timeline(*launches)
    switch = 'import os\nimport torch\nos.environ["CUDA_LAUNCH_BLOCKING"] = "1"\nx = torch.ones(1, device="cuda")\n'
    sources = {"a.py": f"# CUDA_LAUNCH_BLOCKING\n{text}", "b.py": switch}

    (blocking,) = [f for f in audit(replace(trace, sources=sources)).findings if f.kind == "bench.launch_blocking"]
    assert blocking.place is not None
    assert (blocking.place.file, blocking.place.line) == ("b.py", 3)


def test_an_unknown_format_is_told_all_that_there_are(tmp_path, capsys):
    (tmp_path / "a.py").write_text("x = 1\n")

    assert main(["check", str(tmp_path), "--format", "pdf"]) == 2
    assert "use one of: lines, github" in capsys.readouterr().err


def test_lines_go_to_a_file_where_one_is_named(tmp_path, capsys):
    (tmp_path / "a.py").write_text("x = 1\n")

    assert main(["check", str(tmp_path / "a.py"), "-o", str(tmp_path / "said.txt")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "said.txt").read_text() == "0 findings in 1 file\n"
