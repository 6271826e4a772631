"""Reads what the recorders of a recording wrote, each from its file, on one clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from tracer.building import TraceBuilder
from tracer.readers import pyspy
from tracer.readers._clock import Clock
from tracer.readers._rows import (
    BeaconRow,
    CounterRow,
    ElapsedRow,
    FrameRow,
    LineRow,
    PauseRow,
    ReadRow,
    Rows,
    SampleRow,
    StepRow,
    SyncRow,
)
from tracer.trace import NONE, Counters, EventTimings, Kind, Ledger, Lines, Reads, Samples, Steps


class RecorderReader:
    """The chunk files of one process's folder."""

    def __init__(
        self,
        folder: Path,
        builder: TraceBuilder,
        clock: Clock,
        *,
        rank: int,
        pid: int,
        threads: Mapping[int, str],
        lose: Callable[[str, int], None],
    ) -> None:
        self.folder = folder
        self.builder = builder
        self.clock = clock
        self.rank = rank
        self.pid = pid
        self.threads = threads  # names by the system's numbers
        self._lose = lose

    def read(self, py_spy: str | None) -> None:
        """Every recorder's rows; `py_spy` is the name of py-spy's own file, if there is one."""
        self._read_steps()
        self._read_ledger()
        self._read_lines()
        self._read_clocks()
        self._read_memory()
        self._read_pauses()
        self._read_samples()
        if py_spy and (self.folder / py_spy).is_file():
            self._read_py_spy(self.folder / py_spy)

    def _rows(self, name: str) -> Rows:
        """The rows of a chunk file."""
        rows = Rows(self.folder / f"{name}.chunks")
        if rows.lost_bytes:
            self._lose(f"{rows.lost_bytes} bytes of {name}.chunks are damaged", rows.lost_bytes)
        if rows.wrong:
            self._lose(f"{rows.wrong} rows of {name}.chunks are not as they should be", rows.wrong)
        return rows

    def _frames(self, rows: Rows, numbers: Iterable[int]) -> list[int]:
        """The trace's frames for those of a file; a caller that was lost leaves a shorter stack."""
        known: dict[int, int] = {}
        for row in rows.of(FrameRow):
            known[row.id] = self.builder.frame(
                row.file, row.line, row.function, known.get(row.parent, NONE), row.column, row.end_column
            )
        return [known.get(number, NONE) for number in numbers]

    def _tracks(self, numbers: Iterable[int]) -> list[int]:
        tracks = _Cache(
            lambda number: self.builder.track(self.rank, self.pid, number, NONE, self.threads.get(number, ""))
        )
        return [tracks[number] for number in numbers]

    def _names(self, texts: Iterable[str]) -> list[int]:
        return [self.builder.name(text) for text in texts]

    def _read_steps(self) -> None:
        rows = sorted(self._rows("steps").of(StepRow), key=lambda row: (row.thread, row.mono_ns))
        steps = [
            (row, after)
            for row, after in pairwise(rows)
            if row.thread == after.thread and row.number >= 0 and after.number == row.number + 1
        ]
        start = self.clock.unix_ns([row.mono_ns for row, _ in steps])
        table = Steps.of(
            start_ns=start,
            dur_ns=self.clock.unix_ns([after.mono_ns for _, after in steps]) - start,
            number=[row.number for row, _ in steps],
            track=self._tracks(row.thread for row, _ in steps),
            traced=[row.in_window for row, _ in steps],
        )
        self.builder.add_table("steps", table)

    def _read_ledger(self) -> None:
        rows = self._rows("ledger")
        syncs = rows.of(SyncRow)
        table = Ledger.of(
            start_ns=self.clock.unix_ns([row.start_ns for row in syncs]),
            end_ns=self.clock.unix_ns([row.end_ns for row in syncs]),
            track=self._tracks(row.thread for row in syncs),
            frame=self._frames(rows, (row.frame for row in syncs)),
            what=self._names(row.what for row in syncs),
        )
        self.builder.add_table("ledger", table)

    def _read_lines(self) -> None:
        rows = self._rows("lines")
        lines = rows.of(LineRow)
        table = Lines.of(
            start_ns=self.clock.unix_ns([row.start_ns for row in lines]),
            dur_ns=[row.dur_ns for row in lines],
            track=self._tracks(row.thread for row in lines),
            frame=self._frames(rows, (row.frame for row in lines)),
        )
        self.builder.add_table("lines", table)

    def _read_clocks(self) -> None:
        rows = self._rows("clocks")
        reads, timings = rows.of(ReadRow), rows.of(ElapsedRow)
        read_table = Reads.of(
            time_ns=self.clock.unix_ns([row.mono_ns for row in reads]),
            track=self._tracks(row.thread for row in reads),
            clock=self._names(row.clock for row in reads),
            value_ns=[row.value_ns for row in reads],
            frame=self._frames(rows, (row.frame for row in reads)),
        )
        timing_table = EventTimings.of(
            time_ns=self.clock.unix_ns([row.mono_ns for row in timings]),
            track=self._tracks(row.thread for row in timings),
            claimed_ns=[row.claimed_ns for row in timings],
            start_ns=self.clock.unix_ns([row.start_ns for row in timings]),
            end_ns=self.clock.unix_ns([row.end_ns for row in timings]),
            start_stream=[row.start_stream for row in timings],
            end_stream=[row.end_stream for row in timings],
            frame=self._frames(rows, (row.frame for row in timings)),
        )
        self.builder.add_table("reads", read_table)
        self.builder.add_table("event_timings", timing_table)

    def _read_memory(self) -> None:
        rows = self._rows("memory").of(CounterRow)
        table = Counters.of(
            time_ns=self.clock.unix_ns([row.mono_ns for row in rows]),
            name=self._names(row.name for row in rows),
            track=np.full(len(rows), NONE),
            device=[row.device for row in rows],
            value=[row.value for row in rows],
        )
        self.builder.add_table("counters", table)

    def _read_pauses(self) -> None:
        rows = self._rows("pauses").of(PauseRow)
        if rows:
            self.builder.add_spans(
                self.clock.unix_ns([row.start_ns for row in rows]),
                [row.dur_ns for row in rows],
                int(Kind.MARK),
                self._names(row.what for row in rows),
                self._tracks(row.thread for row in rows),
            )

    def _read_samples(self) -> None:
        rows = self._rows("samples")
        samples = rows.of(SampleRow)
        table = Samples.of(
            time_ns=self.clock.unix_ns([row.mono_ns for row in samples]),
            track=self._tracks(row.thread for row in samples),
            frame=self._frames(rows, (row.frame for row in samples)),
            weight_ns=[row.weight_ns for row in samples],
        )
        self.builder.add_table("samples", table)

    def _read_py_spy(self, path: Path) -> None:
        beacons = self._rows("beacons").of(BeaconRow)
        names = [row.name for row in beacons]
        entries = self.clock.unix_ns([row.entry_ns for row in beacons]).tolist()
        exits = self.clock.unix_ns([row.exit_ns for row in beacons]).tolist()
        pairs = list(zip(names, entries, exits, strict=True))
        pyspy.add_samples(path, self.builder, rank=self.rank, pid=self.pid, beacons=pairs)


class _Cache(dict[int, int]):
    """From an id of the file to one of the trace, asked for once."""

    def __init__(self, ask: Callable[[int], int]) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, number: int) -> int:
        found = self[number] = self._ask(number)
        return found
