"""Reads a folder that `tracer run` recorded: every recorder brought to one clock, every rank into one trace.

Whatever a crash left behind is read; what is missing or damaged is said, never guessed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from tracer.building import TraceBuilder
from tracer.errors import TraceError
from tracer.readers import kineto
from tracer.readers._clock import Clock
from tracer.readers._folders import MANIFEST, rank_folders
from tracer.readers._recorders import RecorderReader
from tracer.readers._rows import Ns
from tracer.trace import NONE, Loss, Trace

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
        self.clock = _clock(self.manifest.get("marks"))

    def read(self) -> None:
        """Everything in the folder."""
        self._read_meta()
        if self.clock is None:
            self._lose("no clock marks in the manifest, so the recorders' rows have no place in time")
        elif self.clock.contradiction:
            self._lose(f"{self.clock.contradiction}; ledger, lines, clock reads and samples are left out")
        else:
            self._set_window(self.clock)
            reader = RecorderReader(
                self.folder,
                self.builder,
                self.clock,
                rank=self.rank,
                pid=self.pid,
                threads=self.threads,
                lose=self._lose,
            )
            py_spy = self.manifest.get("py_spy")
            reader.read(py_spy if isinstance(py_spy, str) else None)
        self._read_sources()
        name = self.manifest.get("kineto")
        if name and (self.folder / str(name)).is_file():
            try:
                kineto.read(
                    self.folder / str(name), self.builder, self.rank, threads=self._torch_threads(), names=self.threads
                )
            except TraceError as error:
                self._lose(f"{name} cannot be read: {error.why or error.what}")
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

    def _read_sources(self) -> None:
        path = self.folder / "sources.json"
        if not path.is_file():
            return
        try:
            self.builder.sources.update(msgspec.json.decode(path.read_bytes(), type=dict[str, str]))
        except (msgspec.DecodeError, RecursionError) as error:
            self._lose(f"sources.json: {error}")


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(f"{path} is not the manifest of a recording", why=str(error)) from error
    return manifest


def _clock(marks: Any) -> Clock | None:
    try:
        pairs = msgspec.convert(marks, list[tuple[Ns, Ns, Ns]])
    except msgspec.ValidationError:
        return None
    return Clock(pairs) if pairs else None


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and abs(value) < 2**61 else otherwise
