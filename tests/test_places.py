from collections import Counter

import numpy as np
import pytest

from tests.conftest import CPU, CPU2, US
from tests.shared import H200
from tracer.analysis.places import Places
from tracer.building import TraceBuilder
from tracer.readers import load
from tracer.results import Place
from tracer.trace import NONE, Kind, Ledger, Lines, Samples

ITEM = (
    (Kind.OP, "aten::item", CPU, 10, 100),
    (Kind.OP, "aten::_local_scalar_dense", CPU, 12, 98),
    (Kind.CALL, "cudaMemcpyAsync", CPU, 14, 20),
    (Kind.CALL, "cudaStreamSynchronize", CPU, 22, 95),
)
LIBRARY = "/venv/lib/python3.11/site-packages/torch/_tensor.py"


class Story:
    """A trace with recorders' rows, written as it happened."""

    def __init__(self, *spans, sources=None):
        self.trace = None
        self.builder = TraceBuilder()
        self.ledger, self.lines, self.samples = [], [], []
        for kind, name, track, start, end in spans:
            self.builder.add_spans(
                start * US, (end - start) * US, int(kind), self.builder.name(name), self.builder.track(*track)
            )
        self.builder.sources = sources or {}

    def stack(self, *frames):
        """Frames innermost first: (file, line, function[, column, end column])."""
        frame = NONE
        for file, line, function, *columns in reversed(frames):
            frame = self.builder.frame(file, line, function, frame, *columns)
        return frame

    def synced(self, end, *frames, track=CPU, start=None):
        began = NONE if start is None else start * US
        row = (began, end * US, self.builder.track(*track), self.stack(*frames), self.builder.name("sync"))
        self.ledger.append(row)
        return self

    def ran(self, start, end, *frames, track=CPU):
        self.lines.append((start * US, (end - start) * US, self.builder.track(*track), self.stack(*frames)))
        return self

    def sampled(self, time, *frames, track=CPU):
        self.samples.append((time * US, self.builder.track(*track), self.stack(*frames), 10_000 * US))
        return self

    def build(self):
        for name, table, rows in (
            ("ledger", Ledger, self.ledger),
            ("lines", Lines, self.lines),
            ("samples", Samples, self.samples),
        ):
            if rows:
                columns = np.array(rows, dtype=np.int64).T
                self.builder.add_table(name, table.of(**dict(zip(table.columns(), columns, strict=True))))
        return self.builder.build()

    def of(self, name, nth=0):
        trace = self.trace = self.trace or self.build()
        return Places(trace), np.flatnonzero(trace.name_rows(name))[nth]


def where(place):
    return (place.file, place.line, place.source) if place else None


def test_a_warning_delivered_when_the_operator_returns_names_its_wait():
    story = Story(*ITEM).synced(102, (LIBRARY, 40, "__float__"), ("/my/train.py", 21, "step"))

    places, sync = story.of("cudaStreamSynchronize")

    assert where(places.of_span(sync)) == ("/my/train.py", 21, "ledger")
    assert where(places.library_of(sync)) == (LIBRARY, 40, "ledger")


def test_two_waits_of_one_operator_share_the_warnings_at_its_end():
    story = Story(
        (Kind.OP, "aten::repeat_interleave", CPU, 0, 100),
        (Kind.CALL, "cudaStreamSynchronize", CPU, 10, 40),
        (Kind.CALL, "cudaStreamSynchronize", CPU, 50, 90),
    )
    story.synced(102, ("/my/train.py", 21, "step")).synced(103, ("/my/train.py", 21, "step"))

    places, first = story.of("cudaStreamSynchronize", 0)
    _, second = story.of("cudaStreamSynchronize", 1)

    assert places.of_span(first).line == places.of_span(second).line == 21


