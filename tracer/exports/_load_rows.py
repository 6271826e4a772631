"""Three curves of a GPU: how busy it is, how much work is queued, and how far ahead that puts the host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.analysis.intervals import covered
from tracer.analysis.launches import busy, device_tracks, lead, lead_at, queue_depth
from tracer.exports._rows import Counter, Row
from tracer.exports._scene import Scene
from tracer.trace import Floats, Ints
from tracer.units import NS_PER_MS, NS_PER_US, show_ns

MOST_POINTS = 100_000  # of a counter; `full` keeps them all
_BINS = 2_000


def load_rows(scene: Scene, rank: int, device: int, key: str) -> Iterator[Row]:
    """Busy, queue depth and lead of one GPU."""
    trace, launches, of = scene.trace, scene.launches, scene.of_gpu(rank, device)
    working = busy(trace, rank, device)
    if not len(working[0]):
        return
    low, high = int(working[0][0]), int(working[1][-1])
    width = _round_width((high - low) / _BINS)
    edges = np.arange(low, high + width, width, dtype=np.int64)
    share = np.round(covered(working, edges[:-1], edges[1:]) * 100 / width, 1)
    yield Row(
        f"{key} busy",
        f"GPU busy{of}",
        key,
        1,
        f"How much of each {show_ns(width)} some kernel, copy or fill was running, over all streams.",
        counter=_steps(edges, np.append(share, 0.0), "%"),
    )
    tracks = np.flatnonzero(device_tracks(trace, rank, device))
    if not np.isin(trace.spans.track[launches.work], tracks).any():
        return
    parts = [queue_depth(trace, launches, int(track)) for track in tracks]
    times = np.concatenate([part[0] for part in parts])
    changes = np.concatenate([np.diff(part[1], prepend=0) for part in parts])
    order = np.argsort(times, kind="stable")
    times, values = _last_of_each(times[order], np.cumsum(changes[order]))
    if scene.detail != "full":
        times, values = _thinned(times, values)
    depth = Counter(times, values, unit="launches")
    text = "Work that the host has launched and the GPU has not finished. 0: the GPU waits for the host."
    yield Row(f"{key} depth", f"Queue depth{of}", key, 2, text, counter=depth)
    if scene.detail == "full" or 3 * len(launches) <= MOST_POINTS:
        times, ahead = lead(trace, launches, rank, device)
    else:
        times = np.linspace(low, high, MOST_POINTS).astype(np.int64)
        ahead = lead_at(trace, launches, rank, device, times)
    text = "By how much GPU time the host is ahead: the work that is queued, in time. A stall brings it to 0."
    ahead = np.maximum(ahead, 0)
    unit, scale = ("ms", NS_PER_MS) if int(ahead.max(initial=0)) >= NS_PER_MS else ("us", NS_PER_US)
    yield Row(f"{key} lead", f"Host's lead{of}", key, 3, text, counter=_steps(times, _levels(ahead / scale), unit))


def _round_width(wanted: float) -> int:
    """1, 2 or 5 times a power of ten, at least 1 us."""
    power = 10 ** max(3, int(np.floor(np.log10(max(wanted, 1_000)))))
    return next(int(power * step) for step in (1, 2, 5, 10) if power * step >= min(wanted, power * 10))


def _last_of_each(times: Ints, values: Ints) -> tuple[Ints, Ints]:
    last = np.append(times[1:] > times[:-1], True)
    return times[last], values[last]


def _thinned(times: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Not more points than a screen can show at any sensible zoom: of each small stretch of time the last value."""
    if len(times) <= MOST_POINTS:
        return times, values
    place = (times - times[0]) * MOST_POINTS // (times[-1] - times[0] + 1)
    last = np.append(place[1:] > place[:-1], True)
    return times[last], values[last]


def _levels(values: Floats) -> Floats:
    """Values in 500 levels at most, and in few binary digits, which is what a row can show."""
    level = max(1 / 1024, 2.0 ** np.ceil(np.log2(max(float(values.max(initial=0)), 1.0) / 500)))
    found: Floats = np.ceil(values / level) * level
    return found


def _steps(times: Ints, values: np.ndarray, unit: str) -> Counter:
    """Only where the value changes."""
    keep = np.append(True, values[1:] != values[:-1])
    return Counter(times[keep], values[keep], unit)
