"""Writes a trace for ui.perfetto.dev: GPU and host side by side, with the arrows between them.

- The rows of the host are written before those of the GPU, stalls first: at equal
  times Perfetto keeps file order, so an arrow leaves before it arrives, and a link
  to a stall finds the stall rather than the call below it.
- Time 0 of the file is the first thing in it; a clock snapshot gives its date.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tracer.errors import UsageError
from tracer.exports._callstacks import sample_packets
from tracer.exports._cut import cut_to, parse_steps, worst_steps
from tracer.exports._findings_rows import finding_rows
from tracer.exports._flows import draw_arrows
from tracer.exports._gpu_rows import gpu_rows
from tracer.exports._host_rows import is_overhead, process_rows
from tracer.exports._output import Output
from tracer.exports._packing import varint
from tracer.exports._rows import Row
from tracer.exports._scene import DETAILS, Examined, Scene, set_scene
from tracer.exports._sequences import BOOTTIME, Scale, pack_row, work_counter_key
from tracer.exports._view import make_view, view_packet
from tracer.results import Audit
from tracer.trace import NONE, Trace

SUFFIX = ".pftrace"
MOST_SLICES = 6_000_000  # about 2 GB in the browser
_REALTIME = 1


@dataclass(frozen=True, slots=True)
class Written:
    """What a file holds, in the numbers that Perfetto should count too."""

    path: Path
    base_ns: int  # this moment of the trace is the file's 0
    slices: int
    counters: int
    samples: int
    arrows: dict[str, int] = field(default_factory=dict)
    raw_bytes: int = 0
    notes: tuple[str, ...] = ()  # what was left out, and why


def write(
    trace: Trace,
    audit: Audit | None,
    path: str | Path,
    *,
    examination: Examined | None = None,
    detail: str = "normal",
    steps: str = "",
    compress: bool = True,
    most_slices: int = MOST_SLICES,
) -> Written:
    """Write the trace, and what an examination found in it, to `path`; `steps` as in `10:12`."""
    if detail not in DETAILS:
        raise UsageError(f"no such detail: {detail}", fix=f"choose one of {', '.join(DETAILS)}")
    notes: tuple[str, ...] = ()
    scene = set_scene(trace, audit, examination, detail)
    if steps:
        scene = cut_to(scene, parse_steps(steps, scene.steps))
    if 2 * len(scene.trace.spans) > most_slices:
        window, notes = worst_steps(scene, most_slices)
        scene = cut_to(scene, window)
    return write_scene(scene, Path(path), compress=compress, notes=notes)


def write_scene(scene: Scene, path: Path, *, compress: bool = True, notes: tuple[str, ...] = ()) -> Written:
    """Write what is in a scene."""
    draw_arrows(scene)
    base = _first(scene)
    scale = Scale(base, _seed(scene.trace), scene.strings)
    scale.arrow_base = scale.uuid("arrows") >> 32 << 32
    slices = counters = 0
    with Output(path, compress=compress) as out:
        out.add(_opening(scene, scale))
        out.add(_framed(view_packet(make_view(scene, base)).SerializeToString()))
        # Rows are packed by other threads while the next ones are being found.
        for row in all_rows(scene):
            slices += row.count
            counters += len(row.counter.time_ns) if row.counter is not None else 0
            out.add(_descriptors(row, scale))
            for data in pack_row(row, scale):
                if isinstance(data, bytes):
                    out.add(data)
                else:
                    out.later(data.pack, data.size)
        for packets in sample_packets(scene, scale):
            out.add(packets)
    samples = int(np.sum(scene.trace.samples.frame >= 0)) if scene.detail != "low" else 0
    return Written(path, base, slices, counters, samples, scene.arrows.counts, out.raw_bytes, notes)


def all_rows(scene: Scene) -> Iterator[Row]:
    """Every row of the timeline, in the order of the file."""
    tracks = scene.trace.tracks
    for rank in sorted({track.rank for track in tracks}):
        yield from finding_rows(scene, rank)
    threads = [t for i, t in enumerate(tracks) if not t.on_gpu and not is_overhead(scene, i)]
    for rank, pid in dict.fromkeys((t.rank, t.pid) for t in threads):
        yield from process_rows(scene, rank, pid)
    for rank, device in sorted({(t.rank, t.device) for t in tracks if t.on_gpu}):
        yield from gpu_rows(scene, rank, device)


def _first(scene: Scene) -> int:
    """A moment before which nothing is drawn: the first in any table."""
    trace, timings, steps = scene.trace, scene.trace.event_timings, scene.steps
    columns = [trace.spans.start_ns, trace.lines.start_ns, trace.samples.time_ns, trace.counters.time_ns]
    columns += [trace.reads.time_ns, timings.time_ns, timings.start_ns, timings.end_ns]
    columns += [steps.start_ns[steps.traced], scene.stalled.start_ns, scene.idled.start_ns]
    columns.append(np.array([f.first_ns for f in scene.findings], np.int64))
    known = [column[column != NONE] for column in columns]
    return min((int(column.min()) for column in known if len(column)), default=0)


def _seed(trace: Trace) -> str:
    """The same for the same trace, and another for any other: ids must differ where files are put together."""
    parts = [trace.origin_unix_ns, len(trace.spans), trace.names, sorted(trace.meta.items())]
    parts += sorted((track.rank, track.pid, track.lane) for track in trace.tracks)
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _opening(scene: Scene, scale: Scale) -> bytes:
    """The date of time 0, and what the heading of the timeline needs."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    packet = pb.TracePacket(trusted_packet_sequence_id=scale.next_sequence(), sequence_flags=1)
    unix = scene.trace.origin_unix_ns + scale.base_ns
    packet.clock_snapshot.clocks.add(clock_id=BOOTTIME, timestamp=0)
    packet.clock_snapshot.clocks.add(clock_id=_REALTIME, timestamp=max(unix, 0))
    return _framed(packet.SerializeToString())