def test_a_wait_that_torch_did_not_see_does_not_take_the_next_one_s_line():
    story = Story(
        (Kind.OP, "aten::empty", CPU, 0, 50),
        (Kind.CALL, "cudaFree", CPU, 10, 40),
        (Kind.OP, "aten::item", CPU, 60, 100),
        (Kind.CALL, "cudaStreamSynchronize", CPU, 70, 95),
    ).synced(102, ("/my/train.py", 21, "step"))

    places, free = story.of("cudaFree")
    _, sync = story.of("cudaStreamSynchronize")

    assert places.of_span(free) is None
    assert places.of_span(sync).line == 21


def test_another_thread_s_warning_is_not_ours():
    story = Story(*ITEM).synced(102, ("/my/train.py", 21, "step"), track=CPU2)

    places, sync = story.of("cudaStreamSynchronize")

    assert places.of_span(sync) is None


def test_an_entry_with_a_start_covers_what_lies_inside():
    story = Story((Kind.CALL, "cudaDeviceSynchronize", CPU, 10, 90), (Kind.CALL, "cudaFree", CPU, 110, 120))
    story.synced(95, ("/my/train.py", 30, "step"), start=5)

    places, sync = story.of("cudaDeviceSynchronize")
    _, free = story.of("cudaFree")

    assert where(places.of_span(sync)) == ("/my/train.py", 30, "ledger")
    assert places.of_span(free) is None


def test_the_line_that_was_running_comes_second_and_brings_its_columns():
    story = Story((Kind.CALL, "cudaFree", CPU, 110, 120))
    story.ran(100, 130, ("/my/train.py", 7, "step", 5, 20)).ran(130, 140, ("/my/train.py", 8, "step"))

    places, free = story.of("cudaFree")

    assert places.of_span(free) == Place("/my/train.py", 7, "step", (5, 20), "lines", True, "")


def test_samples_need_two_that_agree_inside_the_wait():
    once = Story(*ITEM).sampled(50, ("/my/train.py", 3, "f")).sampled(105, ("/my/train.py", 3, "f"))
    twice = Story(*ITEM).sampled(50, ("/my/train.py", 3, "f")).sampled(80, ("/my/train.py", 3, "f"))

    for story, expected in ((once, None), (twice, ("/my/train.py", 3, "samples"))):
        places, sync = story.of("cudaStreamSynchronize")
        assert where(places.of_span(sync)) == expected


def test_several_operators_after_the_wait_do_not_hide_it():
    """torch.tensor() copies, waits, and then runs two operators more before its warning is delivered."""
    story = Story(
        (Kind.OP, "aten::to", CPU, 0, 60),
        (Kind.CALL, "cudaStreamSynchronize", CPU, 10, 50),
        (Kind.OP, "aten::lift_fresh", CPU, 65, 66),
        (Kind.OP, "aten::detach_", CPU, 70, 85),
    ).synced(120, ("/my/train.py", 20, "<module>"))

    places, sync = story.of("cudaStreamSynchronize")

    assert places.of_span(sync).line == 20


def test_an_operator_between_wait_and_entry_far_away_means_another_wait():
    first = (Kind.OP, "aten::item", CPU, 0, 60), (Kind.CALL, "cudaStreamSynchronize", CPU, 10, 50)
    story = Story(*first, (Kind.OP, "aten::mm", CPU, 5_000, 5_010))
    story.synced(62, ("/my/train.py", 20, "step")).synced(9_000, ("/my/train.py", 30, "step"))

    places, sync = story.of("cudaStreamSynchronize")

    assert places.of_span(sync).line == 20


def test_a_ledger_without_threads_finds_the_thread_that_waited():
    unknown = (0, NONE, NONE, NONE, "thread unknown")
    story = Story(*ITEM, (Kind.OP, "aten::mm", CPU2, 0, 200)).synced(102, ("train.py", 21, "step"), track=unknown)

    places, sync = story.of("cudaStreamSynchronize")

    assert places.of_span(sync).line == 21


BACKWARD = (
    (Kind.OP, "autograd::engine::evaluate_function: IndexBackward0", CPU2, 20, 200),
    (Kind.OP, "aten::nonzero", CPU2, 30, 100),
    (Kind.CALL, "cudaStreamSynchronize", CPU2, 40, 90),
)
RUN_BACKWARD = (LIBRARY.replace("_tensor", "autograd/graph"), 830, "_engine_run_backward")


