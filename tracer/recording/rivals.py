"""Others who record in the same process: the program's own torch.profiler, or another CUPTI client.

Kineto has one session. Starting ours inside theirs, or theirs inside ours, silently
empties one of them. So ours ends before theirs begins; and where theirs is there
already, ours stays away and a copy of what theirs saves is taken (adopted).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tracer.recording.profiler import FILE, compress
from tracer.recording.realtime import monotonic_ns
from tracer.recording.steps import Noting
from tracer.recording.store import write_whole

_COPY = ".theirs.json.gz"
_CLIENTS = (
    (r"nsys|ToolsInjection|NsightSystems", "Nsight Systems (nsys)", "run without nsys, or audit its SQLite export"),
    (r"ncu|nsight-compute|InjectionCompute", "Nsight Compute (ncu)", "run without ncu"),
    (r"libsanitizer|compute-sanitizer", "compute-sanitizer", "run without compute-sanitizer"),
    (r"rocprof", "rocprof", "run without rocprof"),
)


class RivalEvents(Protocol):
    """Who is told about them."""

    @property
    def number(self) -> int:
        """The step in which the program is."""

    @property
    def place(self) -> Path | None:
        """Where a copy of what they save may be kept."""

    def before_theirs(self) -> None:
        """Theirs is about to take the session: end ours."""

    def theirs(self, *, running: bool) -> None:
        """Theirs has started, or is about to end."""


class Rivals:
    """Watches the program's own profilers."""

    def __init__(self, ours: Callable[[], Any], events: RivalEvents) -> None:
        from torch.autograd.profiler import profile as inner
        from torch.profiler import profile

        self._ours = ours  # our inner profiler, if there is one
        self._events = events
        self._waiting: set[int] = set()  # their torch.profiler objects that were started
        self._running: list[Any] = []  # their inner profiler that holds the session
        self._started = (0, 0)  # monotonic ns, step
        self.last = (0, 0, 0, 0)  # of their last session: start and end in monotonic ns, first and last step
        self._ended: Any = None  # the inner profiler of that session
        self._copy: Path | None = None  # what they saved of it
        self._undo = [
            Noting(profile, "start", lambda profiler: self._waiting.add(id(profiler))).remove,
            Noting(profile, "stop", lambda profiler: self._waiting.discard(id(profiler))).remove,
            Noting(inner, "_prepare_trace", self._theirs_prepares).remove,
            Noting(inner, "_start_trace", self._theirs_starts).remove,
            _after_stop(self._theirs_ended),
            _after(inner, "export_chrome_trace", self._theirs_saved),
        ]

    @property
    def present(self) -> bool:
        """Whether a profiler of the program is at work, or waits for its turn."""
        return bool(self._waiting or self._running)

    @property
    def running(self) -> bool:
        """Whether a profiler of the program has the session now."""
        return bool(self._running)

    @property
    def has_recorded(self) -> bool:
        """Whether a session of theirs has ended, whose records can be had."""
        return self._ended is not None

    def remove(self) -> None:
        """Leave torch as it was."""
        for undo in self._undo:
            undo()
        self._undo.clear()
        if self._copy is not None:
            self._copy.unlink(missing_ok=True)

    def forget(self) -> None:
        """This is a forked child: the copy is its parent's."""
        self._copy = None

    def _is_ours(self, profiler: Any) -> bool:
        return profiler is self._ours()

    def _theirs_prepares(self, profiler: Any) -> None:
        if not self._is_ours(profiler) and not self._running:
            self._running.append(profiler)
            self._events.before_theirs()

    def _theirs_starts(self, profiler: Any) -> None:
        if not self._is_ours(profiler):
            self._started = (monotonic_ns(), self._events.number)
            self._events.theirs(running=True)

    def _theirs_ended(self) -> None:
        if self._running:
            self._ended = self._running.pop()
            self.last = (self._started[0], monotonic_ns(), self._started[1], self._events.number)
            self._copy = None
            self._events.theirs(running=False)

    def _theirs_saved(self, profiler: Any, path: str) -> None:
        """Keep a copy: torch saves a session once only."""
        folder = self._events.place
        if profiler is not self._ended or folder is None:
            return
        try:
            theirs = Path(path)
            if theirs.suffix == ".gz":
                write_whole(folder / _COPY, theirs.read_bytes())
            else:
                compress(theirs, folder / _COPY)
            self._copy = folder / _COPY
        except OSError:
            return

    def hand_over(self, folder: Path) -> str:
        """The file with their last session in `folder`; empty if it cannot be had."""
        if self._ended is not None and self._copy is None:
            plain = folder / ".kineto.json"
            try:
                self._ended.export_chrome_trace(str(plain))  # they never did, and `_theirs_saved` copies it
            except (RuntimeError, AssertionError, OSError, AttributeError):
                return ""
            finally:
                plain.unlink(missing_ok=True)
        if self._copy is None:
            return ""
        self._copy.replace(folder / FILE)
        self._copy = self._ended = None
        return FILE


def _after(owner: type, name: str, call: Callable[[Any, str], None]) -> Callable[[], None]:
    original = owner.__dict__[name]

    def export_chrome_trace(self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, path, *args, **kwargs)
        call(self, str(path))
        return result

    export_chrome_trace.__wrapped__ = original  # type: ignore[attr-defined]
    setattr(owner, name, export_chrome_trace)

    def undo() -> None:
        if owner.__dict__.get(name) is export_chrome_trace:
            setattr(owner, name, original)

    return undo


def _after_stop(call: Callable[[], None]) -> Callable[[], None]:
    """Be told when any profiler has stopped. `with` fetches `__exit__` before it enters: no place to look."""
    from torch.autograd import profiler

    original = profiler._run_on_profiler_stop

    def run_on_profiler_stop() -> None:
        original()
        call()

    def undo() -> None:
        if profiler._run_on_profiler_stop is run_on_profiler_stop:
            profiler._run_on_profiler_stop = original

    profiler._run_on_profiler_stop = run_on_profiler_stop
    return undo


def other_cupti_client() -> tuple[str, str]:
    """Who else holds CUPTI in this process and how to go on; empty if nobody is known."""
    injected = " ".join(os.environ.get(name, "") for name in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"))
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        maps = ""
    libraries = {line.rpartition(" ")[2] for line in maps.splitlines() if ".so" in line}
    if os.environ.get("NSYS_PROFILING_SESSION_ID"):
        injected += " nsys"
    for pattern, name, fix in _CLIENTS:
        if re.search(pattern, injected) or any(re.search(pattern, Path(library).name) for library in libraries):
            return name, fix
    return "", ""
