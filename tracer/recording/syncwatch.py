"""Tells of every synchronisation that torch knows of, as it happens, on the thread that waited.

What was compared (tests/bench/ledger_ways.py measures it on a GPU):

- The warnings of torch's sync debug mode: all places that torch itself knows of, C++
  callers included, and nothing while nobody waits. Chosen, with `warnguard` in front.
- `torch.cuda._gpu_trace` callbacks: before the wait, so without its end; an operator that
  allocates takes twice as long; cannot be switched off again.
- `aten::_local_scalar_dense` overridden with torch.library: the cheapest for a read, but
  blind for nonzero, masks, copies and explicit waits, and one override more for each.
- Wrapped Python functions alone: blind for all that C++ does. Used where the mode is
  blind: whole-device and event waits, empty_cache. Not for copies that are asked not to
  block: a wrapped `Tensor.to` is another function to torch.compile and to
  `__torch_function__`. Their lines come from the lines recorder, or from samples.

The mode belongs to the program: what it sets and asks is kept for it, and while it wants
warnings itself it gets those that its own filters would have let through.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from tracer.recording.realtime import monotonic_ns
from tracer.recording.warnguard import WarnGuard, program_action

SYNC = "called a synchronizing CUDA operation"
_BETA = "Synchronization debug mode is a prototype feature"

# (what, start on the monotonic clock or -1, end)
Listener = Callable[[str, int, int], None]


class SyncWatch:
    """The one watch of a process: it listens while anybody wants to know."""

    def __init__(self, text: str = SYNC) -> None:
        self._text = text
        self._guard = WarnGuard(self._hear)
        self._listeners: tuple[Listener, ...] = ()
        self._lock = threading.RLock()
        self._local = threading.local()
        self._pid = 0
        self._fork_known = False
        self._set_mode: Callable[[int], None] | None = None  # torch's own
        self._wanted = 0  # the program's own mode
        self._beta = ""  # torch's once-only notice, which belongs to the program's first call
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._shown: dict[int, dict[Any, Any]] = {}
        self.armed = False
        self.broken = ""  # first error in a listener

    def prepare(self) -> str:
        """Go in front of the program's filters and hook torch; "" or why it cannot be done. No context is made."""
        with self._lock:
            if self._pid:
                return ""
            torch = sys.modules.get("torch")
            if torch is None:
                return "torch is not loaded"
            if not hasattr(torch._C, "_cuda_set_sync_debug_mode"):
                return "this torch is built without CUDA"
            if not self._guard.install():
                return f"not tested on Python {sys.version_info.major}.{sys.version_info.minor}"
            self._pid = os.getpid()
            if not self._fork_known:
                self._fork_known = True
                os.register_at_fork(after_in_child=self._forked)
            self._hook(torch)
            return ""

    def listen(self, listener: Listener) -> None:
        """Tell this listener from now on, once CUDA is initialised."""
        with self._lock:
            self._listeners += (listener,)
            if len(self._listeners) == 1 and self._set_mode is not None:
                sys.modules["torch"].cuda._lazy_call(self._arm)

    def unlisten(self, listener: Listener) -> None:
        """Tell it no more; torch gets the program's own mode back with the last one."""
        with self._lock:
            self._listeners = tuple(one for one in self._listeners if one != listener)
            if not self._listeners and self.armed and self._set_mode is not None:
                self._set_mode(self._wanted)
                self.armed = False

    def release(self) -> None:
        """Take every hook away, unless somebody still listens."""
        with self._lock:
            if self._listeners or not self._pid:
                return
            for owner, name, ours, original in reversed(self._replaced):
                if owner.__dict__.get(name) is ours:
                    if original is None:
                        delattr(owner, name)
                    else:
                        setattr(owner, name, original)
            self._replaced.clear()
            self._set_mode = None
            self._guard.uninstall()
            self._pid = 0

    def tell(self, what: str, start_ns: int, end_ns: int) -> None:
        """A synchronisation happened on this thread."""
        for listener in self._listeners:
            try:
                listener(what, start_ns, end_ns)
            except Exception as error:  # the program must not see it
                self.broken = self.broken or repr(error)

    # --- the mode ---------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        with self._lock:
            if self._listeners and self._set_mode is not None and os.getpid() == self._pid and not self.armed:
                self.armed = True
                self._set_mode(max(1, self._wanted))

    def _forked(self) -> None:
        # CUDA does not work here if the parent used it: nothing can wait.
        self._lock = threading.RLock()
        self._listeners = ()
        if self.armed and self._set_mode is not None:
            self._set_mode(self._wanted)
        self.armed = False

    def _hear(self, text: str) -> bool:
        if self._wanted == 0 and self.armed and text.startswith(self._text):
            self.tell("sync", -1, monotonic_ns())
            return True
        if getattr(self._local, "showing", False):
            return False
        if text.startswith(self._text):
            if self.armed:
                self.tell("sync", -1, monotonic_ns())
            return self._wanted != 0 and self._as_wanted(text)
        if self.armed and not self._beta and text.startswith(_BETA):
            self._beta = text
            return True
        return False

    def _as_wanted(self, text: str) -> bool:
        """Treat a warning that the program asked for as its filters say; whether that is done."""
        frame = sys._getframe(2)  # below is hear
        action = program_action(text, UserWarning, frame.f_globals.get("__name__") or "<unknown>", frame.f_lineno)
        if action not in ("default", "module", "once"):
            return False  # the interpreter goes on to the program's own filter, with the stack as it would be
        # These are shown once and then stopped by the module's registry, before any filter is asked: we would
        # hear the first only. So they are shown from here, with a registry of ours.
        self._show(text, frame, self._shown.setdefault(id(frame.f_globals), {}))
        return True

    def _show(self, text: str, frame: FrameType, registry: dict[Any, Any]) -> None:
        self._local.showing = True
        try:
            module = frame.f_globals.get("__name__") or "<unknown>"
            warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno, module, registry)
        finally:
            self._local.showing = False

    # --- torch's functions ------------------------------------------------------------------------------------

    def _hook(self, torch: Any) -> None:
        original_set, original_get = torch._C._cuda_set_sync_debug_mode, torch._C._cuda_get_sync_debug_mode
        self._set_mode, self._wanted = original_set, original_get()

        def set_mode(mode: int) -> None:
            original_set(max(mode, 1) if self.armed and mode == 0 else mode)  # refuses what it would refuse
            self._wanted = mode
            if self._beta:
                text, self._beta = self._beta, ""
                frame = sys._getframe(1)
                self._show(text, frame, frame.f_globals.setdefault("__warningregistry__", {}))

        def get_mode() -> int:
            return self._wanted

        self._replace(torch._C, "_cuda_set_sync_debug_mode", set_mode)
        self._replace(torch._C, "_cuda_get_sync_debug_mode", get_mode)
        for owner, name, what in (
            (torch._C, "_cuda_synchronize", "torch.cuda.synchronize"),
            (torch._C, "_cuda_emptyCache", "torch.cuda.empty_cache"),
            (torch._C, "_accelerator_synchronizeDevice", "torch.accelerator.synchronize"),
            (torch._C, "_accelerator_emptyCache", "torch.accelerator.empty_cache"),
            (torch.cuda.Event, "synchronize", "Event.synchronize"),
        ):
            original = getattr(owner, name, None)
            if original is not None:
                self._replace(owner, name, self._timed(original, what))

    def _replace(self, owner: Any, name: str, ours: Any) -> None:
        original = owner.__dict__.get(name)
        template = getattr(owner, name)
        ours.__name__, ours.__qualname__ = name, getattr(template, "__qualname__", name)
        ours.__doc__, ours.__module__ = template.__doc__, getattr(template, "__module__", None)
        setattr(owner, name, ours)
        self._replaced.append((owner, name, ours, original))

    def _timed(self, original: Callable[..., Any], what: str) -> Callable[..., Any]:
        def waiting(*values: Any, **options: Any) -> Any:
            if not self._listeners:
                return original(*values, **options)
            start = monotonic_ns()
            try:
                return original(*values, **options)
            finally:
                self.tell(what, start, monotonic_ns())

        return waiting


WATCH = SyncWatch()