def test_a_wait_of_the_autograd_thread_belongs_to_the_backward_that_ends_next():
    story = Story((Kind.OP, "aten::sum", CPU, 0, 10), *BACKWARD, (Kind.OP, "aten::add", CPU, 400, 410))
    story.synced(300, RUN_BACKWARD, ("/my/train.py", 40, "step"))

    places, sync = story.of("cudaStreamSynchronize")

    assert where(places.of_span(sync)) == ("/my/train.py", 40, "ledger")
    assert places.library_of(sync).function == "_engine_run_backward"


def test_a_backward_that_began_later_is_not_the_one():
    story = Story(*BACKWARD, (Kind.OP, "aten::add", CPU, 250, 260)).synced(300, RUN_BACKWARD, ("/my/train.py", 40, "f"))

    places, sync = story.of("cudaStreamSynchronize")

    assert places.of_span(sync) is None


def test_work_of_the_autograd_thread_belongs_to_the_line_that_sits_in_backward():
    malloc = (*BACKWARD, (Kind.CALL, "cudaMalloc", CPU2, 110, 150))
    alone = Story((Kind.OP, "aten::sum", CPU, 0, 10), *malloc).ran(15, 300, ("/my/train.py", 40, "step"))
    busy = Story((Kind.OP, "aten::sum", CPU, 120, 130), *malloc).ran(15, 300, ("/my/train.py", 40, "step"))
    third = (0, 100, 102, NONE, "third")
    two = Story((Kind.OP, "aten::sum", CPU, 0, 10), *malloc).ran(15, 300, ("/my/train.py", 40, "step"))
    two.ran(15, 300, ("/my/other.py", 1, "waits"), track=third)

    for story, expected in ((alone, ("/my/train.py", 40, "lines")), (busy, None), (two, None)):
        places, malloc_row = story.of("cudaMalloc")
        assert where(places.of_span(malloc_row)) == expected


def test_columns_come_from_the_text_if_only_one_call_fits():
    text = "def step(loss, x):\n    total = loss.item() + len(x)\n    both = x.item() + loss.item()\n"
    one = Story(*ITEM, sources={"/my/train.py": text}).synced(102, ("/my/train.py", 2, "step"))
    two = Story(*ITEM, sources={"/my/train.py": text}).synced(102, ("/my/train.py", 3, "step"))

    places, sync = one.of("cudaStreamSynchronize")
    unclear, other = two.of("cudaStreamSynchronize")

    place = places.of_span(sync)
    assert (place.columns, place.excerpt[12:23]) == ((13, 24), "loss.item()")
    assert unclear.of_span(other).columns is None


def test_an_operator_is_a_call_too():
    full = (Kind.OP, "aten::matmul", CPU, 0, 90), (Kind.CALL, "cudaLaunchKernel", CPU, 5, 80)
    text = "def queue(h, w):\n    h = h @ w\n    h = h @ w @ w\n"
    one = Story(*full, sources={"/my/train.py": text}).ran(0, 95, ("/my/train.py", 2, "queue"))
    two = Story(*full, sources={"/my/train.py": text}).ran(0, 95, ("/my/train.py", 3, "queue"))

    places, launch = one.of("cudaLaunchKernel")
    unclear, other = two.of("cudaLaunchKernel")

    assert places.of_span(launch).columns == (9, 14)
    assert unclear.of_span(other).columns is None


def test_columns_count_characters_not_bytes():
    text = 'def step(loss):\n    print("größer", loss.item())\n'
    story = Story(*ITEM, sources={"/my/train.py": text}).ran(0, 200, ("/my/train.py", 2, "step", 23, 34))

    places, sync = story.of("cudaStreamSynchronize")

    low, high = places.of_span(sync).columns
    assert text.splitlines()[1][low - 1 : high - 1] == "loss.item()"


