"""Loads a trace with a progress bar on stderr, if that is a terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracer.trace import Trace


def load_with_bar(path: str | Path, **options: Any) -> Trace:
    """The trace; meanwhile bytes, events and time left are shown."""
    from tracer.readers import load

    if not sys.stderr.isatty():
        return load(path, **options)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("reading {task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[events]:,} events"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(Path(path).name, total=None, events=0)

        def show(read: int, total: int, events: int) -> None:
            bar.update(task, completed=read, total=total or None, events=events)

        return load(path, progress=show, **options)
