"""A thread that cannot launch because another one holds the GIL, drawn as lines of both."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import CPU, CPU2, GPU, US, make_timeline
from tests.test_idle import idle_times, kernel
from tracer.analysis.idle import CAUSES
from tracer.analysis.intervals import length
from tracer.analysis.launches import busy
from tracer.auditor import audit, examine
from tracer.trace import NONE, Frames, Kind, Lines

OTHER_PROCESS = (0, 200, 201, NONE, "worker")
SPIN = [(CPU2, 50 + i % 3, 100 * i, 100 * i + 100) for i in range(1, 40)]  # short lines, one after the other
STUCK = (CPU, 7, 0, 5_100)  # the line with the first launch, which is not left until the second


def lined(trace, *runs, text=()):
    """The same with runs of lines (thread, line, start, end); line NONE: a function too busy to be watched by line."""
    tracks = list(trace.tracks)
    lanes = {track.lane: i for i, track in enumerate(tracks) if not track.on_gpu}
    names = (*trace.names, "/my/train.py", "step")
    numbers = sorted({line for _, line, _, _ in runs})
    frames = Frames.of(
        function=[len(names) - 1] * len(numbers),
        file=[len(names) - 2] * len(numbers),
        line=numbers,
        **{name: [NONE] * len(numbers) for name in ("column", "end_column", "parent")},
    )
    rows = sorted(runs, key=lambda run: run[2])
    lines = Lines.of(
        start_ns=[start * US for _, _, start, _ in rows],
        dur_ns=[(end - start) * US for _, _, start, end in rows],
        track=[lanes[track[2]] for track, _, _, _ in rows],
        frame=[numbers.index(line) for _, line, _, _ in rows],
    )
    sources = {"/my/train.py": "\n".join(dict(text).get(i, "x") for i in range(1, 99))} if text else {}
    return dataclasses.replace(trace, names=names, frames=frames, lines=lines, sources=sources)


def gap(*more, other=CPU2):
    """The GPU is idle from 20 to 5010 us, between two launches of the main thread; another thread exists."""
    return make_timeline(
        *kernel(1, 0, 10, 20), (Kind.MARK, "here", other, 0, 1), *more, *kernel(2, 5_000, 5_010, 5_030)
    )


def cause_times(trace):
    return idle_times(trace)[0]


def test_a_thread_that_stays_on_its_line_while_another_runs_python_waits_for_the_gil():
    times, idle = idle_times(lined(gap(), STUCK, *SPIN))

    assert times == {"head": 10, "host.gil": 4_980, "launch.bound": 10}
    (row,) = idle.take(idle.cause == CAUSES.index("host.gil")).track
    assert gap().tracks[row].name == "helper"


def test_without_lines_nothing_is_said_of_the_gil():
    assert cause_times(gap()) == {"head": 10, "host.late": 4_980, "launch.bound": 10}


def test_lines_of_the_waiting_thread_alone_do_not_say_who_held_the_gil():
    assert "host.gil" not in cause_times(lined(gap(), STUCK))


@pytest.mark.parametrize(
    "runs",
    [
        [(CPU2, 50, 0, 6_000)],  # in one wait all the while
        [(CPU2, 50, 30, 6_000)],
        [(CPU2, 50 + i % 2, 1_200 * i, 1_200 * i + 1_190) for i in range(5)],  # short naps
        SPIN[:5],  # ran, but not for long
        [(CPU2, 50, 100 * i, 100 * i + 20) for i in range(40)],
    ],
)
def test_another_thread_that_sleeps_does_not_hold_the_gil(runs):
    assert "host.gil" not in cause_times(lined(gap(), STUCK, *runs))


def test_longer_lines_count_if_their_text_does_not_wait():
    longer = [(CPU2, 50 + i % 2, 1_200 * i, 1_200 * i + 1_190) for i in range(5)]
    works, waits = {50: "a = parse(text)", 51: "b = sorted(a)"}, {50: "time.sleep(0.001)", 51: "a = queue.get()"}

    assert cause_times(lined(gap(), STUCK, *longer, text=works))["host.gil"] == 4_980
    assert "host.gil" not in cause_times(lined(gap(), STUCK, *longer, text=waits))


def test_short_naps_are_known_by_their_text():
    waits = {50: "time.sleep(0.0001)", 51: "time.sleep(0.0001)", 52: "time.sleep(0.0001)"}

    assert "host.gil" not in cause_times(lined(gap(), STUCK, *SPIN, text=waits))


def test_one_long_line_counts_if_it_calls_only_what_keeps_the_gil():
    def held(text):
        return cause_times(lined(gap(), STUCK, (CPU2, 50, 0, 6_000), text={50: text})).get("host.gil", 0)

    assert held("total = sum(i * i for i in range(1_000_000))") == 4_980
    assert held("total = sum(fetch(i) for i in range(100))") == 0
    assert held("answer = requests.post(url)") == 0
    assert held("for line in stream:") == 0


def test_a_function_too_busy_to_be_watched_holds_the_gil():
    assert cause_times(lined(gap(), STUCK, (CPU2, NONE, 0, 6_000)))["host.gil"] == 4_980


def test_functions_that_the_profiler_recorded_count_as_lines_do():
    calls = [(Kind.PYTHON, "augment.py(3): one", CPU2, 100 * i, 100 * i + 90) for i in range(1, 49)]

    assert cause_times(lined(gap(*calls), STUCK))["host.gil"] == 4_980


def test_a_thread_inside_an_operator_or_call_does_not_wait_for_the_gil():
    for kind, name in ((Kind.OP, "aten::normal_"), (Kind.CALL, "cudaDeviceSynchronize")):
        assert "host.gil" not in cause_times(lined(gap((kind, name, CPU, 10, 4_990)), STUCK, *SPIN))


def test_a_line_reached_without_an_operator_may_itself_sleep():
    assert "host.gil" not in cause_times(lined(gap(), (CPU, 7, 0, 6), (CPU, 8, 6, 5_100), *SPIN))
    assert "host.gil" not in cause_times(lined(gap(), (CPU, 7, 0, 60), (CPU, 8, 60, 5_100), *SPIN))


def test_only_the_time_on_the_line_counts():
    times = cause_times(lined(gap(), (CPU, 7, 0, 2_000), (CPU, 8, 2_000, 5_100), *SPIN))

    assert (times["host.gil"], times["host.late"]) == (1_980, 3_000)


def test_a_thread_of_another_process_has_a_gil_of_its_own():
    runs = [(OTHER_PROCESS, *rest) for _, *rest in SPIN]

    assert "host.gil" not in cause_times(lined(gap(other=OTHER_PROCESS), STUCK, *runs))


def test_the_collector_comes_before_the_gil_and_the_gil_before_the_effect_of_a_wait():
    trace = make_timeline(
        *kernel(1, 0, 10, 1_000),
        (Kind.CALL, "cudaDeviceSynchronize", CPU, 20, 1_005, 9),
        (Kind.MARK, "Python GC", CPU, 1_010, 1_110),
        (Kind.MARK, "here", CPU2, 0, 1),
        *kernel(2, 4_000, 4_010, 4_030),
    )

    alone, beside = cause_times(trace), cause_times(lined(trace, STUCK, *SPIN))

    assert alone == {"head": 10, "stall": 2_910, "host.gc": 100}
    assert beside == {"head": 10, "stall": 15, "host.gc": 100, "host.gil": 2_895}


def stuck_steps(number):
    """Steps in each of which the main thread waits for the GIL for 4 ms, and the lines of both threads."""
    rows, runs = [(Kind.MARK, "here", CPU2, 0, 1)], []
    for i in range(number):
        at = 10_000 * i
        rows += [*kernel(i + 1, at, at + 10, at + 6_000), (Kind.OP, "aten::relu", CPU, at + 5_800, at + 6_000)]
        runs.append((CPU, 7, at, at + 10_000))
        runs += [(CPU2, 50, at + 6_000 + 100 * j, at + 6_100 + 100 * j) for j in range(40)]
    return lined(make_timeline(*rows, *kernel(99, 10_000 * number, 10_000 * number + 10, 10_000 * number + 20)), *runs)


def test_the_finding_names_the_line_that_held_the_gil_and_the_thread_that_waited():
    (found,) = [f for f in examine(stuck_steps(4)).findings if f.kind == "host.gil"]

    assert (found.rule, found.thread, found.place.line, found.count) == ("IDLE010", "helper", 50, 4)
    assert found.idle_ns == 4 * 4_000 * US
    assert found.notes == ("thread main waited at train.py:7",)


def test_a_function_without_lines_is_named_in_a_note():
    trace = lined(gap(), STUCK, (CPU2, NONE, 0, 6_000))

    (found,) = [f for f in examine(trace).findings if f.kind == "host.gil"]

    assert found.place is None
    assert found.notes == (
        "it ran step in train.py, too busy to be watched line by line",
        "thread main waited at train.py:7",
    )


def test_the_table_of_idle_time_names_it_and_sums_exactly():
    found = audit(stuck_steps(4))

    assert found.idle["host.gil"] == 4 * 4_000 * US
    assert sum(found.idle.values()) == sum(device.idle_ns for device in found.devices)
    assert [row.place.line for row in found.idle_rows if row.cause == "host.gil"] == [50]


RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 900)), min_size=1, max_size=30)


@given(RUNS, RUNS, st.lists(st.integers(10, 900), min_size=2, max_size=8))
def test_each_nanosecond_has_one_cause_whatever_the_lines(mine, others, launches):
    rows, at = [(Kind.MARK, "here", CPU2, 0, 1)], 0
    for corr, wait in enumerate(launches, 1):
        rows += kernel(corr, at, at + 10, at + 30, gpu=GPU)
        at += 10 + wait
    runs = []
    for track, parts in ((CPU, mine), (CPU2, others)):
        start = 0
        for line, took in parts:
            runs.append((track, line or NONE, start, start + took))
            start += took
    trace = lined(make_timeline(*rows), *runs)

    _, idle = idle_times(trace)

    low, high = int(trace.spans.start_ns.min()), int(trace.spans.end_ns.max())
    assert idle.dur_ns.sum() == high - low - length(busy(trace, 0, 0))
    assert np.all(idle.start_ns[1:] >= (idle.start_ns + idle.dur_ns)[:-1])
