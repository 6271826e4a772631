"""Each doubt is raised by damaging a good trace."""

import dataclasses

import numpy as np
import pytest

from tests.conftest import CPU, GPU, US, make_timeline
from tests.shared import H200, PUBLIC
from tracer.analysis.launches import find_launches
from tracer.analysis.trust import find_trust
from tracer.auditor import audit
from tracer.readers import load
from tracer.trace import Kind, Loss, Spans


def trust_of(trace):
    return find_trust(trace, find_launches(trace))


def good(count=100):
    rows = []
    for i in range(count):
        rows.append((Kind.CALL, "cudaLaunchKernel", CPU, 20 * i, 20 * i + 5, i + 1))
        rows.append((Kind.KERNEL, "k", GPU, 20 * i + 10, 20 * i + 25, i + 1))
    rows.append((Kind.CALL, "cudaStreamSynchronize", CPU, 20 * count, 20 * count + 30, 9_001))
    rows.append((Kind.WAIT, "Stream Sync", CPU, 20 * count, 20 * count + 30, 9_001))
    rows.append((Kind.PYTHON, "train.py(3): main", CPU, 0, 20 * count + 40))
    return make_timeline(*rows)


def without(trace, rows):
    """The trace without some spans."""
    keep = np.ones(len(trace.spans), bool)
    keep[rows] = False
    spans = trace.spans.take(keep)
    columns = {name: getattr(spans, name) for name in Spans.columns()}
    return dataclasses.replace(trace, spans=Spans(**(columns | {"parent": np.full(len(spans), -1, np.int32)})))


def kernels(trace):
    return np.flatnonzero(trace.spans.kind == Kind.KERNEL)


def test_nothing_is_wrong_with_a_good_trace():
    trust = trust_of(good())

    assert trust.limits == ("lines are known only as far as the profiler's Python functions tell them",)
    assert trust.whole


def test_dropped_records_narrow_the_window_to_what_is_whole():
    trace = without(good(), kernels(good())[:60])

    trust = trust_of(trace)

    assert not trust.complete
    assert trust.orphans == 60
    assert "trace incomplete: 60 of 100 launches have no kernel" in trust.limits[0]
    assert "only for the part with the other 40 launches" in trust.limits[0]
    assert trust.window_ns == (60 * 20 * US, (99 * 20 + 25) * US)


def test_a_full_buffer_is_told_by_where_the_records_end():
    trace = without(good(), kernels(good())[50:])

    trust = trust_of(trace)

    assert "GPU records end 1.03 ms before the window does" in trust.limits[0]
    assert audit(trace).devices[0].window_ns == (49 * 20 + 25) * US


def test_launches_that_still_wait_in_the_queue_at_the_end_are_no_loss():
    rows = []
    for i in range(40):
        rows.append((Kind.CALL, "cudaLaunchKernel", CPU, 20 * i, 20 * i + 5, i + 1))
    for i in range(20):
        rows.append((Kind.KERNEL, "k", GPU, 10 + 40 * i, 50 + 40 * i, i + 1))

    trust = trust_of(make_timeline(*rows))

    assert trust.complete
    assert "20 launches at the end of the window have their work after it" in trust.limits


def test_a_few_orphans_are_no_reason_for_doubt():
    trust = trust_of(without(good(200), kernels(good(200))[100:101]))

    assert trust.complete
    assert trust.orphans == 1


def test_launches_into_a_graph_being_captured_have_no_work_and_that_is_right():
    trace = good()
    capture = [
        (Kind.CALL, "cudaStreamBeginCapture", CPU, 0, 1, 501),
        *[(Kind.CALL, "cudaLaunchKernel", CPU, 2 + i, 3 + i, 600 + i) for i in range(50)],
        (Kind.CALL, "cudaStreamEndCapture", CPU, 60, 61, 502),
        *[(Kind.CALL, "cudaLaunchKernel", CPU, 70 + i, 71 + i, 700 + i) for i in range(10)],
        *[(Kind.KERNEL, "k", GPU, 80 + i, 81 + i, 700 + i) for i in range(10)],
    ]

    trust = trust_of(make_timeline(*capture))

    assert trust_of(trace).complete
    assert trust.complete
    assert trust.orphans == 0


def test_without_gpu_records_nothing_is_said_about_the_gpu():
    trace = without(good(), kernels(good()))

    found = audit(trace)

    assert "no GPU activity was captured: 100 launches have no GPU work" in found.limits[0]
    assert found.devices == ()
    assert found.idle == {}
    assert [v.id for v in found.verdicts] == ["no_gpu"]


def test_clocks_that_disagree_are_corrected_and_named():
    trace = good()
    columns = {name: getattr(trace.spans, name).copy() for name in Spans.columns()}
    columns["start_ns"][kernels(trace)] -= 400 * US
    skewed = dataclasses.replace(trace, spans=Spans(**columns))

    trust = trust_of(skewed)
    delays = audit(skewed).launching.from_call_start

    assert trust.skew_ns == 390 * US
    assert any("100 of 100 pieces of GPU work start before their launch" in t and "390 us" in t for t in trust.limits)
    assert (delays.min_ns, delays.p50_ns) == (0, 0)


