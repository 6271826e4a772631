"""Replays whose answers are worked out on paper, and recordings of an H200."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import CPU, CPU2, GPU, GPU_S2, make_timeline
from tests.shared import H200
from tracer.analysis.calls import Does
from tracer.analysis.launches import find_launches
from tracer.analysis.replay import Removal, predict
from tracer.analysis.stalls import find_stalls
from tracer.analysis.steps import find_steps
from tracer.readers import load
from tracer.trace import NONE, Kind, Steps, WaitDetails

US = 1_000


def steps_of(count, length, one_step):
    """Rows of `count` equal steps, each marked; `one_step(start, number)` gives its rows."""
    rows = []
    for number in range(count):
        start = number * length
        rows.append((Kind.MARK, f"ProfilerStep#{number}", CPU, start, start + length))
        rows.extend(one_step(start, number))
    return rows


def removing(trace, *fixes):
    """Predict with one removal for each (name of the waiting call or of the op around it, how)."""
    launches = find_launches(trace)
    stalls = find_stalls(trace, launches)
    removals = []
    for number, (name, how) in enumerate(fixes):
        mine = trace.name_rows(name)
        chosen = mine[stalls.call] | ((stalls.op != NONE) & mine[stalls.op])
        removals.append(Removal(number, stalls.call[chosen], stalls.op[chosen], how))
    return predict(trace, launches, stalls, find_steps(trace), removals)


def likely_us(prediction, number=0):
    return prediction.gains[number].likely_ns / US


def test_one_stream_without_its_wait_runs_at_the_pace_of_the_gpu(timeline):
    # Host: 5 launch + 1 + wait until 115 + 55. Kernel: 100. Without the wait the host needs 61, the stream 100 + 1.
    trace = timeline(
        *steps_of(
            4,
            170,
            lambda t, n: [
                (Kind.CALL, "cudaLaunchKernel", CPU, t, t + 5, 10 * n + 1),
                (Kind.KERNEL, "gemm", GPU, t + 10, t + 110, 10 * n + 1),
                (Kind.CALL, "cudaStreamSynchronize", CPU, t + 6, t + 115, 10 * n + 2),
            ],
        )
    )

    found = removing(trace, ("cudaStreamSynchronize", "no_wait"))

    assert found.replay.recorded_ns == found.replay.replayed_ns == 170 * US
    assert likely_us(found) == 170 - 101
    assert found.gains[0].bottleneck == "the GPU"
    assert found.gains[0].low_ns <= found.gains[0].likely_ns
    assert found.gains[0].clock == "traced"
    assert found.gains[0].share == pytest.approx(69 / 170, abs=1e-3)


def test_a_wait_that_host_work_follows_gains_what_the_host_can_hide(timeline):
    # Host: 5 + 1 + 194 = 200 without the wait, more than the kernel's 100: the host is what is left.
    trace = timeline(
        *steps_of(
            4,
            309,
            lambda t, n: [
                (Kind.CALL, "cudaLaunchKernel", CPU, t, t + 5, 10 * n + 1),
                (Kind.KERNEL, "gemm", GPU, t + 10, t + 110, 10 * n + 1),
                (Kind.CALL, "cudaStreamSynchronize", CPU, t + 6, t + 115, 10 * n + 2),
            ],
        )
    )

    found = removing(trace, ("cudaStreamSynchronize", "no_wait"))

    assert likely_us(found) == 309 - 200
    assert found.gains[0].bottleneck == "the host"


def test_removing_the_first_of_two_reads_moves_the_wait_to_the_second(timeline):
    # Host alone: 5 + 1 + (read 1) + 5 + (read 2) + 79 = 90; the stream: 101.
    def one(t, n):
        return [
            (Kind.CALL, "cudaLaunchKernel", CPU, t, t + 5, 10 * n + 1),
            (Kind.KERNEL, "gemm", GPU, t + 10, t + 110, 10 * n + 1),
            (Kind.OP, "aten::first", CPU, t + 6, t + 115),
            (Kind.CALL, "cudaStreamSynchronize", CPU, t + 6, t + 115, 10 * n + 2),
            (Kind.OP, "aten::second", CPU, t + 120, t + 121),
            (Kind.CALL, "cudaStreamSynchronize", CPU, t + 120, t + 121, 10 * n + 3),
        ]

    found = removing(timeline(*steps_of(4, 200, one)), ("aten::first", "no_wait"), ("aten::second", "no_wait"))

    # Alone the first gains at most the 5 us of host work that now runs beside the kernel, and its own calls.
    assert likely_us(found, 0) <= 9
    assert likely_us(found, 1) <= 1
    assert found.replay.together.likely_ns / US == 200 - 101


def test_a_stream_that_waits_for_another_still_does_without_the_host_wait(timeline):
    # Each step: 60 us on stream 7, then 60 us on stream 20 that waits for it, and stream 7 waits for that in turn.
    def one(t, n, back):
        c = 10 * n
        rows = [
            (Kind.CALL, "cudaLaunchKernel", CPU, t + 1, t + 4, c + 1),
            (Kind.KERNEL, "first", GPU, t + 10, t + 70, c + 1),
            (Kind.CALL, "cudaStreamWaitEvent", CPU, t + 5, t + 6, c + 2),
            (Kind.CALL, "cudaLaunchKernel", CPU, t + 7, t + 10, c + 3),
            (Kind.KERNEL, "second", GPU_S2, t + 71, t + 131, c + 3),
            (Kind.CALL, "cudaStreamSynchronize", CPU, t + 12, t + 135, c + 4),
        ]
        return rows + ([(Kind.CALL, "cudaStreamWaitEvent", CPU, t, t + 1, c + 5)] if back else [])

    apart = removing(
        timeline(*steps_of(6, 140, lambda t, n: one(t, n, back=False))), ("cudaStreamSynchronize", "no_wait")
    )
    in_turn = removing(
        timeline(*steps_of(6, 140, lambda t, n: one(t, n, back=True))), ("cudaStreamSynchronize", "no_wait")
    )

    assert likely_us(apart) == pytest.approx(140 - 61, abs=1)  # the streams overlap across steps
    assert likely_us(in_turn) == pytest.approx(140 - 122, abs=4)  # they cannot
    assert apart.replay.error < 0.001
    assert in_turn.replay.error < 0.001


def test_a_full_queue_holds_the_host_at_the_measured_limit(timeline):
    # 1,100 launches of 5 us, kernels of 200 us: the queue is full after 1,000 or so, then each launch takes 200 us.
    launches, kernel, limit = 1_100, 200, 1_000
    rows, now = [(Kind.MARK, "ProfilerStep#0", CPU, 0, 300_000)], 0
    for i in range(launches):
        free = 10 + kernel * (i - limit + 1) + 1 if i >= limit else 0
        end = max(now + 5, free)
        rows.append((Kind.CALL, "cudaLaunchKernel", CPU, now, end, i + 1))
        rows.append((Kind.KERNEL, "gemm", GPU, 10 + kernel * i, 10 + kernel * (i + 1), i + 1))
        now = end
    sync = 10 + kernel * launches + 5
    rows.append((Kind.CALL, "cudaDeviceSynchronize", CPU, now + 1, sync, 5_000))
    trace = timeline(*rows)

    found = removing(trace, ("cudaLaunchKernel", "no_queue_wait"), ("cudaDeviceSynchronize", "no_wait"))

    # 300 ms a step, of which the GPU works 220 and the host 5.5 + 80 by itself; the limit adds 15 while it launches.
    assert found.replay.recorded_ns == 300_000 * US
    assert found.replay.error < 0.001
    assert likely_us(found, 0) < 100  # the wait at the end is still there
    assert likely_us(found, 1) == pytest.approx(300_000 - 220_000, rel=0.01)
    assert find_launches(trace).call.size == launches


def test_autograd_thread_and_main_thread_take_turns(timeline):
    # Main: 5 launch, 45 host. Autograd's thread: 5 launch, then reads and waits. Kernels 20 + 100.
    def one(t, n):
        c = 10 * n
        return [
            (Kind.CALL, "cudaLaunchKernel", CPU, t, t + 5, c + 1),
            (Kind.KERNEL, "forward", GPU, t + 10, t + 30, c + 1),
            (Kind.CALL, "cudaLaunchKernel", CPU2, t + 20, t + 25, c + 2),
            (Kind.KERNEL, "backward", GPU, t + 31, t + 131, c + 2),
            (Kind.CALL, "cudaStreamSynchronize", CPU2, t + 26, t + 135, c + 3),
            (Kind.CALL, "cudaLaunchKernel", CPU, t + 145, t + 150, c + 4),
            (Kind.KERNEL, "step", GPU, t + 155, t + 165, c + 4),
        ]

    found = removing(timeline(*steps_of(4, 200, one)), ("cudaStreamSynchronize", "no_wait"))

    # One chain: 5 + 15 + 5 + 1 + 10 + 5 + 50 = 91 host; stream 20 + 100 + 10 and 3 spacings of 1.
    assert found.replay.error < 0.001
    assert likely_us(found) == pytest.approx(200 - 133, abs=1)


def test_a_thread_that_launches_beside_the_main_one_does_not_hold_it(timeline):
    def one(t, n):
        c = 100 * n
        rows = [
            (Kind.CALL, "cudaLaunchKernel", CPU, t, t + 5, c + 1),
            (Kind.KERNEL, "gemm", GPU, t + 10, t + 110, c + 1),
            (Kind.CALL, "cudaStreamSynchronize", CPU, t + 6, t + 115, c + 2),
        ]
        for i in range(8):
            rows.append((Kind.CALL, "cudaLaunchKernel", CPU2, t + 20 * i + 3, t + 20 * i + 13, c + 10 + i))
            rows.append((Kind.KERNEL, "side", GPU_S2, t + 20 * i + 15, t + 20 * i + 20, c + 10 + i))
        return rows

    found = removing(timeline(*steps_of(6, 170, one)), ("cudaStreamSynchronize", "no_wait"))

    assert found.replay.error < 0.001
    assert likely_us(found) == pytest.approx(170 - 101, abs=2)


def test_a_graph_launch_is_one_piece_of_work(timeline):
    def one(t, n):
        c = 10 * n
        return [
            (Kind.CALL, "cudaGraphLaunch", CPU, t, t + 8, c + 1),
            (Kind.KERNEL, "a", GPU, t + 20, t + 50, c + 1),
            (Kind.KERNEL, "b", GPU, t + 52, t + 80, c + 1),
            (Kind.KERNEL, "c", GPU_S2, t + 52, t + 120, c + 1),
            (Kind.CALL, "cudaStreamSynchronize", CPU, t + 10, t + 125, c + 2),
        ]

    found = removing(timeline(*steps_of(4, 160, one)), ("cudaStreamSynchronize", "no_wait"))

    assert found.replay.error < 0.001
    assert likely_us(found) == pytest.approx(160 - 101, abs=1)  # 20 to 120 is one piece of 100


def test_a_pageable_upload_becomes_a_short_copy_that_nobody_waits_for(timeline):
    # 5,000,000 bytes: 1,000 us as recorded, 100 us at 50 bytes/ns. Then a kernel of 300 us.
    def one(t, n):
        c = 10 * n
        return [
            (Kind.OP, "aten::to", CPU, t, t + 1_020),
            (Kind.CALL, "cudaMemcpyAsync", CPU, t + 5, t + 1_010, c + 1, NONE),
            (Kind.COPY, "Memcpy HtoD (Pageable -> Device)", GPU, t + 10, t + 1_010, c + 1, 5_000_000),
            (Kind.CALL, "cudaStreamSynchronize", CPU, t + 1_011, t + 1_015, c + 2),
            (Kind.CALL, "cudaLaunchKernel", CPU, t + 1_025, t + 1_030, c + 3),
            (Kind.KERNEL, "gemm", GPU, t + 1_035, t + 1_335, c + 3),
        ]

    found = removing(timeline(*steps_of(4, 1_400, one)), ("aten::to", "pinned_upload"))

    # GPU: 100 + 1.5 + 300 and spacings; host: well below.
    assert found.replay.error < 0.001
    assert likely_us(found) == pytest.approx(1_400 - 403, abs=3)
    assert found.gains[0].low_ns < found.gains[0].likely_ns


def test_a_device_bound_program_gains_nothing_and_is_told_so(timeline):
    def one(t, n):
        return [
            (Kind.CALL, "cudaLaunchKernel", CPU, t, t + 5, 10 * n + 1),
            (Kind.KERNEL, "gemm", GPU, t + 10, t + 9_980, 10 * n + 1),
            (Kind.CALL, "cudaStreamSynchronize", CPU, t + 6, t + 9_985, 10 * n + 2),
        ]

    found = removing(timeline(*steps_of(4, 10_000, one)), ("cudaStreamSynchronize", "no_wait"))

    assert found.gains[0].share < 0.003
    assert [v.id for v in found.verdicts] == ["device_bound"]
    assert found.verdicts[0].share < 0.003


def test_a_launch_bound_program_is_sent_to_graphs_not_to_its_syncs(timeline):
    def one(t, n):
        rows = []
        for i in range(10):
            rows.append((Kind.CALL, "cudaLaunchKernel", CPU, t + 50 * i, t + 50 * i + 10, 100 * n + i + 1))
            rows.append((Kind.KERNEL, "small", GPU, t + 50 * i + 12, t + 50 * i + 16, 100 * n + i + 1))
        rows.append((Kind.CALL, "cudaStreamSynchronize", CPU, t + 496, t + 499, 100 * n + 50))
        return rows

    found = removing(timeline(*steps_of(4, 500, one)), ("cudaStreamSynchronize", "no_wait"))

    assert [v.id for v in found.verdicts] == ["launch_bound"]
    assert found.verdicts[0].share == pytest.approx(1 - 40 / 500, abs=0.01)


def test_without_launches_nothing_is_predicted(timeline):
    trace = timeline((Kind.KERNEL, "gemm", GPU, 0, 100, 1), (Kind.OP, "aten::mm", CPU, 0, 5))

    found = removing(trace, ("cudaStreamSynchronize", "no_wait"))

    assert found.gains == (None,)
    assert found.replay.abstained


def stalls_by_kind(trace):
    """The stalls of a recording as removals: what a rule for each would say."""
    launches = find_launches(trace)
    stalls = find_stalls(trace, launches)
    how = {Does.STREAM_WAIT: "no_wait", Does.DEVICE_WAIT: "drop", Does.EVENT_WAIT: "no_wait", Does.MALLOC: "no_alloc"}
    removals = []
    for does, word in how.items():
        mine = np.flatnonzero(stalls.does == does)
        if len(mine):
            removals.append(Removal(len(removals), stalls.call[mine], stalls.op[mine], word))
    return launches, stalls, removals


@pytest.mark.parametrize("name", ["train_sync", "IS14", "IS15", "IS22", "IS23", "ddp_2gpu_rank0", "TH01", "LB01"])
def test_recordings_replay_as_they_were(name):
    trace = load(H200 / f"{name}.json.gz")
    launches, stalls, removals = stalls_by_kind(trace)

    found = predict(trace, launches, stalls, find_steps(trace), removals)

    assert found.replay.error < 0.02
    assert not found.replay.abstained


def test_two_recordings_with_equal_waits_gain_very_differently():
    gains = {}
    for name in ("IS22", "IS23"):
        trace = load(H200 / f"{name}.json.gz")
        launches, stalls, removals = stalls_by_kind(trace)
        gains[name] = predict(trace, launches, stalls, find_steps(trace), removals).gains[0]

    assert gains["IS22"].share < 0.03  # the device is the bottleneck
    assert gains["IS23"].share > 0.25  # host and device take turns


def test_a_million_spans_take_seconds_for_all_findings():
    trace = tiled(load(H200 / "train_sync.json.gz"), 68)
    launches, stalls, removals = stalls_by_kind(trace)
    removals = removals * 4

    started = time.process_time()
    found = predict(trace, launches, stalls, find_steps(trace), removals)

    assert len(trace.spans) > 1_000_000
    assert found.replay.error < 0.001
    assert time.process_time() - started < 5


def tiled(trace, times):
    """A trace again and again, one copy after the other."""
    from tracer.building import TraceBuilder

    spans = trace.spans
    period = int(spans.end_ns.max() - spans.start_ns.min()) + US
    builder = TraceBuilder()
    for name in trace.names:
        builder.name(name)
    for t in trace.tracks:
        builder.track(t.rank, t.pid, t.lane, t.device, t.name)
    for copy in range(times):
        corr = np.where(spans.corr > 0, spans.corr + copy * 10_000_000, spans.corr)
        start = spans.start_ns + copy * period
        builder.add_spans(start, spans.dur_ns, spans.kind, spans.name, spans.track, corr, spans.nbytes)
    return builder.build()


class Machine:
    """A host with two streams, run call by call: what the replay must agree with."""

    LAUNCH, LATENCY, SPACING, SYNC, TAIL = 5, 8, 1, 3, 2

    def __init__(self):
        self.now, self.free, self.held = 0, [0, 0], [0, 0]
        self.rows, self.corr = [], 0

    def host(self, us):
        self.now += us

    def launch(self, stream, us):
        self.corr += 1
        start = max(self.now + self.LATENCY, self.free[stream] + self.SPACING, self.held[stream] + self.SPACING)
        self.rows.append((Kind.CALL, "cudaLaunchKernel", CPU, self.now, self.now + self.LAUNCH, self.corr))
        self.rows.append((Kind.KERNEL, "work", (GPU, GPU_S2)[stream], start, start + us, self.corr))
        self.free[stream] = start + us
        self.now += self.LAUNCH

    def hold(self, stream):
        """This stream waits for what the other has been given."""
        self.held[stream] = max(self.held[stream], self.free[1 - stream])
        corr = 10_000 + len(self.rows)
        self.rows.append((Kind.CALL, "cudaStreamWaitEvent", CPU, self.now, self.now + 1, corr))
        self.rows.append((Kind.WAIT, "Stream Wait Event", (GPU, GPU_S2)[stream], self.now, self.now + 1, corr))
        self.now += 1

    def trace(self):
        """What was recorded; the records of waiting streams name the stream that waits, as those of CUPTI do."""
        trace = make_timeline(*self.rows)
        spans = trace.spans
        waits = np.flatnonzero(spans.kind == Kind.WAIT)
        none = np.full(len(waits), NONE)
        lanes = [trace.tracks[track].lane for track in spans.track[waits]]
        details = WaitDetails.of(
            span=waits, stream=lanes, source_stream=none, source_corr=none, device=np.zeros(len(waits))
        )
        return replace(trace, waits=details)

    def sync(self):
        start, self.now = self.now, max(self.now + self.SYNC, max(self.free) + self.TAIL)
        self.rows.append((Kind.CALL, "cudaDeviceSynchronize", CPU, start, self.now, 50_000 + len(self.rows)))

    def steps(self, count, program, *, waits):
        for number in range(count):
            start = self.now
            for name, *arguments in program:
                if name != "sync" or waits:
                    getattr(self, name)(*arguments)
            self.rows.append((Kind.MARK, f"ProfilerStep#{number}", CPU, start, self.now))
        return max(self.now, *self.free)


CALLS = st.one_of(
    st.tuples(st.just("host"), st.integers(1, 300)),
    st.tuples(st.just("launch"), st.integers(0, 1), st.integers(2, 300)),
    st.tuples(st.just("sync")),
    st.tuples(st.just("hold"), st.integers(0, 1)),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(CALLS, min_size=2, max_size=14))
def test_agrees_with_a_machine_that_is_run_call_by_call(calls):
    # Both streams work in each step before any waits for the other, so that the trace shows who waits for whom.
    program = [("launch", 0, 10), ("launch", 1, 10), *calls, ("launch", 0, 20), ("sync",)]
    recorded = Machine()
    recorded.steps(8, program, waits=True)
    free = Machine()
    pace = (free.steps(60, program, waits=False) - Machine().steps(30, program, waits=False)) / 30

    found = removing(recorded.trace(), ("cudaDeviceSynchronize", "no_wait"))

    step = found.replay.recorded_ns
    assert found.replay.error < 0.001
    assert (step - found.gains[0].likely_ns) / US == pytest.approx(pace, rel=0.02, abs=6)


def test_without_steps_the_loop_of_a_repeated_wait_is_the_step(timeline):
    # Set-up of 5 ms and one early read, then 10 times: 100 us kernel, two reads, 60 us host.
    def one(t, c):
        return [
            (Kind.CALL, "cudaLaunchKernel", CPU, t, t + 5, c + 1),
            (Kind.KERNEL, "gemm", GPU, t + 10, t + 110, c + 1),
            (Kind.OP, "aten::item", CPU, t + 6, t + 115),
            (Kind.CALL, "cudaStreamSynchronize", CPU, t + 6, t + 115, c + 2),
            (Kind.OP, "aten::item", CPU, t + 116, t + 119),
            (Kind.CALL, "cudaStreamSynchronize", CPU, t + 116, t + 119, c + 3),
        ]

    rows = one(0, 0)
    for n in range(10):
        rows.extend(one(5_000 + 180 * n, 10 * (n + 1)))

    found = removing(timeline(*rows), ("aten::item", "no_wait"))

    assert found.replay.recorded_ns in (90 * US, 180 * US)  # a read, or a burst of two, is a repetition
    assert found.gains[0].share == pytest.approx(1 - 101 / 180, abs=0.03)
    assert any("aten::item came again" in limit for limit in found.limits)


def test_copies_of_one_direction_share_an_engine_across_streams(timeline):
    def one(t, c):
        return [
            (Kind.CALL, "cudaMemcpyAsync", CPU, t, t + 5, c + 1),
            (Kind.COPY, "Memcpy HtoD (Pinned -> Device)", GPU, t + 10, t + 110, c + 1, 5_000_000),
            (Kind.CALL, "cudaMemcpyAsync", CPU, t + 6, t + 11, c + 2),
            (Kind.COPY, "Memcpy HtoD (Pinned -> Device)", GPU_S2, t + 110, t + 210, c + 2, 5_000_000),
            (Kind.CALL, "cudaDeviceSynchronize", CPU, t + 12, t + 215, c + 3),
        ]

    found = removing(timeline(*steps_of(6, 250, lambda t, n: one(t, 10 * n))), ("cudaDeviceSynchronize", "no_wait"))

    assert found.replay.error < 0.001
    assert likely_us(found) == pytest.approx(250 - 201, abs=2)  # not 250 - 101, as two free streams would have it


def test_each_rank_is_replayed_by_itself(timeline):
    # Rank 0 has 55 us of host work after its wait, rank 1 has 155: its step is the slower one.
    def rank(number, host):
        cpu, gpu = (number, 100 + number, 1, NONE, "main"), (number, 100 + number, 7, 0, "stream 7")
        rows, length = [], 115 + host
        for n in range(4):
            t = n * length
            rows += [
                (Kind.MARK, f"ProfilerStep#{n}", cpu, t, t + length),
                (Kind.CALL, "cudaLaunchKernel", cpu, t, t + 5, 10 * n + 1),
                (Kind.KERNEL, "gemm", gpu, t + 10, t + 110, 10 * n + 1),
                (Kind.CALL, "cudaStreamSynchronize", cpu, t + 6, t + 115, 10 * n + 2),
            ]
        return rows

    trace = timeline(*rank(0, 55), *rank(1, 155))
    launches = find_launches(trace)
    stalls = find_stalls(trace, launches)
    ranks = np.array([t.rank for t in trace.tracks])[stalls.track]
    removals = [
        Removal(number, stalls.call[ranks == number], stalls.op[ranks == number], "no_wait") for number in (0, 1)
    ]

    found = predict(trace, launches, stalls, find_steps(trace), removals)

    assert likely_us(found, 0) == pytest.approx(170 - 101, abs=1)
    assert likely_us(found, 1) == pytest.approx(270 - 161, abs=1)
    assert found.replay.recorded_ns == 270 * US
    assert any("each rank" in limit for limit in found.limits)


@pytest.mark.parametrize("streams", [1, 2, 3, 9, 40])
def test_a_window_may_have_fewer_works_than_the_trace_has_streams(timeline, streams):
    def one_step(t, n):
        for stream in range(streams):
            at, corr, name = t + 20 * stream, 100 * n + stream + 1, "Memcpy HtoD (Pinned -> Device)"
            yield (Kind.CALL, "cudaMemcpyAsync", CPU, at, at + 5, corr)
            yield (Kind.COPY, name, (0, 100, 7 + stream, 0, f"stream {stream}"), at + 8, at + 25, corr)
        yield (Kind.CALL, "cudaStreamSynchronize", CPU, t + 20 * streams, t + 20 * streams + 30, 100 * n + 99)

    trace = timeline(*steps_of(2, 20 * streams + 40, one_step))

    for how in ("no_wait", "drop", "pinned_upload", "later_download"):
        assert not removing(trace, ("cudaStreamSynchronize", how), ("cudaMemcpyAsync", how)).replay.abstained


def test_a_tensor_of_python_numbers_that_is_dropped_takes_its_making_with_it(timeline):
    # 10 us empty, 100 us numbers, upload and wait until 200, lift_fresh, detach_; then a kernel of 50 us.
    def one(t, c):
        return [
            (Kind.OP, "aten::empty", CPU, t, t + 10),
            (Kind.OP, "aten::to", CPU, t + 110, t + 200),
            (Kind.CALL, "cudaMemcpyAsync", CPU, t + 115, t + 120, c + 1),
            (Kind.COPY, "Memcpy HtoD (Pageable -> Device)", GPU, t + 125, t + 130, c + 1, 8_192),
            (Kind.CALL, "cudaStreamSynchronize", CPU, t + 121, t + 195, c + 2),
            (Kind.OP, "aten::lift_fresh", CPU, t + 201, t + 202),
            (Kind.OP, "aten::detach_", CPU, t + 203, t + 205),
            (Kind.CALL, "cudaLaunchKernel", CPU, t + 210, t + 215, c + 3),
            (Kind.KERNEL, "gemm", GPU, t + 220, t + 270, c + 3),
        ]

    found = removing(timeline(*steps_of(4, 230, lambda t, n: one(t, 10 * n))), ("aten::to", "drop"))

    # Host: 230 - 205 = 25; stream: 51.
    assert likely_us(found) == pytest.approx(230 - 51, abs=1)


def with_call(name, end, host_after, **extra):
    """A step of a kernel launch, a call of `end` us, and host work."""

    def one(t, c):
        return [
            (Kind.CALL, name, CPU, t, t + end, c + 5),
            (Kind.CALL, "cudaLaunchKernel", CPU, t + end + 1, t + end + 6, c + 1),
            (Kind.KERNEL, "gemm", GPU, t + end + 11, t + end + 31, c + 1),
        ]

    return steps_of(4, end + 6 + host_after, lambda t, n: one(t, 10 * n))


def test_an_allocation_that_is_gone_gives_its_host_time_back(timeline):
    found = removing(timeline(*with_call("cudaMalloc", 500, 94)), ("cudaMalloc", "no_alloc"))

    assert likely_us(found) == pytest.approx(500, abs=1)
    assert found.gains[0].bottleneck == "the host"


def test_a_kernel_that_is_loaded_before_launches_as_fast_as_others(timeline):
    # One launch in each step takes 2,000 us since it loads; the others take 5.
    def one(t, c):
        return [
            (Kind.CALL, "cudaLaunchKernel", CPU, t, t + 2_000, c + 1),
            (Kind.KERNEL, "cold", GPU, t + 2_003, t + 2_010, c + 1),
            *(row for i in range(4) for row in small(t + 2_010 + 20 * i, c + 2 + i)),
        ]

    def small(t, c):
        return [(Kind.CALL, "cudaLaunchKernel", CPU, t, t + 5, c), (Kind.KERNEL, "warm", GPU, t + 9, t + 12, c)]

    trace = timeline(*steps_of(4, 2_100, lambda t, n: one(t, 10 * n)))
    launches = find_launches(trace)
    cold = np.flatnonzero((trace.spans.dur_ns == 2_000 * US) & trace.name_rows("cudaLaunchKernel"))
    removal = Removal(0, cold.astype(np.int32), np.full(len(cold), NONE, np.int32), "loaded")

    found = predict(trace, launches, find_stalls(trace, launches), find_steps(trace), [removal])

    assert likely_us(found) == pytest.approx(2_000 - 5, abs=2)


def test_a_download_that_is_read_a_step_later_is_short_and_holds_nobody(timeline):
    # 5,000,000 bytes: 1,000 us as recorded, 100 us at the link's speed, after a kernel of 300 us.
    def one(t, c):
        return [
            (Kind.CALL, "cudaLaunchKernel", CPU, t, t + 5, c + 1),
            (Kind.KERNEL, "gemm", GPU, t + 10, t + 310, c + 1),
            (Kind.OP, "aten::copy_", CPU, t + 6, t + 1_330),
            (Kind.CALL, "cudaMemcpyAsync", CPU, t + 8, t + 1_315, c + 2),
            (Kind.COPY, "Memcpy DtoH (Device -> Pageable)", GPU, t + 311, t + 1_311, c + 2, 5_000_000),
            (Kind.CALL, "cudaStreamSynchronize", CPU, t + 1_316, t + 1_320, c + 3),
        ]

    found = removing(timeline(*steps_of(4, 1_400, lambda t, n: one(t, 10 * n))), ("aten::copy_", "later_download"))

    assert likely_us(found) == pytest.approx(1_400 - 300 - 100 - 3, abs=4)


def launch_bound_steps(length_us, untraced_us):
    """Ten recorded steps of a host that launches ten small kernels, and ten untraced ones before."""

    def one(t, c):
        rows = [(Kind.OP, "aten::mul", CPU, t + 45 * i, t + 45 * i + 20) for i in range(10)]
        rows += [(Kind.CALL, "cudaLaunchKernel", CPU, t + 45 * i + 5, t + 45 * i + 10, c + i + 1) for i in range(10)]
        rows += [(Kind.KERNEL, "small", GPU, t + 45 * i + 14, t + 45 * i + 44, c + i + 1) for i in range(10)]
        return [*rows, (Kind.CALL, "cudaStreamSynchronize", CPU, t + 456, t + 460, c + 20)]

    rows = [row for n in range(10) for row in one(10_000 + n * length_us, 100 * n)]
    return with_steps(make_timeline(*rows), length_us, untraced_us)


def with_steps(trace, length_us, untraced_us):
    """The trace with ten untraced steps before the ten recorded ones, which begin at 10 ms."""
    main = next(i for i, track in enumerate(trace.tracks) if not track.on_gpu)
    start = [*(n * untraced_us for n in range(10)), *(10_000 + n * length_us for n in range(10))]
    steps = Steps.of(
        start_ns=np.array(start) * US,
        dur_ns=np.repeat([untraced_us, length_us], 10) * US,
        number=np.arange(20),
        track=np.full(20, main),
        traced=np.repeat([False, True], 10),
    )
    return replace(trace, steps=steps)


def test_gains_are_said_on_the_programs_own_clock_where_it_is_known():
    found = removing(launch_bound_steps(500, 420), ("cudaStreamSynchronize", "no_wait"))

    assert found.gains[0].clock == "untraced"
    assert found.replay.recorded_ns == 500 * US
    # On the traced clock the wait costs 5 us; on the program's own the host is faster and waits longer.
    assert found.gains[0].likely_ns / 420e3 == pytest.approx(found.gains[0].share, abs=1e-3)
    assert not any("slower" in limit for limit in found.limits)


def test_what_recording_added_outside_of_ops_and_calls_is_the_hosts_and_not_the_gpus():
    # Recorded: kernel of 100, then 115 of Python without ops: 230. Untraced 200: the kernel is as long, Python shorter.
    rows = []
    for n in range(10):
        t = 10_000 + 230 * n
        rows.append((Kind.CALL, "cudaLaunchKernel", CPU, t, t + 5, 10 * n + 1))
        rows.append((Kind.KERNEL, "gemm", GPU, t + 10, t + 110, 10 * n + 1))
        rows.append((Kind.CALL, "cudaStreamSynchronize", CPU, t + 6, t + 115, 10 * n + 2))

    found = removing(with_steps(make_timeline(*rows), 230, 200), ("cudaStreamSynchronize", "no_wait"))

    assert found.gains[0].clock == "untraced"
    assert likely_us(found) == pytest.approx(200 - 101, abs=2)
    assert found.gains[0].bottleneck == "the GPU"


def test_a_recording_that_slowed_the_program_much_gives_a_range():
    found = removing(launch_bound_steps(500, 350), ("cudaStreamSynchronize", "no_wait"))

    assert any("1.43 times slower" in limit for limit in found.limits)
    assert found.gains[0].low_ns <= found.gains[0].likely_ns


def test_untraced_steps_that_are_shorter_than_their_gpu_work_tell_no_pace():
    found = removing(launch_bound_steps(500, 200), ("cudaStreamSynchronize", "no_wait"))

    assert found.gains[0].clock == "traced"
    assert any("ran ahead" in limit for limit in found.limits)


def test_a_replay_that_does_not_give_back_the_recording_predicts_nothing(timeline):
    # A stream that runs its work in another order than it was launched: no replay in order gives that back.
    def one(t, c):
        return [
            (Kind.CALL, "cudaLaunchKernel", CPU, t, t + 5, c + 1),
            (Kind.CALL, "cudaLaunchKernel", CPU, t + 6, t + 11, c + 2),
            (Kind.KERNEL, "second", GPU, t + 15, t + 65, c + 2),
            (Kind.KERNEL, "first", GPU, t + 80, t + 90, c + 1),
            (Kind.CALL, "cudaStreamSynchronize", CPU, t + 12, t + 95, c + 3),
        ]

    found = removing(timeline(*steps_of(4, 100, lambda t, n: one(t, 10 * n))), ("cudaStreamSynchronize", "no_wait"))

    assert found.replay.error == pytest.approx(0.205)
    assert found.gains == (None,)
    assert "off by 20.5%; above 3% nothing is predicted" in found.replay.abstained
    assert found.verdicts == ()


def test_a_first_step_that_the_window_slowed_and_a_rare_accident_are_left_out(timeline):
    lengths = [300, 170, 170, 170, 170, 170, 170, 900, 170, 170]
    rows, t = [], 0
    for n, length in enumerate(lengths):
        rows += [
            (Kind.MARK, f"ProfilerStep#{n}", CPU, t, t + length),
            (Kind.CALL, "cudaLaunchKernel", CPU, t, t + 5, 10 * n + 1),
            (Kind.KERNEL, "gemm", GPU, t + 10, t + 110, 10 * n + 1),
            (Kind.CALL, "cudaStreamSynchronize", CPU, t + 6, t + 115, 10 * n + 2),
        ]
        t += length

    found = removing(timeline(*rows), ("cudaStreamSynchronize", "no_wait"))

    assert found.replay.recorded_ns == 170 * US
    assert likely_us(found) == pytest.approx(170 - 101, abs=1)
