"""When the recorder of a process may begin: what kind of process it is, and when CUDA is up."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tracer.recording.runs import RunFile

_STEPPING = re.compile(r"\.step\(|\boptim\b|Trainer\b|\.fit\(|record_function|profiler")
_LAUNCHERS = {"torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "fabric"}


def may_have_gpu() -> bool:
    """Whether there may be a GPU, without asking the driver: that would harm a later fork."""
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))


def is_helper(words: list[str]) -> bool:
    """Whether a command line is that of a process that only serves others: a launcher, a worker, a tracker."""
    started = _started(words)
    serves = Path(started).name in _LAUNCHERS or "multiprocessing." in started or "compile_worker" in started
    return serves or "--multiprocessing-fork" in words


def _started(words: list[str]) -> str:
    """The script, module or code that a Python was started with."""
    rest = iter(words[1:])
    for word in rest:
        if word in ("-m", "-c"):
            return next(rest, "")
        if word in ("-W", "-X"):
            next(rest, "")
        elif not word.startswith("-"):
            return word
    return ""


def goes_by_time(run: RunFile) -> bool:
    """Whether the window is one of time: asked for, or because nothing was and the program shows no sign of steps."""
    window = run.window
    if window.seconds is not None or window.step_from == "time":
        return True
    if run.kind == "library":
        return window.steps is None
    if window.step_from != "auto" or window.steps or window.every or window.signal:
        return False
    main = getattr(sys.modules.get("__main__"), "__file__", None) or (sys.argv[0] if sys.argv else "")
    try:
        return not _STEPPING.search(Path(main).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return False


def when_cuda_is_up(call: Callable[[], None]) -> None:
    """Have `call` made right after torch has initialised CUDA, on the thread that asked for it.

    Never inside it: its lock is held, and a profiler that starts there waits for CUDA,
    which waits for it. The end is seen by a profile function that lives so long only.
    """
    import torch

    def begins() -> None:
        before = sys.getprofile()
        initialise = torch.cuda._lazy_init.__code__

        def returned(frame: FrameType, event: str, arg: Any) -> None:
            if event == "return" and frame.f_code is initialise:
                sys.setprofile(before)
                if torch.cuda.is_initialized():
                    call()

        sys.setprofile(returned)

    torch.cuda._lazy_call(begins)
