"""What a runtime call does to the host, by its name: CUDA, HIP, XPU and Ascend.

Names come with version suffixes in some traces (`cudaMemcpyAsync_v3020`,
`cudaLaunchKernel_ptsz`); they are cut off first.
"""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np

from tracer.trace import Bools, Bytes, Kind, Trace

_SUFFIX = re.compile(r"(_v\d+|_pts[zd])+$")


class Does(IntEnum):
    """What a call does, as far as it can hold the host."""

    OTHER = 0
    LAUNCH = 1  # puts a kernel or graph into a queue: holds only when the queue is full
    COPY = 2  # an asynchronous copy: holds for pageable memory
    COPY_WAIT = 3  # a copy that waits by itself
    FILL = 4
    STREAM_WAIT = 5
    DEVICE_WAIT = 6
    EVENT_WAIT = 7
    MALLOC = 8
    FREE = 9
    PIN = 10
    UNPIN = 11
    LOAD = 12  # may load a module on first use
    POLL = 13


WAITS = (Does.STREAM_WAIT, Does.DEVICE_WAIT, Does.EVENT_WAIT)

_NAMES = {
    Does.COPY_WAIT: "aclrtMemcpy",
    Does.STREAM_WAIT: """urQueueFinish piQueueFinish
        zeCommandListHostSynchronize zeCommandQueueSynchronize aclrtSynchronizeStream
        AclrtSynchronizeStreamWithTimeout aclrtSynchronizeStreamWithTimeout""",
    Does.DEVICE_WAIT: "cudaThreadSynchronize aclrtSynchronizeDevice",
    Does.EVENT_WAIT: "urEventWait piEventsWait zeEventHostSynchronize zeFenceHostSynchronize aclrtSynchronizeEvent",
    Does.MALLOC: """cudaMalloc cudaMallocManaged cuMemAlloc cuMemCreate cuMemMap hipMalloc hipExtMallocWithFlags
        urUSMDeviceAlloc aclrtMalloc""",
    Does.FREE: "cudaFree cuMemFree cuMemUnmap cuMemRelease hipFree aclrtFree",
    Does.PIN: "cudaHostAlloc cudaMallocHost cudaHostRegister cuMemHostAlloc hipHostMalloc hipHostRegister",
    Does.UNPIN: "cudaFreeHost cudaHostUnregister cuMemFreeHost hipHostFree hipHostUnregister",
    Does.POLL: "cudaEventQuery cudaStreamQuery hipEventQuery hipStreamQuery cuEventQuery cuStreamQuery",
}
_BY_NAME = {name: does for does, names in _NAMES.items() for name in names.split()}
_BY_END = {  # of CUDA, HIP, MUSA and whoever else follows them
    "StreamSynchronize": Does.STREAM_WAIT,
    "DeviceSynchronize": Does.DEVICE_WAIT,
    "CtxSynchronize": Does.DEVICE_WAIT,
    "EventSynchronize": Does.EVENT_WAIT,
}
_COPIES = re.compile(
    r"(?:cuda|cu|hip|musa|mu)Memcpy(?!\w*Async|\w*DtoD|Batch)"
)  # of the host, which wait by themselves
_LOADING = ("cudaFuncGetAttributes", "cudaFuncSetAttribute", "cudaOccupancy", "cudaGetSymbolAddress", "cuModuleLoad")


def what_it_does(name: str) -> Does:
    """What the call of this name does."""
    name = _SUFFIX.sub("", name)
    known = _BY_NAME.get(name)
    if known is not None:
        return known
    for end, does in _BY_END.items():
        if name.endswith(end):
            return does
    if _COPIES.match(name):
        return Does.COPY_WAIT
    if "Launch" in name and not name.endswith("HostFunc"):
        return Does.LAUNCH
    if ("emcpy" in name and "Async" in name) or name in ("urEnqueueUSMMemcpy", "zeCommandListAppendMemoryCopy"):
        return Does.COPY
    if "emset" in name or "MemoryFill" in name:
        return Does.FILL
    if name.startswith(_LOADING):
        return Does.LOAD
    return Does.OTHER


def what_calls_do(trace: Trace) -> Bytes:
    """For each span, what it does if it is a runtime call."""
    by_name = np.array([what_it_does(name) for name in trace.names] or [Does.OTHER], np.int8)
    is_call = trace.spans.kind == Kind.CALL
    found: Bytes = np.where(is_call, by_name[trace.spans.name], np.int8(Does.OTHER)).astype(np.int8)
    return found


def captured(trace: Trace) -> Bools:
    """For each span, whether a CUDA graph was being captured on its thread: nothing launched there runs."""
    spans = trace.spans
    found = np.zeros(len(spans), np.bool_)
    begins = np.flatnonzero(trace.name_rows("cudaStreamBeginCapture", "hipStreamBeginCapture"))
    ends = np.flatnonzero(trace.name_rows("cudaStreamEndCapture", "hipStreamEndCapture"))
    for begin in begins.tolist():
        later = ends[(ends > begin) & (spans.track[ends] == spans.track[begin])]
        stop = spans.start_ns[later[0]] if len(later) else spans.end_ns.max()
        found |= (
            (spans.track == spans.track[begin]) & (spans.start_ns > spans.start_ns[begin]) & (spans.start_ns < stop)
        )
    return found
