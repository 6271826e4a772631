"""Python processes of a run into which no recorder can be brought: those that ignore PYTHONPATH."""

from __future__ import annotations

import os
from pathlib import Path

from tracer.recording.runs import VARIABLE

_FLAGS = set("IES")


def find_isolated(folder: Path, proc: Path = Path("/proc")) -> list[str]:
    """The command lines of this run's processes that were started with -I, -E or -S."""
    wanted = os.fsencode(f"{VARIABLE}={folder}")
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            words = (entry / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        except OSError:
            continue
        if is_isolated(words):
            found.append(" ".join(words))
    return found


def is_isolated(words: list[str]) -> bool:
    """Whether a command line starts a Python that ignores PYTHONPATH or never loads sitecustomize."""
    if not Path(words[0]).name.startswith("python"):
        return False
    for word in words[1:]:
        if not word.startswith("-") or word.startswith("--") or word in ("-", "-m", "-c"):
            return False
        if _FLAGS & set(word[1:].partition("c")[0].partition("m")[0]):
            return True
    return False
