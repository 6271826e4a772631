"""Rules about memory, launching, capture, races and ranks, each on the smallest trace that has its sign."""

import dataclasses

import pytest

from tests.conftest import CPU, GPU, US, make_timeline
from tests.stories import Wait, findings_of
from tracer.auditor import audit, examine
from tracer.trace import NONE, Counters, Frames, Kind, Samples, Steps

OTHER_CPU, OTHER_GPU = (1, 200, 200, NONE, "main"), (1, 200, 7, 0, "stream 7")


def kernel(corr, call_us, start_us, end_us, name="k", cpu=CPU, gpu=GPU):
    return [
        (Kind.CALL, "cudaLaunchKernel", cpu, call_us, call_us + 5, corr),
        (Kind.KERNEL, name, gpu, start_us, end_us, corr),
    ]


def found_in(*rows, **changes):
    trace = dataclasses.replace(make_timeline(*rows), **changes)
    return {f.rule: f for f in examine(trace).findings}


def emptied(times):
    """A buffer taken and given back in each step, as torch.cuda.empty_cache() makes it."""
    for i in range(times):
        at = 2_000 * i
        yield from kernel(i + 1, at, at + 10, at + 1_500)
        yield Kind.OP, "aten::empty", CPU, at + 20, at + 120
        yield Kind.CALL, "cudaMalloc", CPU, at + 22, at + 118, 500 + i
        yield Kind.CALL, "cudaFree", CPU, at + 130, at + 1_510, 600 + i
        yield Kind.OP, "aten::add", CPU, at + 1_520, at + 1_525


def test_memory_given_back_and_taken_again_is_found_on_both_sides():
    found = found_in(*emptied(6))

    assert (found["SYNC032"].op, found["SYNC032"].count) == ("empty_cache", 6)
    assert (found["SYNC031"].op, found["SYNC031"].count) == ("empty", 5)  # the first one only grew


def test_memory_that_only_grows_is_no_finding():
    rows = [row for row in emptied(6) if row[1] != "cudaFree"]

    assert not {"SYNC031", "SYNC032"} & set(found_in(*rows))


def test_tidying_up_once_is_no_finding():
    assert "SYNC032" not in found_in(*emptied(1))


def test_a_full_memory_is_an_error():
    found = found_in(
        *kernel(1, 0, 10, 900),
        (Kind.OP, "aten::empty", CPU, 20, 1_200),
        (Kind.CALL, "cudaMalloc", CPU, 25, 60, 11),
        (Kind.CALL, "cudaEventSynchronize", CPU, 65, 905, 12),
        (Kind.CALL, "cudaFree", CPU, 910, 1_000, 13),
        (Kind.CALL, "cudaMalloc", CPU, 1_010, 1_100, 14),
        *kernel(2, 1_300, 1_310, 1_400),
    )

    assert (found["SYNC033"].kind, found["SYNC033"].severity, found["SYNC033"].count) == ("alloc.retry", "error", 1)


def test_a_library_that_sets_itself_up_is_no_retry():
    found = found_in(
        *kernel(1, 0, 10, 900),
        (Kind.OP, "aten::mm", CPU, 20, 9_000),
        (Kind.CALL, "cudaMalloc", CPU, 25, 60, 11),
        (Kind.CALL, "cudaFree", CPU, 1_500, 1_530, 13),
        (Kind.CALL, "cudaMalloc", CPU, 6_000, 6_100, 14),
        *kernel(2, 8_000, 8_010, 8_100),
    )

    assert "SYNC033" not in found


def test_a_loaders_thread_in_the_background_is_no_finding():
    loader = (0, 100, 300, NONE, "Thread-1 (_pin_memory_loop)")
    rows = list(pinned(5, between=True))
    rows = [(k, n, loader if n in ("aten::pin_memory", "cudaHostAlloc") else t, *rest) for k, n, t, *rest in rows]

    assert "SYNC034" not in found_in(*rows)


def test_retries_that_only_the_allocator_counted_are_found_too():
    trace = make_timeline(*kernel(1, 0, 10, 900), (Kind.MARK, "allocator retries", CPU, 0, 1))
    name = trace.names.index("allocator retries")
    columns = {"name": [name] * 3, "track": [NONE] * 3, "device": [0] * 3, "value": [4.0, 4.0, 6.0]}
    trace = dataclasses.replace(trace, counters=Counters.of(time_ns=[0, 100, 900], **columns))

    (found,) = [f for f in examine(trace).findings if f.rule == "SYNC033"]

    assert (found.count, found.place, found.kind) == (2, None, "alloc.retry")


