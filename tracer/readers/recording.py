"""Reads a folder that `tracer run` recorded: every recorder brought to one clock, every rank into one trace.

Whatever a crash left behind is read; what is missing or damaged is said, never guessed.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tracer.building import TraceBuilder
from tracer.chunks import read_chunks
from tracer.errors import TraceError
from tracer.readers import kineto
from tracer.readers._clock import Clock
from tracer.readers._folders import MANIFEST, rank_folders
from tracer.trace import NONE, Counters, EventTimings, Ledger, Lines, Loss, Reads, Samples, Steps, Table, Trace

KINETO_ERROR_NS = 2_500  # how far its host stamps were seen from the wall clock


def accepts(path: Path, head: bytes) -> bool:
    """Whether this is the folder of a run or of one of its ranks."""
    return path.is_dir() and bool(rank_folders(path))


def load(path: Path) -> Trace:
    """All ranks of a run, or one."""
    builder = TraceBuilder()
    builder.meta["format"] = "recording"
    for folder in rank_folders(path):
        _Rank(folder, builder).read()
    builder.start_at_first()
    return builder.build()


class _Rank:
    """One process's folder."""

    def __init__(self, folder: Path, builder: TraceBuilder) -> None:
        self.folder = folder
        self.builder = builder
        self.manifest = _read_manifest(folder)
        self.rank = _whole(self.manifest.get("rank"), 0)
        self.pid = _whole(self.manifest.get("pid"), NONE)
        self.threads = {
            _whole(thread.get("native_id"), NONE): str(thread.get("name", "")) for thread in self._dicts("threads")
        }
        marks = [mark for mark in self.manifest.get("marks") or [] if isinstance(mark, list) and len(mark) == 3]
        self.clock = Clock(marks) if marks else None

    def read(self) -> None:
        """Everything in the folder."""
        self._read_meta()
        if self.clock is None:
            self._lose("no clock marks in the manifest, so the recorders' rows have no place in time")
        else:
            self._set_window(self.clock)
            self._read_steps(self.clock)
            self._read_ledger(self.clock)
            self._read_lines(self.clock)
            self._read_clocks(self.clock)
            self._read_memory(self.clock)
            self._read_samples(self.clock)
        self._read_sources()
        name = self.manifest.get("kineto")
        if name and (self.folder / str(name)).is_file():
            kineto.read(
                self.folder / str(name), self.builder, self.rank, threads=self._torch_threads(), names=self.threads
            )
        elif name:
            self._lose(f"{name} is missing")

    # -- manifest -----------------------------------------------------------------------

    def _dicts(self, key: str) -> list[dict[str, Any]]:
        found = self.manifest.get(key)
        return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []

    def _torch_threads(self) -> dict[int, int]:
        """torch knows a thread by the low 32 bits of its pthread id until it runs an operator."""
        numbers: dict[int, int] = {}
        for thread in self._dicts("threads"):
            low = _whole(thread.get("ident"), 0) & 0xFFFFFFFF
            native = _whole(thread.get("native_id"), NONE)
            signed = low - 2**32 if low >= 2**31 else low
            numbers |= {low: native, signed: native, abs(signed): native}
        return numbers

    def _read_meta(self) -> None:
        meta, manifest = self.builder.meta, self.manifest
        for key in ("world_size", "host", "steps_from", "run_id"):
            if manifest.get(key) is not None:
                meta.setdefault(key, str(manifest[key]))
        for key in ("program", "versions", "window", "env", "notes", "budget"):
            if manifest.get(key) is not None:
                meta.setdefault(key, json.dumps(manifest[key]))
        for device in self._dicts("devices"):
            meta[f"device.{self.rank}.{device.get('index', 0)}"] = str(device.get("name", ""))
        recorders = manifest.get("recorders")
        for name, state in recorders.items() if isinstance(recorders, dict) else ():
            key = f"recorder.{name}"
            meta[key if key not in meta else f"rank.{self.rank}.{key}"] = json.dumps(state)
        if self.clock is not None:
            error = self.clock.error_ns + (KINETO_ERROR_NS if manifest.get("kineto") else 0)
            meta["clock_error_ns"] = str(max(error, int(meta.get("clock_error_ns", "0"))))
        if not manifest.get("complete", False):
            meta["complete"] = "false"
            meta["why"] = str(manifest.get("why") or "the recording did not end")

    def _set_window(self, clock: Clock) -> None:
        window = self.manifest.get("window")
        if not isinstance(window, dict):
            return
        start, end = (_whole(window.get(key), NONE) for key in ("start_mono_ns", "end_mono_ns"))
        if start != NONE and end != NONE:
            low, high = clock.unix_ns([start, end]).tolist()
            known = self.builder.window_ns or (low, high)
            self.builder.window_ns = (min(known[0], low), max(known[1], high))

    def _lose(self, what: str, count: int = 1) -> None:
        self.builder.losses.append(Loss(f"{self.folder.name}: {what}", count=count))
        self.builder.meta["complete"] = "false"
        self.builder.meta.setdefault("why", what)

    # -- recorders ----------------------------------------------------------------------

    def _rows(self, name: str, *kinds: tuple[str, int]) -> dict[str, list[list[Any]]]:
        """The rows of a chunk file by their first word, those of the right length only; with frames numbered anew."""
        path = self.folder / f"{name}.chunks"
        found: dict[str, list[list[Any]]] = {word: [] for word, _ in kinds}
        if not path.is_file():
            return found
        rows, lost = read_chunks(path)
        if lost:
            self._lose(f"{lost} bytes of {path.name} are damaged", lost)
        widths = dict(kinds) | {"frame": 8}
        wrong = 0
        frames: dict[int, int] = {}
        for row in rows:
            word = row[0] if isinstance(row, list) and row and isinstance(row[0], str) else ""
            if len(row) != widths.get(word, -1) if word else True:
                wrong += 1
            elif word == "frame":
                _, number, parent, file, line, function, column, end_column = row
                frames[number] = self.builder.frame(
                    str(file), line, str(function), frames.get(parent, NONE), column, end_column
                )
            else:
                found[word].append(row)
        if wrong:
            self._lose(f"{wrong} rows of {path.name} are not as they should be", wrong)
        self.frames = frames
        return found

    def _tracks(self, numbers: list[int]) -> list[int]:
        known = {
            number: self.builder.track(self.rank, self.pid, number, NONE, self.threads.get(number, ""))
            for number in set(numbers)
        }
        return [known[number] for number in numbers]

    def _frames_of(self, numbers: list[int]) -> list[int]:
        return [self.frames.get(number, NONE) for number in numbers]

    def _names(self, texts: list[str]) -> list[int]:
        return [self.builder.name(str(text)) for text in texts]

    def _add(self, attribute: str, table: type[Table], rows: list[list[Any]], **columns: Any) -> None:
        if rows:
            self.builder.add_table(attribute, table.of(**columns))

    def _read_steps(self, clock: Clock) -> None:
        rows = sorted(self._rows("steps", ("step", 5))["step"], key=lambda row: (row[3], row[1]))
        pairs = [(a, b) for a, b in pairwise(rows) if a[3] == b[3] and b[2] == a[2] + 1]
        starts, ends = (clock.unix_ns([pair[at][1] for pair in pairs]) for at in (0, 1))
        self._add(
            "steps",
            Steps,
            [a for a, _ in pairs],
            start_ns=starts,
            dur_ns=ends - starts,
            number=[a[2] for a, _ in pairs],
            track=self._tracks([a[3] for a, _ in pairs]),
            traced=[bool(a[4]) for a, _ in pairs],
        )

    def _read_ledger(self, clock: Clock) -> None:
        rows = self._rows("ledger", ("sync", 6))["sync"]
        _, start, end, thread, frame, what = _columns(rows, 6)
        self._add(
            "ledger",
            Ledger,
            rows,
            start_ns=clock.unix_ns(start),
            end_ns=clock.unix_ns(end),
            track=self._tracks(thread),
            frame=self._frames_of(frame),
            what=self._names(what),
        )

    def _read_lines(self, clock: Clock) -> None:
        rows = self._rows("lines", ("line", 5))["line"]
        _, start, dur, thread, frame = _columns(rows, 5)
        self._add(
            "lines",
            Lines,
            rows,
            start_ns=clock.unix_ns(start),
            dur_ns=dur,
            track=self._tracks(thread),
            frame=self._frames_of(frame),
        )

    def _read_clocks(self, clock: Clock) -> None:
        found = self._rows("clocks", ("read", 6), ("elapsed", 9))
        _, time, thread, name, value, frame = _columns(found["read"], 6)
        self._add(
            "reads",
            Reads,
            found["read"],
            time_ns=clock.unix_ns(time),
            track=self._tracks(thread),
            clock=self._names(name),
            value_ns=value,
            frame=self._frames_of(frame),
        )
        _, time, thread, claimed, start, end, start_stream, end_stream, frame = _columns(found["elapsed"], 9)
        self._add(
            "event_timings",
            EventTimings,
            found["elapsed"],
            time_ns=clock.unix_ns(time),
            track=self._tracks(thread),
            claimed_ns=claimed,
            start_ns=clock.unix_ns(start),
            end_ns=clock.unix_ns(end),
            start_stream=start_stream,
            end_stream=end_stream,
            frame=self._frames_of(frame),
        )

    def _read_memory(self, clock: Clock) -> None:
        rows = self._rows("memory", ("counter", 5))["counter"]
        _, time, name, device, value = _columns(rows, 5)
        self._add(
            "counters",
            Counters,
            rows,
            time_ns=clock.unix_ns(time),
            name=self._names(name),
            track=np.full(len(rows), NONE),
            device=device,
            value=value,
        )

    def _read_samples(self, clock: Clock) -> None:
        rows = self._rows("samples", ("sample", 5))["sample"]
        _, time, thread, frame, weight = _columns(rows, 5)
        self._add(
            "samples",
            Samples,
            rows,
            time_ns=clock.unix_ns(time),
            track=self._tracks(thread),
            frame=self._frames_of(frame),
            weight_ns=weight,
        )
        name = self.manifest.get("py_spy")
        if name and (self.folder / str(name)).is_file():
            from tracer.readers import pyspy

            beacons = self._rows("beacons", ("beacon", 4))["beacon"]
            _, names, entries, exits = _columns(beacons, 4)
            pyspy.add_samples(
                self.folder / str(name),
                self.builder,
                rank=self.rank,
                pid=self.pid,
                beacons=[
                    (str(name), entry, end)
                    for name, entry, end in zip(
                        names, clock.unix_ns(entries).tolist(), clock.unix_ns(exits).tolist(), strict=True
                    )
                ],
            )

    def _read_sources(self) -> None:
        path = self.folder / "sources.json"
        if not path.is_file():
            return
        try:
            self.builder.sources.update(msgspec.json.decode(path.read_bytes(), type=dict[str, str]))
        except msgspec.DecodeError as error:
            self._lose(f"sources.json: {error}")


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise TraceError(f"{path} is not the manifest of a recording", why=str(error)) from error
    return manifest


def _columns(rows: list[list[Any]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise
