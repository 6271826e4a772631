"""When a thread could not go on because another one of its process held the GIL.

Nothing records who holds it, but only its holder ends a line or enters a function. So a
thread waited for it if, after an operator or call (which gave it away), it stayed on the
same line without another one, and one other thread ran Python for most of that time:

- lines and functions that took up to a millisecond, or longer lines whose text is known,
  several of them begun meanwhile; not those whose text says that they wait;
- lines, however long, that call nothing but built-in functions which keep the GIL;
- functions that were too busy to be watched line by line.

A line that the thread reached without an operator or call may itself sleep or read: no
word about it. Nor about any other line of the other thread that began before and ended after.
"""

from __future__ import annotations

import re

import numpy as np

from tracer.analysis.intervals import Union, covered, union
from tracer.analysis.sources import Sources
from tracer.trace import NONE, Bools, Ids, Ints, Kind, Trace

_RUNS_NS = 1_000_000  # a line that takes longer may have waited
_SEVERAL = 3
_WAITS = re.compile(
    r"\b(sleep|wait\w*|get|put|join|acquire|recv\w*|select|poll|accept|read\w*|write|result)\s*\(|\bwith\b"
)
_CALLS = re.compile(r"([\w.]+)\s*\(")
_KEEP = {"sum", "sorted", "min", "max", "any", "all", "range", "len", "abs", "pow", "zip", "json.dumps", "json.loads"}


def held_by_others(trace: Trace, silent: Union, track: int, least_ns: int) -> list[tuple[int, Union]]:
    """Which other threads held the GIL, and when, while this one was silent for at least so long."""
    starts, ends = _stuck(trace, silent, track)
    long = ends - starts >= least_ns
    starts, ends = starts[long], ends[long]
    mine = trace.tracks[track]
    others = [
        i
        for i in np.unique(np.concatenate((trace.lines.track, trace.spans.track[trace.spans.kind == Kind.PYTHON])))
        if i != track and (trace.tracks[i].rank, trace.tracks[i].pid) == (mine.rank, mine.pid)
    ]
    if not len(starts) or not others:
        return []
    ran = np.stack([_ran(trace, int(one), starts, ends) for one in others])
    most = ran.argmax(axis=0)
    held = 2 * ran.max(axis=0) > ends - starts
    return [
        (int(one), (starts[held & (most == i)], ends[held & (most == i)]))
        for i, one in enumerate(others)
        if np.any(held & (most == i))
    ]


def _stuck(trace: Trace, silent: Union, track: int) -> Union:
    """How long the thread stayed on the line on which it had its last operator or call before each silence."""
    lines, spans = trace.lines, trace.spans
    rows = np.flatnonzero(lines.track == track)
    rows = rows[np.argsort(lines.start_ns[rows], kind="stable")]
    done = np.sort(spans.end_ns[np.isin(spans.kind, (Kind.OP, Kind.CALL)) & (spans.track == track)])
    if not len(rows) or not len(done):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    starts, ends = silent
    line = np.searchsorted(lines.start_ns[rows], starts, "right") - 1
    last = np.searchsorted(done, starts, "right") - 1
    since, until = lines.start_ns[rows[line]], lines.start_ns[rows[line]] + lines.dur_ns[rows[line]]
    stuck = (line >= 0) & (last >= 0) & (done[last] > since) & (until > starts)
    return starts[stuck], np.minimum(ends, until)[stuck]


def _ran(trace: Trace, track: int, starts: Ints, ends: Ints) -> Ints:
    """For each stretch how long a thread ran Python in it; 0 where it may as well have waited."""
    lines, spans = trace.lines, trace.spans
    rows = np.flatnonzero(lines.track == track)
    calls = np.flatnonzero((spans.kind == Kind.PYTHON) & (spans.track == track) & (spans.dur_ns <= _RUNS_NS))
    known, waits, keeps = _texts(trace, lines.frame[rows])
    sure = rows[(trace.frames.line[lines.frame[rows]] == NONE) | keeps]
    runs = rows[((lines.dur_ns[rows] <= _RUNS_NS) | known) & ~waits]
    begun = np.sort(np.concatenate((lines.start_ns[runs], spans.start_ns[calls])))
    several = np.searchsorted(begun, ends) - np.searchsorted(begun, starts) >= _SEVERAL
    firm = _union_of_lines(trace, sure)
    loose = _union_of_lines(trace, runs)
    opens = np.concatenate((firm[0], loose[0], spans.start_ns[calls]))
    closes = np.concatenate((firm[1], loose[1], spans.end_ns[calls]))
    return np.where(several, covered(union(opens, closes), starts, ends), covered(firm, starts, ends))


def _union_of_lines(trace: Trace, rows: Ints) -> Union:
    starts = trace.lines.start_ns[rows]
    return union(starts, starts + trace.lines.dur_ns[rows])


def _texts(trace: Trace, frames: Ids) -> tuple[Bools, Bools, Bools]:
    """For each frame: is the text of its line known, does it say that it waits, and does it keep the GIL for sure."""
    sources, names = Sources(trace.sources), trace.names
    different, at = np.unique(frames, return_inverse=True)
    texts = [sources.line(names[trace.frames.file[one]], int(trace.frames.line[one])) for one in different.tolist()]
    known: Bools = np.array([bool(text) for text in texts], np.bool_)
    waits: Bools = np.array([bool(_WAITS.search(text)) for text in texts], np.bool_)
    keeps: Bools = np.array([bool(_CALLS.search(text)) and _KEEP.issuperset(_CALLS.findall(text)) for text in texts])
    return known[at], waits[at], keeps.astype(np.bool_)[at]