def pinned(times, between):
    for i in range(times):
        at = 2_000 * i
        if between:
            yield from kernel(i + 1, at, at + 10, at + 500)
        yield Kind.OP, "aten::pin_memory", CPU, at + 600, at + 1_100
        yield Kind.CALL, "cudaHostAlloc", CPU, at + 610, at + 1_000, 500 + i
    yield from kernel(900, 2_000 * times, 2_000 * times + 10, 2_000 * times + 20)


def test_page_locking_in_the_loop_is_found_and_in_the_set_up_is_not():
    assert found_in(*pinned(5, between=True))["SYNC034"].count == 5
    assert "SYNC034" not in found_in(*pinned(5, between=False))


def test_giving_page_locked_memory_back_is_found():
    rows = [(Kind.CALL, "cudaFreeHost", CPU, 100 * i, 100 * i + 50, i + 1) for i in range(4)]
    rows += [(Kind.OP, "aten::add", CPU, 100 * i + 60, 100 * i + 61) for i in range(4)]

    assert found_in(*rows)["SYNC035"].count == 4


def test_a_full_queue_is_harmless():
    rows = [row for i in range(40) for row in kernel(i + 1, 100 * i, 100 * i + 60, 100 * i + 160)]
    rows = [(k, n, t, a, a + 90 if n == "cudaLaunchKernel" else b, c) for k, n, t, a, b, c in rows]
    rows.append((Kind.OVERHEAD, "Command Buffer Full", (0, NONE, 0, NONE, ""), 500, 3_900))

    found = found_in(*rows)["SYNC036"]

    assert found.harmless
    assert found.severity == "info"
    assert found.kind == "launch.queue_full"


def test_loading_of_kernels_is_one_finding_without_a_place():
    label = (Kind.OVERHEAD, "Lazy Function Loading", (0, NONE, 0, NONE, ""), 20, 900)
    rows = [
        (Kind.CALL, "cudaLaunchKernel", CPU, 10, 1_000, 1),
        (Kind.KERNEL, "a", GPU, 1_010, 1_020, 1),
        (Kind.CALL, "cudaFuncGetAttributes", CPU, 2_000, 2_500, 2),
        label,
    ]

    found = found_in(*rows)["SYNC037"]

    assert (found.place, found.waits, found.severity) == (None, 2, "info")


def test_a_read_during_capture_is_an_error_at_its_line():
    found = found_in(
        (Kind.CALL, "cudaStreamBeginCapture", CPU, 0, 5, 1),
        (Kind.OP, "aten::is_nonzero", CPU, 10, 60),
        (Kind.OP, "aten::item", CPU, 11, 59),
        (Kind.CALL, "cudaStreamSynchronize", CPU, 20, 30, 2),
        (Kind.CALL, "cudaStreamEndCapture", CPU, 70, 75, 3),
    )

    assert (found["SYNC040"].kind, found["SYNC040"].severity) == ("capture.sync", "error")


def test_a_record_without_a_call_is_a_librarys():
    nobody = (0, 100, NONE, NONE, "thread unknown")
    found = found_in(*kernel(1, 0, 10, 500), (Kind.WAIT, "Context Sync", nobody, 100, 505, 77))

    assert (found["SYNC041"].kind, found["SYNC041"].confidence) == ("sync.driver", "medium")


def test_a_synchronous_copy_of_which_nothing_is_known_is_the_librarys():
    (found,) = findings_of(Wait((), call="cudaMemcpy"))

    assert (found.rule, found.kind) == ("SYNC042", "copy.sync_api")


def test_a_download_below_ddps_backward_reads_the_used_map():
    wait = Wait(
        ("aten::copy_",),
        "DtoH (Device -> Pageable)",
        400,
        around=((Kind.OP, "autograd::engine::evaluate_function: X"), (Kind.OP, "DistributedDataParallel.finalize")),
    )

    assert findings_of(wait)[0].rule == "SYNC050"


def test_launches_that_wait_for_their_kernels_are_named_once():
    rows = []
    for i in range(30):
        rows += [
            (Kind.CALL, "cudaLaunchKernel", CPU, 200 * i, 200 * i + 150, i + 1),
            (Kind.KERNEL, "k", GPU, 200 * i + 10, 200 * i + 145, i + 1),
        ]

    found = found_in(*rows)

    assert (found["SYNC045"].kind, found["SYNC045"].count) == ("bench.launch_blocking", 30)
    assert "SYNC045" not in found_in(*[r for i in range(30) for r in kernel(i + 1, 20 * i, 20 * i + 10, 20 * i + 25)])


