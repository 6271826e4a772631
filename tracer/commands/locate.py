"""Find the line that a CUDA error came from.

Runs the program. If an asynchronous CUDA error comes up, names the guilty line
from progress marks that the GPU itself leaves behind, then runs the program once
more with launches blocking for the exact call chain and the offending values.

    python -m tracer locate config.yaml
    python -m tracer locate config.yaml key.path=value
    python -m tracer locate -- python train.py --epochs 3

Ends with the program's own exit status. `--format json` alone on stdout sends what
the program prints to stderr.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.config import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument(
        "words", nargs="*", metavar="CONFIG", help="a config and overrides; or -- and the program with its arguments"
    )
    parser.add_argument("--no-rerun", action="store_true", help="do not run a second time with launches blocking")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="time limit of the second run")
    parser.add_argument(
        "--marks", choices=("dense", "sparse"), default="dense", help="a mark for each line, or one each 100 us"
    )
    parser.add_argument("--no-ops", action="store_true", help="watch lines only: cheaper, but no operators and shapes")
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal")
    parser.add_argument("-o", "--output", help="write the report to a file")


def run(arguments: argparse.Namespace) -> int:
    """Find it; the program's own status."""
    import msgspec

    from tracer.commands._output import status_first
    from tracer.errors import UsageError
    from tracer.recording.begin import may_have_gpu
    from tracer.recording.commandline import command_line
    from tracer.recording.locate import Options, locate_program
    from tracer.recording.marks import SPARSE_NS
    from tracer.reports._located import render

    settings = _read_settings(arguments.words)
    argv, _ = command_line(settings.run, settings.base)
    options = Options(
        every_ns=SPARSE_NS if arguments.marks == "sparse" else 0,
        ops=not arguments.no_ops,
        rerun=not arguments.no_rerun,
        limit_s=arguments.limit,
        timeout_s=settings.run.timeout,
        user_code=tuple(settings.record.user_code),
        stdout=2 if arguments.format == "json" and arguments.output is None else None,
    )
    found = locate_program(
        argv,
        {**os.environ, **settings.run.env},
        settings.run.cwd,
        options,
        tell=lambda text: print(f"tracer: {text}", file=sys.stderr),
    )
    if not found.kind and not may_have_gpu():
        note = "this machine has no GPU, so there was no CUDA error to locate"
        found = dataclasses.replace(found, notes=(*found.notes, note))
    text = msgspec.json.format(msgspec.json.encode(found)).decode() if arguments.format == "json" else render(found)
    if arguments.output is None:
        with status_first():
            print(text)
    else:
        try:
            Path(arguments.output).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{arguments.output} cannot be written", why=str(error)) from error
    return found.status


def _read_settings(words: list[str]) -> Config:
    """A config with overrides, or a program: argparse has taken `--` away, so that our options may stand anywhere."""
    from tracer.commands._settings import read_settings

    if not words or words[0].endswith((".yaml", ".yml")):
        return read_settings(words, "locate")
    program = next((at for at, word in enumerate(words) if "=" not in word), len(words))
    python = ["python"] if words[program:] and words[program].endswith(".py") else []
    return read_settings([*words[:program], "--", *python, *words[program:]], "locate")
