"""Reads py-spy's `--format chrometrace` and brings it to the trace's clock, or refuses.

Traps:
- Its microseconds begin at a moment that it does not tell, and are taken when a sample
  is written, a little late.
- It writes only what changed: a stack that stays is one pair of B and E. Any thread's
  event shows that a sample was taken then, so each thread gets a row at each of these
  moments; the beacons of a recording change at nearly every sample.
- Its thread numbers are pthread's, not the system's.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tracer.building import TraceBuilder
from tracer.errors import TraceError
from tracer.readers._align import Zero, by_beacons, by_functions
from tracer.trace import NONE, Frames, Loss, Samples, Trace, Track

BEACON = "tracer_beacon_"
_LATEST_US = 1e14  # some years: no process is older
_MOST_LINES = 2**31
_MOST_FILLED = 100_000  # samples that are added where nothing changed for long; beyond it one row stands for many
_OWN = re.compile(r"(^|/)tracer/recording/\w+\.py$")


class _Args(msgspec.Struct):
    filename: str = ""
    line: int | None = None


class _Event(msgspec.Struct):
    name: str
    ph: str
    tid: int
    ts: float
    pid: int = NONE
    cat: str = ""
    args: _Args = msgspec.field(default_factory=_Args)


_Stack = tuple[tuple[str, str, int], ...]  # (function, file, line), outermost first


@dataclass(frozen=True, slots=True)
class Taken:
    """One thread's stack at one sample."""

    time_ns: int  # of py-spy
    thread: int  # pthread's number
    stack: _Stack
    weight_ns: int
    pid: int = NONE


def accepts(path: Path, head: bytes) -> bool:
    """Whether this is a bare list of py-spy's events."""
    return head.lstrip()[:1] == b"[" and b'"py-spy"' in head


def load(path: Path) -> Trace:
    """The samples alone, on py-spy's own clock."""
    builder = TraceBuilder()
    builder.meta["format"] = "py-spy"
    events = _read(path)
    pids = [event.pid for event in events[:1]] or [NONE]
    _add(builder, list(_taken(events)), 0, 0, pids[0], {})
    return builder.build()


def add_samples(path: Path, builder: TraceBuilder, *, rank: int, pid: int, beacons: list[tuple[str, int, int]]) -> None:
    """The samples of a recording, on the clock of its beacons (name, unix ns of entry and exit)."""
    try:
        taken = list(_taken(_read(path)))
    except TraceError as error:
        builder.losses.append(Loss(f"{path.parent.name}/{path.name}: {error.why or error.what}"))
        builder.meta["recorder.samples.why"] = str(error.what)
        return
    zero = by_beacons(taken, beacons)
    if zero.why:
        builder.losses.append(Loss(f"{path.parent.name}/{path.name}: {zero.why}", count=len(taken)))
        builder.meta["recorder.samples.why"] = zero.why
        return
    builder.meta["recorder.samples.clock_error_ns"] = str(zero.error_ns)
    window = builder.window_ns
    kept = [
        sample
        for sample in _corrected(taken, zero.offset_ns, beacons)
        if window is None or window[0] <= sample.time_ns <= window[1]
    ]
    _add(builder, kept, 0, rank, pid, _native_threads(path.parent))


def _corrected(taken: list[Taken], offset_ns: int, beacons: list[tuple[str, int, int]]) -> Iterator[Taken]:
    """The samples without the beacons, in unix time; a late stamp is moved into the beacon that the sample shows."""
    times = {name: (entry, end) for name, entry, end in beacons}
    shown: dict[int, tuple[int, int]] = {}
    last = max((end for _, end in times.values()), default=0)
    for sample in taken:
        for name, _, _ in sample.stack:
            if name in times and times[name][1] < last:
                shown[sample.time_ns] = times[name]
    for sample in taken:
        # A bare thread of the recorder itself: its outermost frame is one of ours.
        if _OWN.search(sample.stack[0][1]):
            continue
        time = sample.time_ns + offset_ns
        entry, end = shown.get(sample.time_ns, (time, time))
        yield dataclasses.replace(sample, time_ns=min(max(time, entry), end))


def merge(trace: Trace, path: Path) -> Trace:
    """A trace with the samples that py-spy took beside it, aligned by the functions that both saw.

    Refuses when they contradict each other or fit in more than one way: the trace stays
    as it is, and says so.
    """
    taken = list(_taken(_read(path)))
    zero = by_functions(trace, taken)
    if zero.why:
        loss = Loss(f"{path.name}: the samples were not merged: {zero.why}", count=len(taken))
        meta = dict(trace.meta) | {"recorder.samples.why": zero.why}
        return dataclasses.replace(trace, losses=(*trace.losses, loss), meta=meta)
    meta = dict(trace.meta) | {
        "recorder.samples": json.dumps({"on": True, "saw": len(taken), "dropped": 0, "how": "py-spy"}),
        "recorder.samples.offset_ns": str(zero.offset_ns),
        "recorder.samples.clock_error_ns": str(zero.error_ns),
    }
    return _with_samples(dataclasses.replace(trace, meta=meta), taken, zero)


def _read(path: Path) -> list[_Event]:
    try:
        events = msgspec.json.decode(path.read_bytes(), type=list[_Event])
    except OSError as error:
        raise TraceError(f"{path} cannot be read", why=str(error)) from error
    except msgspec.DecodeError as error:
        raise TraceError(
            f"{path} is not a sample file of py-spy",
            why=str(error),
            fix="record it with: py-spy record --format chrometrace --idle --nonblocking",
        ) from error
    return [event for event in events if event.ph in ("B", "E") and abs(event.ts) < _LATEST_US]


