"""All recorders of a window, driven together; one that fails is left out, and the manifest says why."""

from __future__ import annotations

import importlib
from typing import Any

from tracer.recording.realtime import monotonic_ns
from tracer.recording.session import Session

# Modules here that have a `Recorder`, in the order in which they open; they close the other way round.
MODULES = ("clockmarks", "ledger", "lines", "clocks", "pauses", "flight")


class Recorders:
    """The recorders of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._all: list[Any] = []

    @property
    def _states(self) -> dict[str, Any]:
        states: dict[str, Any] = self._session.manifest["recorders"]
        return states

    def arm(self) -> None:
        """Make and set up all of them."""
        for name in MODULES:
            try:
                recorder = importlib.import_module(f"tracer.recording.{name}").Recorder(self._session)
            except Exception as error:  # a recorder must never harm the program
                self._states[name] = {"on": False, "why": f"it could not be made: {error!r}"}
                continue
            self._all.append(recorder)
            self._call(recorder, "arm")

    def open(self) -> None:
        """The window opens."""
        for recorder in tuple(self._all):
            self._call(recorder, "open")

    def close(self) -> None:
        """The window closes: what each one saw goes into the manifest."""
        for recorder in reversed(tuple(self._all)):
            begun = monotonic_ns()
            answer = self._call(recorder, "close")
            if isinstance(answer, dict):
                self._states[recorder.NAME] = answer | {"closing_ns": monotonic_ns() - begun}

    def disarm(self) -> None:
        """Take all hooks away, once."""
        for recorder in tuple(self._all):
            self._call(recorder, "disarm")
        self._all.clear()

    def forked(self) -> None:
        """This is a forked child."""
        for recorder in self._all:
            if hasattr(recorder, "forked"):
                self._call(recorder, "forked")

    def _call(self, recorder: Any, method: str) -> Any:
        try:
            return getattr(recorder, method)()
        except Exception as error:  # a recorder must never harm the program
            self._states[recorder.NAME] = {"on": False, "why": f"{method} failed: {error!r}"}
            if recorder in self._all:
                self._all.remove(recorder)
            return None
