import dataclasses
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import CPU, CPU2, GPU, GPU1, GPU_S2, US, make_timeline
from tracer.analysis.idle import CAUSES, find_idle, idle_of, window_of
from tracer.analysis.intervals import clip, length
from tracer.analysis.launches import busy, find_launches
from tracer.analysis.stalls import find_stalls
from tracer.trace import NONE, Kind


def idle_times(trace, device=0):
    """Microseconds of idle time by cause on one device, and its rows."""
    launches = find_launches(trace)
    idle = find_idle(trace, launches, find_stalls(trace, launches))
    idle = idle.take(idle.device == device)
    sums = defaultdict(float)
    for cause, ns in zip(idle.cause, idle.dur_ns, strict=True):
        sums[CAUSES[cause]] += ns / US
    return dict(sums), idle


def kernel(corr, call_us, start_us, end_us, cpu=CPU, gpu=GPU):
    return [
        (Kind.CALL, "cudaLaunchKernel", cpu, call_us, call_us + 5, corr),
        (Kind.KERNEL, "k", gpu, start_us, end_us, corr),
    ]


def test_before_the_first_work_is_the_head_and_after_the_last_the_tail():
    trace = make_timeline(*kernel(1, 100, 110, 200), (Kind.OP, "aten::add", CPU, 0, 300))

    assert idle_times(trace)[0] == {"head": 110, "tail": 100}


def test_the_stated_window_bounds_head_and_tail():
    trace = dataclasses.replace(make_timeline(*kernel(1, 100, 110, 200)), window_ns=(50 * US, 240 * US))

    assert idle_times(trace)[0] == {"head": 60, "tail": 40}


@pytest.mark.parametrize("window_us", [(0, 300), (50, 150), (110, 115), (205, 300), (0, 5)])
def test_windows_that_cut_or_miss_the_work_sum_exactly_too(window_us):
    low, high = (us * US for us in window_us)
    trace = make_timeline(
        *kernel(1, 0, 10, 100), *kernel(2, 90, 120, 200), (Kind.KERNEL, "no time", GPU1, 50, 50, NONE)
    )

    for device in (0, 1):
        _, idle = idle_times(dataclasses.replace(trace, window_ns=(low, high)), device)
        worked = clip(busy(trace, 0, device), low, high)
        assert idle.dur_ns.sum() == high - low - length(worked)


def test_work_launched_before_the_window_is_work():
    trace = make_timeline((Kind.KERNEL, "early", GPU, 0, 50), *kernel(1, 60, 70, 100))

    assert idle_times(trace)[0] == {"launch.bound": 20}


def test_a_gap_with_slow_python_between_launches_is_launch_bound():
    trace = make_timeline(*kernel(1, 0, 5, 10), *kernel(2, 40, 45, 60))

    assert idle_times(trace)[0] == {"head": 5, "launch.bound": 35}


def test_a_short_gap_between_queued_work_is_the_devices_own():
    trace = make_timeline(*kernel(1, 0, 10, 50), *kernel(2, 12, 52, 90))

    assert idle_times(trace)[0] == {"head": 10, "gpu.gap": 2}


def test_a_long_gap_before_queued_work_waits_on_the_device():
    trace = make_timeline(*kernel(1, 0, 10, 50), *kernel(2, 12, 250, 300))

    assert idle_times(trace)[0] == {"head": 10, "gpu.wait": 200}


def test_idle_time_after_a_wait_is_that_waits_until_the_host_is_ahead_again():
    trace = make_timeline(
        *kernel(1, 0, 10, 1_000),
        (Kind.CALL, "cudaDeviceSynchronize", CPU, 20, 1_005, 9),
        *kernel(2, 1_080, 1_090, 1_290),
        *kernel(3, 1_100, 1_291, 1_400),
        *kernel(4, 1_450, 1_460, 1_500),
    )

    times, idle = idle_times(trace)

    # 1000-1090 follows from the wait; kernel 3 found 2 running, so the gap before 4 is the host's own.
    assert times == {"head": 10, "stall": 90, "gpu.gap": 1, "host.late": 50, "launch.bound": 10}
    assert idle.stall[idle.cause == CAUSES.index("stall")].tolist() == [0, 0]


def test_a_wait_that_lost_no_lead_is_not_to_blame_for_what_follows():
    trace = make_timeline(
        *kernel(1, 0, 10, 20),
        (Kind.CALL, "cudaDeviceSynchronize", CPU, 30, 35, 9),
        *kernel(2, 90, 95, 100),
    )

    times, _ = idle_times(trace)

    assert times == {"head": 10, "stall": 5, "launch.bound": 70}  # only while it lasted


