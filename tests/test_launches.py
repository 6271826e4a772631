import numpy as np

from tests.conftest import CPU, GPU, GPU1, GPU_S2, US, make_timeline
from tracer.analysis.launches import busy, find_devices, find_launches, lead, queue_depth
from tracer.trace import NONE, Kind


def test_gap_runs_from_end_of_launch_to_start_of_kernel(timeline):
    trace = timeline(
        (Kind.CALL, "cudaLaunchKernel", CPU, 0, 5, 1),
        (Kind.KERNEL, "gemm", GPU, 105, 200, 1),
    )

    launches = find_launches(trace)

    assert launches.gap_ns.tolist() == [100_000]
    assert launches.delay_ns.tolist() == [105_000]


def test_a_graph_launch_owns_all_its_kernels(timeline):
    trace = timeline(
        (Kind.CALL, "cudaGraphLaunch", CPU, 0, 5, 9),
        *[(Kind.KERNEL, f"node{i}", GPU, 10 + i, 11 + i, 9) for i in range(4)],
    )

    launches = find_launches(trace)

    assert len(launches) == 4
    assert np.unique(launches.call).tolist() == [0]


def test_negative_gaps_are_reported_and_not_clipped(timeline):
    trace = timeline(
        (Kind.KERNEL, "early", GPU, 0, 20, 1),
        (Kind.CALL, "cudaLaunchKernel", CPU, 100, 105, 1),
    )

    assert find_launches(trace).delay_ns.tolist() == [-100_000]


def test_the_same_correlation_in_another_process_is_another_launch():
    other_cpu, other_gpu = (1, 200, 200, NONE, "main"), (1, 200, 7, 0, "stream 7")
    trace = make_timeline(
        (Kind.CALL, "cudaLaunchKernel", CPU, 0, 5, 1),
        (Kind.CALL, "cudaLaunchKernel", other_cpu, 50, 55, 1),
        (Kind.KERNEL, "mine", GPU, 20, 30, 1),
        (Kind.KERNEL, "yours", other_gpu, 90, 99, 1),
        (Kind.KERNEL, "nobody's", other_gpu, 120, 130, 4),
    )

    assert find_launches(trace).delay_ns.tolist() == [20 * US, 40 * US]


def test_a_device_row_without_a_process_takes_the_one_that_calls():
    trace = make_timeline(
        (Kind.CALL, "cudaLaunchKernel", CPU, 0, 5, 1),
        (Kind.KERNEL, "gemm", (0, NONE, 7, 0, ""), 20, 30, 1),
    )

    assert find_launches(trace).delay_ns.tolist() == [20 * US]


def test_waits_and_calls_without_a_partner_launch_nothing(timeline):
    trace = timeline(
        (Kind.CALL, "cudaStreamSynchronize", CPU, 0, 5, 3),
        (Kind.WAIT, "Stream Sync", GPU, 0, 5, 3),
        (Kind.KERNEL, "orphan", GPU, 7, 8, 4),
    )

    assert len(find_launches(trace)) == 0


def queue(timeline):
    return timeline(
        (Kind.CALL, "cudaLaunchKernel", CPU, 0, 10, 1),
        (Kind.CALL, "cudaLaunchKernel", CPU, 10, 20, 2),
        (Kind.CALL, "cudaLaunchKernel", CPU, 20, 30, 3),
        (Kind.KERNEL, "a", GPU, 10, 60, 1),
        (Kind.KERNEL, "b", GPU, 60, 100, 2),
        (Kind.KERNEL, "c", GPU_S2, 30, 130, 3),
        (Kind.COPY, "other device", GPU1, 0, 1, 99),
    )


def test_depth_rises_at_each_call_and_falls_as_work_ends(timeline):
    trace = queue(timeline)
    stream = next(i for i, t in enumerate(trace.tracks) if t.lane == 7 and t.device == 0)

    times, depth = queue_depth(trace, find_launches(trace), stream)

    assert list(zip(times // US, depth, strict=True)) == [(0, 1), (10, 2), (60, 1), (100, 0)]


def test_lead_is_the_work_that_is_queued_and_not_yet_done(timeline):
    trace = queue(timeline)

    times, ahead = lead(trace, find_launches(trace), 0, 0)

    assert dict(zip((times // US).tolist(), (ahead // US).tolist(), strict=True)) == {
        10: 50,  # a is queued and starts
        20: 80,  # a has done 10, b adds 40
        30: 170,  # a has done 20, c adds 100 and starts
        60: 110,  # a is over; c has done 30
        100: 30,  # b is over; c has done 70
        130: 0,
    }


def test_busy_is_the_union_over_streams_of_one_device(timeline):
    trace = queue(timeline)

    starts, ends = busy(trace, 0, 0)

    assert (starts.tolist(), ends.tolist()) == ([10 * US], [130 * US])
    assert find_devices(trace) == [(0, 0), (0, 1)]