def _descriptors(row: Row, scale: Scale) -> bytes:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    kinds = pb.TrackDescriptor
    found = []
    packet = pb.TracePacket(trusted_packet_sequence_id=scale.next_sequence())
    track = packet.track_descriptor
    track.uuid = scale.uuid(row.key)
    if row.description:
        track.description = row.description
    if row.process is not None:
        track.process.pid, track.process.process_name = row.process[:2]
        track.process.process_labels.extend(row.process[2])
    elif row.thread is not None:
        track.thread.pid, track.thread.tid, track.thread.thread_name = row.thread
    else:
        track.name = row.name
        if row.parent:
            track.parent_uuid = scale.uuid(row.parent)
        track.sibling_order_rank = row.rank
        if row.heading:
            track.child_ordering = kinds.EXPLICIT
    if row.counter is not None:
        _describe_counter(track.counter, row.counter.unit)
    found.append(packet)
    if any(part.worked_ns is not None for part in row.slices):
        worked = pb.TracePacket(trusted_packet_sequence_id=scale.next_sequence())
        worked.track_descriptor.uuid = scale.uuid(work_counter_key(row.key))
        worked.track_descriptor.parent_uuid = scale.uuid(row.key)
        worked.track_descriptor.counter.type = pb.CounterDescriptor.COUNTER_THREAD_TIME_NS
        found.append(worked)
    return b"".join(_framed(packet.SerializeToString()) for packet in found)


def _describe_counter(counter: Any, unit: str) -> None:
    known = {"bytes": 3, "count": 2, "ns": 1}  # CounterDescriptor.Unit
    if unit in known:
        counter.unit = known[unit]
    else:
        counter.unit_name = unit


def _framed(body: bytes) -> bytes:
    return b"\x0a" + varint(len(body)) + body