def _taken(events: list[_Event]) -> Iterator[Taken]:
    """Each thread's stack at each moment at which a sample is known to have been taken."""
    if not events:
        return
    moments, of_event = _moments(np.array([event.ts for event in events]))
    period = int(np.median(np.diff(moments))) if len(moments) > 1 else 0
    beacons = any(event.name.startswith(BEACON) for event in events)
    stacks: dict[tuple[int, int], list[tuple[str, str, int]]] = {}
    order = np.lexsort((np.arange(len(events)), of_event))
    at, left = 0, _MOST_FILLED
    for number, moment in enumerate(moments.tolist()):
        while at < len(order) and of_event[order[at]] == number:
            event = events[int(order[at])]
            stack = stacks.setdefault((event.pid, event.tid), [])
            line = event.args.line or NONE
            frame = (event.name, event.args.filename, line if 0 < line < _MOST_LINES else NONE)
            if event.ph == "B":
                stack.append(frame)
            elif stack:
                stack.pop()
            at += 1
        following = int(moments[number + 1]) if number + 1 < len(moments) else moment
        # Where nothing changed for long, samples were taken all the same; a beacon would have changed.
        gap = following - moment
        missing = round(gap / period) - 1 if period and gap > 1.5 * period and not beacons else 0
        missing = min(missing, left)
        left -= missing
        times = np.linspace(moment, following, missing + 2)[:-1] if missing else np.array([moment])
        for (pid, thread), stack in stacks.items():
            if stack:
                for time in times.astype(np.int64).tolist():
                    yield Taken(time, thread, tuple(stack), gap // len(times), pid)


def _moments(ts_us: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The moments of sampling in ns, and which of them each event belongs to.

    Threads of one sample are written one after the other; an end and a beginning at the
    same sample may be a microsecond apart.
    """
    times = np.rint(ts_us * 1000).astype(np.int64)
    order = np.argsort(times, kind="stable")
    ordered = times[order]
    gaps = np.diff(ordered)
    wide = gaps[gaps > 50_000]
    apart = min(int(np.median(wide)) // 4, 500_000) if len(wide) else 500_000
    first = np.concatenate(([True], gaps > apart))
    number = np.cumsum(first) - 1
    of_event = np.empty(len(times), np.int64)
    of_event[order] = number
    last = np.concatenate((np.flatnonzero(first)[1:] - 1, [len(ordered) - 1]))
    return ordered[last], of_event


def _native_threads(folder: Path) -> dict[int, int]:
    """pthread's number -> the system's, from the recording's manifest."""
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError):
        return {}
    threads = [t for t in manifest.get("threads") or [] if isinstance(t, dict)]
    return {t["ident"]: t["native_id"] for t in threads if t.get("ident") and t.get("native_id")}


def _add(
    builder: TraceBuilder, taken: list[Taken], offset_ns: int, rank: int, pid: int, natives: dict[int, int]
) -> None:
    if not taken:
        return
    frames: dict[_Stack, int] = {}
    for sample in taken:
        if sample.stack not in frames:
            frame = NONE
            for function, file, line in sample.stack:
                frame = builder.frame(file, line, function, frame)
            frames[sample.stack] = frame
    # A child of the program has threads of its own, whose numbers may be the same.
    threads = {(sample.pid, sample.thread) for sample in taken}
    alone = len({of for of, _ in threads}) == 1
    tracks = {
        (of, thread): builder.track(rank, pid, natives.get(thread, thread))
        if alone or of == pid
        else builder.track(rank, of, thread)
        for of, thread in threads
    }
    builder.add_table(
        "samples",
        Samples.of(
            time_ns=[sample.time_ns + offset_ns for sample in taken],
            track=[tracks[sample.pid, sample.thread] for sample in taken],
            frame=[frames[sample.stack] for sample in taken],
            weight_ns=[sample.weight_ns for sample in taken],
        ),
    )


def _with_samples(trace: Trace, taken: list[Taken], zero: Zero) -> Trace:
    """The trace with more rows: its own numbers stay as they are."""
    names = {name: number for number, name in enumerate(trace.names)}
    rows: list[tuple[int, ...]] = []
    known: dict[tuple[int, ...], int] = {}
    tracks = list(trace.tracks)
    numbers = {(track.pid, track.lane): number for number, track in enumerate(tracks) if not track.on_gpu}
    columns: list[tuple[int, int, int, int]] = []
    for sample in taken:
        frame = NONE
        for name, path, number in sample.stack:
            key = (names.setdefault(name, len(names)), names.setdefault(path, len(names)), number, frame)
            if key not in known:
                known[key] = len(trace.frames) + len(rows)
                rows.append(key)
            frame = known[key]
        lane = zero.lanes.get(sample.thread, sample.thread)
        if (zero.pid, lane) not in numbers:
            numbers[zero.pid, lane] = len(tracks)
            tracks.append(Track(0, zero.pid, lane))
        columns.append((sample.time_ns + zero.offset_ns, numbers[zero.pid, lane], frame, sample.weight_ns))
    function, file, line, parent = ([row[i] for row in rows] for i in range(4))
    unknown = [NONE] * len(rows)
    more = Frames.of(function=function, file=file, line=line, column=unknown, end_column=unknown, parent=parent)
    time, track, leaf, weight = (np.array([row[i] for row in columns], np.int64) for i in range(4))
    return dataclasses.replace(
        trace,
        names=tuple(names),
        tracks=tuple(tracks),
        frames=Frames.join([trace.frames, more]),
        samples=Samples.join([trace.samples, Samples.of(time_ns=time, track=track, frame=leaf, weight_ns=weight)]),
    )
