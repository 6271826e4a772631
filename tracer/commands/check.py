"""Look for lying timers in source text, without running it.

A pass over the syntax of files or folders: timers around GPU work with nothing that
waits on the way, events asked too early, CUDA_LAUNCH_BLOCKING left on. It is
conservative, and says "may". Exit status 1 if it found anything.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `check`."""
    from tracer.commands._output import formats

    parser.add_argument("paths", nargs="+", metavar="PATH", help="a Python file, or a folder to search for them")
    names = ", ".join(["lines", *formats()])
    parser.add_argument("--format", default="lines", metavar="NAME", help=f"one of {names} (default: %(default)s)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write there instead of to stdout")


def run(arguments: argparse.Namespace) -> int:
    """Check the files; 1 if there are findings."""
    from tracer.checking import check_paths
    from tracer.commands._output import formats, write_report, write_text
    from tracer.errors import UsageError

    known = ["lines", *formats()]
    if arguments.format not in known:
        raise UsageError(f"there is no format {arguments.format!r}", fix=f"use one of: {', '.join(known)}")
    audit = check_paths(arguments.paths)
    if arguments.format != "lines":
        write_report(audit, arguments.format, arguments.output)
        return 1 if audit.findings else 0
    lines = []
    for found in audit.findings:
        assert found.place is not None
        column = found.place.columns[0] if found.place.columns else 1
        lines.append(f"{found.place.file}:{found.place.line}:{column}: {found.rule} {found.title}: {found.message}")
        lines.append(f"    fix: {found.fix}")
    lines += [*audit.limits, f"{_count(len(audit.findings), 'finding')} in {_count(int(audit.meta['files']), 'file')}"]
    write_text("\n".join(lines) + "\n", arguments.output)
    return 1 if audit.findings else 0


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
