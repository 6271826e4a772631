"""In the program's own process: sets the marks up when torch brings CUDA up. Started by TRACER_LOCATE."""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from tracer import config
from tracer.recording.session import Session

VARIABLE = "TRACER_LOCATE"


class Settings(msgspec.Struct, frozen=True):
    """What the parent asks for."""

    folder: str
    every_ns: int = 0
    lines: bool = True
    ops: bool = True
    check: bool = False  # look at the inputs of index operators before they run
    user_code: list[str] = []


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Calls back when a module has been imported."""

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self._name = name
        self._call = call
        self._real: Any = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the module as the others would, and take its loader's place."""
        if fullname != self._name or self._real is not None:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        self._real = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the real loader does."""
        spec.loader = self._real
        return self._real.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then call back."""
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._call()


def install() -> None:
    """Prepare this process, if the environment asks for it."""
    text = os.environ.get(VARIABLE)
    if not text:
        return
    settings = msgspec.json.decode(text, type=Settings)
    if "torch" in sys.modules:
        _torch_is_here(settings)
    else:
        sys.meta_path.insert(0, _AfterImport("torch", lambda: _torch_is_here(settings)))


def _torch_is_here(settings: Settings) -> None:
    import torch

    if torch.version.cuda is None:
        return
    torch.cuda._lazy_call(lambda: _cuda_is_up(settings))


def _cuda_is_up(settings: Settings) -> None:
    from tracer.recording.marks import Marks

    session = Session(Path(settings.folder), config.Record(user_code=settings.user_code))
    rank = os.environ.get("RANK", "")
    name = f"{os.getpid()}{'-rank' + rank if rank else ''}.ring"
    marks = Marks(Path(settings.folder) / name, session.is_user_file, every_ns=settings.every_ns)
    marks.ring.event("process", rank, sys.argv, sys.version)
    watching = settings.lines and marks.start()
    _hook_exceptions(marks)
    if settings.ops or not watching:
        from tracer.recording.opwatch import OpWatch

        check = None
        if settings.check:
            from tracer.recording.offending import check
        watch = OpWatch(marks, session.is_user_file, check)
        watch.enter_if_alone()
        _watch_threads(watch)
    atexit.register(marks.ring.event, "exit")


def _watch_threads(watch: Any) -> None:
    """Dispatch modes belong to a thread: new threads get ours when they begin."""
    begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def begin_watched(self: threading.Thread) -> None:
        watch.enter_if_alone()
        begin(self)

    threading.Thread._bootstrap_inner = begin_watched  # type: ignore[attr-defined]


def _hook_exceptions(marks: Any) -> None:
    def note(hook: Callable[..., object]) -> Callable[..., object]:
        def noted(*args: Any) -> object:
            error = args[1] if len(args) > 1 else args[0].exc_value
            if error is not None:
                marks.on_error(error)
            return hook(*args)

        return noted

    sys.excepthook = note(sys.excepthook)
    threading.excepthook = note(threading.excepthook)
