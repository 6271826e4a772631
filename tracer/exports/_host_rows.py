"""The rows of a process: its threads with operators, runtime calls, annotations and the user's lines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.analysis.intervals import Union, covered, union
from tracer.exports._arrows import HOST_SPAN
from tracer.exports._lanes import nested_lanes
from tracer.exports._naming import process_name, thread_name
from tracer.exports._rows import Arg, Counter, Row, Slices
from tracer.exports._scene import Scene
from tracer.exports._spans import lane_rows
from tracer.trace import NONE, Ids, Ints, Kind, Track

_CATEGORY = {
    Kind.OP: "op",
    Kind.CALL: "call",
    Kind.MARK: "annotation",
    Kind.PYTHON: "python",
    Kind.OVERHEAD: "overhead",
    Kind.WAIT: "wait",
}
_THREAD_TEXT = (
    "Operators and runtime calls. A slice is filled as far as the thread really worked and pale where it only "
    "waited for the GPU: the thread duration shown is this working time, not CPU time."
)


def process_rows(scene: Scene, rank: int, pid: int) -> Iterator[Row]:
    """One process and its threads."""
    trace, numbers = scene.trace, scene.numbers
    shown = numbers.pids[(rank, pid)]
    name = process_name(trace.meta.get(f"process.{pid}", ""), trace.meta.get("program", ""))
    labels = (f"rank {rank}",) if scene.many_ranks or "world_size" in trace.meta else ()
    if shown != pid and pid > 0:
        labels = (*labels, f"pid {pid}")
    key = f"process {rank} {pid}"
    yield Row(key, name, process=(shown, name, labels))
    for index, track in enumerate(trace.tracks):
        if (track.rank, track.pid) == (rank, pid) and not track.on_gpu:
            yield from _thread_rows(scene, index, track, key)
    if pid == next(track.pid for track in trace.tracks if track.rank == rank and not track.on_gpu):
        yield from counter_rows(scene, rank, NONE, key)


def _thread_rows(scene: Scene, index: int, track: Track, process: str) -> Iterator[Row]:
    spans = scene.trace.spans
    tid = scene.numbers.tids[(track.rank, track.pid, track.lane)]
    shown_pid = scene.numbers.pids[(track.rank, track.pid)]
    key = f"thread {track.rank} {track.pid} {track.lane}"
    name = thread_name(track.name, track.lane, track.lane == track.pid)
    mine = scene.rows_of(index, *_CATEGORY)
    kinds = spans.kind[mine]
    shown = (Kind.OP, Kind.CALL, Kind.WAIT) if scene.detail == "full" else (Kind.OP, Kind.CALL)
    rows = mine[np.isin(kinds, shown)]
    lanes = nested_lanes(spans.start_ns[rows], spans.dur_ns[rows])
    waiting = _waiting(scene, index)
    main = tuple(_host_slices(scene, rows[lanes == 0], waiting))
    yield Row(key, name, process, thread=(shown_pid, tid, name), description=_THREAD_TEXT, slices=main)
    for lane in range(1, int(lanes.max(initial=0)) + 1):
        more = tuple(_host_slices(scene, rows[lanes == lane], None))
        yield Row(f"{key} lane {lane}", f"{name}: overlapping", key, description=_THREAD_TEXT, slices=more)
    for kind, title, text in (
        (Kind.MARK, "annotations", "record_function, NVTX ranges and profiler steps of the program."),
        (Kind.PYTHON, "Python functions", "Functions that the profiler recorded with their callers."),
        (Kind.OVERHEAD, "profiler overhead", "Time that recording itself took, as CUPTI reports it."),
    ):
        parts = list(_host_slices(scene, mine[kinds == kind], None))
        if kind == Kind.MARK or scene.detail != "low":
            yield from lane_rows(f"{key} {title}", f"{name}: {title}", key, 0, text, parts)
    yield from _line_rows(scene, index, f"{key} lines", f"{name}: lines", key)


def overhead_rows(scene: Scene, rank: int, parent: str, place: int) -> Iterator[Row]:
    """What recording itself took, where that belongs to no thread."""
    tracks = [i for i, track in enumerate(scene.trace.tracks) if track.rank == rank and is_overhead(scene, i)]
    rows = [scene.rows_of(track, Kind.OVERHEAD) for track in tracks]
    parts = list(_host_slices(scene, np.sort(np.concatenate(rows)), None)) if rows else []
    text = "Time that recording itself took, as CUPTI reports it."
    yield from lane_rows(f"overhead {rank}", "Profiler overhead", parent, place, text, parts)


def is_overhead(scene: Scene, index: int) -> bool:
    """Whether a track is no thread but the place of the profiler's own overhead."""
    spans = scene.trace.spans
    kinds = spans.kind[scene.rows_of(index, *Kind)]
    return (
        not scene.trace.tracks[index].on_gpu
        and scene.trace.tracks[index].pid <= 0
        and bool(np.all(kinds == Kind.OVERHEAD))
    )


def _waiting(scene: Scene, track: int) -> Union | None:
    mine = scene.stalled.take(scene.stalled.track == track)
    waiting = union(mine.start_ns, mine.start_ns + mine.dur_ns)
    return waiting if len(waiting[0]) else None


