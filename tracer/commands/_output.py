"""Writes a report to a file or to stdout, in the format asked for."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tracer.commands._sources import with_relative_paths
from tracer.errors import UsageError
from tracer.plugins import names_in
from tracer.results import Audit


def formats() -> list[str]:
    """The names of all report formats."""
    return names_in("tracer.reports")


def write_report(audit: Audit, format_name: str, output: str | None = None, **options: object) -> None:
    """Render an Audit and write it; `options` go to the terminal report alone.

    Raises UsageError for an unknown format or a file that cannot be written.
    """
    if format_name not in formats():
        raise UsageError(f"there is no format {format_name!r}", fix=f"use one of: {', '.join(formats())}")
    if format_name != "json":
        audit = with_relative_paths(audit, None)
    report = importlib.import_module(f"tracer.reports.{format_name}")
    write_text(report.render(audit, **(options if format_name == "terminal" else {})), output)


def write_text(text: str, output: str | None = None) -> None:
    """Write to a file or to stdout. Raises UsageError for a file that cannot be written."""
    if output is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output} cannot be written", why=str(error), fix="name another file with -o") from error


@contextlib.contextmanager
def status_first() -> Iterator[None]:
    """Print what is said of the user's program: where that cannot be written, the program's status is still ours."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # that is a reader who has seen enough (head, less)
            print(f"tracer: the report could not be written: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in the buffer
