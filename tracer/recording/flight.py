"""The flight recorder: thinned marks for the whole of a long job, so that a crash in the night names its line.

- On with `record.flight_recorder: true`, from the first CUDA context to the end of the
  process, whatever the window does: a window that closes does not end it.
- It asks the GPU for a mark at most every 100 us, so the bracket is some lines wide.
- What it knows lies in /dev/shm until `collect` has read it, after the program's end.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from tracer.recording.bracket import find_brackets
from tracer.recording.device_errors import Stderr
from tracer.recording.linewatch import AVAILABLE
from tracer.recording.locate import conclude
from tracer.recording.locate_child import Hooks, Settings
from tracer.recording.marks import SPARSE_NS
from tracer.recording.rerun import Outcome
from tracer.recording.session import Session
from tracer.recording.sighting import read_rings, sight
from tracer.recording.store import write_json
from tracer.results import Located

_running: list[Hooks] = []  # one for a process, however many windows there are


class Recorder:
    """Keeps marks going in this process."""

    NAME = "flight"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._why = ""

    def arm(self) -> None:
        """Begin, once; the rings of forked children end by themselves."""
        if not self._session.record.flight_recorder or _running:
            return
        if not AVAILABLE:
            self._why = "the flight recorder needs Python 3.12 or newer"
            return
        import torch

        if not torch.cuda.is_available():
            self._why = "there is no CUDA device"
            return
        folder = _folder(self._session.run_id)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            hooks = Hooks(
                Settings(str(folder), every_ns=SPARSE_NS, ops=False, user_code=self._session.record.user_code)
            )
        except OSError as error:
            self._why = f"its ring cannot be made: {error}"
            return
        hooks.install()
        atexit.register(hooks.marks.ring.event, "exit")
        _running.append(hooks)

    def open(self) -> None:
        """The window has nothing to do with it."""

    def close(self) -> dict[str, Any]:
        """How many lines it saw so far."""
        if not _running:
            return {"on": False, "saw": 0, "dropped": 0, "why": self._why or "record.flight_recorder is off"}
        marks = _running[0].marks
        return {"on": True, "saw": int(marks.ring.last[0]), "dropped": 0, "why": marks.why_not}

    def disarm(self) -> None:
        """It stays until the process ends: that is what it is for."""


def collect(run_folder: Path, status: int, command: str = "") -> Located | None:
    """What the flight recorder of a run knows about its end; None if it was off or no CUDA error came up.

    Leaves `flight.json` in the run's folder and clears the memory.
    """
    folder = _folder(run_folder.name)
    if not folder.is_dir():
        return None
    try:
        found = conclude(command, sight(folder, Outcome(status, 0.0, _silent(folder, status)), blocking=False), None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not found.kind:
        return None
    write_json(run_folder / "flight.json", msgspec.to_builtins(found))
    return found


def _silent(folder: Path, status: int) -> Stderr:
    """Stand in for a stderr that nobody read: a process that was aborted with marks on the way met an error."""
    stderr = Stderr()
    if status == 128 + 6 and any(bracket.pending for image in read_rings(folder) for bracket in find_brackets(image)):
        stderr.feed("CUDA error: the process aborted while the GPU had work")
    return stderr


def _folder(run_id: str) -> Path:
    memory = Path("/dev/shm")
    base = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    return base / f"tracer-flight-{os.getuid()}-{run_id}"
