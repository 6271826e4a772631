"""Where in the user's code a span came from, and how sure that is.

Sources in order: the ledger (the stack of each synchronisation), lines (which line
ran when), samples (at least two inside the wait must agree), then the profiler's own
Python functions, which know only where a function is defined.

Traps that decide how the ledger is matched:
- torch delivers its warning when the operator returns, so an entry without a start
  belongs to waits that ended before it, several waits of one operator together;
- the C++ part of a backward pass runs on another thread, and its entries come when
  the pass has ended, on the thread that called backward().
A stall that no source covers gets None, never the nearest line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from tracer.analysis.lookup import Lookup
from tracer.analysis.sources import CALLS_OF_OP, Sources
from tracer.results import Place
from tracer.trace import NONE, Bools, Ints, Kind, Trace

_CLOCK_NS = 5_000  # how far two recorders' clocks may differ
_PYTHON_NAME = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.+)$")
_BUILTIN_NAME = re.compile(r"^<(?:built-in method|built-in function|method|slot wrapper) '?(?P<name>\w+)")
_BACKWARD = "_engine_run_backward"


class Places:
    """Answers for one trace. Every answer is the innermost frame in the user's own code."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._sources = Sources(trace.sources)
        self._user_files: dict[int, bool] = {}
        self._user_frames: dict[int, tuple[int, int]] = {}
        self._ledger = Lookup(trace.ledger.track, trace.ledger.end_ns)
        self._lines = Lookup(trace.lines.track, trace.lines.start_ns)
        self._samples = Lookup(trace.samples.track, trace.samples.time_ns)
        waits = np.flatnonzero(_is_sync(trace))
        self._waits = Lookup(trace.spans.track[waits], trace.spans.end_ns[waits], waits)
        self._backward = self._backward_entries()
        self._stacks: dict[int, tuple[tuple[Place, ...], int]] = {}

    def of_span(self, row: int) -> Place | None:
        """The user's line that a span came from."""
        stack, user = self._stack(row)
        return stack[user] if user < len(stack) else None

    def library_of(self, row: int) -> Place | None:
        """The line just below the user's, if that is in a library; the innermost known one without a user line."""
        stack, user = self._stack(row)
        if user >= len(stack):
            return stack[0] if stack else None
        return stack[user - 1] if user > 0 else None

    def stack(self, row: int) -> tuple[Place, ...]:
        """All known frames around a span, innermost first."""
        return self._stack(row)[0]

    def callers(self, row: int) -> tuple[Place, ...]:
        """The user's frames above the place itself, innermost first."""
        stack, user = self._stack(row)
        return tuple(place for place in stack[user + 1 :] if self._sources.is_user(place.file))

    def at(self, track: int, start_ns: int, end_ns: int) -> Place | None:
        """The user's line that a thread spent most of an interval on."""
        frame = self._line_frame(track, start_ns, end_ns)
        if frame != NONE:
            return self._user_place(frame, "lines")
        frame = self._sampled_frame(track, start_ns, end_ns)
        if frame != NONE:
            return self._user_place(frame, "samples")
        spans = self._trace.spans
        high = int(np.searchsorted(spans.start_ns, start_ns, side="right"))
        around = np.flatnonzero((spans.track[:high] == track) & (spans.kind[:high] == Kind.PYTHON))
        around = around[spans.end_ns[around] > start_ns]
        for row in around[::-1]:
            place = self._python_place(int(row), frozenset())
            if place and self._sources.is_user(place.file):
                return place
        return None

    # --- one span ---------------------------------------------------------------------------------------------

    def _stack(self, row: int) -> tuple[tuple[Place, ...], int]:
        """The stack, and which of its places is the user's innermost (its length if none is)."""
        if row not in self._stacks:
            self._stacks[row] = self._find_stack(row)
        return self._stacks[row]

    def _find_stack(self, row: int) -> tuple[tuple[Place, ...], int]:
        spans = self._trace.spans
        track, start, end = int(spans.track[row]), int(spans.start_ns[row]), int(spans.end_ns[row])
        found: tuple[tuple[Place, ...], int] = ((), 0)
        for source, frame in (
            ("ledger", self._ledger_frame(row, track, start, end)),
            ("lines", self._line_frame(track, start, start)),
            ("samples", self._sampled_frame(track, start, end)),
        ):
            if frame == NONE:
                continue
            stack = self._places(frame, source, row)
            user = next((i for i, place in enumerate(stack) if self._sources.is_user(place.file)), len(stack))
            if user < len(stack):
                return stack, user
            found = found if found[0] else (stack, user)
        stack = tuple(self._python_places(row))
        user = next((i for i, place in enumerate(stack) if self._sources.is_user(place.file)), len(stack))
        if user < len(stack) or not found[0]:
            return stack, user
        return found

    def _ledger_frame(self, row: int, track: int, start: int, end: int) -> int:
        """Frame of the ledger entry that this span belongs to."""
        ledger = self._trace.ledger
        for at in self._ledger.from_time(track, end - _CLOCK_NS):
            began, ended = int(ledger.start_ns[at]), int(ledger.end_ns[at])
            if began != NONE:
                if began <= start + _CLOCK_NS and end <= ended + _CLOCK_NS:
                    return int(ledger.frame[at])
                if began > end + _CLOCK_NS:
                    break
                continue
            return int(ledger.frame[at]) if self._delivered_together(row, track, ended) else NONE
        return self._backward_frame(row, track, end)

    def _delivered_together(self, row: int, track: int, delivered_ns: int) -> bool:
        """Whether an entry delivered at a time speaks of this span: it was the last wait, or of the same operator."""
        last = self._waits.last_until(track, delivered_ns + _CLOCK_NS)
        if last == NONE:
            return False
        spans = self._trace.spans
        if last == row or (spans.start_ns[last] < spans.end_ns[row] and spans.end_ns[last] > spans.start_ns[row]):
            return True
        return any(
            spans.start_ns[op] <= spans.start_ns[last]
            and spans.end_ns[last] <= spans.end_ns[op] <= delivered_ns + _CLOCK_NS
            for op in self._around(row, Kind.OP)
        )

    def _backward_entries(self) -> Ints:
        """Ledger entries that torch delivered at the end of a backward pass, by time."""
        trace = self._trace
        named = {i for i, name in enumerate(trace.names) if name == _BACKWARD}
        if not named or not len(trace.ledger):
            return np.empty(0, np.int64)
        known = np.flatnonzero(trace.ledger.frame != NONE)
        rows = known[np.isin(trace.frames.function[trace.ledger.frame[known]], list(named))]
        return rows[np.argsort(trace.ledger.end_ns[rows], kind="stable")]

    def _backward_frame(self, row: int, track: int, end: int) -> int:
        """For a span on an autograd thread: the backward() call whose delayed entries come next."""
        ledger, spans = self._trace.ledger, self._trace.spans
        same = [
            at for at in self._backward if self._trace.tracks[ledger.track[at]].pid == self._trace.tracks[track].pid
        ]
        following = [at for at in same if ledger.end_ns[at] >= end and ledger.track[at] != track]
        if not following or not self._runs_backward(row):
            return NONE
        at = following[0]
        # Between the wait and the delivery the calling thread sits in backward(): it runs no operator of its own.
        caller = np.flatnonzero((spans.track == ledger.track[at]) & (spans.kind == Kind.OP))
        inside = (spans.start_ns[caller] > end) & (spans.end_ns[caller] < ledger.end_ns[at])
        return NONE if inside.any() else int(ledger.frame[at])

    def _runs_backward(self, row: int) -> bool:
        names, spans = self._trace.names, self._trace.spans
        return any("autograd::engine" in names[spans.name[op]] for op in self._around(row, Kind.OP))

    def _line_frame(self, track: int, start: int, end: int) -> int:
        """Frame of the line that ran at `start`, or for most of an interval."""
        lines = self._trace.lines
        if end <= start:
            at = self._lines.last_until(track, start)
            return int(lines.frame[at]) if at != NONE and start < lines.start_ns[at] + lines.dur_ns[at] else NONE
        rows = self._lines.between(track, start, end)
        before = self._lines.last_until(track, start)
        if before != NONE:
            rows = np.append(rows, before)
        rows = np.unique(rows)
        if not len(rows):
            return NONE
        low = np.maximum(lines.start_ns[rows], start)
        high = np.minimum(lines.start_ns[rows] + lines.dur_ns[rows], end)
        held: Counter[int] = Counter()
        for frame, ns in zip(lines.frame[rows].tolist(), np.maximum(high - low, 0).tolist(), strict=True):
            held[frame] += ns
        frame, ns = held.most_common(1)[0]
        return frame if ns > 0 else NONE

    def _sampled_frame(self, track: int, start: int, end: int) -> int:
        """Frame that at least two samples of an interval, and most of them, agree on."""
        rows = self._samples.between(track, start, end)
        if len(rows) < 2:
            return NONE
        lines: dict[tuple[int, int], list[int]] = {}
        for frame in self._trace.samples.frame[rows].tolist():
            user, _ = self._user_frame(frame)
            if user != NONE:
                key = (int(self._trace.frames.file[user]), int(self._trace.frames.line[user]))
                lines.setdefault(key, []).append(frame)
        if not lines:
            return NONE
        best = max(lines.values(), key=len)
        return best[0] if len(best) >= 2 and 2 * len(best) > len(rows) else NONE

    # --- frames to places -------------------------------------------------------------------------------------

    def _user_frame(self, frame: int) -> tuple[int, int]:
        """The innermost user frame of a stack (or NONE), and the frame below it."""
        if frame not in self._user_frames:
            below, at = NONE, frame
            while at != NONE and not self._is_user(int(self._trace.frames.file[at])):
                below, at = at, int(self._trace.frames.parent[at])
            self._user_frames[frame] = (at, below)
        return self._user_frames[frame]

    def _is_user(self, file: int) -> bool:
        if file not in self._user_files:
            self._user_files[file] = self._sources.is_user(self._trace.names[file])
        return self._user_files[file]

    def _user_place(self, frame: int, source: str) -> Place | None:
        user, _ = self._user_frame(frame)
        return None if user == NONE else self._place(user, source)

    def _place(self, frame: int, source: str) -> Place:
        frames, names = self._trace.frames, self._trace.names
        file, line = names[frames.file[frame]], int(frames.line[frame])
        columns = None
        if frames.column[frame] != NONE:
            columns = (int(frames.column[frame]), int(frames.end_column[frame]))
        return Place(
            file=file,
            line=max(line, 0),
            function=names[frames.function[frame]],
            columns=columns,
            source=source,
            exact=line > 0,
            excerpt=self._sources.line(file, line),
        )

    def _places(self, frame: int, source: str, row: int) -> tuple[Place, ...]:
        """A whole stack; its innermost user frame gets columns from the lines, or from the text."""
        stack: list[Place] = []
        wanted = self._user_frame(frame)[0]
        at = frame
        while at != NONE:
            place = self._place(at, source)
            if at == wanted and place.columns is None:
                place = _with_columns(place, self._columns(row, place))
            stack.append(place)
            at = int(self._trace.frames.parent[at])
        return tuple(stack)

    def _columns(self, row: int, place: Place) -> tuple[int, int] | None:
        spans, frames, names = self._trace.spans, self._trace.frames, self._trace.names
        running = self._line_frame(int(spans.track[row]), int(spans.start_ns[row]), int(spans.start_ns[row]))
        if running != NONE and frames.column[running] != NONE:
            same_file = names[frames.file[running]] == place.file
            if same_file and frames.line[running] == place.line:
                return int(frames.column[running]), int(frames.end_column[running])
        wanted = self._calls_around(row)
        return self._sources.columns_on(place.file, place.line, wanted) if wanted else None

    # --- the profiler's Python functions ----------------------------------------------------------------------

    def _around(self, row: int, *kinds: Kind) -> Iterator[int]:
        """Spans of these kinds around a span, innermost first."""
        spans = self._trace.spans
        at = row if spans.kind[row] in kinds else int(spans.parent[row])
        while at != NONE:
            if spans.kind[at] in kinds:
                yield at
            at = int(spans.parent[at])

    def _calls_around(self, row: int) -> frozenset[str]:
        """How the call that made this span is written, from the innermost builtin or the outermost operator."""
        names, spans = self._trace.names, self._trace.spans
        outermost: frozenset[str] = frozenset()
        for at in self._around(row, Kind.OP, Kind.PYTHON):
            name = names[spans.name[at]]
            if spans.kind[at] == Kind.PYTHON:
                builtin = _BUILTIN_NAME.match(name)
                return frozenset({builtin["name"]}) if builtin else outermost
            outermost = CALLS_OF_OP.get(name, frozenset({name.removeprefix("aten::")}))
        return outermost

    def _python_places(self, row: int) -> Iterator[Place]:
        wanted = self._calls_around(row)
        for at in self._around(row, Kind.PYTHON):
            place = self._python_place(at, wanted)
            if place:
                yield place
                # Further out, the call is that of the next Python function inward.
                wanted = frozenset({place.function.rpartition(".")[2]})

    def _python_place(self, row: int, wanted: frozenset[str]) -> Place | None:
        """Place of a recorded Python function: its def line, unless the text shows a single call that can be meant."""
        match = _PYTHON_NAME.match(self._trace.names[self._trace.spans.name[row]])
        if not match:
            return None
        file, line, function = match["file"], int(match["line"]), match["function"]
        found = self._sources.candidates(file, line, function, wanted) if wanted else []
        if len(found) == 1:
            at, columns = found[0]
            return Place(file, at, function, columns, "source", True, self._sources.line(file, at))
        return Place(file, line, function, None, "events", False, self._sources.line(file, line))


def _with_columns(place: Place, columns: tuple[int, int] | None) -> Place:
    return Place(place.file, place.line, place.function, columns, place.source, place.exact, place.excerpt)


def _is_sync(trace: Trace) -> Bools:
    """For each span, whether it is a call that can end in a warning of torch: it waits, or it copies."""
    known = [
        i
        for i, name in enumerate(trace.names)
        if "ynchronize" in name or "MemcpyWithStream" in name or name in ("Stream Sync", "Context Sync", "Event Sync")
    ]
    return np.isin(trace.spans.name, known) & np.isin(trace.spans.kind, [Kind.CALL, Kind.WAIT])
