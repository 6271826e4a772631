"""Timers of a run: R marks clock reads, w the launched work on the GPU."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from tests.conftest import CPU, CPU2, GPU, GPU_S2, US, make_timeline
from tracer.analysis.launches import find_launches
from tracer.analysis.source_timers import find_pairs
from tracer.analysis.timer_verdicts import judge_timers
from tracer.analysis.timers import find_timings
from tracer.building import TraceBuilder
from tracer.trace import EventTimings, Kind, Reads, Trace

FILE = "bench.py"
SOURCE = """import time, torch
t0 = time.perf_counter()
y = x @ w
t1 = time.perf_counter()
print(t1 - t0)
z = y.cpu()
t2 = time.perf_counter()
print(t2 - t1)
"""


def launch(corr: int, at: float, starts: float, ends: float, stream=GPU):
    """A launch of 5 us and its kernel."""
    return (Kind.CALL, "cudaLaunchKernel", CPU, at, at + 5, corr), (Kind.KERNEL, f"k{corr}", stream, starts, ends, corr)


def with_reads(rows, reads, *, source: str = SOURCE, clock: str = "time.perf_counter") -> Trace:
    """A timeline with clock reads at (time_us, line)."""
    trace = make_timeline(*rows)
    builder = TraceBuilder()
    names = [*trace.names, FILE, "<module>", clock]
    frames = {line: number for number, line in enumerate(dict.fromkeys(line for _, line in reads))}
    for line in frames:
        builder.frame(FILE, line, "<module>")
    built = builder.build().frames
    size = len(reads)
    frames_table = type(built).of(
        function=[names.index("<module>")] * len(built),
        file=[names.index(FILE)] * len(built),
        line=built.line,
        column=built.column,
        end_column=built.end_column,
        parent=built.parent,
    )
    table = Reads.of(
        time_ns=[t * US for t, _ in reads],
        track=[trace.tracks.index(next(t for t in trace.tracks if not t.on_gpu))] * size,
        clock=[names.index(clock)] * size,
        value_ns=[t * US + 7_000_000 for t, _ in reads],
        frame=[frames[line] for _, line in reads],
    )
    return replace(
        trace, names=tuple(names), frames=frames_table, reads=table, sources={FILE: source} if source else {}
    )


def judge(trace: Trace, **options):
    return judge_timers(trace, find_timings(trace, find_launches(trace)), **options)


def test_a_timer_that_stops_before_the_gpu_claims_only_the_launches():
    #  R(0) launch(10..15) R(20)
    #                  GPU [ 20 ............... 1020 ]
    trace = with_reads([*launch(1, 10, 20, 1020)], [(0, 2), (20, 4)])

    (timer,) = judge(trace)

    assert timer.verdict == "bench.no_sync"
    assert (timer.claimed_ns, timer.true_ns, timer.ratio) == (20 * US, 1000 * US, 50.0)
    assert timer.still_running_ns == 1000 * US
    assert (timer.start.line, timer.end.line) == (2, 4)


def test_a_slow_host_that_stops_before_the_last_kernel_is_over_lies_too():
    #  R(0) launch(10..15) ... launch(890..895) R(900)      GPU [20..120] and [900 ... 1300]
    trace = with_reads([*launch(1, 10, 20, 120), *launch(2, 890, 900, 1300)], [(0, 2), (900, 4)])

    (timer,) = judge(trace)

    assert timer.verdict == "bench.no_sync"
    assert timer.ratio == 1300 / 900


def test_a_timer_that_waits_at_its_end_is_honest():
    rows = [*launch(1, 10, 20, 1020), (Kind.CALL, "cudaDeviceSynchronize", CPU, 16, 1022)]
    trace = with_reads(rows, [(0, 2), (1030, 4)])

    (timer,) = judge(trace)

    assert (timer.verdict, timer.rule) == ("honest", "")
    assert "its 1 synchronisations stop the pipeline" in timer.message


def test_older_work_behind_the_start_dirties_it():
    #  launch k1   R(100)  launch k2           sync   R(2120)
    #     GPU [ 20 ...k1... 2000 ][2000 k2 2100]
    rows = [*launch(1, 10, 20, 2000), *launch(2, 105, 2000, 2100), (Kind.CALL, "cudaDeviceSynchronize", CPU, 111, 2110)]
    trace = with_reads(rows, [(100, 2), (2120, 4)])

    (timer,) = judge(trace)

    assert timer.verdict == "bench.dirty_start"
    assert (timer.ran_in_ns, timer.true_ns) == (1900 * US, 100 * US)


def test_older_work_that_the_host_does_not_wait_for_dirties_nothing():
    #  launch k1   R(100) ..... the host works ..... R(1500)
    #     GPU [ 20 ............ k1 ............ 1400 ]
    trace = with_reads([*launch(1, 10, 20, 1400)], [(100, 2), (1500, 4)])

    (timer,) = judge(trace)

    assert timer.verdict == "honest"


def test_a_section_of_host_work_is_not_charged_for_the_one_before():
    trace = with_reads([*launch(1, 10, 20, 1020)], [(0, 2), (20, 4), (1500, 7)])

    model, host = judge(trace)

    assert (model.verdict, host.verdict) == ("bench.no_sync", "honest")


def test_what_another_thread_launches_is_not_timed_by_one_that_launches_nothing():
    #  main:   R(0) ............... R(500)
    #  helper:       launch(100)            GPU [ 110 ................. 2000 ]
    idle = (Kind.CALL, "cudaEventCreate", CPU, 1, 2)
    rows = [idle, (Kind.CALL, "cudaLaunchKernel", CPU2, 100, 105, 1), (Kind.KERNEL, "k1", GPU, 110, 2000, 1)]

    (timer,) = judge(with_reads(rows, [(0, 2), (500, 4)]))

    assert (timer.verdict, timer.true_ns) == ("honest", None)


def test_the_section_that_waits_is_charged_for_the_one_that_worked():
    #  R(0) launch k1 R(20) launch copy, wait  R(1100)
    rows = [
        *launch(1, 10, 20, 1020),
        (Kind.CALL, "cudaMemcpyAsync", CPU, 25, 30, 2),
        (Kind.COPY, "Memcpy DtoH (Device -> Pageable)", GPU, 1020, 1030, 2),
        (Kind.CALL, "cudaStreamSynchronize", CPU, 31, 1050),
    ]
    trace = with_reads(rows, [(0, 2), (20, 4), (1100, 7)])

    model, copy_out = judge(trace)

    assert (model.verdict, copy_out.verdict) == ("bench.no_sync", "bench.misattributed")
    assert copy_out.end.line == 7


def test_the_first_run_is_cold():
    source = (
        "import time, torch\nfor r in range(4):\n    t0 = time.time()\n    f(x)\n    torch.cuda.synchronize()\n"
        "    times.append(time.time() - t0)\n"
    )
    rows, reads, at = [], [], 0
    for corr, took in enumerate((5000, 100, 110, 90), 1):
        rows += [*launch(corr, at + 1, at + took - 60, at + took - 10)]
        rows.append((Kind.CALL, "cudaDeviceSynchronize", CPU, at + 7, at + took - 5))
        reads += [(at, 3), (at + took, 6)]
        at += took + 50
    trace = with_reads(rows, reads, source=source, clock="time.time")

    (timer,) = judge(trace)

    assert timer.verdict == "bench.no_warmup"
    assert timer.first_over_median == 50.0
    assert timer.count == 4


def test_a_cold_first_run_that_is_not_added_to_the_others_is_no_lie():
    rows, reads, at = [], [], 0
    for corr, took in enumerate((5000, 100, 110, 90), 1):
        rows += [*launch(corr, at + 1, at + took - 60, at + took - 10)]
        rows.append((Kind.CALL, "cudaDeviceSynchronize", CPU, at + 7, at + took - 5))
        reads += [(at, 2), (at + took, 4)]
        at += took + 50

    (timer,) = [t for t in judge(with_reads(rows, reads)) if t.start.line == 2]

    assert timer.verdict == "honest"


USES = {
    "times.append(time.time() - t0)\nprint(sum(times) / len(times))": True,
    "took = time.time() - t0\n    times.append(took)\nprint(mean(times))": True,
    "took = time.time() - t0\n    total += took": True,
    "total += time.time() - t0": True,
    "times.append(time.time() - t0)\nprint(min(times), mean(times))": True,
    "times.append(e0.elapsed_time(e1))\nprint(mean(times))": True,
    "print(time.time() - t0)": False,
    "took = time.time() - t0\n    if turn > 3: times.append(took)\nprint(mean(times))": False,
    "times.append(time.time() - t0)\nprint(statistics.median(times))": False,
    "times.append(time.time() - t0)\nprint(mean(times[3:]))": False,
    "took = time.time() - t0\n    times.append(took)\nprint(sorted(times)[len(times) // 2])": False,
    "ms = e0.elapsed_time(e1)\n    if turn > 3: times.append(ms)\nprint(mean(times))": False,
    "times.append(e0.elapsed_time(e1))\nprint(np.percentile(times, 50))": False,
}


@pytest.mark.parametrize(("use", "counted"), USES.items())
def test_a_cold_first_time_counts_where_it_is_added_to_the_others(use, counted):
    text = "import time\nfor turn in range(9):\n    e0.record()\n    t0 = time.time()\n    f(x)\n    e1.record()\n    "

    (pair,) = find_pairs(ast.parse(text + use))

    assert pair.collected == counted


def test_a_timer_kept_in_an_attribute_is_found_across_methods():
    source = (
        "import time, torch\nclass M:\n    def start(self):\n        self.t = time.time()\n"
        "    def stop(self):\n        return time.time() - self.t\n"
    )
    trace = with_reads([*launch(1, 10, 20, 1020)], [(0, 4), (20, 6)], source=source, clock="time.time")

    (timer,) = judge(trace)

    assert (timer.verdict, timer.end.line) == ("bench.no_sync", 6)


def test_blocking_launches_are_named_before_anything_else():
    trace = with_reads([*launch(1, 10, 20, 1020)], [(0, 2), (20, 4)])

    (timer,) = judge(trace, blocking=True)

    assert timer.rule == "TIME009"


def test_dates_in_a_log_are_no_timer():
    source = "import time, torch\nlog(time.time())\ny = x @ w\nlog(time.time())\n"
    trace = with_reads([*launch(1, 10, 20, 1020)], [(0, 2), (20, 4)], source=source, clock="time.time")

    assert judge(trace) == ()


ROLLING = """import time, torch
end = time.time()
for batch in loader:
    train(batch)
    took.update(time.time() - end)
    end = time.time()
