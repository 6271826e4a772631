"""The watch of operators, on the CPU with a GPU that is a row of queues."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from tests.fake_gpu import ASSERT, FakeGpu
from tracer.recording import offending, opwatch, uncompiled
from tracer.recording.bracket import find_brackets, find_forward, show_record
from tracer.recording.marks import Marks
from tracer.recording.opwatch import OpWatch
from tracer.recording.ring import read_ring


@pytest.fixture
def gpu():
    return FakeGpu()


@pytest.fixture
def marks(tmp_path, gpu):
    return Marks(tmp_path / "1.ring", lambda name: name == __file__, gpu=gpu)


def watch(marks: Marks, **options) -> OpWatch:
    return OpWatch(marks, lambda name: name == __file__, device="cpu", **options)


def seen(marks: Marks) -> list[str]:
    image = read_ring(marks.ring.path)
    return [launch.op for launch in (show_record(image, record) for record in image.records) if launch.op]


def test_an_operator_is_kept_with_its_shapes_and_the_user_s_stack(marks):
    def inner(table, ids):
        return torch.nn.functional.embedding(ids, table)

    with watch(marks):
        inner(torch.zeros(10, 4), torch.zeros(3, dtype=torch.int32))

    image = read_ring(marks.ring.path)
    launch = next(
        launch for launch in (show_record(image, record) for record in image.records) if "embedding" in launch.op
    )
    assert launch.op == "aten.embedding(f32[10, 4], i32[3])"
    assert [function.rpartition(".")[2] for _, _, function in launch.stack[:2]] == [
        "inner",
        "test_an_operator_is_kept_with_its_shapes_and_the_user_s_stack",
    ]
    assert launch.line == launch.stack[0][1]


def test_gradients_that_add_up_are_watched_like_anything_else(marks):
    # The node that gathers them has no sequence number: torch gives 2**64 - 1.
    weight = torch.ones(3, requires_grad=True)
    with watch(marks):
        for _ in range(2):
            (weight * 2).sum().backward()

    assert marks.why_not == ""
    assert any("AccumulateGrad: aten.add" in op for op in seen(marks))


def test_the_guilty_operator_is_bracketed(marks, gpu):
    a, b = torch.ones(3), torch.ones(3)
    with watch(marks):
        a + b
        gpu.launch()
        a * b
        gpu.launch(fault=ASSERT)
        a - b
    gpu.run(0)

    assert find_brackets(read_ring(marks.ring.path))[0].landed.op == "aten.mul.Tensor(f32[3], f32[3])"


def test_work_of_the_backward_pass_leads_to_its_forward_operator(marks):
    x = torch.randn(4, 4, requires_grad=True)
    with watch(marks):
        doubled = x * 2
        torch.gather(doubled, 1, torch.zeros(4, 1, dtype=torch.long)).sum().backward()

    image = read_ring(marks.ring.path)
    backward = next(record for record in image.records if "scatter_add" in image.ops.get(int(record["op"]), ""))
    assert show_record(image, backward).op.startswith("GatherBackward0: aten.scatter_add(")
    assert find_forward(image, backward).op == "aten.gather(f32[4, 4], 1, i64[4, 1])"


def test_views_launch_nothing_and_are_left_out(marks):
    with watch(marks):
        torch.zeros(4).view(2, 2)

    assert seen(marks) == ["aten.zeros([4])"]


def test_offending_values_are_noted_under_the_user_s_own_name(marks):
    tokens = torch.tensor([[5, 1000]])
    with watch(marks, check=offending.check), pytest.raises(IndexError):
        torch.nn.functional.embedding(tokens, torch.zeros(1000, 2))

    events = [event for event in read_ring(marks.ring.path).events if event[0] == "offending"]
    assert events[0][4] == ["tokens[0, 1] = 1000, valid 0..999"]


def test_a_mode_of_the_program_is_never_buried(marks):
    with watch(marks):
        assert not watch(marks).enter_if_alone()


def test_a_thread_gets_its_own_records(marks):
    def work():
        with watch(marks):
            torch.ones(2) + 1

    helper = threading.Thread(target=work, name="helper")
    helper.start()
    helper.join()

    image = read_ring(marks.ring.path)
    assert {show_record(image, record).thread for record in image.records} == {"helper"}


def test_compiled_code_stays_compiled(marks):
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    uncompiled.pass_by(opwatch)
    compiled = torch.compile(lambda x: x.sin().cos(), backend=backend)
    with watch(marks):
        compiled(torch.ones(3))
        compiled(torch.ones(3))

    assert len(calls) == 1


def test_watching_does_not_import_the_compiler():
    code = (
        "import sys, torch; from pathlib import Path; from tests.fake_gpu import FakeGpu;"
        "from tracer.recording import opwatch, marks, uncompiled; uncompiled.pass_by(opwatch, marks);"
        "m = marks.Marks(Path('/dev/shm/tracer-test.ring'), lambda name: True, gpu=FakeGpu());"
        "w = opwatch.OpWatch(m, lambda name: True, device='cpu'); w.__enter__(); torch.ones(2) + 1;"
        "m.ring.path.unlink(); m.ring.path.with_suffix('.names').unlink();"
        "sys.exit('torch._dynamo' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_mistake_of_ours_never_reaches_the_program(marks):
    def broken(*_):
        raise KeyError("ours")

    with watch(marks, check=broken):
        assert (torch.ones(2) + 1).tolist() == [2, 2]

    events = [event for event in read_ring(marks.ring.path).events if event[0] == "no_marks"]
    assert len(events) == 1
    assert "ours" in events[0][3]