def test_the_ledger_s_line_takes_the_columns_of_the_line_that_ran_then():
    story = Story(*ITEM).synced(102, ("/my/train.py", 21, "step"))
    story.ran(5, 110, ("/my/train.py", 21, "step", 9, 20))

    places, sync = story.of("cudaStreamSynchronize")

    assert places.of_span(sync) == Place("/my/train.py", 21, "step", (9, 20), "ledger", True, "")


def test_a_line_that_is_not_known_is_not_exact():
    """A busy function is no longer watched line by line: its runs have line -1."""
    story = Story(*ITEM).ran(0, 200, ("/my/train.py", NONE, "busy"))

    places, sync = story.of("cudaStreamSynchronize")

    assert places.of_span(sync) == Place("/my/train.py", 0, "busy", None, "lines", False, "")


def test_samples_know_more_than_a_line_that_is_not_known():
    story = Story(*ITEM).ran(0, 200, ("/my/train.py", NONE, "busy"))
    story.sampled(30, ("/my/train.py", 24, "busy")).sampled(60, ("/my/train.py", 24, "busy"))

    places, sync = story.of("cudaStreamSynchronize")

    assert where(places.of_span(sync)) == ("/my/train.py", 24, "samples")
    assert where(places.at(0, 20 * US, 80 * US)) == ("/my/train.py", 24, "samples")


PYTHON = (
    (Kind.PYTHON, "train.py(30): <module>", CPU, 0, 300),
    (Kind.PYTHON, "train.py(2): step", CPU, 5, 200),
    (Kind.PYTHON, "<built-in method item of Tensor object at 0x7f00>", CPU, 8, 105),
)


def test_the_profiler_s_functions_know_only_where_they_are_defined():
    places, sync = Story(*PYTHON, *ITEM).of("cudaStreamSynchronize")

    assert places.of_span(sync) == Place("train.py", 2, "step", None, "events", False, "")
    assert [p.function for p in places.stack(sync)] == ["step", "<module>"]


def test_the_text_makes_a_function_exact_if_one_call_alone_fits():
    once = "\ndef step(loss):\n    y = loss * 2\n    return loss.item()\n"
    twice = once + "    loss.item()\n"

    places, sync = Story(*PYTHON, *ITEM, sources={"/home/me/train.py": once}).of("cudaStreamSynchronize")
    unclear, other = Story(*PYTHON, *ITEM, sources={"/home/me/train.py": twice}).of("cudaStreamSynchronize")

    assert where(places.of_span(sync)) == ("train.py", 4, "source")
    assert places.of_span(sync).exact
    assert (unclear.of_span(other).line, unclear.of_span(other).exact) == (2, False)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("    return loss.item() + loss.item()\n", 3),
        ("    def inner():\n        return loss.item()\n    return inner\n", None),
        ("    def inner():\n        return loss.item()\n    return loss.item()\n", 5),
        ("    async def inner():\n        return loss.item()\n    return loss.item()\n", 5),
        ("    class Inner:\n        value = loss.item()\n    return loss.item()\n", 5),
        ("    class Inner:\n        def f(self):\n            loss.item()\n    return Inner\n", None),
        ("    late = lambda: loss.item()\n    return loss.item()\n", 4),
        ("    late = lambda: loss.item()\n    return late\n", None),
        ("    def inner(value=loss.item()):\n        return value.item()\n    return inner\n", 3),
        ("    @keep(loss.item())\n    def inner(value):\n        return value.item()\n    return inner\n", 3),
        ("    if loss:\n        with log:\n            return loss.item()\n", 5),
    ],
)
def test_only_calls_that_run_in_the_function_itself_are_meant(body, line):
    text = "\ndef step(loss):\n" + body
    places, sync = Story(*PYTHON, *ITEM, sources={"/home/me/train.py": text}).of("cudaStreamSynchronize")

    place = places.of_span(sync)
    assert (place.line, place.exact) == ((2, False) if line is None else (line, True))


def test_two_files_of_one_name_are_not_confused():
    text = "\ndef step(loss):\n    return loss.item()\n"
    sources = {"/a/train.py": text, "/b/train.py": text.replace("    return", "\n    return")}

    places, sync = Story(*PYTHON, *ITEM, sources=sources).of("cudaStreamSynchronize")

    assert places.of_span(sync).exact is False