def download(*, early, waited=False, pinned=True):
    """A non-blocking copy to the CPU and a read of what it gave."""
    kind = "Pinned" if pinned else "Pageable"
    rows = [
        *kernel(1, 0, 10, 1_000),
        (Kind.OP, "aten::to", CPU, 20, 40),
        (Kind.OP, "aten::copy_", CPU, 22, 38),
        (Kind.CALL, "cudaMemcpyAsync", CPU, 25, 30, 2),
        (Kind.COPY, f"Memcpy DtoH (Device -> {kind})", GPU, 1_000, 1_010, 2, 400_000),
    ]
    if waited:
        rows.append((Kind.CALL, "cudaEventSynchronize", CPU, 60, 1_012, 3))
    at = 1_020 if waited or not early else 70
    rows += [(Kind.OP, "aten::item", CPU, at, at + 5), (Kind.OP, "aten::_local_scalar_dense", CPU, at + 1, at + 4)]
    return rows


def test_a_read_before_the_copy_has_landed_is_a_race():
    roles = [f.op for f in examine(make_timeline(*download(early=True))).findings if f.rule == "RACE001"]

    assert sorted(roles) == ["copy", "early_read"]


def test_a_read_after_a_wait_or_in_time_is_no_race():
    assert "RACE001" not in found_in(*download(early=True, waited=True))
    assert "RACE001" not in found_in(*download(early=False))
    assert "RACE001" not in found_in(*download(early=True, pinned=False))


@pytest.mark.parametrize("ahead", [0, 700, -700])
def test_ranks_that_wait_in_collectives_name_the_one_that_is_late_whatever_their_clocks_say(ahead):
    rows = []
    for i in range(4):
        at, other = 10_000 * i, 10_000 * i + ahead
        rows += kernel(2 * i + 1, at, at + 1_000, at + 6_000, "ncclDevKernel_AllReduce")
        rows += kernel(2 * i + 1, other, other + 5_500, other + 6_000, "ncclDevKernel_AllReduce", OTHER_CPU, OTHER_GPU)

    found = found_in(*rows)["IDLE009"]

    assert (found.kind, found.rank, found.count) == ("collective.wait", 0, 4)
    assert found.details["straggler"] == 1
    assert found.details["waited_ns"] == 4 * 4_500 * US


def test_what_lies_outside_the_steps_is_found_only_if_asked_for():
    trace = make_timeline(
        *kernel(1, 0, 10, 900),
        (Kind.CALL, "cudaEventSynchronize", CPU, 20, 905, 9),
        *kernel(2, 1_000, 1_010, 1_900),
        (Kind.CALL, "cudaDeviceSynchronize", CPU, 1_020, 1_905, 10),
    )
    steps = Steps.of(start_ns=[950 * US], dur_ns=[1_000 * US], number=[3], track=[0], traced=[True])
    trace = dataclasses.replace(trace, steps=steps)

    inside = [f.kind for f in audit(trace).findings if f.kind.startswith("sync")]
    everything = [f.kind for f in audit(trace, setup=True).findings if f.kind.startswith("sync")]

    assert inside == ["sync.explicit"]
    assert sorted(everything) == ["sync.event", "sync.explicit"]


def test_a_launch_bound_loop_is_named_with_its_figures():
    rows = [row for i in range(200) for row in kernel(i + 1, 40 * i, 40 * i + 6, 40 * i + 10)]

    found = found_in(*rows)["IDLE001"]

    assert found.kind == "launch.bound"
    assert found.details["mean_kernel_ns"] == 4 * US
    assert round(found.details["kernels_per_s"]) == 25_113


def test_samples_name_the_line_of_a_loop_too_fast_for_anything_else():
    rows = [row for i in range(2_000) for row in kernel(i + 1, 40 * i, 40 * i + 6, 40 * i + 10)]
    trace = make_timeline(*rows, (Kind.MARK, "/home/me/scan.py", CPU, 0, 1), (Kind.MARK, "scan", CPU, 0, 1))
    file, function = trace.names.index("/home/me/scan.py"), trace.names.index("scan")
    frames = Frames.of(
        function=[function] * 2, file=[file] * 2, line=[12, 13], column=[-1] * 2, end_column=[-1] * 2, parent=[-1] * 2
    )
    times = [(40 * 50 * i + 25) * US for i in range(40)]
    samples = Samples.of(
        time_ns=times, track=[0] * 40, frame=[0 if i % 4 else 1 for i in range(40)], weight_ns=[10_000_000] * 40
    )

    found = [
        f for f in examine(dataclasses.replace(trace, frames=frames, samples=samples)).findings if f.rule == "IDLE001"
    ]

    assert [(f.place.line, f.place.source) for f in found] == [(12, "samples")]


