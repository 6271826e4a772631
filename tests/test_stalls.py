import dataclasses

import pytest

from tests.conftest import CPU, CPU2, GPU, US, make_timeline
from tracer.analysis.calls import Does, what_it_does
from tracer.analysis.launches import find_launches
from tracer.analysis.stalls import find_stalls
from tracer.trace import NONE, Kind

WORK = [
    (Kind.OP, "aten::mm", CPU, 0, 10),
    (Kind.CALL, "cudaLaunchKernel", CPU, 2, 8, 1),
    (Kind.KERNEL, "gemm", GPU, 10, 5_000, 1),
]
ITEM = [
    (Kind.OP, "aten::item", CPU, 20, 5_030),
    (Kind.OP, "aten::_local_scalar_dense", CPU, 22, 5_028),
    (Kind.CALL, "cudaMemcpyAsync", CPU, 25, 35, 2),
    (Kind.CALL, "cudaStreamSynchronize", CPU, 40, 5_020, 3),
    (Kind.COPY, "Memcpy DtoH (Device -> Pinned)", GPU, 5_001, 5_003, 2, 4),
]


def stalls_of(trace):
    return find_stalls(trace, find_launches(trace))


def named(trace, rows):
    return [trace.names[trace.spans.name[row]] if row != NONE else None for row in rows]


def test_a_copy_and_the_wait_after_it_are_one_wait():
    trace = make_timeline(*WORK, *ITEM)

    stalls = stalls_of(trace)

    assert named(trace, stalls.call) == ["cudaStreamSynchronize"]
    assert named(trace, stalls.op) == ["aten::item"]
    assert named(trace, stalls.copy) == ["Memcpy DtoH (Device -> Pinned)"]
    assert (stalls.start_ns[0], stalls.dur_ns[0]) == (40 * US, 4_980 * US)


def test_a_wait_starts_with_its_copy_if_the_copy_call_was_held():
    trace = make_timeline(
        *WORK,
        (Kind.OP, "aten::copy_", CPU, 20, 5_030),
        (Kind.CALL, "cudaMemcpyAsync", CPU, 25, 5_000, 2),
        (Kind.CALL, "cudaStreamSynchronize", CPU, 5_005, 5_020, 3),
        (Kind.COPY, "Memcpy DtoH (Device -> Pageable)", GPU, 5_001, 5_003, 2, 4),
    )

    stalls = stalls_of(trace)

    assert named(trace, stalls.call) == ["cudaStreamSynchronize"]
    assert (stalls.start_ns[0], stalls.end_ns[0]) == (25 * US, 5_020 * US)


def test_the_lead_that_a_wait_costs_is_the_work_that_was_queued():
    trace = make_timeline(*WORK, *ITEM)

    stalls = stalls_of(trace)

    assert stalls.lead_ns.tolist() == [(5_000 - 40 + 2) * US]  # what is left of the product at 40 us, and the copy
    assert named(trace, stalls.last_work) == ["Memcpy DtoH (Device -> Pinned)"]


def test_a_read_with_nothing_to_wait_for_is_a_wait_all_the_same():
    trace = make_timeline(
        (Kind.OP, "aten::item", CPU, 0, 30),
        (Kind.CALL, "cudaMemcpyAsync", CPU, 5, 8, 2),
        (Kind.CALL, "cudaStreamSynchronize", CPU, 10, 14, 3),
        (Kind.COPY, "Memcpy DtoH (Device -> Pinned)", GPU, 9, 11, 2, 4),
    )

    assert len(stalls_of(trace)) == 1


def test_two_waits_below_one_operator_are_one_call():
    trace = make_timeline(
        (Kind.OP, "aten::repeat_interleave", CPU, 0, 100),
        (Kind.OP, "aten::item", CPU, 10, 40),
        (Kind.CALL, "cudaStreamSynchronize", CPU, 12, 38, 1),
        (Kind.OP, "aten::item", CPU, 50, 80),
        (Kind.CALL, "cudaStreamSynchronize", CPU, 52, 78, 2),
        (Kind.OP, "aten::item", CPU, 110, 130),
        (Kind.CALL, "cudaStreamSynchronize", CPU, 112, 128, 3),
    )

    stalls = stalls_of(trace)

    assert len(stalls) == 3
    assert stalls.group[0] == stalls.group[1] != stalls.group[2]
    assert named(trace, stalls.op) == ["aten::repeat_interleave", "aten::repeat_interleave", "aten::item"]


