"""`window.stop_after`: the program ends when its window closes, all ranks at the same step.

A window of steps ends at a step that every rank can count to. Where it cannot be
foreseen (a signal, seconds), the rank that records leaves the number in the run's folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tracer.recording.realtime import sleep
from tracer.recording.window import Plan

_FILE = "stop"
_AHEAD = 2  # steps that other ranks may be ahead of a window that has closed by the clock
_PATIENCE_S = 5.0


class Stopping:
    """Ends this process at the right step."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._path = folder / _FILE
        self._plan = plan
        self._at: int | None = None
        self._on = plan.window.stop_after

    def announce(self) -> None:
        """A window begins to warm up: tell the other ranks where it will end."""
        if self._on and self._plan.closes_at is not None:
            self._tell(self._plan.closes_at)

    def closed(self, number: int) -> None:
        """A window of seconds has closed in this step."""
        if self._on and self._plan.by_time:
            self._tell(number + _AHEAD)

    def _tell(self, number: int) -> None:
        self._at = number
        with contextlib.suppress(OSError):
            self._path.write_text(str(number), encoding="ascii")

    def if_due(self, number: int, recording: bool, finish: Callable[[str], None]) -> None:
        """End the program, if this is the step."""
        if not self._on:
            return
        if self._at is None:
            self._at = self._told() or (None if recording else self._plan.stops_at)
        if self._at is None or number < self._at:
            return
        if number > self._at + 1:  # the program caught SystemExit and goes on
            finish("")
            leave()
        raise SystemExit(0)

    def _told(self) -> int | None:
        try:
            return int(self._path.read_bytes())
        except (OSError, ValueError):
            return None

    def without_steps(self) -> None:
        """End a program that does not step, from another thread."""
        if self._on:
            main = ctypes.c_ulong(threading.main_thread().ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(SystemExit))
            sleep(_PATIENCE_S)
            leave()


def leave() -> None:
    """End the process at once, its output written."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
