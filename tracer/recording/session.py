"""One window of one process: its folder, its chunk files, its manifest, and which files are the user's own.

Recorders get a Session and write through it. Its thread is a bare one, so that the
program does not find it among `threading.enumerate()`.
"""

from __future__ import annotations

import fnmatch
import os
import site
import sys
import sysconfig
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from tracer import config
from tracer.recording.realtime import monotonic_ns, sleep, time_ns
from tracer.recording.store import Sink, write_json

_OWN = str(Path(__file__).resolve().parents[1]) + os.sep
_TYPED = ("<string>", "<stdin>", "<ipython-input", "<ipykernel", "<exec")  # code without a file that a person wrote
_GENERATED = ("torchinductor_", "torch_compile_debug")
_TICK_S = 1.0
_MOST_MARKS = 480


class Recorder(Protocol):
    """What a module of this folder offers as `class Recorder`, to be called in this order.

    None may harm the program: each is a no-op where its part is switched off or impossible.
    """

    NAME: str

    def __init__(self, session: Session) -> None: ...

    def arm(self) -> None:
        """Set up, as soon as CUDA is initialised; never create a context."""

    def open(self) -> None:
        """Record: the window opens, on the thread that steps."""

    def close(self) -> dict[str, Any]:
        """Stop; what was seen and dropped, for the manifest."""

    def disarm(self) -> None:
        """Take every hook away."""


class Session:
    """Where one window of one process is recorded."""

    def __init__(self, folder: Path, record: config.Record, *, rank: int = 0, run_id: str = "") -> None:
        self.folder = folder
        self.record = record
        self.rank = rank
        self.run_id = run_id
        self.on_date: Callable[[FrameType], None] | None = None  # told by `lines` when the program asks for the date
        self.alive = True  # False in a forked child, and after the end
        self.manifest: dict[str, Any] = {"schema": 1, "complete": False, "notes": [], "marks": [], "recorders": {}}
        self._sinks: dict[str, Sink] = {}
        self._user_files: dict[str, bool] = {}
        self._ticks: list[Callable[[], None]] = []
        self._lock = allocate_lock()
        self._running = False

    def sink(self, name: str) -> Sink:
        """The chunk file of this name, the same for everyone who asks."""
        with self._lock:
            if name not in self._sinks:
                self._sinks[name] = Sink(lambda: self.folder / f"{name}.chunks")
            return self._sinks[name]

    def note(self, text: str) -> None:
        """A sentence for the manifest, once."""
        notes = self.manifest["notes"]
        if text not in notes:
            notes.append(text)

    def each_second(self, call: Callable[[], None]) -> None:
        """Have this called on the writing thread before each flush, and once at the end."""
        self._ticks.append(call)

    def is_user_file(self, filename: str) -> bool:
        """Whether a code object's file is the user's own: not Python's, an installed package's, or ours."""
        known = self._user_files.get(filename)
        if known is None:
            known = self._user_files[filename] = is_user_file(filename, self.record.user_code)
        return known

    def user_files(self) -> list[str]:
        """The user's files that were asked for so far."""
        return [name for name, own in self._user_files.copy().items() if own]

    def start(self) -> None:
        """Write the first manifest and begin to flush each second."""
        self.mark()
        self.save()
        self._running = True
        start_new_thread(self._work, ())

    def _work(self) -> None:
        while self._running and self.alive:
            sleep(_TICK_S)
            if self._running and self.alive:
                self.mark()
                self.flush()

    def flush(self) -> None:
        """Bring everything that came in to the disk."""
        for tick in tuple(self._ticks):
            tick()
        for sink in tuple(self._sinks.values()):
            sink.flush()

    def mark(self) -> None:
        """Note both clocks at one moment, to tie the recorders together later."""
        marks = self.manifest["marks"]
        marks.append(list(read_clocks()))
        if len(marks) > _MOST_MARKS:  # a long wait: every second one is enough
            del marks[1 : -_MOST_MARKS // 4 : 2]

    def save(self) -> bool:
        """Write the manifest as it is now; whether that worked."""
        try:
            write_json(self.folder / "manifest.json", self.manifest)
        except OSError as error:
            self.note(f"the manifest could not be written: {error}")
            return False
        return True

    def end(self) -> None:
        """Flush, close all files, and write the last manifest."""
        if not self.alive:
            return
        self._running = False
        self.mark()
        self.flush()
        for name, sink in self._sinks.items():
            sink.close()
            if sink.error:
                self.note(f"{name}: {sink.dropped} rows are missing: {sink.error}")
                self.manifest["complete"] = False
                self.manifest.setdefault("why", f"{name} could not be written: {sink.error}")
        self.save()
        self.alive = False

    def forget(self) -> None:
        """Let go of everything without writing: this is a forked child."""
        self.alive = False
        self._running = False
        for sink in self._sinks.values():
            sink.forget()


def read_clocks(tries: int = 5) -> tuple[int, int, int]:
    """Monotonic and unix nanoseconds of one moment, and how far they may be apart."""
    best = (0, 0, 1 << 62)
    for _ in range(tries):
        before = monotonic_ns()
        unix = time_ns()
        after = monotonic_ns()
        if after - before < best[2]:
            best = ((before + after) // 2, unix, after - before)
    return best[0], best[1], (best[2] + 1) // 2


def _library_roots() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths.update(site.getsitepackages())
    # Packages may also be installed into a folder of any name (pip install --target).
    paths.update(entry for entry in sys.path if entry and any(Path(entry).glob("*.dist-info")))
    real = {os.path.realpath(path) for path in paths if path}
    return tuple(path.rstrip(os.sep) + os.sep for path in {*filter(None, paths), *real})


_ROOTS = _library_roots()


def is_user_file(filename: str, also: list[str]) -> bool:
    """Whether a file is the user's own by its name; `also` are patterns that are."""
    if any(fnmatch.fnmatch(filename, pattern) for pattern in also):
        return True
    if filename.startswith("<"):
        return filename.startswith(_TYPED)
    if any(part in filename for part in ("site-packages", "dist-packages", *_GENERATED)):
        return False
    try:
        path = str(Path(filename).absolute())
    except FileNotFoundError:  # a relative name, and the working folder has been deleted
        path = filename
    return not path.startswith(_OWN) and not path.startswith(_ROOTS)
