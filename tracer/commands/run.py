"""Run a program, record a window of it, and audit what was recorded.

The program runs as if it had been started by itself: its arguments, streams, signals
and exit status are its own. Name a config, or the program after `--`:

    python -m tracer run config.yaml
    python -m tracer run config.yaml window.steps=5 output.name=short
    python -m tracer run -- python train.py --epochs 1
    python -m tracer run window.seconds=3 -- torchrun --nproc-per-node 2 train.py

`key.path=value` overrides one key of the config; configs/reference.yaml shows them all.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracer.config import Config
    from tracer.recording.finish import Outcome

_VIEWERS = ("perfetto",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to run."""
    parser.usage = "%(prog)s [CONFIG] [key.path=value ...] [-- PROGRAM ...]"
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="CONFIG", help="config, overrides, and after -- the program"
    )


def run(arguments: argparse.Namespace) -> int:
    """Record, audit and report; the program's own status if it is not zero."""
    import importlib

    from tracer.commands._output import status_first
    from tracer.commands._settings import read_settings
    from tracer.plugins import names_in
    from tracer.recording.launch import launch
    from tracer.recording.progress import Progress

    settings = read_settings(arguments.words)
    _check_formats(settings)
    sampler: Any = None
    if "sampler" in names_in("tracer.recording"):
        sampler = importlib.import_module("tracer.recording.sampler")
    progress = Progress()
    try:
        outcome = launch(settings, progress.event, sampler)
        progress.say("reading what was recorded")
    finally:
        progress.clear()
    status = 0
    with status_first():
        status = _report(settings, outcome)
    return outcome.status or status


def _check_formats(settings: Config) -> None:
    from tracer.commands._output import formats
    from tracer.errors import UsageError

    known = [*formats(), *_VIEWERS]
    for name in settings.output.formats:
        if name not in known:
            raise UsageError(
                f"there is no format {name!r}", why="output.formats names it", fix=f"of {', '.join(known)}"
            )


def _report(settings: Config, outcome: Outcome) -> int:
    """Everything that is made of a recording; the status that it calls for."""
    from tracer.recording.finish import NOTHING, describe, has_window

    if ({**os.environ, **settings.run.env}).get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        outcome.notes.append(
            "CUDA_LAUNCH_BLOCKING is set, so every launch waits and these times are not those of production; "
            "it is for debugging alone, and `tracer locate` finds the line without it"
        )
    for note in dict.fromkeys(outcome.notes):
        print(f"tracer: {note}", file=sys.stderr)
    status, recorded = 0, False
    for folder in outcome.folders:
        if has_window(folder):
            recorded = True
            status = max(status, report(str(folder), *settings.output.formats, budget=settings.budget))
    if not recorded:
        why = describe(outcome, settings)
        print(f"tracer: {why}", file=sys.stderr)
        with contextlib.suppress(OSError):  # the folder may be gone, or its disk full
            (outcome.folder / NOTHING).write_text(why, encoding="utf-8")
    if outcome.failed:
        print(f"tracer: {outcome.failed}", file=sys.stderr)
        status = 4
    if settings.record.flight_recorder:
        _say_where_it_crashed(outcome)
    return status


def _say_where_it_crashed(outcome: Outcome) -> None:
    from tracer.recording.flight import collect
    from tracer.reports._located import render

    located = collect(outcome.folder, outcome.status)
    if located is not None:
        print(render(located), file=sys.stderr)


def report(folder: str, *formats: str, budget: Mapping[str, Any] | None = None) -> int:
    """Audit a recording in all these formats; 1 if a budget is broken, 3 if it cannot be read."""
    import importlib

    from tracer.auditor import audit_of, examine
    from tracer.commands._output import write_report
    from tracer.commands._sources import with_relative_paths
    from tracer.errors import TracerError
    from tracer.exports import perfetto
    from tracer.readers import load
    from tracer.reports import terminal

    if not formats:
        return 0
    try:
        trace = load(folder)
        examination = examine(trace)
        found = audit_of(examination, source=folder, budget=budget or None)
        for name in formats:
            if name == "terminal":
                terminal.show(with_relative_paths(found, None))
            elif name == "perfetto":
                perfetto.write(trace, found, Path(folder) / "trace.pftrace", examination=examination)
            else:
                suffix = importlib.import_module(f"tracer.reports.{name}").SUFFIX
                write_report(found, name, str(Path(folder) / f"audit{suffix}"))
    except TracerError as error:  # the program's own status goes before ours
        print(f"tracer: {error}", file=sys.stderr)
        return error.status
    if "terminal" in formats:
        print(f"\nRecorded in {folder}; open it with: python -m tracer open {folder}", flush=True)
    return 0 if all(line.ok for line in found.budget) else 1
