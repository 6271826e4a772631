"""Writes a report to a file or to stdout, in the format asked for."""

from __future__ import annotations

import importlib
import sys
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
    text = report.render(audit, **(options if format_name == "terminal" else {}))
    if output is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output} cannot be written", why=str(error), fix="name another file with -o") from error