FILES = {
    "/my/train.py": True,
    "train.py": True,
    "src/model.py": True,
    "<string>": True,
    "<ipython-input-3-abc>": True,
    "/tmp/ipykernel_12/345.py": True,
    "/my/code.zip/pack/mod.py": True,
    "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py": False,
    "/usr/lib/python3.12/threading.py": False,
    "torch/nn/modules/module.py": False,
    "threading.py": False,
    "<frozen importlib._bootstrap>": False,
    "<eval_with_key>.3": False,
    "/tmp/torchinductor_me/ab/cab.py": False,
    "/src/async-tracer/tracer/recording/syncwatch.py": False,
    "tracer/recording/syncwatch.py": False,
}


@pytest.mark.parametrize(("file", "own"), FILES.items(), ids=str)
def test_whose_code_a_file_is(file, own):
    story = Story(*ITEM).synced(102, (file, 3, "inner"), ("/my/outer.py", 9, "outer"))

    places, sync = story.of("cudaStreamSynchronize")

    assert places.of_span(sync).function == ("inner" if own else "outer")


def test_a_file_that_was_kept_as_the_user_s_counts_as_such_wherever_it_lies():
    file = "/venv/lib/python3.12/site-packages/mine/train.py"
    story = Story(*ITEM, sources={file: ""}).synced(102, (file, 3, "inner"), ("/my/outer.py", 9, "outer"))

    places, sync = story.of("cudaStreamSynchronize")

    assert places.of_span(sync).function == "inner"


def test_a_stack_without_a_user_s_line_gives_only_the_library():
    story = Story(*ITEM).synced(102, (LIBRARY, 40, "item"), ("/usr/lib/python3.12/threading.py", 9, "run"))

    places, sync = story.of("cudaStreamSynchronize")

    assert places.of_span(sync) is None
    assert places.library_of(sync).function == "item"


def test_what_a_thread_did_most_of_a_stretch_is_where_it_was():
    story = Story((Kind.OP, "aten::mm", CPU, 0, 1)).ran(0, 40, ("/my/train.py", 1, "f"))
    story.ran(40, 100, ("/my/train.py", 2, "f")).ran(100, 130, ("/my/train.py", 1, "f"))
    trace = story.build()
    places = Places(trace)

    assert places.at(0, 0, 130 * US).line == 1
    assert places.at(0, 30 * US, 100 * US).line == 2
    assert places.at(0, 200 * US, 300 * US) is None
    assert places.frames_at([0, 0], [0, 200 * US], [10 * US, 210 * US]).tolist()[1] == NONE


def test_callers_are_the_user_s_frames_above():
    story = Story(*ITEM).synced(
        102, (LIBRARY, 1, "a"), ("/my/a.py", 5, "inner"), (LIBRARY, 2, "b"), ("/my/b.py", 7, "outer")
    )

    places, sync = story.of("cudaStreamSynchronize")

    stack = places.frames_of([sync])[0]
    assert [(p.function, p.line) for p in places.callers(stack)] == [("outer", 7)]
    assert [p.function for p in places.stack_of(stack)] == ["a", "inner", "b", "outer"]


@pytest.mark.parametrize(
    ("case", "lines"),
    [
        ("IS01", {21: 20}),
        ("IS05", {21: 40}),
        ("IS06", {16: 160, 17: 160, 18: 160}),
        ("IS16", {20: 20, 22: 20}),
        ("IS18", {20: 40, 21: 20}),
        ("IS20", {23: 20, 25: 160}),
        ("IS25", {22: 40, 24: 20, 25: 20}),
    ],
)
def test_recorded_waits_have_the_lines_that_the_cases_state(case, lines):
    trace = load(H200 / f"{case}.json.gz")
    waits = np.flatnonzero(trace.name_rows("cudaStreamSynchronize") & (trace.spans.kind == Kind.CALL))
    places = Places(trace)

    found = Counter(places.place(stack).line for stack in places.frames_of(waits).tolist() if stack != NONE)

    assert found == lines