def test_a_busy_gpu_is_not_launch_bound():
    rows = [row for i in range(200) for row in kernel(i + 1, 40 * i, 40 * i + 6, 40 * i + 44)]

    assert "IDLE001" not in found_in(*rows)


def test_a_slow_loader_is_named_with_its_batches():
    rows = []
    for i in range(5):
        at = 50_000 * i
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        rows += [*kernel(i + 1, at, at + 10, at + 5_000), (Kind.MARK, name, CPU, at + 20, at + 45_020)]
    rows += kernel(9, 250_000, 250_010, 250_020)

    found = found_in(*rows)["IDLE002"]

    assert (found.kind, found.count) == ("input.bound", 5)
    assert found.stall_ns == 5 * 45_000 * US
    assert found.idle_ns == 5 * 40_020 * US


def test_collection_compilation_and_work_on_the_cpu_are_named():
    found = found_in(
        *kernel(1, 0, 10, 20),
        (Kind.PYTHON, "Python GC", CPU, 30, 1_030),
        (Kind.MARK, "compile_fx.<locals>.inner (dynamo_timed)", CPU, 1_100, 3_100),
        (Kind.OP, "aten::mm", CPU, 3_200, 4_200),
        *kernel(2, 4_180, 4_190, 4_200),
        *kernel(3, 4_220, 6_000, 7_000),
        (Kind.PYTHON, "train.py(9): augment", CPU, 8_000, 9_900),
        *kernel(4, 9_950, 9_960, 9_970),
        *kernel(5, 9_956, 11_000, 11_100),
    )

    assert {"IDLE003", "IDLE006", "IDLE007", "IDLE008"} <= set(found)
    assert found["IDLE003"].idle_ns == 1_000 * US
    assert found["IDLE006"].idle_ns == 2_000 * US


def busy_elsewhere(times, *, known):
    """A function of the user that keeps the host from launching."""
    for i in range(times):
        at = 10_000 * i
        yield from kernel(i + 1, at, at + 10, at + 20)
        if known:
            yield Kind.PYTHON, "train.py(9): augment", CPU, at + 12, at + 9_990
    yield from kernel(99, 10_000 * times, 10_000 * times + 10, 10_000 * times + 20)


def collected(times):
    for i in range(times):
        at = 10_000 * i
        yield from kernel(i + 1, at, at + 10, at + 20)
        yield Kind.PYTHON, "train.py(9): augment", CPU, at + 12, at + 9_990
        yield Kind.MARK, "Python GC", CPU, at + 30, at + 5_030
    yield from kernel(99, 10_000 * times, 10_000 * times + 10, 10_000 * times + 20)


def test_a_line_that_makes_garbage_is_named_and_one_that_was_hit_by_chance_is_not():
    often, once = found_in(*collected(6))["IDLE003"], found_in(*collected(1))["IDLE003"]

    assert (often.place.line, often.count, often.idle_ns) == (9, 6, 6 * 5_000 * US)
    assert (once.place, once.count) == (None, 1)


def test_a_host_that_is_busy_elsewhere_is_named_by_its_line_or_not_at_all():
    plain = found_in(*busy_elsewhere(4, known=False))
    known = found_in(*busy_elsewhere(4, known=True))

    assert plain["IDLE005"].place is None
    assert "IDLE004" not in plain
    assert (known["IDLE004"].place.file, known["IDLE004"].place.line) == ("train.py", 9)
    assert known["IDLE004"].count == 4
    assert "IDLE005" not in known


def test_what_keeps_the_host_once_is_set_up():
    assert "IDLE004" not in found_in(*busy_elsewhere(1, known=True))


def test_a_loop_full_of_waits_is_not_launch_bound():
    rows = [row for i in range(200) for row in kernel(i + 1, 40 * i, 40 * i + 6, 40 * i + 10)]
    waits = [(Kind.CALL, "cudaStreamSynchronize", CPU, 40 * i + 7, 40 * i + 11, 900 + i) for i in range(0, 200, 4)]

    assert "IDLE001" in found_in(*rows)
    assert "IDLE001" not in found_in(*rows, *waits)


def test_a_loop_of_queries_is_polling_and_a_single_one_is_not():
    polls = [(Kind.CALL, "cudaEventQuery", CPU, 40 * i, 40 * i + 10, i + 1) for i in range(50)]
    single = [(Kind.CALL, "cudaEventQuery", CPU, 2_000 * i, 2_000 * i + 10, i + 1) for i in range(50)]

    found = found_in(*polls)["SYNC051"]

    assert (found.count, found.waits, found.stall_ns) == (1, 50, (40 * 49 + 10) * US)
    assert "SYNC051" not in found_in(*single)