def _host_slices(scene: Scene, rows: Ids, waiting: Union | None) -> Iterator[Slices]:
    """Slices of one kind of span, of one number of arrows, with or without waiting inside."""
    spans = scene.trace.spans
    start, end = spans.start_ns[rows], spans.end_ns[rows]
    waits = covered(waiting, start, end) > 0 if waiting is not None else np.zeros(len(rows), np.bool_)
    kinds = spans.kind[rows]
    for kind in np.flatnonzero(np.bincount(kinds)).tolist():
        of_kind = kinds == kind
        for waited in (False, True) if waits.any() else (False,):
            same = rows[of_kind & waits] if waited else rows[of_kind & ~waits]
            for at, leaving, arriving in scene.arrows.split(HOST_SPAN, same):
                some = same[at]
                yield Slices(
                    spans.start_ns[some],
                    spans.dur_ns[some],
                    scene.names[spans.name[some]],
                    _CATEGORY[Kind(kind)],
                    _host_args(scene, Kind(kind), some),
                    leaving,
                    arriving,
                    worked_ns=_worked(waiting, spans.start_ns[some], spans.end_ns[some]) if waited else None,
                    order=some,
                )


def _worked(waiting: Union | None, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """What the thread had worked at the begin and the end; at least 1 ns, since 0 would count as unknown."""
    assert waiting is not None
    low = int(waiting[0][0])
    zero = np.full(len(start), min(low, int(start.min())))
    at_start = start - zero - covered(waiting, zero, start)
    at_end = end - zero - covered(waiting, zero, end)
    return at_start, np.maximum(at_end, at_start + 1)


def _host_args(scene: Scene, kind: Kind, rows: Ids) -> tuple[Arg, ...]:
    spans = scene.trace.spans
    if scene.detail == "low":
        return ()
    if kind in (Kind.CALL, Kind.WAIT):
        return (Arg("correlation", spans.corr[rows]),)
    ops = scene.trace.ops
    if kind == Kind.OP and scene.detail == "full" and len(ops):
        at = np.minimum(np.searchsorted(ops.span, rows), len(ops) - 1)
        known = ops.span[at] == rows
        shapes = np.where(known & (ops.shapes[at] != NONE), scene.names[ops.shapes[at]], scene.strings.id("-"))
        return (Arg("shapes", shapes, text=True), Arg("sequence", np.where(known, ops.sequence[at], NONE)))
    return ()


def _line_rows(scene: Scene, index: int, key: str, name: str, parent: str) -> Iterator[Row]:
    lines = scene.trace.lines
    rows = np.flatnonzero(lines.track == index)
    if not len(rows) or scene.detail == "low":
        return
    texts = {int(frame): line_text(scene, int(frame)) for frame in np.unique(lines.frame[rows])}
    names = np.full(max(texts) + 1, NONE, np.int32)
    for frame, text in texts.items():
        names[frame] = scene.strings.id(text)
    part = Slices(lines.start_ns[rows], lines.dur_ns[rows], names[lines.frame[rows]], "line")
    yield from lane_rows(key, name, parent, 0, "Which line of the program's own code ran.", [part])


def line_text(scene: Scene, frame: int) -> str:
    """`train.py:31 loss.item()`: a place with its text, if the source is at hand."""
    trace = scene.trace
    file, line = trace.names[trace.frames.file[frame]], int(trace.frames.line[frame])
    source = trace.sources.get(file, "").splitlines()
    text = source[line - 1].strip() if 0 < line <= len(source) else ""
    return f"{file.rpartition('/')[2]}:{line} {text[:60]}".strip()


def counter_rows(scene: Scene, rank: int, device: int, parent: str, place: int = 0) -> Iterator[Row]:
    """Recorded counters of a device, or (device NONE) of a rank's process: memory, above all. They start folded."""
    counters, tracks = scene.trace.counters, scene.trace.tracks
    if not len(counters):
        return
    # A counter without a track is of the only rank there is, or of the first.
    ranks = np.array([*(track.rank for track in tracks), min(track.rank for track in tracks)])
    mine = np.flatnonzero((counters.device == device) & (ranks[counters.track] == rank))
    if not len(mine):
        return
    key = f"{parent} memory"
    yield Row(key, f"Memory{scene.of_gpu(rank, device) if device != NONE else ''}", parent, place, heading=True)
    names = sorted(np.unique(counters.name[mine]).tolist(), key=lambda name: scene.trace.names[name])
    for number, name in enumerate(names):
        rows = mine[counters.name[mine] == name]
        rows = rows[np.argsort(counters.time_ns[rows], kind="stable")]
        text = scene.trace.names[name]
        values = counters.value[rows]
        whole = values.astype(np.int64) if np.all(values == np.rint(values)) else values
        counter = Counter(counters.time_ns[rows], whole, _unit_of(text))
        yield Row(f"{key} {text}", text, key, number, "As recorded.", counter=counter)


def _unit_of(counter: str) -> str:
    """Bytes, unless the name counts events."""
    words = counter.lower().split()
    if any(word in words for word in ("allocations", "retries", "frees", "count", "blocks", "utilization")):
        return "count"
    if "out of memory" in counter.lower():
        return "count"
    return "bytes" if any(word in counter.lower() for word in ("byte", "memory", "alloc", "reserved")) else "count"