"""


@pytest.mark.parametrize("half_us", [450, 250])
def test_a_timer_read_once_a_turn_hands_on_what_it_was_handed(half_us):
    #  turns of 1000 us:  R  launch forward [    ] wait  launch backward R    (which outlives the turn)
    rows, reads = [], [(0, 2)]
    for turn in range(5):
        at, corr = 1000 * turn, 2 * turn + 1
        rows += launch(corr, at + 480, at + 490, at + 490 + half_us)
        rows.append((Kind.CALL, "cudaStreamSynchronize", CPU, at + 486, at + 495 + half_us))
        rows += launch(corr + 1, at + 980, at + 990, at + 990 + half_us)
        reads += [(at + 1000, 5), (at + 1000, 6)]

    first, others = judge(with_reads(rows, reads, source=ROLLING, clock="time.time"))

    assert (others.start.line, others.end.line, others.count) == (6, 5, 4)
    assert (others.claimed_ns, others.verdict) == (1000 * US, "honest")
    assert (first.start.line, first.end.line, first.count) == (2, 5, 1)


def test_a_timer_read_once_a_turn_lies_if_nothing_waits():
    rows, reads = [], [(0, 2)]
    for turn in range(5):
        rows += launch(turn + 1, 20 * turn + 2, 5 + 1000 * turn, 1005 + 1000 * turn)
        reads += [(20 * turn + 10, 5), (20 * turn + 10, 6)]

    timers = judge(with_reads(rows, reads, source=ROLLING, clock="time.time"))

    assert {timer.verdict for timer in timers} == {"bench.no_sync"}


def test_a_deadline_is_no_timer_even_of_an_interval_clock():
    source = (
        "import time, torch\nt0 = time.perf_counter()\nwhile True:\n    y = x @ w\n"
        "    if time.perf_counter() - t0 > 9: break\n"
    )
    trace = with_reads([*launch(1, 10, 20, 1020)], [(0, 2), (20, 5)], source=source)

    assert judge(trace) == ()


def test_stamps_in_a_list_are_paired_where_neighbours_are_subtracted():
    source = (
        "import time, torch\nt = [time.time()]\ny = x @ w\nt.append(time.time())\nz = y.cpu()\nt.append(time.time())\n"
        "print([b - a for a, b in zip(t, t[1:])])\n"
    )
    rows = [*launch(1, 10, 20, 1020), (Kind.CALL, "cudaStreamSynchronize", CPU, 31, 1050)]
    trace = with_reads(rows, [(0, 2), (20, 4), (1100, 6)], source=source, clock="time.time")

    assert [(t.start.line, t.end.line, t.verdict) for t in judge(trace)] == [
        (2, 4, "bench.no_sync"),
        (4, 6, "bench.misattributed"),
    ]


def test_without_source_an_interval_clock_pairs_with_its_next_read():
    trace = with_reads([*launch(1, 10, 20, 1020)], [(0, 2), (20, 4)], source="")

    (timer,) = judge(trace)

    assert timer.verdict == "bench.no_sync"


@pytest.mark.parametrize(
    ("claimed_us", "stream", "recorded_on", "verdict"),
    [
        (1000, GPU, 0, "honest"),
        (9, GPU, 0, "bench.launch_overhead"),
        (5, GPU_S2, 0, "bench.other_stream"),
        (1000, GPU_S2, 0x7F00, "honest"),
        (-1, GPU, 0, "bench.event_not_ready"),
    ],
)
def test_event_pairs(claimed_us, stream, recorded_on, verdict):
    took = 2 if verdict == "bench.launch_overhead" else 990
    trace = make_timeline(*launch(9, 0, 6, 7), *launch(1, 10, 20, 20 + took, stream))
    events = EventTimings.of(
        time_ns=[2000 * US],
        track=[0],
        claimed_ns=[claimed_us * US if claimed_us > 0 else -1],
        start_ns=[8 * US],
        end_ns=[16 * US],
        start_stream=[recorded_on],
        end_stream=[recorded_on],
        frame=[-1],
    )

    (timer,) = judge(replace(trace, event_timings=events))

    assert timer.verdict == verdict
