"""Reads the Chrome JSON that torch.profiler writes.

Time stamps are microseconds in decimal. They are cut from the text where a double
does not hold them, since it holds an epoch time of today only to a quarter of a microsecond.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tracer.building import TraceBuilder
from tracer.errors import TraceError
from tracer.readers._bytes import GZIP, ZSTD, Progress, Source
from tracer.readers._columns import MOST_NS, EventColumns
from tracer.readers._events import EventDecoder
from tracer.readers._folders import rank_folders, rank_in_name, trace_files
from tracer.readers._framing import WHAT_IS, Framer
from tracer.readers._hits import add_hits
from tracer.readers._salvage import CLEANED, MENDED, NOT_NUMBER, Damage
from tracer.readers._stamps import integer
from tracer.readers._tracks import TrackFinder
from tracer.trace import GPU_WORK, NONE, Ids, Kind, Loss, Trace
from tracer.units import show_ns

_BREAK_NS = 1_000_000
_FAR_NS = 86_400 * 10**9  # some versions stamp the end of their window with a wrong clock
# Keys of the file that are told on; no others, since Trace.meta is also where readers leave word for the analysis.
_TOLD = re.compile(
    r"\w+_version|(?:with|record|profile)_\w+|PT_PROFILER_\w+|host_name|trace_id|traceName|schemaVersion"
    r"|displayTimeUnit|baseTimeNanoseconds"
)


def accepts(path: Path, head: bytes) -> bool:
    """Whether this looks like JSON, plain or compressed, or is a folder of such files."""
    if path.is_dir():
        return not rank_folders(path) and bool(trace_files(path))
    return head.startswith((GZIP, ZSTD)) or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def load(path: Path, progress: Progress | None = None) -> Trace:
    """The trace in one file, or in a folder with one file for each rank."""
    builder = TraceBuilder()
    if path.is_dir():
        _read_folder(path, builder, progress)
    else:
        read(path, builder, progress=progress)
    builder.start_at_first()
    return builder.build()


def _read_folder(folder: Path, builder: TraceBuilder, progress: Progress | None) -> None:
    """Each file is a rank: by its own words, its name, or else its place in the folder."""
    files: dict[int, Path] = {}
    refused: list[TraceError] = []
    for path in trace_files(folder):
        try:
            rank = read(path, builder, otherwise=len(files), taken=files, progress=progress)
        except TraceError as error:
            refused.append(error)
            builder.losses.append(Loss(f"{path.name} is left out: {error.why or error.what}"))
        else:
            files[rank] = path
    if not files:
        raise refused[0]


def read(
    path: Path,
    builder: TraceBuilder,
    rank: int | None = None,
    *,
    otherwise: int = 0,
    taken: Mapping[int, Path] | None = None,
    threads: Mapping[int, int] | None = None,
    names: Mapping[int, str] | None = None,
    progress: Progress | None = None,
) -> int:
    """Add one file's events to a trace; the rank that it is of.

    `threads` turns the numbers that torch gives to threads without operators into
    those of the system; `names` are better names for threads. `otherwise` is the rank
    of a file that does not tell its own; one of `taken` is refused, since two sessions
    count their correlation ids from the same start.
    """
    source = Source(path, progress)
    damage = Damage()
    decoder = EventDecoder()
    columns = EventColumns(builder)

    def take(text: bytes) -> list[Any]:
        events = decoder.decode(text)
        if not columns.add(events):
            decoder.in_text = True
            events = decoder.decode(text)
            columns.add(events)
        return events

    framer = Framer(source.label, source.blocks(), take, damage)
    collecting = gc.isenabled()
    gc.disable()  # millions of small objects that refer to nothing: the collector only costs time
    try:
        for batch in framer.batches():
            source.events += len(batch)
    finally:
        if collecting:
            gc.enable()
    columns.pair()
    if not columns.rows and (decoder.strange or columns.losses):
        why, fix = "what it lists is no event of a trace", WHAT_IS
        if any(what.endswith("without a time") for what in columns.losses):
            why = "none of its events has a time that can be read"
            fix = "ts and dur of a trace are microseconds; if these are nanoseconds, divide them by 1000"
        raise TraceError(f"{source.label} is not a trace", why=why, fix=fix)
    if rank is None:
        rank = _rank(framer.keys, path, otherwise)
    if taken and rank in taken:
        raise TraceError(
            f"{path} is of rank {rank}, and so is {taken[rank]}",
            why="it is another recording of the same rank",
            fix="give the files one at a time",
        )
    _add_meta(builder, framer.keys, columns, rank)
    if columns.rows:
        shift = integer(framer.keys.get("baseTimeNanoseconds", 0))
        tracks = TrackFinder(columns, rank, threads or {}, names or {})
        spans, track = _give(columns, tracks, shift if 0 < shift < MOST_NS else 0)
        hits = path.with_name(re.sub(r"\.json(\.(gz|zst))?$", ".hits.json", path.name))
        if hits != path and hits.is_file():
            add_hits(hits, builder, rank, spans, track)
    _give_losses(builder, columns, decoder, damage, source)
    return rank


def _give(columns: EventColumns, tracks: TrackFinder, shift_ns: int) -> tuple[dict[str, Any], Ids]:
    """Give the builder all rows, with absolute times; those rows and their tracks."""
    spans = columns.spans()
    track = tracks.find(spans)
    place = spans.pop("place")
    start, dur = spans["start_ns"], spans["dur_ns"]
    start += shift_ns
    builder = columns.builder
    first, last = int(start.min()), int((start + dur).max())
    marks = [mark + shift_ns for mark in columns.window]
    usable = [mark for mark in marks if first - _FAR_NS < mark < last + _FAR_NS]
    if len(usable) < len(marks):
        columns.losses["marks of the profiler's own window more than a day from all events"] += len(marks) - len(usable)
    if usable:
        low, high = min(*usable, first), max(*usable, last)
        builder.meta["profiler_span"] = "true"
        if builder.window_ns is None:
            builder.window_ns = (low, high)
        else:  # a recording says itself when its window was; what it launched may end later
            worked = np.isin(spans["kind"], GPU_WORK)
            ends = (start + dur)[worked]
            builder.window_ns = (builder.window_ns[0], max(builder.window_ns[1], int(ends.max(initial=0))))
    rows = builder.add_spans(track=track, **spans)
    columns.give_tables(rows.start, shift_ns)
    _give_breaks(columns, tracks, spans["kind"], place, shift_ns)
    return spans, track


def _give_breaks(columns: EventColumns, tracks: TrackFinder, kind: Any, place: Ids, shift_ns: int) -> None:
    """Between two windows in one file the profiler was off: what the GPU did then is not known."""
    sessions = sorted(columns.sessions)
    starts = np.maximum.accumulate(np.array([end for _, end in sessions[:-1]], np.int64))
    took = np.array([start for start, _ in sessions[1:]], np.int64) - starts
    long = took >= _BREAK_NS
    if not long.any():
        return
    builder = columns.builder
    name, track = builder.name("Profiler off"), tracks.profiler(kind, place)
    builder.add_spans(starts[long] + shift_ns, took[long], int(Kind.OVERHEAD), name, track)
    off = show_ns(int(took[long].sum()))
    builder.losses.append(
        Loss(f"the profiler was off for {off} between windows of this file: the GPU counts as idle then")
    )


def _give_losses(
    builder: TraceBuilder, columns: EventColumns, decoder: EventDecoder, damage: Damage, source: Source
) -> None:
    """Say what was lost, and whether that makes the trace incomplete."""
    if source.cut_short:
        damage.add(source.cut_short, source.given)
    if decoder.strange:
        columns.losses["things in the list that are no events"] += decoder.strange
    columns.give_losses()
    builder.losses += damage.found.values()
    if CLEANED in damage.found:
        builder.meta["names_cleaned"] = str(damage.found[CLEANED].count)
    lost = [what for what in damage.found if what not in MENDED or (what == NOT_NUMBER and columns.losses)]
    if lost:
        builder.meta["complete"] = "false"
        builder.meta.setdefault("why", lost[0])


def _rank(keys: dict[str, Any], path: Path, otherwise: int) -> int:
    """The rank by the file's own words, or else by its name."""
    info = keys.get("distributedInfo")
    said = integer(info.get("rank")) if isinstance(info, dict) else NONE
    if 0 <= said < 2**31:
        return said
    named = rank_in_name(path.name)
    return otherwise if named is None else named


def _add_meta(builder: TraceBuilder, keys: dict[str, Any], columns: EventColumns, rank: int) -> None:
    """What the file says about itself."""
    meta = builder.meta
    meta.setdefault("format", "kineto")
    for key, value in keys.items():
        if isinstance(value, str | int | float) and _TOLD.fullmatch(key):
            meta.setdefault(key, str(value))
    for pid, name in columns.process_names.items():
        if not columns.process_labels.get(pid, "CPU").startswith(("GPU", "NPU")):
            meta.setdefault(f"process.{integer(pid)}", name)
    info = keys.get("distributedInfo")
    for key in ("world_size", "backend"):
        if isinstance(info, dict) and key in info:
            meta.setdefault(key, str(info[key]))
    devices = keys.get("deviceProperties")
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, dict) and "id" in device:
            meta[f"device.{rank}.{device['id']}"] = str(device.get("name", ""))
