"""Samples from the program's side: beacons that tie py-spy's clock to ours, or a sampler in here.

py-spy writes microseconds since a moment that it does not tell. A beacon is a function
with a name of its own that sleeps a little and notes when it came and went: a sample
that shows it was taken in between. Many of them leave the zero an interval of some
tens of microseconds.
"""

from __future__ import annotations

import ctypes
import json
import threading
from _thread import start_new_thread
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from tracer.recording.inprocess import InProcessSampler
from tracer.recording.realtime import monotonic, monotonic_ns, sleep
from tracer.recording.sampler import OUTPUT, STATE
from tracer.recording.session import Session

_PR_SET_PTRACER = 0x59616D61
BEACON = "tracer_beacon_"
_BEACON_S = 0.005
_END_S = 2.0  # for py-spy to write its file


class Recorder:
    """Helps the sampler outside, or samples."""

    NAME = "samples"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._on = session.record.samples
        self._running = False
        self._outside = False
        self._inside: InProcessSampler | None = None
        self._why = ""

    def arm(self) -> None:
        """Let the recording parent look into this process, where only its ancestors and whom it names may."""
        if self._on:
            _name_ptracer(self._session.folder.parent / "run.json")

    def open(self) -> None:
        """Begin; the sampler outside has been started or has failed by now."""
        if not self._on:
            return
        self._session.each_second(self._note_threads)
        state = self._state()
        self._outside = bool(state.get("on"))
        if self._outside:
            self._session.manifest["py_spy"] = OUTPUT
            self._sink = self._session.sink("beacons")
            self._running = True
            start_new_thread(self._shine, ())
            return
        self._why = str(state.get("why") or "")
        if self._why:
            self._why += "; the program was sampled from inside instead"
            self._session.note(self._why)
        self._inside = InProcessSampler(self._session.sink("samples"), self._session.record.sample_rate)

    def close(self) -> dict[str, Any]:
        """End; what was seen, as far as it is known now."""
        self._running = False
        found: dict[str, Any] = {"on": self._on, "saw": 0, "dropped": 0}
        if not self._on:
            return found | {"why": "switched off"}
        self._note_threads()
        if self._inside is not None:
            self._inside.stop()
            found = self._inside.said()
        elif self._outside:
            found["how"] = "py-spy"
        return found | ({"why": self._why} if self._why else {})

    def disarm(self) -> None:
        """Take over what py-spy said at its end."""
        self._running = False
        if self._inside is not None:
            self._inside.stop()
        if not self._outside:
            return
        self._outside = False
        until = monotonic() + _END_S
        while not (state := self._state()).get("ended") and monotonic() < until:
            sleep(0.01)
        found = self._session.manifest["recorders"].setdefault(self.NAME, {"on": True, "saw": 0, "dropped": 0})
        found.update({key: state[key] for key in ("saw", "dropped", "note") if key in state})
        if state.get("why"):
            found["why"] = state["why"]
            self._session.note(state["why"])

    def forked(self) -> None:
        """No thread of ours lives in a child."""
        self._running = False
        self._outside = False

    def _state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads((self._session.folder / STATE).read_bytes())
        except (OSError, ValueError):
            return {}
        return state

    def _shine(self) -> None:
        number = 0
        while self._running:
            number += 1
            name = f"{BEACON}{number}"
            beacon = make_beacon(name)
            entry = monotonic_ns()
            beacon(_BEACON_S)
            self._sink.add(["beacon", name, entry, monotonic_ns()])

    def _note_threads(self) -> None:
        """Threads come and go: a sampler knows them by the number that Python gives, the trace by the system's."""
        threads = self._session.manifest.setdefault("threads", [])
        known = {(thread.get("ident"), thread.get("native_id")) for thread in threads}
        for thread in threading.enumerate():
            if (thread.ident, thread.native_id) not in known:
                threads.append({"ident": thread.ident, "native_id": thread.native_id, "name": thread.name})


def _name_ptracer(run: Path, scope: Path = Path("/proc/sys/kernel/yama/ptrace_scope")) -> bool:
    """Under Yama py-spy is a stranger here, no ancestor: name the parent, and so its children."""
    try:
        restricted = scope.read_bytes().strip() == b"1"
        parent = int(json.loads(run.read_bytes())["parent"])
    except (OSError, ValueError, KeyError):
        return False
    if restricted and parent:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(parent), 0, 0, 0)
    return restricted and parent > 0


def make_beacon(name: str) -> Callable[[float], None]:
    """A function of this name that sleeps."""
    return FunctionType(_beacon.__code__.replace(co_name=name, co_qualname=name), globals())


def _beacon(seconds: float) -> None:
    sleep(seconds)
