"""Whatever a trace holds, it is audited: no crash, and the totals hold."""

import dataclasses

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import CPU, CPU2, GPU, GPU1, GPU_S2, US, make_timeline
from tracer.auditor import audit
from tracer.reports.json import render
from tracer.trace import NONE, Kind, Lines, Samples, Steps

NOBODY = (0, NONE, 0, NONE, "")
OTHER = (1, 200, 7, 0, "stream 7")
HOST = st.tuples(
    st.sampled_from(
        [
            (Kind.CALL, "cudaLaunchKernel"),
            (Kind.CALL, "cudaGraphLaunch"),
            (Kind.CALL, "cudaMemcpyAsync"),
            (Kind.CALL, "cudaStreamSynchronize"),
            (Kind.CALL, "cudaDeviceSynchronize"),
            (Kind.CALL, "cudaEventSynchronize"),
            (Kind.CALL, "cudaEventQuery"),
            (Kind.CALL, "cudaMalloc"),
            (Kind.CALL, "cudaFree"),
            (Kind.CALL, "cudaHostAlloc"),
            (Kind.CALL, "hipMemcpyWithStream"),
            (Kind.CALL, "cudaStreamBeginCapture"),
            (Kind.CALL, "cudaStreamEndCapture"),
            (Kind.CALL, "cudaFuncGetAttributes"),
            (Kind.OP, "aten::item"),
            (Kind.OP, "aten::_local_scalar_dense"),
            (Kind.OP, "aten::nonzero"),
            (Kind.OP, "aten::index"),
            (Kind.OP, "aten::to"),
            (Kind.OP, "autograd::engine::evaluate_function: X"),
            (Kind.MARK, "ProfilerStep#3"),
            (Kind.MARK, "enumerate(DataLoader)#X.__next__"),
            (Kind.MARK, "Optimizer.step#SGD.step"),
            (Kind.PYTHON, "train.py(3): step"),
            (Kind.PYTHON, "<built-in method item of Tensor object at 0x7f00>"),
            (Kind.WAIT, "Stream Sync"),
            (Kind.WAIT, "Context Sync"),
        ]
    ),
    st.sampled_from([CPU, CPU2, (0, 100, NONE, NONE, "thread unknown")]),
    st.integers(0, 3_000),
    st.integers(0, 900),
    st.integers(-1, 12),
)
DEVICE = st.tuples(
    st.sampled_from(
        [
            (Kind.KERNEL, "k"),
            (Kind.KERNEL, "ncclKernel"),
            (Kind.COPY, "Memcpy DtoH (Device -> Pinned)"),
            (Kind.COPY, "Memcpy HtoD (Pageable -> Device)"),
            (Kind.FILL, "Memset (Device)"),
            (Kind.GPU_MARK, "ProfilerStep#3"),
            (Kind.GPU_OTHER, "x"),
        ]
    ),
    st.sampled_from([GPU, GPU_S2, GPU1, OTHER]),
    st.integers(0, 3_000),
    st.integers(0, 900),
    st.integers(-1, 12),
)
LABEL = st.tuples(
    st.sampled_from([(Kind.OVERHEAD, "Command Buffer Full"), (Kind.OVERHEAD, "Lazy Function Loading")]),
    st.just(NOBODY),
    st.integers(0, 3_000),
    st.integers(0, 900),
    st.just(NONE),
)


@settings(max_examples=60, deadline=None, phases=(Phase.reuse, Phase.generate))  # to shrink these takes minutes
@given(
    st.lists(st.one_of(HOST, DEVICE, LABEL), max_size=60),
    st.booleans(),
    st.booleans(),
    st.one_of(st.none(), st.tuples(st.integers(0, 2_000), st.integers(1, 3_000))),
)
def test_any_trace_is_audited_and_its_totals_hold(rows, stepped, lined, window):
    trace = make_timeline(
        *[(kind, name, track, start, start + took, corr, 4) for (kind, name), track, start, took, corr in rows]
    )
    changes = {"meta": {"profiler_span": "true"}}
    if window:
        changes["window_ns"] = (window[0] * US, (window[0] + window[1]) * US)
    if trace.tracks and stepped:
        steps = {"start_ns": [0, 1_000 * US], "dur_ns": [1_000 * US] * 2, "number": [1, 2], "track": [0, 0]}
        changes["steps"] = Steps.of(**steps, traced=[False, True])
    if trace.tracks and lined and len(trace.frames):
        changes["lines"] = Lines.of(start_ns=[0], dur_ns=[2_000 * US], track=[0], frame=[0])
        changes["samples"] = Samples.of(time_ns=[5], track=[0], frame=[0], weight_ns=[1])

    found = audit(dataclasses.replace(trace, **changes))

    assert sum(found.idle.values()) == sum(device.idle_ns for device in found.devices)
    assert sum(row.ns for row in found.idle_rows) == sum(found.idle.values())
    assert len({finding.id for finding in found.findings}) == len(found.findings)
    assert render(found)
