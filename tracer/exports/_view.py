"""How to look at a file when it is opened: which part, which stall, which rows.

It is written into the file itself, as attributes of the trace, so that `tracer open`
needs nothing but the file. Times are the file's own.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tracer.exports._scene import Scene
from tracer.trace import NONE, Steps

_KEY = "tracer.view"
_HEAD = 1 << 16  # bytes of a file that are searched for it


class View(msgspec.Struct, frozen=True):
    """What to show first."""

    window: tuple[int, int] | None = None  # of the worst step
    stall: tuple[int, int] | None = None  # start and duration of the worst stall
    pins: tuple[str, ...] = ()  # names of rows, in order; where there are several GPUs or ranks, beginnings of names
    expand: tuple[str, ...] = ()  # regular expressions of headings
    findings: dict[str, tuple[int, int]] = {}  # id -> start and duration of its dearest stall


def make_view(scene: Scene, base_ns: int) -> View:
    """The longest step and the longest costly stall in it; where there is neither, the dearest finding's stall."""
    steps = scene.steps.take(scene.steps.traced) if len(scene.steps) else scene.steps
    stalled = scene.stalled.take(~scene.stalled.harmless & (scene.stalled.finding != NONE))
    dearest = next((f for f in scene.dearest if f.stall_ns > 0 and f.first_dur_ns > 0 and not f.harmless), None)
    stall = None if dearest is None else (dearest.first_ns, dearest.first_dur_ns)
    window = None if stall is None else _around(*stall)
    if len(steps):
        worst = int(np.argmax(steps.dur_ns))
        window = (int(steps.start_ns[worst]), int(steps.start_ns[worst] + steps.dur_ns[worst]))
        inside = (stalled.start_ns < window[1]) & (stalled.start_ns + stalled.dur_ns > window[0])
        stalled = stalled.take(inside)
        if len(stalled):
            worst = int(np.argmax(stalled.dur_ns))
            stall = (int(stalled.start_ns[worst]), int(stalled.dur_ns[worst]))
        elif stall is not None:
            window = _step_of(steps, stall[0]) or _around(*stall)
    if window is not None:
        last = int(scene.trace.spans.end_ns.max(initial=base_ns))
        window = _framed(window, stall, base_ns, last)
    rows: tuple[str, ...] = ("Steps", "Host stalls", "Host's lead", "GPU idle, by cause")
    if len({(track.rank, track.device) for track in scene.trace.tracks if track.on_gpu}) > 2:
        rows = tuple(f"{row}{scene.in_rank(_rank_of(scene, stall))}" for row in rows[:2])
    return View(
        window=None if window is None else (window[0] - base_ns, window[1] - base_ns),
        stall=None if stall is None else (stall[0] - base_ns, stall[1]),
        pins=rows,
        expand=("^GPU .*", "^Host.*", r" \d+$"),
        findings={f.id: (f.first_ns - base_ns, f.first_dur_ns) for f in scene.findings if f.first_dur_ns > 0},
    )


def _rank_of(scene: Scene, stall: tuple[int, int] | None) -> int:
    """The rank of the worst stall, else the first."""
    tracks = scene.trace.tracks
    if stall is not None:
        rows = np.flatnonzero(scene.stalled.start_ns == stall[0]).tolist()
        if rows:
            return tracks[int(scene.stalled.track[rows[0]])].rank
    return min(track.rank for track in tracks)


def _step_of(steps: Steps, time_ns: int) -> tuple[int, int] | None:
    """The step that a moment lies in."""
    at = np.flatnonzero((steps.start_ns <= time_ns) & (steps.start_ns + steps.dur_ns > time_ns))
    return (int(steps.start_ns[at[0]]), int((steps.start_ns + steps.dur_ns)[at[0]])) if len(at) else None


def _framed(window: tuple[int, int], stall: tuple[int, int] | None, first: int, last: int) -> tuple[int, int]:
    """A window inside the trace that holds the whole step with the stall near its middle.

    The UI moves what it selects to the middle, and keeps the width unless it is there
    already: then it zooms in. So the window is a little off the middle.
    """
    if stall is not None:
        middle = stall[0] + stall[1] // 2
        half = max(middle - window[0], window[1] - middle)
        window = (middle - half, middle + half)
    low, high = max(window[0], first), min(window[1], last)
    off = (high - low) // 50
    return (low - off, high - off) if low - off >= first else (low + off, min(high + off, last))


def _around(start_ns: int, dur_ns: int) -> tuple[int, int]:
    """A stall with twice its length before and after it."""
    return start_ns - 2 * dur_ns, start_ns + 3 * dur_ns


def view_packet(view: View) -> Any:
    """The view as a packet: unknown to Perfetto before v55, which passes it by."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    packet = pb.TracePacket()
    packet.trace_attributes.attribute.add(key=_KEY, string_value=msgspec.json.encode(view).decode())
    return packet


def read_view(path: Path) -> View | None:
    """The view that a file was written with; None for files of others."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    for body in _packets(_head(path)):
        if b"tracer.view" in body:
            for attribute in pb.TracePacket.FromString(body).trace_attributes.attribute:
                if attribute.key == _KEY:
                    return msgspec.json.decode(attribute.string_value, type=View)
    return None


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head[:2] != b"\x1f\x8b":
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head)
    except zlib.error:
        return b""


def _packets(data: bytes) -> Iterator[bytes]:
    """The packets that are whole in the beginning of a file."""
    at = 0
    while at < len(data) and data[at] == 0x0A:
        at, size, shift = at + 1, 0, 0
        while at < len(data):
            byte = data[at]
            at, size, shift = at + 1, size | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        if at + size > len(data):
            return
        yield data[at : at + size]
        at += size