def test_a_wait_answers_for_no_more_than_ten_times_the_lead_that_it_lost():
    trace = make_timeline(
        *kernel(1, 0, 10, 60),
        (Kind.CALL, "cudaDeviceSynchronize", CPU, 40, 60, 9),  # 20 us of the kernel are left
        *kernel(2, 5_060, 5_065, 5_100),
    )

    times, _ = idle_times(trace)

    assert times["stall"] == 200
    assert times["host.late"] + times.get("launch.bound", 0) == 5_005 - 200


def test_the_next_wait_takes_over():
    trace = make_timeline(
        *kernel(1, 0, 10, 1_000),
        (Kind.CALL, "cudaDeviceSynchronize", CPU, 20, 1_000, 8),
        (Kind.CALL, "cudaMalloc", CPU, 1_050, 1_080, 9),
        *kernel(2, 1_090, 1_100, 1_200),
    )

    _, idle = idle_times(trace)

    by_stall = {s: int(idle.dur_ns[idle.stall == s].sum() / US) for s in (0, 1)}
    assert by_stall[0] == 50
    assert by_stall[1] == 30


def test_waiting_for_the_loader_is_input_bound_even_after_a_wait():
    trace = make_timeline(
        *kernel(1, 0, 10, 1_000),
        (Kind.CALL, "cudaDeviceSynchronize", CPU, 20, 1_000, 8),
        (Kind.MARK, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", CPU, 1_010, 3_000),
        *kernel(2, 3_020, 3_030, 3_100),
    )

    times, _ = idle_times(trace)

    assert times == {"head": 10, "stall": 40, "input.bound": 1_990}


def test_garbage_collection_and_compilation_are_named():
    trace = make_timeline(
        *kernel(1, 0, 10, 20),
        (Kind.PYTHON, "Python GC", CPU, 30, 130),
        (Kind.MARK, "compile_fx.<locals>.inner (dynamo_timed)", CPU, 150, 450),
        *kernel(2, 480, 490, 500),
    )

    times, _ = idle_times(trace)

    assert (times["host.gc"], times["compile.jit"]) == (100, 300)


def test_a_long_operator_on_the_cpu_is_hot_and_one_that_launches_is_not():
    trace = make_timeline(
        *kernel(1, 0, 10, 20),
        (Kind.OP, "aten::normal_", CPU, 30, 530),
        (Kind.OP, "aten::mul", CPU, 540, 740),
        *kernel(2, 600, 700, 800),
    )

    times, _ = idle_times(trace)

    assert times["host.hot"] == 500
    assert times["launch.bound"] == 180


def test_a_long_stretch_without_operators_is_a_late_host():
    trace = make_timeline(*kernel(1, 0, 10, 20), *kernel(2, 1_000, 1_010, 1_020))

    assert idle_times(trace)[0] == {"head": 10, "host.late": 980, "launch.bound": 10}


def test_the_first_use_of_an_operator_sets_libraries_up():
    trace = make_timeline(
        *kernel(1, 0, 10, 20),
        (Kind.OP, "aten::mm", CPU, 30, 2_030),
        *kernel(2, 2_000, 2_005, 2_100),
        (Kind.OP, "aten::mm", CPU, 2_200, 4_200),
        *kernel(3, 4_150, 4_160, 4_200),
    )

    times, _ = idle_times(trace)

    assert times["load.library"] == 1_970  # from the start of the first mm to its launch, not of the second


def test_the_profilers_own_work_comes_first():
    overhead = (Kind.OVERHEAD, "Activity Buffer Request", (0, NONE, 0, NONE, ""), 30, 80)
    trace = make_timeline(
        *kernel(1, 0, 10, 20), (Kind.CALL, "cudaMalloc", CPU, 30, 90, 7), overhead, *kernel(2, 95, 100, 110)
    )

    times, _ = idle_times(trace)

    assert (times["profiler"], times["stall"]) == (50, 10)


def test_a_gap_is_asked_of_the_thread_that_ends_it():
    trace = make_timeline(
        *kernel(1, 0, 10, 20),
        (Kind.CALL, "cudaMalloc", CPU2, 25, 85, 7),  # another thread, which launches nothing
        *kernel(2, 90, 95, 110),
    )

    assert idle_times(trace)[0] == {"head": 10, "launch.bound": 75}


def test_the_main_thread_is_asked_when_the_launching_one_only_waited_for_it():
    trace = make_timeline(
        *kernel(1, 0, 10, 20),
        *kernel(2, 22, 27, 30),
        (Kind.CALL, "cudaMalloc", CPU, 40, 85, 7),
        *kernel(3, 90, 95, 110, cpu=CPU2),  # a backward thread takes over
    )

    times, _ = idle_times(trace)

    assert times["stall"] == 45


def test_another_device_has_its_own_idle_time():
    trace = make_timeline(*kernel(1, 0, 10, 100), *kernel(2, 20, 50, 60, gpu=GPU1), *kernel(3, 80, 85, 90, gpu=GPU1))

    assert idle_times(trace, 0)[0] == {"head": 10}
    assert idle_times(trace, 1)[0] == {"head": 50, "launch.bound": 25, "tail": 10}


def test_a_copy_from_a_peer_keeps_the_device_busy():
    trace = make_timeline(
        *kernel(1, 0, 10, 20),
        (Kind.CALL, "cudaMemcpyPeerAsync", CPU, 12, 15, 2),
        (Kind.COPY, "Memcpy PtoP (Device -> Device)", GPU_S2, 20, 80, 2),
        *kernel(3, 16, 80, 100),
    )

    assert idle_times(trace)[0] == {"head": 10}


def test_work_whose_launch_is_not_in_the_trace_is_asked_of_the_launching_thread():
    trace = make_timeline(*kernel(1, 0, 10, 20), (Kind.KERNEL, "orphan", GPU, 60, 70))

    assert idle_times(trace)[0] == {"head": 10, "launch.bound": 40}


def test_without_any_thread_the_cause_is_unknown():
    trace = make_timeline((Kind.KERNEL, "a", GPU, 0, 20), (Kind.KERNEL, "b", GPU, 60, 70))

    assert idle_times(trace)[0] == {"unknown": 40}


def test_a_stall_answers_for_all_its_rows():
    trace = make_timeline(
        *kernel(1, 0, 10, 1_000),
        (Kind.CALL, "cudaDeviceSynchronize", CPU, 20, 1_005, 9),
        *kernel(2, 1_080, 1_090, 1_290),
    )
    launches = find_launches(trace)
    stalls = find_stalls(trace, launches)

    assert idle_of(stalls, find_idle(trace, launches, stalls)).tolist() == [90 * US]


HOST = st.tuples(
    st.sampled_from(["aten::add", "cudaStreamSynchronize", "cudaMalloc", "enumerate(DataLoader)"]), st.integers(1, 400)
)
WORK = st.lists(
    st.tuples(st.integers(1, 300), st.integers(0, 200), st.integers(1, 300), st.booleans()), min_size=1, max_size=15
)


@given(WORK, st.lists(st.tuples(st.integers(0, 3_000), HOST), max_size=12))
def test_rows_are_disjoint_and_sum_to_the_idle_time_exactly(work, host):
    rows, at = [], 0
    for corr, (gap, delay, took, main) in enumerate(work, 1):
        at += gap
        rows += kernel(corr, at, at + delay, at + delay + took, cpu=CPU if main else CPU2)
    kinds = {"aten::add": Kind.OP, "enumerate(DataLoader)": Kind.MARK}
    rows += [(kinds.get(name, Kind.CALL), name, CPU, start, start + took, NONE) for start, (name, took) in host]
    trace = make_timeline(*rows)

    _, idle = idle_times(trace)

    low, high = window_of(trace)
    assert idle.dur_ns.sum() == high - low - length(busy(trace, 0, 0))
    order = np.argsort(idle.start_ns)
    assert np.all(idle.start_ns[order][1:] >= (idle.start_ns + idle.dur_ns)[order][:-1])
    assert np.all(idle.dur_ns > 0)


def test_a_device_whose_work_took_no_time_is_idle_all_the_while():
    trace = make_timeline(*kernel(1, 100, 110, 200), *kernel(2, 300, 320, 320, gpu=GPU1), *kernel(3, 400, 410, 500))

    assert sum(idle_times(trace)[0].values()) == 500 - 100 - 90 - 90
    assert idle_times(trace, device=1)[0] == {"head": 400}


def test_a_device_whose_work_lies_outside_the_window_is_idle_in_it():
    trace = make_timeline(*kernel(1, 100, 110, 200), *kernel(2, 600, 620, 700, gpu=GPU1))
    trace = dataclasses.replace(trace, window_ns=(100 * US, 300 * US))

    assert idle_times(trace, device=1)[0] == {"head": 200}
