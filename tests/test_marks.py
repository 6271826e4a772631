"""Marks on a GPU that is a row of queues."""

from __future__ import annotations

import inspect
import os
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from tests.fake_gpu import ASSERT, FakeGpu
from tracer.recording.bracket import find_brackets
from tracer.recording.cudaerrors import is_cuda_error
from tracer.recording.linewatch import LineWatch, is_user_frame, launching_lines
from tracer.recording.marks import SPARSE_NS, Marks
from tracer.recording.ring import LINE, NO_SLOT, read_ring

CODE = compile("pass", "train.py", "exec")


@pytest.fixture
def gpu():
    return FakeGpu()


@pytest.fixture
def marks(tmp_path, gpu):
    return Marks(tmp_path / "1.ring", lambda name: name in ("train.py", __file__), gpu=gpu)


def line(marks: Marks, number: int) -> None:
    marks.on_line(CODE, number)


def test_the_last_mark_that_landed_names_the_guilty_line(marks, gpu):
    for number in range(10, 20):
        line(marks, number)
        gpu.launch(fault=ASSERT if number == 14 else 0)
    gpu.run(stream=0)

    bracket = find_brackets(read_ring(marks.ring.path))[0]

    assert bracket.lines == (("train.py", 14),)
    assert bracket.pending == 5


def test_a_loop_says_which_time_round(marks, gpu):
    for step in range(5):
        line(marks, 20)
        line(marks, 21)
        gpu.launch(fault=ASSERT if step == 3 else 0)
    gpu.run(stream=0)

    bracket = find_brackets(read_ring(marks.ring.path))[0]

    assert bracket.lines == (("train.py", 21),)
    assert bracket.times == 3


def test_each_stream_has_its_own_slot(marks, gpu):
    line(marks, 1)
    gpu.launch()
    gpu.current = 77
    line(marks, 2)
    gpu.launch(fault=ASSERT)
    line(marks, 3)
    gpu.current = 0
    line(marks, 4)
    gpu.launch()
    gpu.run(stream=0)
    gpu.run(stream=77)

    first, second = find_brackets(read_ring(marks.ring.path))

    assert (first.stream, first.lines) == (77, (("train.py", 2),))
    assert (second.stream, second.pending) == (0, 0)


def test_the_first_fatal_code_ends_the_marking_and_names_the_moment(marks, gpu):
    line(marks, 1)
    gpu.launch(fault=ASSERT)
    gpu.run(stream=0)
    line(marks, 2)
    line(marks, 3)

    image = read_ring(marks.ring.path)

    dead = [event for event in image.events if event[0] == "dead"]
    assert len(dead) == 1
    assert dead[0][3:5] == (710, "device-side assert")
    assert len(image.records) == 2


def test_a_capturing_stream_is_never_marked_but_its_lines_are_kept(marks, gpu):
    line(marks, 1)
    gpu.in_capture = True
    line(marks, 2)
    gpu.in_capture = False
    line(marks, 3)

    records = read_ring(marks.ring.path).records

    assert records["slot"].tolist() == [0, NO_SLOT, 0]


def test_nothing_is_marked_before_there_is_a_context(marks, gpu):
    gpu.context = False
    line(marks, 1)
    gpu.context = True
    line(marks, 2)

    records = read_ring(marks.ring.path).records

    assert records["line"].tolist() == [1, 2]
    assert records["slot"].tolist() == [NO_SLOT, 0]


def test_sparse_marks_give_a_bracket_of_lines(tmp_path, gpu, monkeypatch):
    clock = iter(range(0, 1_000_000_000, 30_000))
    monkeypatch.setattr("tracer.recording.marks.time.monotonic_ns", lambda: next(clock))
    marks = Marks(tmp_path / "1.ring", lambda name: True, every_ns=SPARSE_NS, gpu=gpu)
    marks.watch._on_line(CODE, 1)
    for number in range(2, 22):
        marks.watch._on_line(CODE, number)
        gpu.launch(fault=ASSERT if number == 9 else 0)
    gpu.run(stream=0)

    image = read_ring(marks.ring.path)
    bracket = find_brackets(image)[0]

    assert 3 < (image.records["slot"] != NO_SLOT).sum() < 10
    assert len(image.records) == 21
    assert ("train.py", 9) in bracket.lines
    assert 1 < len(bracket.lines) <= 5
    assert [launch.line for launch in bracket.in_flight[:3]] == [21, 20, 19]


def test_a_driver_that_cannot_do_it_is_noted_and_the_program_goes_on(tmp_path, gpu):
    gpu.supported = lambda device: False
    marks = Marks(tmp_path / "1.ring", lambda name: True, gpu=gpu)

    line(marks, 1)
    line(marks, 2)

    assert "cannot do stream memory operations" in marks.why_not
    assert len(read_ring(marks.ring.path).records) == 0


def test_a_second_thread_on_the_same_stream_widens_the_bracket(marks, gpu):
    line(marks, 5)
    helper = threading.Thread(target=line, args=(marks, 50), name="helper")
    helper.start()
    helper.join()
    gpu.launch(fault=ASSERT)
    line(marks, 6)
    gpu.run(stream=0)

    bracket = find_brackets(read_ring(marks.ring.path))[0]

    assert bracket.lines == (("train.py", 50), ("train.py", 5))
    assert bracket.landed.thread == "helper"


def test_a_thread_that_only_waits_is_no_suspect(tmp_path, gpu):
    source = tmp_path / "main.py"
    source.write_text("helper.start()\nhelper.join()\n")
    waiting = compile("pass", str(source), "exec")
    marks = Marks(tmp_path / "1.ring", lambda name: True, gpu=gpu)
    marks.on_line(waiting, 2)
    helper = threading.Thread(target=line, args=(marks, 50))
    helper.start()
    helper.join()
    gpu.launch(fault=ASSERT)
    gpu.run(stream=0)

    assert find_brackets(read_ring(marks.ring.path))[0].lines == (("train.py", 50),)


