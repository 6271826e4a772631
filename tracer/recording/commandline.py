"""What to execute for `run.script`, `run.module` and `run.command`, and what to call it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from tracer import config
from tracer.errors import UsageError


def command_line(run: config.Run, base: str) -> tuple[list[str], str]:
    """The words to execute, and the program's name; `base` is the config's folder."""
    if run.script is not None:
        script = _find_script(run, base)
        return [sys.executable, script, *run.args], Path(script).stem
    if run.module is not None:
        return [sys.executable, "-m", run.module, *run.args], run.module.rpartition(".")[2]
    words = _split(run.command) if isinstance(run.command, str) else list(run.command or [])
    if not words:
        raise UsageError("run.command is empty", fix="run:\n  command: torchrun --nproc-per-node 2 train.py")
    words[1:] = [_beside(word, run, base) for word in words[1:]]
    return [_program(words[0]), *words[1:], *run.args], _name_of(words)


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(
            "run.command cannot be taken apart", why=str(error), fix="close the quotation, or give a list of words"
        ) from error


def _find_script(run: config.Run, base: str) -> str:
    script = run.script or ""
    places = [Path(run.cwd or ".") / script, Path(base) / script]
    for place in places:
        if place.is_file():
            return script if place is places[0] else str(place)
    raise UsageError(
        f"there is no script {script}",
        why=f"looked for {' and '.join(dict.fromkeys(str(place.absolute()) for place in places))}",
        fix="run.script is relative to run.cwd, or else to the config's folder",
    )


def _beside(word: str, run: config.Run, base: str) -> str:
    """A script in a command may lie beside the config, as `run.script` may."""
    if word.endswith(".py") and not (Path(run.cwd or ".") / word).exists() and (Path(base) / word).is_file():
        return str(Path(base) / word)
    return word


def _program(word: str) -> str:
    """A bare `python` is the one that runs us; tools of its environment come before those of PATH."""
    if os.sep in word:
        return word
    if word in ("python", "python3"):
        return sys.executable
    beside = Path(sys.executable).with_name(word)
    if sys.prefix != sys.base_prefix and os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which(word)
    if found is None:
        raise UsageError(f"there is no program {word!r}", why="it is not on PATH", fix="give its whole path")
    return found


def _name_of(words: list[str]) -> str:
    """What a command runs: its script or module, rather than its launcher."""
    for before, word in zip(["", *words], words):
        if before == "-m" and not word.startswith("torch.distributed"):
            return word.rpartition(".")[2]
        if word.endswith(".py"):
            return Path(word).stem
    return Path(words[0]).name
