"""Write a recording or any trace for a viewer: ui.perfetto.dev.

PATH is what `audit` takes too. The file has the GPU's rows and the host's, the arrows
between them, and what the audit found. A trace that the viewer cannot hold is cut to its
worst steps, and it says so.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.exports.perfetto import Written


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to write, how much of it, and where."""
    parser.add_argument("path", metavar="PATH", help="recording or trace")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where to (default: in this folder, or the recording's own)"
    )
    parser.add_argument("--format", default="perfetto", metavar="NAME", help="viewer (default: %(default)s)")
    parser.add_argument("--steps", default="", metavar="A:B", help="only steps A to B, without B: 10:12 is 10 and 11")
    parser.add_argument(
        "--detail",
        default="normal",
        choices=("low", "normal", "full"),
        help="low: without arguments, gaps and samples; full: with shapes, grids, Python and waits too",
    )
    parser.add_argument("--source-root", metavar="DIR", help="where the program's files are, if the trace has no copy")
    parser.add_argument("--samples", metavar="FILE", help="a file of py-spy (chrometrace) taken beside the trace")


def run(arguments: argparse.Namespace) -> int:
    """Write the file and say how to open it."""
    import sys

    from tracer.units import show_bytes

    source = Path(arguments.path)
    output = Path(arguments.output) if arguments.output else default_output(source, arguments.format)
    written = export(
        source,
        output,
        format_name=arguments.format,
        steps=arguments.steps,
        detail=arguments.detail,
        source_root=arguments.source_root,
        samples=arguments.samples,
    )
    for note in written.notes:
        print(f"tracer: {note}", file=sys.stderr)
    size = show_bytes(written.path.stat().st_size)
    print(f"{written.path}: {written.slices:,} slices, {sum(written.arrows.values()):,} arrows, {size}")
    print(f"open it with: python -m tracer open {written.path}")
    return 0


def default_output(source: Path, format_name: str) -> Path:
    """Inside a recording's own folder, else in the current one: where a trace lies may be somebody else's."""
    from tracer.readers import recording

    suffix = _format(format_name).SUFFIX
    if recording.accepts(source, b""):
        return source / f"trace{suffix}"
    if source.is_dir():
        return Path(f"{source.resolve().name}{suffix}")
    stem = source.name
    for ending in (".gz", ".zst", ".json", ".sqlite", ".pt.trace"):
        stem = stem.removesuffix(ending)
    return Path(f"{stem}{suffix}") if str(source) != "-" else Path(f"trace{suffix}")


def export(
    source: Path,
    output: Path,
    *,
    format_name: str = "perfetto",
    steps: str = "",
    detail: str = "normal",
    source_root: str | None = None,
    samples: str | None = None,
) -> Written:
    """Load, examine and write a trace."""
    from tracer.auditor import audit_of, examine
    from tracer.commands._progress import load_with_bar
    from tracer.errors import UsageError

    viewer = _format(format_name)
    trace = load_with_bar(source, source_root=source_root, samples=samples)
    found = examine(trace)
    audit = audit_of(found, source=str(source))
    try:
        written: Written = viewer.write(trace, audit, output, examination=found, steps=steps, detail=detail)
    except OSError as error:
        raise UsageError(f"{output} cannot be written", why=str(error), fix="name another file with -o") from error
    return written


def _format(name: str):  # type: ignore[no-untyped-def]
    """The module of a viewer format."""
    import importlib

    from tracer.errors import UsageError
    from tracer.plugins import names_in

    known = names_in("tracer.exports")
    if name not in known:
        raise UsageError(f"there is no viewer format {name!r}", fix=f"use one of: {', '.join(known)}")
    return importlib.import_module(f"tracer.exports.{name}")
