"""How far a run is, on one line of stderr; silent where stderr is not a terminal."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from tracer.recording.runs import Event


class Progress:
    """The line."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._on = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False

    def event(self, event: Event) -> None:
        """Say what a process has told."""
        words = {
            "armed": f"waiting for step {event.of}" if event.of else "waiting",
            "waiting": f"waiting for step {event.number} of {event.of}",
            "warming": "warming up",
            "open": "recording",
            "writing": "writing",
            "written": "recorded",
        }.get(event.what)
        if words:
            self.say(words)

    def say(self, words: str) -> None:
        """Show this instead of what was there."""
        if self._on:
            self._stream.write(f"\r\x1b[2Ktracer: {words}")
            self._stream.flush()
            self._shown = True

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
            self._shown = False
