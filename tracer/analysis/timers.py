"""What the program's own timers claim, and what the GPU work between their two reads really took.

A timer is a pair of places where one thread reads one clock: those that the source
text subtracts, and where no text is at hand (or the reads hide in a helper function)
each read and the next one of an interval clock. CUDA events are pairs by themselves.

For each pair of reads, on the device of the work launched in between:

    reads          s                 e
    calls          |  L1   L2   L3   |
    GPU      ======|==[   work   ]==========
              ran_in                 still running

- true: union of the work launched between s and e, wherever it ran later
- still running: from e to the end of that work
- ran in: work launched before s that ran after s
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tracer.analysis.intervals import total
from tracer.analysis.launches import Launches, find_processes
from tracer.analysis.source_timers import Pair, find_pairs
from tracer.trace import NONE, Ids, Ints, Table, Trace

_CHAIN = 4  # frames of a read that may carry the line which the source subtracts
_INTERVAL_CLOCKS = ("perf_counter", "monotonic", "process_time", "thread_time", "default_timer")


@dataclass(frozen=True, slots=True, eq=False)
class Timings(Table):
    """One row for each time that a timer was used."""

    group: Ids  # same places and thread; groups are numbered by their first use
    start_frame: Ids  # -> Trace.frames
    end_frame: Ids
    clock: Ids  # -> Trace.names
    track: Ids
    start_ns: Ints
    end_ns: Ints
    claimed_ns: Ints  # NONE: asking raised an error (the event had not happened)
    true_ns: Ints
    launched: Ints  # pieces of work launched in between
    still_running_ns: Ints
    ran_in_ns: Ints
    other_stream_ns: Ints  # of true_ns, on streams that the two events did not see; 0 for clocks
    is_event: Ids  # 1: CUDA events, 0: a clock of the host
    collected: Ids  # 1: the source adds it to others


_Line = tuple[str, int]  # file, line
# Of a timer's end -> of its possible starts, by the name that keeps them.
_Subtracted = dict[_Line, list[tuple[_Line, Pair]]]


def find_timings(trace: Trace, launches: Launches) -> Timings:
    """Every use of every timer in the trace."""
    pairs = list(_source_pairs(trace.sources))
    subtracted: _Subtracted = {}
    for file, pair in pairs:
        if not pair.events:
            starts = subtracted.setdefault((file, pair.end.line), [])
            starts += [((file, pair.start.line), pair)] if pair.start is not None else []
    aside = {(file, pair.end.line) for file, pair in pairs if pair.events and not pair.collected}
    rows = [*_clock_pairs(trace, subtracted), *_event_pairs(trace, aside)]
    if not rows:
        return Timings.empty()
    rows.sort(key=lambda row: row["start_ns"])
    work = _Work(trace, launches)
    groups: dict[tuple[int, ...], int] = {}
    for row in rows:
        key = (row["start_frame"], row["end_frame"], row["track"], row["is_event"])
        row["group"] = groups.setdefault(key, len(groups))
        row |= work.between(row["track"], row["start_ns"], row["end_ns"])
        row["other_stream_ns"] = work.elsewhere(row) if row["is_event"] else 0
    return Timings.of(**{name: [row[name] for row in rows] for name in Timings.columns()})


def _clock_pairs(trace: Trace, subtracted: _Subtracted) -> Iterator[dict[str, int]]:
    """Pairs of clock reads, per thread."""
    reads = trace.reads
    for track in np.unique(reads.track):
        mine = np.flatnonzero(reads.track == track)
        mine = mine[np.argsort(reads.time_ns[mine], kind="stable")]
        latest: dict[_Line, int] = {}  # -> position in mine
        previous: dict[int, int] = {}
        for turn, row in enumerate(mine.tolist()):
            places = list(_chain(trace, int(reads.frame[row])))
            starts = [pair for place in places for pair in subtracted.get(place, ())]
            if starts:
                newest = {pair.kept: NONE for _, pair in starts}
                for start, pair in starts:
                    newest[pair.kept] = max(newest[pair.kept], latest.get(start, NONE))
                found = [int(mine[at]) for at in newest.values() if at != NONE]
            else:
                found = [previous[int(reads.clock[row])]] if int(reads.clock[row]) in previous else []
                found = [at for at in found if _may_pair(trace, row, places, subtracted)]
            for at in found:
                if reads.clock[at] == reads.clock[row]:
                    yield _pair(trace, at, row) | {"collected": int(any(pair.collected for _, pair in starts))}
            latest |= dict.fromkeys(places, turn)
            previous[int(reads.clock[row])] = row


def _pair(trace: Trace, start: int, end: int) -> dict[str, int]:
    reads = trace.reads
    return {
        "start_frame": int(reads.frame[start]),
        "end_frame": int(reads.frame[end]),
        "clock": int(reads.clock[start]),
        "track": int(reads.track[end]),
        "start_ns": int(reads.time_ns[start]),
        "end_ns": int(reads.time_ns[end]),
        "claimed_ns": int(reads.value_ns[end] - reads.value_ns[start]),
        "is_event": 0,
    }


def _may_pair(trace: Trace, row: int, places: list[tuple[str, int]], subtracted: _Subtracted) -> bool:
    """Whether a read that no visible subtraction ends may still be a timer's end.

    `time.time()` is also a date. And a file whose subtractions are known has said
    what it subtracts, unless the read sits in a helper function that hides it.
    """
    clock = trace.names[trace.reads.clock[row]].rpartition(".")[2].removesuffix("_ns")
    if clock not in _INTERVAL_CLOCKS:
        return False
    starts = {place for wanted in subtracted.values() for place, _ in wanted}
    file_known = places and any(file == places[0][0] for file, _ in [*subtracted, *starts])
    return not file_known


def _source_pairs(sources: Mapping[str, str]) -> Iterator[tuple[str, Pair]]:
    """(file, pair), read off the sources."""
    for file, text in sources.items():
        try:
            pairs = find_pairs(ast.parse(text))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # a template, a file of another Python version, or generated code that is nested too deep
        yield from ((file, pair) for pair in pairs)


def _chain(trace: Trace, frame: int) -> Iterator[tuple[str, int]]:
    for _ in range(_CHAIN):
        if frame == NONE:
            return
        yield trace.names[trace.frames.file[frame]], int(trace.frames.line[frame])
        frame = int(trace.frames.parent[frame])


def _event_pairs(trace: Trace, aside: set[_Line]) -> Iterator[dict[str, int]]:
    """Times between CUDA events; `aside` are places whose times are not added to others."""
    events = trace.event_timings
    clock = trace.names.index("cuda.Event") if "cuda.Event" in trace.names else NONE
    for row in range(len(events)):
        yield {
            "start_frame": int(events.frame[row]),
            "end_frame": int(events.frame[row]),
            "clock": clock,
            "track": int(events.track[row]),
            "start_ns": int(events.start_ns[row]),
            "end_ns": int(events.end_ns[row]),
            "claimed_ns": int(events.claimed_ns[row]),
            "is_event": 1,
            "collected": int(aside.isdisjoint(_chain(trace, int(events.frame[row])))),
            "start_stream": int(events.start_stream[row]),
            "end_stream": int(events.end_stream[row]),
        }


class _Work:
    """Launched work by the time of its launch, for each process."""

    def __init__(self, trace: Trace, launches: Launches) -> None:
        spans = trace.spans
        self.processes = find_processes(trace)
        owner = self.processes[spans.track[launches.call]]
        self.tables: dict[int, tuple[Ints, Ints, Ints, Ids, Ints, Ids]] = {}
        for process in np.unique(owner):
            mine = np.flatnonzero(owner == process)
            mine = mine[np.argsort(spans.start_ns[launches.call[mine]], kind="stable")]
            call, work = launches.call[mine], launches.work[mine]
            ends = spans.end_ns[work]
            self.tables[int(process)] = (
                spans.start_ns[call],
                spans.start_ns[work],
                ends,
                spans.track[work],
                np.maximum.accumulate(ends) if len(ends) else ends,
                spans.track[call],
            )
        self.lanes = np.array([t.lane for t in trace.tracks] or [0])

    def between(self, track: int, start_ns: int, end_ns: int) -> dict[str, int]:
        """What was launched by this thread's process between two times, and what else ran then."""
        table = self.tables.get(int(self.processes[track]))
        if table is None:
            return {"true_ns": 0, "launched": 0, "still_running_ns": 0, "ran_in_ns": 0}
        calls, starts, ends, _, latest, threads = table
        low, high = np.searchsorted(calls, (start_ns, end_ns))
        if not np.any(threads[low:high] == track):
            high = low  # what other threads launch meanwhile is not what this one times
        last = int(ends[low:high].max()) if high > low else end_ns
        before = int(latest[low - 1]) if low else start_ns
        return {
            "true_ns": total(starts[low:high], ends[low:high]),
            "launched": int(high - low),
            "still_running_ns": max(0, last - end_ns),
            "ran_in_ns": max(0, before - start_ns),
        }

    def elsewhere(self, row: Mapping[str, int]) -> int:
        """Work between two events on streams that neither was recorded on.

        The program knows streams by address, the trace by number; only the default
        stream (address 0, the lowest number) can be told from the others.
        """
        table = self.tables.get(int(self.processes[row["track"]]))
        if table is None:
            return 0
        calls, starts, ends, tracks, *_ = table
        low, high = np.searchsorted(calls, (row["start_ns"], row["end_ns"]))
        on_default = self.lanes[tracks[low:high]] == self.lanes[tracks].min() if len(tracks) else np.empty(0, bool)
        streams = {row["start_stream"], row["end_stream"]}
        unseen = ~on_default if streams == {0} else on_default if 0 not in streams else np.zeros(high - low, bool)
        return total(starts[low:high][unseen], ends[low:high][unseen])
