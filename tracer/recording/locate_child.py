"""In the program's own process: sets the marks up when torch brings CUDA up. Started by TRACER_LOCATE."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
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


def install() -> None:
    """Prepare this process, if the environment asks for it; called when torch has been imported."""
    text = os.environ.get(VARIABLE)
    if not text:
        return
    settings = msgspec.json.decode(text, type=Settings)
    import torch

    if torch.version.cuda is not None:
        torch.cuda._lazy_call(lambda: _cuda_is_up(settings))


def _cuda_is_up(settings: Settings) -> None:
    try:
        hooks = Hooks(settings)
        hooks.install()
        atexit.register(hooks.marks.ring.event, "exit")
    except Exception as error:  # whatever it is, the program goes on: torch is in the middle of its initialisation
        with contextlib.suppress(OSError):
            Path(settings.folder, f"{os.getpid()}.failed").write_text(ascii(error), encoding="utf-8")


class Hooks:
    """Everything that locating needs in a process: marks, the operators' watch, the exceptions."""

    def __init__(self, settings: Settings) -> None:
        from tracer.recording import (
            cudaerrors,
            device_errors,
            linewatch,
            marks,
            offending,
            opwatch,
            ring,
            session,
            uncompiled,
        )
        from tracer.recording.marks import Marks

        uncompiled.pass_by(cudaerrors, device_errors, linewatch, marks, offending, opwatch, ring, session)
        own = Session(Path(settings.folder), config.Record(user_code=settings.user_code))
        rank = os.environ.get("RANK", "")
        name = f"{os.getpid()}{'-rank' + rank if rank else ''}.ring"
        self.marks = Marks(Path(settings.folder) / name, own.is_user_file, every_ns=settings.every_ns)
        self.marks.ring.event("process", rank, sys.argv, sys.version)
        self._settings = settings
        self._is_user_file = own.is_user_file
        self._ops: Any = None
        self._undo: list[Callable[[], object]] = []

    def install(self) -> None:
        """Begin, on the calling thread and every thread that starts from now on."""
        watching = self._settings.lines and self.marks.start()
        self._undo.append(self.marks.stop)
        self._hook_exceptions()
        if self._settings.ops or not watching:
            self._watch_ops()

    def remove(self) -> None:
        """Take every hook away again; on the thread that installed them."""
        while self._undo:
            self._undo.pop()()
        self.marks.ring.close()

    def _watch_ops(self) -> None:
        from tracer.recording import offending
        from tracer.recording.opwatch import OpWatch

        check = offending.check if self._settings.check else None
        watch = OpWatch(self.marks, self._is_user_file, check)
        if watch.enter_if_alone():
            self._undo.append(lambda: watch.__exit__(None, None, None))
        # Dispatch modes belong to a thread: new threads get ours when they begin.
        begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

        def begin_watched(thread: threading.Thread) -> None:
            watch.enter_if_alone()
            begin(thread)

        threading.Thread._bootstrap_inner = begin_watched  # type: ignore[attr-defined]
        self._undo.append(lambda: setattr(threading.Thread, "_bootstrap_inner", begin))

    def _hook_exceptions(self) -> None:
        main, thread = sys.excepthook, threading.excepthook

        def in_main(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self.marks.errors.note(error)
            main(kind, error, trace)

        def in_thread(args: threading.ExceptHookArgs) -> None:
            if args.exc_value is not None:
                self.marks.errors.note(args.exc_value)
            thread(args)

        sys.excepthook, threading.excepthook = in_main, in_thread
        self._undo.append(lambda: setattr(sys, "excepthook", main))
        self._undo.append(lambda: setattr(threading, "excepthook", thread))
