"""How fast a trace is written for Perfetto, and how large the file is.

    python -m tests.bench.export [TRACE.json.gz] [--launches 1000000] [--json]

Without a trace, one is made: operators that launch kernels, which is what a training
loop is made of. Each figure stands beside what it can be held against on the same
machine: packing alone without names and arguments (the floor), Perfetto's own
`TraceProtoBuilder`, and the gzipped Kineto JSON of the same run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tracer.building import TraceBuilder
from tracer.exports import _packing as packing
from tracer.exports._output import compressor
from tracer.exports.perfetto import write
from tracer.readers import load
from tracer.trace import Kind, Trace

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


def kineto_size(trace: Trace) -> int:
    """Bytes of the gzipped JSON that Kineto would write of a made trace, with the keys that it writes."""
    spans, rows = trace.spans, []
    for row in range(len(spans)):
        kernel = spans.kind[row] == Kind.KERNEL
        args: dict[str, Any] = {"External id": int(spans.corr[row])}
        if kernel:
            args |= {"queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": int(spans.corr[row])}
            args |= {"registers per thread": 32, "shared memory": 0, "blocks per SM": 1.5, "warps per SM": 6.0}
            args |= {"grid": [132, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 9}
        elif spans.kind[row] == Kind.CALL:
            args |= {"cbid": 211, "correlation": int(spans.corr[row])}
        else:
            args |= {"Record function id": 0, "Ev Idx": row}
        track = trace.tracks[spans.track[row]]
        cat = "kernel" if kernel else "cuda_runtime" if spans.kind[row] == Kind.CALL else "cpu_op"
        start, dur = int(spans.start_ns[row]) + trace.origin_unix_ns, int(spans.dur_ns[row])
        stamps = f'"ts": {start // 1000}.{start % 1000:03d}, "dur": {dur // 1000}.{dur % 1000:03d}'
        name = json.dumps(trace.names[spans.name[row]])
        rows.append(
            f'  {{"ph": "X", "cat": "{cat}", "name": {name}, "pid": {track.device if kernel else track.pid}, '
            f'"tid": {track.lane}, {stamps}, "args": {json.dumps(args)}}}'
        )
    return len(gzip.compress((",\n".join(rows)).encode(), 6))


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


def measure(trace: Trace, json_bytes: int) -> dict[str, Any]:
    """All figures of one trace."""
    found: dict[str, Any] = {"spans": len(trace.spans), "json_gz_bytes": json_bytes, "gzip": compressor().__doc__ or ""}
    with tempfile.TemporaryDirectory() as folder:
        for detail in ("low", "normal", "full"):
            best = None
            for _ in range(3):
                began, cpu = time.perf_counter(), time.process_time()
                written = write(trace, None, Path(folder) / "t.pftrace", detail=detail, most_slices=1 << 40)
                took = time.perf_counter() - began, time.process_time() - cpu
                best = took if best is None or took[0] < best[0] else best
            size = written.path.stat().st_size
            assert best is not None
            found[detail] = {
                "slices": written.slices,
                "seconds": round(best[0], 3),
                "cpu_seconds": round(best[1], 3),
                "slices_per_second": round(written.slices / best[0]),
                "over_floor": round(best[0] / floor(written.slices), 2),
                "bytes": size,
                "bytes_per_slice": round(size / written.slices, 1),
                "of_json_gz": round(size / json_bytes, 3) if json_bytes else None,
            }
    builder = builder_speed()
    found["builder_slices_per_second"] = round(builder)
    found["over_builder"] = round(found["normal"]["slices_per_second"] / builder, 1)
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--launches", type=int, default=500_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.trace:
        trace = load(arguments.trace)
        data = arguments.trace.read_bytes()
        size = len(data) if data[:2] == b"\x1f\x8b" else len(gzip.compress(data, 6))
    else:
        trace = make_trace(arguments.launches)
        size = kineto_size(make_trace(20_000)) * arguments.launches // 20_000
    found = measure(trace, size)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
