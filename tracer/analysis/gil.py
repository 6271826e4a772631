"""When a thread could not go on because another one of its process held the GIL.

Nothing records who holds it, but only its holder ends a line or enters a function. So a
thread waited for it if, after an operator or call (which gave it away), it stayed on the
same line without another one, and one other thread ran Python for most of that time:

- lines and functions that took up to a millisecond, several of them begun meanwhile;
- longer lines, if their text is known and does not say that they wait;
- functions that were too busy to be watched line by line, if they lasted all the while.

A line that the thread reached without an operator or call may itself sleep or read: no
word about it. Nor about a line of the other thread that began before and ended after.
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
    busy = trace.frames.line[lines.frame[rows]] == NONE
    runs = rows[~busy & ((lines.dur_ns[rows] <= _RUNS_NS) | _works(trace, lines.frame[rows]))]
    begun = np.sort(np.concatenate((lines.start_ns[runs], spans.start_ns[calls])))
    ran = covered(
        union(
            np.concatenate((lines.start_ns[runs], spans.start_ns[calls])),
            np.concatenate((lines.start_ns[runs] + lines.dur_ns[runs], spans.end_ns[calls])),
        ),
        starts,
        ends,
    )
    several = np.searchsorted(begun, ends) - np.searchsorted(begun, starts) >= _SEVERAL
    hot = lines.start_ns[rows[busy]]
    return np.maximum(np.where(several, ran, 0), covered(union(hot, hot + lines.dur_ns[rows[busy]]), starts, ends))


def _works(trace: Trace, frames: Ids) -> Bools:
    """For each frame, whether the text of its line is known and says nothing about waiting."""
    sources, names = Sources(trace.sources), trace.names
    different, at = np.unique(frames, return_inverse=True)
    texts = [sources.line(names[trace.frames.file[one]], int(trace.frames.line[one])) for one in different.tolist()]
    answers: Bools = np.array([bool(text) and not _WAITS.search(text) for text in texts], np.bool_)[at]
    return answers
