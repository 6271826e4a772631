"""How fast a trace is written for Perfetto, and how large the file is.

    python -m tests.bench.export [TRACE.json.gz --times 40]

Without a trace, one is made: operators that launch kernels, which is what a training
loop is made of. Each figure stands beside what it can be held against on the same
machine: packing alone without names, arguments and compression (the floor), Perfetto's
own `TraceProtoBuilder`, and for a recorded trace the gzipped Kineto JSON of the same run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tracer.auditor import audit_of, examine
from tracer.building import TraceBuilder
from tracer.exports import _packing as packing
from tracer.exports.perfetto import write
from tracer.readers import load
from tracer.trace import Kind, Spans, Trace

_KERNELS = 60
_CHUNK = 1 << 16


def make_trace(launches: int) -> Trace:
    """Operators with a launch each, kernels that queue behind them, a stall now and then."""
    builder = TraceBuilder(1_764_000_000_000_000_000)
    host, stream = builder.track(0, 100, 100, name="main"), builder.track(0, 100, 7, 0, "stream 7")
    random = np.random.default_rng(1)
    names = random.integers(0, _KERNELS, launches)
    work = random.integers(2_000, 40_000, launches) // 32 * 32
    step = random.integers(4_000, 40_000, launches)
    step[::500] += 2_000_000
    begin = np.cumsum(step)
    call = begin + random.integers(500, 1_500, launches)
    length = random.integers(1_000, 2_400, launches)
    end = np.maximum.accumulate(call + length + 1_000 - np.cumsum(work) + work) + np.cumsum(work)
    corr = np.arange(1, launches + 1)
    ops = np.array([builder.name(f"aten::op{i}") for i in range(_KERNELS)])
    kernels = np.array(
        [builder.name(f"void at::native::op{i}_kernel<float, {i}>(int, float*)") for i in range(_KERNELS)]
    )
    builder.add_spans(begin, 3_950, int(Kind.OP), ops[names], host)
    builder.add_spans(call, length, int(Kind.CALL), builder.name("cudaLaunchKernel"), host, corr)
    builder.add_spans(end - work, work, int(Kind.KERNEL), kernels[names], stream, corr)
    return builder.build()


def tile(trace: Trace, times: int) -> Trace:
    """The same trace several times, one after the other, as a longer run would be."""
    spans = trace.spans
    period = int(spans.end_ns.max() - spans.start_ns.min()) + 1_000_000
    most = int(spans.corr.max()) + 1
    parts = []
    for turn in range(times):
        corr = np.where(spans.corr > 0, spans.corr + turn * most, spans.corr)
        parent = np.where(spans.parent >= 0, spans.parent + turn * len(spans), -1).astype(np.int32)
        parts.append(replace(spans, start_ns=spans.start_ns + turn * period, corr=corr, parent=parent))
    return Trace(trace.origin_unix_ns, trace.names, trace.tracks, Spans.join(parts), meta=trace.meta)


def floor(count: int) -> float:
    """Seconds to pack as many bare slices: no names, no arguments, no arrows, no compression."""
    times = np.arange(2 * count, dtype=np.int64) % 4_096
    event = packing.message(11, [b"\x48\x01"])
    began = time.perf_counter()
    for low in range(0, 2 * count, _CHUNK):
        some = times[low : low + _CHUNK]
        packing.pack(packing.message(1, [b"\x50\x01", *event, *packing.hole(8, some)]), len(some)).tobytes()
    return time.perf_counter() - began


def builder_speed(count: int = 50_000) -> float:
    """Slices a second of Perfetto's own builder, names in clear, without arguments."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

    made = TraceProtoBuilder()
    began = time.perf_counter()
    for at in range(count):
        for kind in (pb.TrackEvent.TYPE_SLICE_BEGIN, pb.TrackEvent.TYPE_SLICE_END):
            packet = made.add_packet()
            packet.timestamp = at * 1_000 + kind
            packet.trusted_packet_sequence_id = 1
            packet.track_event.type = kind
            packet.track_event.track_uuid = 5
            if kind == pb.TrackEvent.TYPE_SLICE_BEGIN:
                packet.track_event.name = "aten::mm"
    made.serialize()
    return count / (time.perf_counter() - began)


def measure(trace: Trace, json_bytes: int, times: int) -> dict[str, Any]:
    """Speed on the trace repeated `times` times, sizes on the trace itself, beside its gzipped JSON."""
    repeated = tile(trace, times) if times > 1 else trace
    found: dict[str, Any] = {
        "spans": len(repeated.spans),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gzip": "isal" if importlib.util.find_spec("isal") else "zlib",
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.pftrace"
        for detail in ("low", "normal", "full"):
            took = [_timed(repeated, path, detail) for _ in range(5)]
            seconds, cpu, slices = min(took)
            found[detail] = {
                "slices": slices,
                "seconds": round(seconds, 3),
                "cpu_seconds": round(cpu, 3),
                "slices_per_second": round(slices / seconds),
                "times_the_floor": round(seconds / floor(slices), 1),
                "bytes_per_slice": round(path.stat().st_size / slices, 1),
            }
            if json_bytes:
                examined = examine(trace)
                write(trace, audit_of(examined), path, examination=examined, detail=detail)
                found[detail]["size_of_json_gz"] = round(path.stat().st_size / json_bytes, 3)
    builder = builder_speed()
    found["builder_slices_per_second"] = round(builder)
    found["times_the_builder"] = round(found["normal"]["slices_per_second"] / builder, 1)
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return found


def _timed(trace: Trace, path: Path, detail: str) -> tuple[float, float, int]:
    began, cpu = time.perf_counter(), time.process_time()
    written = write(trace, None, path, detail=detail, most_slices=1 << 40)
    return time.perf_counter() - began, time.process_time() - cpu, written.slices


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, help="a .json.gz of torch.profiler")
    parser.add_argument("--times", type=int, default=1, help="repeat the trace for the speed (default: %(default)s)")
    parser.add_argument("--launches", type=int, default=1_000_000, help="of the made trace (default: %(default)s)")
    arguments = parser.parse_args()
    trace = load(arguments.trace) if arguments.trace else make_trace(arguments.launches)
    size = arguments.trace.stat().st_size if arguments.trace else 0
    print(json.dumps(measure(trace, size, arguments.times), indent=2))


if __name__ == "__main__":
    main()