def test_work_of_autograd_s_thread_counts_for_the_line_that_waits_for_it(marks, gpu):
    line(marks, 7)
    gpu.launch()
    line(marks, 8)
    engine = threading.Thread(target=lambda: (line(marks, 50), marks._on_return(None, 0)))
    engine.start()
    engine.join()
    gpu.launch(fault=ASSERT)
    line(marks, 9)
    gpu.run(stream=0)

    assert find_brackets(read_ring(marks.ring.path))[0].lines == (("train.py", 8),)


def test_cuda_errors_are_told_from_others():
    assert is_cuda_error(RuntimeError("CUDA error: device-side assert triggered"))
    assert is_cuda_error(RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"))
    assert is_cuda_error(RuntimeError("CUDA driver error: device-side assert triggered"))
    assert not is_cuda_error(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_cuda_error(KeyError("CUDA error"))


def test_cuda_errors_are_kept_with_their_frames_one_for_each_place(marks):
    for text in ("CUDA error: first", "CUDA error: again", "no such file"):
        try:
            raise RuntimeError(text)
        except RuntimeError as error:
            marks.errors.note(error)
            marks.errors.note(error)
    try:
        raise RuntimeError("CUDA error: elsewhere")
    except RuntimeError as error:
        marks.errors.note(error)

    errors = [event for event in read_ring(marks.ring.path).events if event[0] == "error"]

    assert [error[4] for error in errors] == ["CUDA error: first", "CUDA error: elsewhere"]
    assert errors[0][3:5] == ("RuntimeError", "CUDA error: first")
    assert errors[0][5][-1][0] == __file__


def test_generated_code_is_not_the_users_line(tmp_path, gpu):
    generated = {"__name__": "triton.launcher"}
    exec(compile("def launcher():\n    raise RuntimeError('CUDA error: died')\n", "<string>", "exec"), generated)
    marks = Marks(tmp_path / "2.ring", lambda name: name in (__file__, "<string>"), gpu=gpu)

    try:
        generated["launcher"]()
    except RuntimeError as error:
        marks.errors.note(error)

    (error,) = (event for event in read_ring(marks.ring.path).events if event[0] == "error")
    rows = [(row[0], row[3]) for row in error[5]]
    assert rows[-2:] == [(__file__, 1), ("<string>", 0)]


LIBRARY = compile("def call(f):\n    return f() + 1\n", "library.py", "exec")
USER = compile(
    "def inner():\n    x = id(1)\n    return x\n\ndef outer():\n    a = call(inner)\n    return a\n", "train.py", "exec"
)


def test_lines_are_told_before_they_run_and_again_after_a_return(tmp_path):
    names: dict[str, object] = {}
    exec(LIBRARY, names)
    exec(USER, names)
    told: list[tuple[str, str | None, int]] = []
    watch = LineWatch(
        lambda name: name == "train.py",
        lambda code, number: told.append(("line", code.co_name, number)),
        lambda code, number: told.append(("return", code and code.co_name, number)),
    )

    started = watch.start()
    names["outer"]()
    watch.stop()
    names["outer"]()

    if sys.version_info < (3, 12):
        assert not started
        assert told == []
    else:
        assert told == [
            ("line", "outer", 6),
            ("line", "inner", 2),
            ("line", "inner", 3),
            ("return", "outer", 6),
            ("line", "outer", 7),
            ("return", None, 0),
        ]
        assert watch.launching[id(names["inner"].__code__)] == {2}


def test_lines_that_can_launch_nothing_are_quiet():
    code = compile(
        textwrap.dedent(
            """\
            def step(x, other):
                a = x
                b = x + 1
                for row in range(3):
                    x.add_(row)
                return b
            """
        ),
        "train.py",
        "exec",
    )
    (function,) = [constant for constant in code.co_consts if hasattr(constant, "co_code")]

    assert launching_lines(function) == {3, 5}


def test_a_file_that_is_no_ring_is_refused(tmp_path):
    path = Path(tmp_path / "x.ring")
    path.write_bytes(b"hello")

    with pytest.raises(ValueError, match="not a ring"):
        read_ring(path)


def test_kinds_of_records_are_kept(marks):
    line(marks, 3)

    assert read_ring(marks.ring.path).records["kind"].tolist() == [LINE]


@pytest.mark.parametrize("part", ["write", "device", "supported"])
def test_a_mistake_of_ours_ends_the_marks_and_not_the_program(marks, gpu, part):
    def fail(*_):
        raise OSError("ours")

    setattr(gpu, part, fail)
    line(marks, 1)
    line(marks, 2)

    events = [event for event in read_ring(marks.ring.path).events if event[0] == "no_marks"]
    assert len(events) == 1
    assert "ours" in events[0][3]


def test_a_forked_child_leaves_the_ring_alone(marks, gpu):
    marks.start()
    line(marks, 1)
    child = os.fork()
    if child == 0:
        line(marks, 2)
        marks.ring.event("mine")
        os._exit(0)
    os.waitpid(child, 0)
    line(marks, 3)
    marks.stop()

    image = read_ring(marks.ring.path)
    assert [number for number in image.records["line"].tolist() if 0 < number < 4] == [1, 3]
    assert not any(event[0] == "mine" for event in image.events)


def test_what_torch_compile_makes_of_a_function_is_not_the_user_s(marks):
    names = {"__compiled_fn_1": lambda: inspect.currentframe().f_back}
    exec(compile("def pick():\n    return __compiled_fn_1()", "train.py", "exec"), names)

    assert not is_user_frame(lambda name: True, names["pick"]())
