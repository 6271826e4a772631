"""Every way out of a process leads through `finish`, and the way stays the program's own.

Covered: the end of the script, an exception, sys.exit, os._exit, exec, SIGTERM and
SIGHUP where the program leaves them alone.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import threading
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from typing import Any

from tracer.recording.realtime import sleep

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_PATIENCE_S = 20.0  # torchrun kills what is still there 30 s after its SIGTERM


def on_main_thread() -> bool:
    """Whether this is the main thread. `threading.current_thread()` would make up an entry for threads of ours."""
    return threading.get_ident() == threading.main_thread().ident


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Keep Ctrl-C and SIGTERM waiting while a recording is written: they come right after."""
    if not on_main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *_SIGNALS)}
    held = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    for one in held:
        signal.signal(one, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for one, handler in held.items():
            signal.signal(one, handler)
        for number in came[:1]:
            signal.raise_signal(number)


class Exits:
    """The ways out of this process."""

    def __init__(self, finish: Callable[[str], None]) -> None:
        self._finish = finish
        self._undo: list[Callable[[], None]] = []
        self._ours = self._terminated  # one object: a bound method is a new one each time
        atexit.register(self._at_exit)
        self._undo.append(lambda: atexit.unregister(self._at_exit))
        for name in ("_exit", "execv", "execve"):
            self._wrap(name)
        if on_main_thread():
            self._catch_signals()

    def remove(self) -> None:
        """Leave the process as it was."""
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _at_exit(self) -> None:
        with contextlib.suppress(KeyboardInterrupt):  # a Ctrl-C that came meanwhile has nothing left to end
            self._finish("")

    def _wrap(self, name: str) -> None:
        original = getattr(os, name)

        def leave(*args: Any) -> Any:
            self._finish(f"it left by os.{name}")
            return original(*args)

        leave.__name__ = leave.__qualname__ = name
        leave.__doc__ = original.__doc__
        setattr(os, name, leave)

        def undo() -> None:
            if getattr(os, name) is leave:
                setattr(os, name, original)

        self._undo.append(undo)

    def _catch_signals(self) -> None:
        """Take the signals that would kill at once; whoever asks still sees the default."""
        set_handler, get_handler = signal.signal, signal.getsignal

        def wrapped_set(signalnum: Any, handler: Any) -> Any:
            ours = self._ours if signalnum in _SIGNALS and handler == signal.SIG_DFL else handler
            before = set_handler(signalnum, ours)
            return signal.SIG_DFL if before is self._ours else before

        def wrapped_get(signalnum: Any) -> Any:
            now = get_handler(signalnum)
            return signal.SIG_DFL if now is self._ours else now

        def undo() -> None:
            if signal.signal is wrapped_set:
                signal.signal = set_handler
            if signal.getsignal is wrapped_get:
                signal.getsignal = get_handler
            for number in _SIGNALS:
                if get_handler(number) is self._ours and on_main_thread():
                    set_handler(number, signal.SIG_DFL)

        for number in _SIGNALS:
            if get_handler(number) == signal.SIG_DFL:
                set_handler(number, self._ours)
        for wrapped, original in ((wrapped_set, set_handler), (wrapped_get, get_handler)):
            wrapped.__name__, wrapped.__qualname__ = original.__name__, original.__qualname__
            wrapped.__doc__ = original.__doc__
        signal.signal, signal.getsignal = wrapped_set, wrapped_get
        self._undo.append(undo)

    def _terminated(self, number: int, frame: Any) -> None:
        """Finish, then die of the same signal; in any case die soon."""

        def die_anyway() -> None:
            sleep(_PATIENCE_S)
            ctypes.CDLL(None).signal(number, None)  # signal.signal is for the main thread, which hangs
            os.kill(os.getpid(), number)

        start_new_thread(die_anyway, ())
        self._finish(f"it got {signal.Signals(number).name}")
        self.remove()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
