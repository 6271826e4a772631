import numpy as np

from tests.conftest import CPU, CPU2, US
from tracer.analysis.places import Places
from tracer.building import TraceBuilder
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
