"""Every synchronisation that torch knows of, with its Python stack and thread.

Stacks are symbolised and written each second, so that a kill loses little.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock, get_ident, get_native_id
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tracer.errors import TracerError
from tracer.recording import stacks
from tracer.recording.session import Session
from tracer.recording.syncwatch import WATCH, SyncWatch

_LIMIT = 500_000  # entries of a window; a program that waits this often has been understood


class Recorder:
    """Writes the ledger while the window is open."""

    NAME = "ledger"

    def __init__(self, session: Session, watch: SyncWatch = WATCH) -> None:
        self._session = session
        self._watch = watch
        self._on = session.record.ledger
        self._why = "" if self._on else "switched off"
        self._waiting: deque[tuple[str, int, int, int, Any]] = deque()
        self._frames: stacks.FrameTable | None = None
        self._lock = allocate_lock()
        self.saw = self.dropped = 0

    def arm(self) -> None:
        """Hook into torch and the warnings; nothing is counted yet."""
        if self._on and self._frames is None:
            self._why = self._watch.prepare()
            self._on = not self._why
            if self._on:
                self._sink = self._session.sink(self.NAME)
                self._frames = stacks.FrameTable.of(self._sink)
                self._session.each_second(self.write)

    def open(self) -> None:
        """Listen from now on."""
        if self._on and not self._watch.prepare():
            self._watch.listen(self._heard)

    def close(self) -> dict[str, Any]:
        """Listen no more; what was seen."""
        self._watch.unlisten(self._heard)
        self.write()
        found: dict[str, Any] = {"on": self._on, "saw": self.saw, "dropped": self.dropped}
        why = self._why or self._watch.broken
        return found | ({"why": why} if why else {})

    def disarm(self) -> None:
        """Take the hooks away."""
        self._watch.unlisten(self._heard)
        self._watch.release()

    def _heard(self, what: str, start_ns: int, end_ns: int) -> None:
        if self.saw >= _LIMIT:
            self.dropped += 1
            return
        self.saw += 1
        self._waiting.append((what, start_ns, end_ns, get_native_id(), stacks.catch()))

    def write(self) -> None:
        """Hand what came in to the file, with names."""
        if self._frames is None:
            return
        with self._lock:
            rows = [self._waiting.popleft() for _ in range(len(self._waiting))]
            named = stacks.symbolize([row[4] for row in rows]) if rows else []
            for (what, start, end, thread, _), frames in zip(rows, named, strict=True):
                self._sink.add(["sync", start, end, thread, self._frames.stack(frames), what])


class SyncError(TracerError, AssertionError):
    """Code that must not wait for the GPU did."""


@dataclass(frozen=True, slots=True)
class Sync:
    """A synchronisation that happened where it was forbidden."""

    what: str
    thread: str
    stack: tuple[tuple[str, int, str], ...]  # (file, line, function), innermost first

    @property
    def place(self) -> tuple[str, int, str]:
        """The innermost frame outside of torch and other installed packages."""
        for frame in self.stack:
            if "site-packages" not in frame[0] and "dist-packages" not in frame[0]:
                return frame
        return self.stack[0] if self.stack else ("", 0, "")

    def __str__(self) -> str:
        file, line, function = self.place
        what = "a synchronisation" if self.what == "sync" else self.what
        return f"{file}:{line} in {function}: {what}"


@contextmanager
def forbid_syncs(max: int = 0, watch: SyncWatch = WATCH) -> Iterator[list[Sync]]:
    """Fail if the code inside waits for the GPU more than `max` times, on any thread; yields what it saw.

    Without a GPU nothing can wait. The list is complete when the block ends.
    """
    why = watch.prepare()
    if why and "not tested" in why:
        raise TracerError("synchronisations cannot be forbidden here", why=why)
    caught: list[tuple[str, str, Any]] = []

    def hear(what: str, start_ns: int, end_ns: int) -> None:
        # current_thread() would enter a thread that Python does not know into its lists.
        known = next((thread.name for thread in threading.enumerate() if thread.ident == get_ident()), "")
        caught.append((what, known, stacks.catch()))

    seen: list[Sync] = []
    if not why:
        watch.listen(hear)
    try:
        yield seen
    finally:
        watch.unlisten(hear)
        named = stacks.symbolize([entry[2] for entry in caught]) if caught else []
        seen.extend(Sync(what, thread, tuple(frames)) for (what, thread, _), frames in zip(caught, named, strict=True))
    if len(seen) > max:
        raise SyncError(
            f"the GPU was waited for {len(seen)} times, {max} allowed",
            why="\n       ".join(dict.fromkeys(map(str, seen))),
            fix="keep values on the GPU, or read them once after the loop",
        )