def test_a_skew_of_a_few_microseconds_is_taken_as_equal():
    trace = good()
    columns = {name: getattr(trace.spans, name).copy() for name in Spans.columns()}
    columns["start_ns"][kernels(trace)] -= 18 * US

    assert trust_of(dataclasses.replace(trace, spans=Spans(**columns))).skew_ns == 0


def test_overlapping_work_on_one_stream_is_told():
    trace = good()
    columns = {name: getattr(trace.spans, name).copy() for name in Spans.columns()}
    columns["dur_ns"][kernels(trace)[:7]] = 21 * US

    trust = trust_of(dataclasses.replace(trace, spans=Spans(**columns)))

    assert any(text.startswith("7 pieces of work overlap") for text in trust.limits)


def test_work_launched_before_the_window_is_told():
    trace = without(good(), np.flatnonzero(good().spans.kind == Kind.CALL)[:3])

    trust = trust_of(trace)

    assert trust.unlaunched == 3
    assert any(text.startswith("3 pieces of GPU work have no launching call") for text in trust.limits)
    one = trust_of(without(good(), np.flatnonzero(good().spans.kind == Kind.CALL)[:1]))
    assert any("1 piece of GPU work has no launching call in the trace: it was" in text for text in one.limits)


def test_missing_synchronisation_records_are_told():
    trace = without(good(), np.flatnonzero(good().spans.kind == Kind.WAIT))

    assert any(text.startswith("no synchronisation records") for text in trust_of(trace).limits)


def test_a_ledger_that_lacks_device_synchronisation_is_told():
    rows = (Kind.CALL, "cudaDeviceSynchronize", CPU, 0, 10, 1), (Kind.WAIT, "Stream Sync", CPU, 20, 30, 2)

    assert any("no records of device synchronisation" in text for text in trust_of(make_timeline(*rows)).limits)


def test_what_the_reader_left_out_is_passed_on():
    trace = dataclasses.replace(
        good(),
        losses=(Loss("GPU records without a time", count=2), Loss("half a row", offset=99)),
        meta={"complete": "false", "why": "the file ends in the middle", "recorder.ledger": '{"dropped": 5}'},
    )

    trust = trust_of(trace)

    assert not trust.complete
    assert trust.limits[:4] == (
        "the trace is incomplete: the file ends in the middle",
        "while reading: GPU records without a time (2)",
        "while reading: half a row, first at byte 99",
        "recorder ledger: 5 entries dropped",
    )


def test_a_window_hit_by_compilation_is_told():
    trace = make_timeline(
        (Kind.MARK, "compile_fx.<locals>.inner (dynamo_timed)", CPU, 0, 500),
        (Kind.CALL, "cudaLaunchKernel", CPU, 600, 605, 1),
        (Kind.KERNEL, "k", GPU, 610, 1_000, 1),
    )

    assert "the window was hit by compilation (500 us): its steps are not typical" in trust_of(trace).limits


@pytest.mark.parametrize("name", ["IS01", "IS21", "LB01", "TH01"])
def test_the_recordings_of_the_h200_are_whole(name):
    trust = trust_of(load(H200 / f"{name}.json.gz"))

    assert trust.complete
    assert trust.skew_ns == 0
    assert trust.orphans == 0


def test_confidence_falls_where_the_trace_is_not_whole():
    trace = load(H200 / "IS01.json.gz")
    work = np.flatnonzero(trace.spans.kind == Kind.KERNEL)

    before = next(f for f in audit(trace).findings if f.kind == "sync.item")
    after = next(f for f in audit(without_spans(trace, work[-150:])).findings if f.kind == "sync.item")

    assert (before.confidence, after.confidence) == ("high", "medium")


def without_spans(trace, rows):
    """The trace with some spans turned into what counts for nothing."""
    columns = {name: getattr(trace.spans, name).copy() for name in Spans.columns()}
    columns["kind"][rows] = Kind.GPU_OTHER
    return dataclasses.replace(trace, spans=Spans(**columns))


def test_a_device_that_is_only_shown_is_not_said_to_be_missing():
    trace = load(PUBLIC / "ascend_level0_rank0_trace_view.json")

    limits = find_trust(trace, find_launches(trace)).limits
    assert any("rows are of a device whose work we cannot tell" in limit for limit in limits)
    assert not any("no GPU activity was captured" in limit for limit in limits)


@pytest.mark.parametrize(("later", "said"), [(10, False), (5_000, True)])
def test_files_that_do_not_overlap_in_time_are_no_ranks_of_one_job(later, said):
    other = (1, *GPU[1:])
    rows = [(Kind.KERNEL, "k", GPU, 0, 100), (Kind.KERNEL, "k", other, later, later + 100)]

    limits = trust_of(make_timeline(*rows)).limits

    assert any("they are not ranks of one job" in limit for limit in limits) is said
