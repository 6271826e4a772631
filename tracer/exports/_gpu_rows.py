"""The rows of a GPU: how busy it is, how far ahead the host is, what runs on its streams."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.analysis.launches import device_tracks
from tracer.exports import _colours as colours
from tracer.exports._arrows import GPU_SPAN, GRAPH, IDLE
from tracer.exports._host_rows import counter_rows
from tracer.exports._lanes import free_lanes, nested_lanes, open_at_start
from tracer.exports._load_rows import load_rows
from tracer.exports._naming import short_place, stream_name
from tracer.exports._rows import Arg, Row, Slices
from tracer.exports._scene import Scene, shown_durations
from tracer.exports._spans import lane_rows
from tracer.trace import NONE, Ids, Ints, Kind
from tracer.units import show_bytes

SHOWN_GAPS = 12  # gaps drawn above each other; those further back in the queue have a row of their own


def gpu_rows(scene: Scene, rank: int, device: int) -> Iterator[Row]:
    """The heading of one GPU and its rows, from the whole to the detail."""
    trace = scene.trace
    key = f"gpu {rank} {device}"
    name = trace.meta.get(f"device.{rank}.{device}", "")
    yield Row(key, f"GPU {device}{scene.of_rank(rank)}" + (f": {name}" if name else ""), heading=True)
    yield from load_rows(scene, rank, device, key)
    yield from _gap_rows(scene, rank, device, key)
    tracks = np.flatnonzero(device_tracks(trace, rank, device))
    for place, track in enumerate(sorted(tracks, key=lambda t: trace.tracks[t].lane)):
        yield from _stream_rows(scene, int(track), key, 100 + place)
    yield from _copy_rows(scene, tracks, key)
    yield from _idle_rows(scene, rank, device, key)
    yield from counter_rows(scene, rank, device, key, 999)
    yield from _mark_rows(scene, tracks, key)


def _gap_rows(scene: Scene, rank: int, device: int, key: str) -> Iterator[Row]:
    if scene.detail == "low":
        return
    spans, launches = scene.trace.spans, scene.launches
    mine = device_tracks(scene.trace, rank, device)[spans.track[launches.work]] & (launches.gap_ns > 0)
    rows = np.flatnonzero(mine)
    if len(scene.graphs):
        # A graph launches all its kernels at once: its first shows the gap.
        rows = rows[np.sort(np.unique(launches.call[rows], return_index=True)[1])]
    starts = spans.end_ns[launches.call[rows]]
    rows = rows[np.argsort(starts, kind="stable")]
    starts, ends = spans.end_ns[launches.call[rows]], spans.start_ns[launches.work[rows]]
    behind = open_at_start(starts, ends) >= SHOWN_GAPS
    text = "From the end of a launch to the start of its work, one bar a launch. Long bars: the host is far ahead."
    yield from _gap_lanes(scene, rows[~behind], f"{key} gap", "Async gap", key, 4, text)
    if behind.any():
        heading = f"{key} gap deep"
        yield Row(heading, "Async gap, further back in the queue", key, 5, heading=True)
        yield from _gap_lanes(
            scene, rows[behind], f"{key} gap behind", "Async gap of launches further back", heading, 1, text
        )


def _gap_lanes(scene: Scene, rows: Ints, key: str, name: str, parent: str, rank: int, text: str) -> Iterator[Row]:
    spans, launches = scene.trace.spans, scene.launches
    starts, gaps, corr = spans.end_ns[launches.call[rows]], launches.gap_ns[rows], spans.corr[launches.work[rows]]
    names = shown_durations(gaps, scene.strings)
    lanes = free_lanes(starts, starts + gaps)
    for lane in range(int(lanes.max(initial=-1)) + 1):
        at = np.flatnonzero(lanes == lane)
        args = (Arg("correlation", corr[at]),)
        order = np.arange(len(at))
        part = Slices(starts[at], gaps[at], names[at], "async gap", args, order=order)
        yield Row(f"{key} {lane}", name, parent, rank, text if lane == 0 else "", (part,))


def _stream_rows(scene: Scene, track: int, key: str, rank: int) -> Iterator[Row]:
    trace, spans = scene.trace, scene.trace.spans
    rows = scene.rows_of(track, Kind.KERNEL, Kind.GPU_OTHER)
    if not len(rows):
        return
    lanes = free_lanes(spans.start_ns[rows], spans.end_ns[rows])
    name = stream_name(trace.tracks[track].lane)
    text = "Kernels as they ran. The arrow into one comes from the call that launched it."
    graphs = np.flatnonzero(scene.graphs.track == track)
    fits = not len(graphs) or _nest_above(scene, graphs, rows[lanes == 0])
    for lane in range(int(lanes.max()) + 1):
        parts = list(_kernel_slices(scene, rows[lanes == lane]))
        if lane == 0 and fits:
            parts = [_unordered(part) for part in parts] if len(graphs) else parts
            parts += _graph_slices(scene, graphs)
        yield Row(f"{key} stream {track} {lane}", name, key, rank, text, tuple(parts))
    if not fits:
        parts = _graph_slices(scene, graphs)
        yield from lane_rows(f"{key} graphs {track}", f"{name}: graphs", key, rank, "Launches of CUDA graphs.", parts)


def _nest_above(scene: Scene, graphs: Ints, kernels: Ids) -> bool:
    """Whether graphs can lie over their kernels on one lane."""
    spans, whole = scene.trace.spans, scene.graphs.take(graphs)
    start = np.concatenate((whole.start_ns, spans.start_ns[kernels]))
    dur = np.concatenate((whole.dur_ns, spans.dur_ns[kernels]))
    order = np.lexsort((-dur, start))
    return not nested_lanes(start[order], dur[order]).any()


def _unordered(part: Slices) -> Slices:
    from dataclasses import replace

    return replace(part, order=None)


def _graph_slices(scene: Scene, rows: Ints) -> list[Slices]:
    graphs = scene.graphs
    found = []
    for at, leaving, arriving in scene.arrows.split(GRAPH, rows):
        some = rows[at]
        names = scene.text_ids([f"CUDA graph, {count} kernels" for count in graphs.count[some].tolist()])
        args = (Arg("correlation", graphs.corr[some]), Arg("kernels", graphs.count[some].astype(np.int64)))
        found.append(
            Slices(
                graphs.start_ns[some],
                graphs.dur_ns[some],
                names,
                "graph",
                args,
                leaving,
                arriving,
            )
        )
    return found


def _kernel_slices(scene: Scene, rows: Ids) -> Iterator[Slices]:
    spans = scene.trace.spans
    for at, leaving, arriving in scene.arrows.split(GPU_SPAN, rows):
        some = rows[at]
        names = scene.kernel_names[spans.name[some]]
        args = [*_launch_args(scene, some), Arg("kernel", scene.names[spans.name[some]], text=True)]
        if scene.detail == "low":
            args = []
        elif scene.detail == "full":
            args += _shape_args(scene, some)
        yield Slices(
            spans.start_ns[some],
            spans.dur_ns[some],
            names,
            "kernel",
            tuple(args),
            leaving,
            arriving,
            order=some,
        )


def _launch_args(scene: Scene, rows: Ids) -> list[Arg]:
    """How this work was launched: by which operator, how long before."""
    spans = scene.trace.spans
    args = [Arg("correlation", spans.corr[rows])]
    calls = scene.calls[rows]
    known = calls != NONE
    gaps = np.where(known, spans.start_ns[rows] - spans.end_ns[calls], 0)
    parents = np.where(known, spans.parent[calls], NONE)
    named = np.where(parents != NONE, scene.names[spans.name[parents]], scene.strings.id("-"))
    return [*args, Arg("gap_ns", gaps), Arg("launched_by", named, text=True)]


def _shape_args(scene: Scene, rows: Ids) -> list[Arg]:
    work = scene.trace.work
    if not len(work):
        return []
    at = np.minimum(np.searchsorted(work.span, rows), len(work) - 1)
    known = work.span[at] == rows
    unknown = scene.strings.id("-")
    found = []
    for name, column in (("grid", work.grid), ("block", work.block)):
        ids = np.where(known & (column[at] != NONE), scene.names[column[at]], unknown)
        found.append(Arg(name, ids, text=True))
    return found


def _copy_rows(scene: Scene, tracks: Ints, key: str) -> Iterator[Row]:
    spans = scene.trace.spans
    rows = np.sort(np.concatenate([scene.rows_of(int(track), Kind.COPY, Kind.FILL) for track in tracks]))
    if not len(rows):
        return
    parts = []
    for at, leaving, arriving in scene.arrows.split(GPU_SPAN, rows):
        some = rows[at]
        sizes = np.maximum(spans.nbytes[some], 0)
        args = []
        if scene.detail != "low":
            speed = np.round(sizes / np.maximum(spans.dur_ns[some], 1), 3)
            streams = np.array([scene.trace.tracks[t].lane for t in spans.track[some]], np.int64)
            args = [*_launch_args(scene, some), Arg("bytes", sizes), Arg("GB_per_s", speed), Arg("stream", streams)]
        names = _copy_names(scene, some, sizes)
        start, dur = spans.start_ns[some], spans.dur_ns[some]
        parts.append(Slices(start, dur, names, "copy", tuple(args), leaving, arriving, order=some))
    text = "Copies between host and device and fills of memory, on all streams, with their size."
    yield from lane_rows(f"{key} copies", "Copies", key, 900, text, parts, flat=True)


def _copy_names(scene: Scene, rows: Ids, sizes: Ints) -> Ids:
    """`HtoD 64.0 MiB`: one text for each name and size."""
    pairs, at = np.unique(np.stack((scene.trace.spans.name[rows], sizes)), axis=1, return_inverse=True)
    texts = []
    for name, size in pairs.T.tolist():
        text = scene.trace.names[name].replace("Memcpy ", "").replace("Memset", "Fill").replace("(Device)", "")
        texts.append(f"{text.strip()} {show_bytes(size)}" if size > 0 else text.strip())
    found: Ids = scene.strings.ids(texts)[at.ravel()]
    return found


def _idle_rows(scene: Scene, rank: int, device: int, key: str) -> Iterator[Row]:
    idle, texts = scene.idled, scene.strings.texts
    rows = np.flatnonzero((idle.rank == rank) & (idle.device == device))
    names, args = _idle_texts(scene, rows)
    parts = []
    for cause in np.flatnonzero(np.bincount(idle.cause[rows])).tolist():
        same = np.flatnonzero(idle.cause[rows] == cause)
        for at, leaving, arriving in scene.arrows.split(IDLE, rows[same]):
            some = same[at]
            start, dur = idle.start_ns[rows[some]], idle.dur_ns[rows[some]]
            mine = tuple(Arg(arg.name, arg.values[some], text=True) for arg in args)
            colour = colours.of_idle(texts[cause])
            parts.append(Slices(start, dur, names[some], "idle", mine, leaving, arriving, colour))
    text = "When nothing ran on this GPU, and why. Red: the host was held; the arrow goes to the launch that ended it."
    yield from lane_rows(
        f"{key} idle", f"GPU idle, by cause{scene.of_gpu(rank, device)}", key, 901, text, parts, flat=True
    )


def _idle_texts(scene: Scene, rows: Ints) -> tuple[Ids, tuple[Arg, ...]]:
    """For each row its name, `sync.item train.py:31`, and what is known of its finding."""
    idle = scene.idled
    many = len(scene.findings) + 1
    pairs, at = np.unique(idle.kind[rows].astype(np.int64) * many + idle.finding[rows] + 1, return_inverse=True)
    found = [scene.finding(int(pair) % many - 1) for pair in pairs]
    kinds = [scene.strings.texts[int(pair) // many] for pair in pairs]
    names = [f"{kind} {short_place(finding.place) if finding else ''}".strip() for kind, finding in zip(kinds, found)]
    args = (
        Arg("cause", scene.text_ids(kinds)[at], text=True),
        Arg("finding", scene.text_ids([finding.id if finding else "-" for finding in found])[at], text=True),
        Arg("fix", scene.text_ids([finding.fix if finding else "-" for finding in found])[at], text=True),
    )
    return scene.text_ids(names)[at], args


def _mark_rows(scene: Scene, tracks: Ints, key: str) -> Iterator[Row]:
    """Annotations of the program, projected on the streams."""
    spans = scene.trace.spans
    if scene.detail == "low":
        return
    for place, track in enumerate(tracks.tolist()):
        rows = scene.rows_of(track, Kind.GPU_MARK)
        start, dur = spans.start_ns[rows], spans.dur_ns[rows]
        part = Slices(start, dur, scene.names[spans.name[rows]], "gpu annotation", order=rows)
        name = f"{stream_name(scene.trace.tracks[track].lane)}: annotations"
        text = "From the first to the last work launched inside an annotation. Not work itself."
        yield from lane_rows(f"{key} marks {track}", name, key, 910 + place, text, [part])