@pytest.mark.parametrize("wrapper", ["autograd::engine::evaluate_function: MulBackward0", "Torch-Compiled Region: 0/0"])
def test_what_wraps_operators_is_no_operator(wrapper):
    trace = make_timeline(
        (Kind.OP, wrapper, CPU, 0, 100),
        (Kind.OP, "aten::item", CPU, 10, 40),
        (Kind.CALL, "cudaStreamSynchronize", CPU, 12, 38, 1),
    )

    assert named(trace, stalls_of(trace).op) == ["aten::item"]


def test_an_operator_that_python_calls_inside_another_is_a_call_of_its_own():
    trace = make_timeline(
        (Kind.OP, "mylib::op", CPU, 0, 100),
        (Kind.PYTHON, "train.py(3): backward", CPU, 5, 90),
        (Kind.OP, "aten::item", CPU, 10, 40),
        (Kind.CALL, "cudaStreamSynchronize", CPU, 12, 38, 1),
    )

    assert named(trace, stalls_of(trace).op) == ["aten::item"]


def test_the_profilers_own_synchronisation_is_left_out_and_the_users_is_not():
    trace = make_timeline(
        *WORK,
        (Kind.CALL, "cudaDeviceSynchronize", CPU, 20, 5_010, 5),
        (Kind.CALL, "cudaDeviceSynchronize", CPU, 5_020, 5_025, 6),
    )

    ours = stalls_of(dataclasses.replace(trace, meta={"profiler_span": "true"}))
    theirs = stalls_of(trace)

    assert ours.start_ns.tolist() == [20 * US]
    assert theirs.start_ns.tolist() == [20 * US, 5_020 * US]


def test_a_synchronisation_with_work_after_it_is_the_users():
    trace = make_timeline(
        (Kind.CALL, "cudaDeviceSynchronize", CPU, 20, 30, 5),
        (Kind.OP, "aten::mm", CPU, 40, 50),
    )

    assert len(stalls_of(dataclasses.replace(trace, meta={"profiler_span": "true"}))) == 1


def test_a_record_with_a_call_is_not_counted_twice():
    trace = make_timeline(*WORK, *ITEM, (Kind.WAIT, "Stream Sync", CPU, 41, 5_019, 3))

    assert len(stalls_of(trace)) == 1


def test_a_record_without_a_call_is_a_wait_of_the_thread_that_launches():
    nobody = (0, 100, NONE, NONE, "thread unknown")
    trace = make_timeline(*WORK, (Kind.WAIT, "Stream Sync", nobody, 100, 5_001, 77))

    stalls = stalls_of(trace)

    assert named(trace, stalls.call) == ["Stream Sync"]
    assert trace.tracks[stalls.track[0]].name == "main"


def test_a_polled_event_is_no_wait():
    trace = make_timeline(
        (Kind.CALL, "cudaEventQuery", CPU, 0, 17, 4),
        (Kind.WAIT, "Event Sync", CPU, 1, 16, 4),
    )

    assert len(stalls_of(trace)) == 0


def launches(count, held=()):
    for i in range(count):
        yield Kind.CALL, "cudaLaunchKernel", CPU, 10 * i, 10 * i + 5, i + 1
        yield Kind.KERNEL, "k", GPU, 100_000 + i, 100_001 + i, i + 1
    for i in held:
        yield Kind.CALL, "cudaLaunchKernel", CPU, 10 * count + i, 10 * count + i + 200, 90_000 + i
        yield Kind.KERNEL, "k", GPU, 200_000 + i, 200_001 + i, 90_000 + i


def test_a_launch_under_a_label_was_held_by_the_queue():
    label = (Kind.OVERHEAD, "Command Buffer Full", (0, NONE, 0, NONE, ""), 101, 299)
    trace = make_timeline(*launches(10, held=[0]), label)

    stalls = stalls_of(trace)

    assert stalls.queue.tolist() == [1]
    assert stalls.dur_ns.tolist() == [200 * US]


def test_without_labels_a_long_launch_with_many_pending_was_held_by_the_queue():
    assert stalls_of(make_timeline(*launches(600, held=[0]))).queue.tolist() == [1]
    assert stalls_of(make_timeline(*launches(100, held=[0]))).queue.tolist() == []


def test_a_pageable_copy_that_takes_long_was_held_and_a_pinned_one_was_not():
    def copy(kind, corr, at):
        return [
            (Kind.OP, "aten::copy_", CPU, at, at + 900),
            (Kind.CALL, "cudaMemcpyAsync", CPU, at + 5, at + 800, corr),
            (Kind.COPY, f"Memcpy HtoD ({kind} -> Device)", GPU, at + 10, at + 790, corr, 1 << 26),
        ]

    trace = make_timeline(*copy("Pageable", 1, 0), *copy("Pinned", 2, 1_000))

    stalls = stalls_of(trace)

    assert stalls.does.tolist() == [Does.COPY]
    assert stalls.start_ns.tolist() == [5 * US]


