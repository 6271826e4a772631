"""Samples as Perfetto's CPU profile samples: chevrons on each thread, a flame graph of any area."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.exports import _packing as packing
from tracer.exports._scene import Scene
from tracer.exports._sequences import CHUNK, Scale
from tracer.trace import NONE, Ids

_PACKET, _TIMESTAMP, _SEQUENCE, _FLAGS, _PERF_SAMPLE = 1, 8, 10, 13, 66
_CPU, _PID, _TID, _CALLSTACK = 1, 2, 3, 4
_CPU_CLOCK = 1  # PerfEvents.Counter.SW_CPU_CLOCK


def sample_packets(scene: Scene, scale: Scale) -> Iterator[bytes]:
    """The stacks once, then 20 bytes a sample."""
    samples, trace = scene.trace.samples, scene.trace
    rows = np.flatnonzero(samples.frame != NONE)
    if not len(rows) or scene.detail == "low":
        return
    rows = rows[np.argsort(samples.time_ns[rows], kind="stable")]
    sequence = scale.next_sequence()
    yield _stacks(scene, sequence, samples.frame[rows], int(np.median(samples.weight_ns[rows])))
    pids = np.array([scene.numbers.pids.get((t.rank, t.pid), 0) for t in trace.tracks], np.int64)
    tids = np.array([scene.numbers.tids.get((t.rank, t.pid, t.lane), 0) for t in trace.tracks], np.int64)
    for low in range(0, len(rows), CHUNK):
        some = rows[low : low + CHUNK]
        track = samples.track[some]
        sample = [packing.tag(_CPU, 0) + b"\x00", *packing.hole(_PID, pids[track]), *packing.hole(_TID, tids[track])]
        sample += packing.hole(_CALLSTACK, samples.frame[some].astype(np.int64) + 1)
        body = packing.hole(_TIMESTAMP, samples.time_ns[some] - scale.base_ns)
        body += [packing.tag(_SEQUENCE, 0) + packing.varint(sequence) + packing.tag(_FLAGS, 0) + b"\x02"]
        packet = packing.message(_PACKET, body + packing.message(_PERF_SAMPLE, sample))
        yield packing.pack(packet, len(some)).tobytes()


def _stacks(scene: Scene, sequence: int, leaves: Ids, weight_ns: int) -> bytes:
    """Every stack that was sampled. v52 drops frames without a mapping, so all have one."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    packet = pb.TracePacket(trusted_packet_sequence_id=sequence, sequence_flags=1)
    timebase = packet.trace_packet_defaults.perf_sample_defaults.timebase
    timebase.frequency = round(1e9 / max(weight_ns, 1)) or 1
    timebase.counter = _CPU_CLOCK
    data, frames, names = packet.interned_data, scene.trace.frames, scene.trace.names
    data.mapping_paths.add(iid=1, str=b"python")
    data.build_ids.add(iid=1, str=b"")
    data.mappings.add(iid=1, build_id=1, path_string_ids=[1])
    known: set[int] = set()
    for leaf in np.unique(leaves).tolist():
        stack, frame = [], leaf
        while frame != NONE:
            stack.append(frame + 1)
            if frame not in known:
                known.add(frame)
                file = names[frames.file[frame]].rpartition("/")[2]
                text = f"{names[frames.function[frame]]} ({file}:{frames.line[frame]})"
                data.function_names.add(iid=frame + 1, str=text.encode())
                data.frames.add(iid=frame + 1, function_name_id=frame + 1, mapping_id=1, rel_pc=frame + 1)
            frame = int(frames.parent[frame])
        data.callstacks.add(iid=leaf + 1, frame_ids=stack[::-1])
    body: bytes = packet.SerializeToString()
    return b"\x0a" + packing.varint(len(body)) + body
