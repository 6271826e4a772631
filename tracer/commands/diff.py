"""Compare two recordings, traces, audits or benchmarks; status 1 beyond a threshold.

Each side is a recording's folder, a trace of any kind that `audit` reads, or a file
written by `audit --format json` or `bench --format json`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.results import Audit, Benchmark, Diff


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to compare, and how to say it."""
    from tracer.commands._output import formats

    parser.add_argument("before", metavar="A", help="recording, trace, audit or benchmark")
    parser.add_argument("after", metavar="B", help="the one to judge")
    parser.add_argument(
        "--threshold",
        default="5%",
        help="loss that counts as a regression, as a share of the step (default: %(default)s)",
    )
    parser.add_argument("--format", choices=formats(), default="terminal", help="how to print (default: %(default)s)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file instead")
    parser.add_argument("--quiet", action="store_true", help="the verdict alone")


def run(arguments: argparse.Namespace) -> int:
    """Print the differences; 1 if there is a regression."""
    import importlib

    from tracer.errors import UsageError

    diff = _compare(arguments.before, arguments.after, _share(arguments.threshold))
    report = importlib.import_module(f"tracer.reports.{arguments.format}")
    if arguments.output is not None:
        try:
            Path(arguments.output).write_text(report.render_diff(diff), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"{arguments.output} cannot be written", why=str(error), fix="name another file"
            ) from error
    elif arguments.format == "terminal":
        report.show(diff, quiet=arguments.quiet)
    else:
        print(report.render_diff(diff), end="")
    return int(diff.regression)


def _compare(before: str, after: str, threshold: float) -> Diff:
    from tracer.analysis.compare import compare, compare_benchmarks
    from tracer.errors import UsageError
    from tracer.results import Audit, Benchmark

    first, second = _load(before), _load(after)
    if isinstance(first, Audit) and isinstance(second, Audit):
        return compare(first, second, threshold)
    if isinstance(first, Benchmark) and isinstance(second, Benchmark):
        return compare_benchmarks(first, second, (before, after), threshold)
    raise UsageError(f"{before} and {after} are of different kinds", fix="compare two benchmarks, or two recordings")


def _load(path: str) -> Audit | Benchmark:
    """The Audit or Benchmark in a JSON file of ours, else the audit of the trace."""
    import tracer
    from tracer.reports.json import parse, parse_benchmark

    file = Path(path)
    if file.suffix == ".json" and file.is_file():
        head = _keys(file)
        if "candidates" in head:
            return parse_benchmark(file.read_bytes(), path)
        if "launching" in head:
            return parse(file.read_bytes(), path)
    found: Audit = tracer.audit(path)
    return found


def _keys(file: Path) -> set[str]:
    """The top-level keys of a JSON file that begins as ours do; of another none, without reading it all."""
    import msgspec

    with file.open("rb") as opened:
        if b'"schema"' not in opened.read(200):
            return set()
    try:
        return set(msgspec.json.decode(file.read_bytes(), type=dict[str, msgspec.Raw]))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return set()


def _share(text: str) -> float:
    from tracer.errors import UsageError

    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError as error:
        raise UsageError(f"--threshold {text!r} is no share", fix="write for example 5% or 0.05") from error
    if not 0 <= share < float("inf"):
        raise UsageError(f"--threshold {text!r} is no share", fix="write for example 5% or 0.05")
    if share > 1 and not text.endswith("%"):
        raise UsageError(
            f"--threshold {text} is more than the whole step", why="without % it is a share", fix=f"write {text}%"
        )
    return share
