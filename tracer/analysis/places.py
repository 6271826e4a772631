"""Where in the user's code a span came from, and how sure that is.

Sources in order: the ledger (the stack of each synchronisation), lines (which line
ran when), samples (at least two inside the wait must agree), then the profiler's own
Python functions, which know only where a function is defined. A stall that no source
covers gets nothing, never the nearest line.

Whole columns of spans are answered at once with the ids of stacks; a stack is turned
into places once, however many spans share it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from tracer.analysis.backward_lines import calling_frames
from tracer.analysis.ledger_match import find_reaches, match
from tracer.analysis.lookup import Lookup
from tracer.analysis.python_frames import PythonFrames, outermost_operators, written_as
from tracer.analysis.sources import WRITTEN, Sources
from tracer.results import Place
from tracer.trace import NONE, Ids, Ints, Trace

# (source, leaf frame or chain, line that ran then or NONE, how the call may be written)
_Key = tuple[str, int, int, frozenset[str]]


class Places:
    """Answers for one trace. "The place" is always the innermost frame in the user's own code."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._sources = Sources(trace.sources)
        self._reaches = find_reaches(trace)
        self._lines = Lookup(trace.lines.track, trace.lines.start_ns)
        self._samples = Lookup(trace.samples.track, trace.samples.time_ns)
        self._functions = PythonFrames(trace, self._sources)
        self._user_files: dict[int, bool] = {}
        self._user_frames: dict[int, int] = {}
        self._ids: dict[_Key, int] = {}
        self._keys: list[_Key] = []
        self._stacks: dict[int, tuple[tuple[Place, ...], int]] = {}

    # --- many at once -----------------------------------------------------------------------------------------

    def frames_of(self, rows: Any) -> Ids:
        """For each span the id of its stack, to be given to `place`, `library` and `stack_of`; NONE if unknown."""
        rows = np.asarray(rows, dtype=np.int64)
        spans = self._trace.spans
        track, start = spans.track[rows], spans.start_ns[rows]
        end = start + spans.dur_ns[rows]
        ledger = match(self._reaches, track, start, end)
        running = self._running(track, start)
        called = outermost_operators(self._trace, rows)
        answer = np.full(len(rows), NONE, np.int32)
        # Spans that share all of this share their stack.
        shared = np.stack((ledger, running, called), axis=1)
        kinds, place = np.unique(shared, axis=0, return_inverse=True)
        place = place.reshape(-1)
        for number, (one, line, name) in enumerate(kinds.tolist()):
            written = written_as(self._trace, name)
            if one != NONE and self._user_frame(one) != NONE:
                answer[place == number] = self._id(("ledger", one, line, written))
            elif line != NONE and self._trace.frames.line[line] != NONE:
                answer[place == number] = self._id(("lines", line, NONE, written))
        missing = np.flatnonzero(answer == NONE)
        for at, frame in zip(missing.tolist(), calling_frames(self._trace, self._lines, rows[missing]), strict=True):
            answer[at] = NONE if frame == NONE else self._id(("lines", int(frame), NONE, frozenset({"backward"})))
        if len(self._samples) or self._functions.any:
            for at in np.flatnonzero(answer == NONE).tolist():
                written = written_as(self._trace, int(called[at]))
                answer[at] = self._sampled_or_recorded(
                    int(rows[at]), int(track[at]), int(start[at]), int(end[at]), written
                )
        for at in np.flatnonzero((answer == NONE) & (running != NONE)).tolist():
            answer[at] = self._id(("lines", int(running[at]), NONE, frozenset()))
        for at in np.flatnonzero((answer == NONE) & (ledger != NONE)).tolist():
            answer[at] = self._id(("ledger", int(ledger[at]), NONE, frozenset()))
        return answer

    def frames_at(self, track: Any, start_ns: Any, end_ns: Any) -> Ids:
        """The same for stretches of host threads: the stack that a thread spent most of each in."""
        answer = np.full(len(track), NONE, np.int32)
        if len(self._lines) or len(self._samples) or self._functions.any:
            for i, (one, start, end) in enumerate(zip(track, start_ns, end_ns, strict=True)):
                answer[i] = self._most(int(one), int(start), int(end))
        return answer

    # --- one stack --------------------------------------------------------------------------------------------

    def place(self, stack: int) -> Place | None:
        """The user's line of a stack."""
        places, user = self._resolve(stack)
        return places[user] if user < len(places) else None

    def library(self, stack: int) -> Place | None:
        """The line just below the user's, if there is one; the innermost of a stack without a user line."""
        places, user = self._resolve(stack)
        if user >= len(places):
            return places[0] if places else None
        return places[user - 1] if user > 0 else None

    def callers(self, stack: int) -> tuple[Place, ...]:
        """The user's frames above the place, innermost first."""
        places, user = self._resolve(stack)
        return tuple(place for place in places[user + 1 :] if self._sources.is_user(place.file))

    def stack_of(self, stack: int) -> tuple[Place, ...]:
        """All frames of a stack, innermost first."""
        return self._resolve(stack)[0]

    # --- one span ---------------------------------------------------------------------------------------------

    def of_span(self, row: int) -> Place | None:
        """The user's line that a span came from."""
        return self.place(self._of(row))

    def library_of(self, row: int) -> Place | None:
        """The line just below the user's line of a span."""
        return self.library(self._of(row))

    def stack(self, row: int) -> tuple[Place, ...]:
        """All known frames around a span, innermost first."""
        return self.stack_of(self._of(row))

    def at(self, track: int, start_ns: int, end_ns: int) -> Place | None:
        """The user's line that a thread spent most of an interval on."""
        return self.place(self._most(track, start_ns, end_ns))

    # --- how --------------------------------------------------------------------------------------------------

    def _of(self, row: int) -> int:
        return int(self.frames_of(np.array([row]))[0])

    def _id(self, key: _Key) -> int:
        if key not in self._ids:
            self._ids[key] = len(self._keys)
            self._keys.append(key)
        return self._ids[key]

    def _sampled_or_recorded(self, row: int, track: int, start: int, end: int, written: frozenset[str]) -> int:
        """By samples, else by the profiler's Python functions if those lead to the user's code."""
        sampled = self._sampled(track, start, end)
        if sampled != NONE:
            return self._id(("samples", sampled, NONE, written))
        chain = self._functions.chain_of(row)
        if chain == NONE:
            return NONE
        stack = self._id(("events", chain, NONE, written))
        return stack if self.place(stack) is not None else NONE

    def _running(self, track: Ids, time_ns: Ints) -> Ids:
        """For each moment the frame of the line that a thread was on, or NONE."""
        lines = self._trace.lines
        frame = np.full(len(track), NONE, np.int32)
        at = self._lines.last_until(track, time_ns)
        known = np.flatnonzero(at != NONE)
        known = known[time_ns[known] < lines.start_ns[at[known]] + lines.dur_ns[at[known]]]
        frame[known] = lines.frame[at[known]]
        return frame

    def _most(self, track: int, start: int, end: int) -> int:
        ran = self._longest_line(track, start, end)
        if ran != NONE and self._trace.frames.line[ran] != NONE:
            return self._id(("lines", ran, NONE, frozenset()))
        # A function that was too busy to be watched line by line: a sample knows more.
        frame = self._sampled(track, start, end)
        if frame != NONE:
            return self._id(("samples", frame, NONE, frozenset()))
        if ran != NONE:
            return self._id(("lines", ran, NONE, frozenset()))
        chain = self._functions.chain_at(track, start)
        return NONE if chain == NONE else self._id(("events", chain, NONE, frozenset()))

    def _longest_line(self, track: int, start: int, end: int) -> int:
        lines = self._trace.lines
        if not len(self._lines):
            return NONE
        before = self._lines.last_until([track], [start])
        rows = np.unique(np.append(self._lines.between(track, start, end), before))
        rows = rows[rows != NONE]
        held: Counter[int] = Counter()
        for row in rows.tolist():
            low, high = max(int(lines.start_ns[row]), start), int(lines.start_ns[row] + lines.dur_ns[row])
            held[int(lines.frame[row])] += max(min(high, end) - low, 0)
        best = max(held, key=held.__getitem__, default=NONE)
        return best if best != NONE and held[best] > 0 else NONE

    def _sampled(self, track: int, start: int, end: int) -> int:
        """The frame that at least two samples of an interval, and most of them, agree on."""
        rows = self._samples.between(track, start, end)
        if len(rows) < 2:
            return NONE
        lines: dict[tuple[int, int], list[int]] = {}
        for frame in self._trace.samples.frame[rows].tolist():
            user = self._user_frame(frame)
            if user != NONE:
                key = (int(self._trace.frames.file[user]), int(self._trace.frames.line[user]))
                lines.setdefault(key, []).append(frame)
        best = max(lines.values(), key=len, default=[])
        return best[0] if len(best) >= 2 and 2 * len(best) > len(rows) else NONE

    def _user_frame(self, frame: int) -> int:
        """The innermost user frame of a stack, or NONE."""
        if frame not in self._user_frames:
            at = frame
            while at != NONE and not self._is_user(int(self._trace.frames.file[at])):
                at = int(self._trace.frames.parent[at])
            self._user_frames[frame] = at
        return self._user_frames[frame]

    def _is_user(self, file: int) -> bool:
        if file not in self._user_files:
            self._user_files[file] = self._sources.is_user(self._trace.names[file])
        return self._user_files[file]

    def _resolve(self, stack: int) -> tuple[tuple[Place, ...], int]:
        """The places of a stack, and which of them is the user's innermost (their number if none is)."""
        if stack == NONE:
            return (), 0
        if stack not in self._stacks:
            source, leaf, running, called = self._keys[stack]
            if source == "events":
                places = tuple(self._functions.stack(leaf, called))
            else:
                places = self._frame_places(source, leaf, running, called)
            user = next((i for i, place in enumerate(places) if self._sources.is_user(place.file)), len(places))
            self._stacks[stack] = (places, user)
        return self._stacks[stack]

    def _frame_places(self, source: str, leaf: int, running: int, called: frozenset[str]) -> tuple[Place, ...]:
        user = self._user_frame(leaf)
        places: list[Place] = []
        at = leaf
        while at != NONE:
            place = self._frame_place(source, at)
            if at == user and place.columns is None:
                # A call into a library is written with another name than the operator's.
                written = called if at == leaf else _written(places[-1].function)
                place = replace(place, columns=self._columns(place, running, written))
            places.append(place)
            at = int(self._trace.frames.parent[at])
        return tuple(places)

    def _frame_place(self, source: str, frame: int) -> Place:
        frames, names = self._trace.frames, self._trace.names
        file, line = names[frames.file[frame]], int(frames.line[frame])
        columns = None
        if frames.column[frame] != NONE:
            columns = self._sources.characters(file, line, int(frames.column[frame]), int(frames.end_column[frame]))
        function = names[frames.function[frame]]
        return Place(file, max(line, 0), function, columns, source, line > 0, self._sources.line(file, line))

    def _columns(self, place: Place, running: int, written: frozenset[str]) -> tuple[int, int] | None:
        """Columns of the call: from the line that ran then if it is this one, else from the text if only one fits."""
        if running != NONE:
            ran = self._frame_place("lines", running)
            if ran.columns and (ran.file, ran.line) == (place.file, place.line):
                return ran.columns
        return self._sources.columns_on(place.file, place.line, written) if written else None


def _written(function: str) -> frozenset[str]:
    """How a call of a function is written."""
    name = function.rpartition(".")[2]
    return WRITTEN.get(name, frozenset({name}))