def test_a_train_of_frees_is_one_call_and_a_later_one_another():
    trace = make_timeline(
        *[(Kind.CALL, "cudaFree", CPU, 10 * i, 10 * i + 9, i + 1) for i in range(4)],
        (Kind.OP, "aten::mm", CPU, 100, 110),
        (Kind.CALL, "cudaFree", CPU, 120, 130, 9),
    )

    stalls = stalls_of(trace)

    assert len(stalls) == 5
    assert len(set(stalls.group.tolist())) == 2


def test_the_first_launch_of_a_kernel_loads_it():
    trace = make_timeline(
        (Kind.CALL, "cudaLaunchKernel", CPU, 0, 1_500, 1),
        (Kind.KERNEL, "gemm", GPU, 1_510, 1_520, 1),
        (Kind.CALL, "cudaLaunchKernel", CPU, 1_600, 1_750, 2),
        (Kind.KERNEL, "gemm", GPU, 1_760, 1_770, 2),
        (Kind.CALL, "cudaFuncGetAttributes", CPU, 2_000, 7_000, 3),
    )

    stalls = stalls_of(trace)

    assert stalls.load.tolist() == [1, 1]
    assert stalls.start_ns.tolist() == [0, 2_000 * US]


def test_waits_of_two_threads_stay_apart():
    trace = make_timeline(
        (Kind.CALL, "cudaStreamSynchronize", CPU, 0, 100, 1),
        (Kind.CALL, "cudaEventSynchronize", CPU2, 50, 150, 2),
    )

    stalls = stalls_of(trace)

    assert [trace.tracks[t].name for t in stalls.track] == ["main", "helper"]


@pytest.mark.parametrize(
    ("name", "does"),
    [
        ("cudaStreamSynchronize_ptsz", Does.STREAM_WAIT),
        ("cudaDeviceSynchronize_v3020", Does.DEVICE_WAIT),
        ("cuCtxSynchronize", Does.DEVICE_WAIT),
        ("cudaMemcpyAsync_v3020", Does.COPY),
        ("cudaMemcpy2DAsync", Does.COPY),
        ("cudaLaunchKernel_v7000", Does.LAUNCH),
        ("cuLaunchKernelEx", Does.LAUNCH),
        ("cudaGraphLaunch", Does.LAUNCH),
        ("hipMemcpyWithStream", Does.COPY_WAIT),
        ("hipExtModuleLaunchKernel", Does.LAUNCH),
        ("hipStreamSynchronize", Does.STREAM_WAIT),
        ("urEnqueueKernelLaunch", Does.LAUNCH),
        ("zeEventHostSynchronize", Does.EVENT_WAIT),
        ("urQueueFinish", Does.STREAM_WAIT),
        ("aclrtSynchronizeDevice", Does.DEVICE_WAIT),
        ("musaStreamSynchronize", Does.STREAM_WAIT),
        ("hipCtxSynchronize", Does.DEVICE_WAIT),
        ("cuCtxSynchronize_v2", Does.DEVICE_WAIT),
        ("piQueueFinish", Does.STREAM_WAIT),
        ("piEventsWait", Does.EVENT_WAIT),
        ("cudaMemcpy3D", Does.COPY_WAIT),
        ("cudaMemcpyPeer", Does.COPY_WAIT),
        ("cuMemcpyDtoH_v2", Does.COPY_WAIT),
        ("hipMemcpyDtoH", Does.COPY_WAIT),
        ("cuMemcpyDtoD_v2", Does.OTHER),
        ("cuMemcpyDtoHAsync_v2", Does.COPY),
        ("cudaMemcpyPeerAsync", Does.COPY),
        ("hipLaunchByPtr", Does.LAUNCH),
        ("cudaLaunch", Does.LAUNCH),
        ("cudaLaunchHostFunc", Does.OTHER),
        ("cudaStreamWaitEvent", Does.OTHER),
        ("cudaEventRecordWithFlags", Does.OTHER),
    ],
)
def test_calls_are_known_by_name_on_every_backend(name, does):
    assert what_it_does(name) == does


def test_on_rocm_the_copy_itself_is_the_wait():
    trace = make_timeline(
        *WORK,
        (Kind.OP, "aten::item", CPU, 20, 5_030),
        (Kind.CALL, "hipMemcpyWithStream", CPU, 25, 5_020, 2),
        (Kind.COPY, "Memcpy DtoH (Device -> Host)", GPU, 5_001, 5_003, 2, 4),
    )

    stalls = stalls_of(trace)

    assert stalls.does.tolist() == [Does.COPY_WAIT]
    assert named(trace, stalls.copy) == ["Memcpy DtoH (Device -> Host)"]
