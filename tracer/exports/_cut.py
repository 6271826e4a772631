"""Parts of a trace: some steps, or as many of the worst as a viewer can hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tracer.errors import UsageError
from tracer.exports._scene import Scene
from tracer.trace import NONE, Ids, Steps, Trace

_TIMES = ("start_ns", "time_ns", "end_ns")


def parse_steps(text: str, steps: Steps) -> tuple[int, int]:
    """The window of `10:12` (step 10 and 11), `10:` or `10`, as Python counts."""
    low_text, colon, high_text = text.partition(":")
    try:
        low = int(low_text) if low_text.strip() else None
        high = int(high_text) if high_text.strip() else None
    except ValueError:
        raise UsageError(f"not a range of steps: {text!r}", fix="write for example 10:12 for steps 10 and 11") from None
    traced = steps.take(steps.traced) if len(steps) else steps
    if not len(traced):
        raise UsageError("this trace has no steps", fix="leave --steps out")
    wanted = np.ones(len(traced), np.bool_)
    if low is not None:
        wanted &= traced.number >= low
    if not colon:
        wanted &= traced.number == low
    elif high is not None:
        wanted &= traced.number < high
    if not wanted.any():
        known = f"{int(traced.number.min())} to {int(traced.number.max())}"
        raise UsageError(f"no recorded step in {text}", fix=f"this trace has steps {known}")
    chosen = traced.take(wanted)
    return int(chosen.start_ns.min()), int((chosen.start_ns + chosen.dur_ns).max())


def worst_steps(scene: Scene, most_slices: int) -> tuple[tuple[int, int], tuple[str, ...]]:
    """A window around the longest step that stays below a size, and a note that says so."""
    trace, steps = scene.trace, scene.steps
    spans = trace.spans
    per_row = 2  # a piece of work has a slice, and its gap another
    traced = steps.take(steps.traced) if len(steps) else steps
    if len(traced):
        starts, ends = traced.start_ns, traced.start_ns + traced.dur_ns
        worst = int(np.argmax(traced.dur_ns))
        low = high = worst
        while True:
            choices = [(low - 1, high), (low, high + 1)]
            choices = [
                (a, b)
                for a, b in choices
                if a >= 0 and b < len(traced) and per_row * _count(trace, int(starts[a]), int(ends[b])) <= most_slices
            ]
            if not choices:
                break
            low, high = max(choices, key=lambda ab: int(ends[ab[1]] - starts[ab[0]]))
        window = int(starts[low]), int(ends[high])
        what = f"steps {int(traced.number[low])} to {int(traced.number[high])}, around the longest"
    else:
        at = min(len(spans) - 1, most_slices // per_row)
        window = int(spans.start_ns[0]), int(spans.start_ns[at])
        what = "the first part"
    note = (
        f"the trace has {len(spans):,} spans, more than the Perfetto UI can hold: wrote {what}; "
        "choose others with --steps, or write less of everything with --detail low"
    )
    return window, (note,)


def _count(trace: Trace, low: int, high: int) -> int:
    starts = trace.spans.start_ns
    return int(np.searchsorted(starts, high) - np.searchsorted(starts, low))


def cut_to(scene: Scene, window: tuple[int, int]) -> Scene:
    """The part of a scene that lies in a window. Work launched inside it is kept where it ran."""
    low, high = window
    trace = scene.trace
    spans = trace.spans
    keep = (spans.start_ns < high) & ((spans.end_ns > low) | (spans.start_ns >= low))
    launches = scene.launches
    keep[launches.work[keep[launches.call]]] = True
    rows = np.flatnonzero(keep)
    moved = np.full(len(spans) + 1, NONE, np.int32)  # the last stays NONE, for NONE itself
    moved[rows] = np.arange(len(rows), dtype=np.int32)
    kept = spans.take(rows)
    tables: dict[str, Any] = {"spans": replace(kept, parent=moved[kept.parent])}
    for name in ("ops", "work", "waits", "collectives"):
        table = getattr(trace, name)
        tables[name] = _renumbered(table.take(keep[table.span]), moved, "span")
    for name in ("samples", "ledger", "lines", "reads", "event_timings", "counters"):
        tables[name] = _inside(getattr(trace, name), low, high)
    tables["steps"] = _inside(trace.steps, low, high)
    part = replace(trace, window_ns=window, **tables)
    pairs = launches.take(keep[launches.call] & keep[launches.work])
    pairs = _renumbered(pairs, moved, "call", "work")
    return Scene(
        part,
        scene.detail,
        pairs,
        _inside(scene.steps, low, high),
        stalled=_renumbered(_inside(scene.stalled, low, high), moved, "last_work"),
        idled=_renumbered(_inside(scene.idled, low, high), moved, "next_work"),
        findings=scene.findings,
        audit=scene.audit,
        strings=scene.strings,
    )


def _inside(table: Any, low: int, high: int) -> Any:
    if not len(table):
        return table
    name = next(column for column in _TIMES if column in table.columns())
    start = getattr(table, name)
    end = start + table.dur_ns if "dur_ns" in table.columns() else start
    return table.take((start < high) & ((end > low) | (start >= low)))


def _renumbered(table: Any, moved: Ids, *columns: str) -> Any:
    changed = {column: moved[getattr(table, column)] for column in columns}
    return replace(table, **changed)
