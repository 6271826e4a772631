"""Say where the host was held and what it cost, from a recording or any trace.

PATH is a recording's folder, a trace of torch.profiler (.json, .json.gz, .json.zst), an
export of Nsight Systems (.sqlite), or `-` for a trace on standard input. The status is 1
if a limit of the budget is broken.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracer.results import Audit
    from tracer.trace import Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to audit, and how to say it."""
    from tracer.commands._output import formats

    parser.add_argument("path", metavar="PATH", help="recording or trace; - reads standard input")
    parser.add_argument(
        "--format",
        default="terminal",
        metavar="NAME",
        help=f"how to print: {', '.join(formats())} (default: %(default)s)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file instead")
    parser.add_argument("--setup", action="store_true", help="count what lies outside the steps, too")
    parser.add_argument("--source-root", metavar="DIR", help="where the program's files are, if the trace has no copy")
    parser.add_argument("--samples", metavar="FILE", help="a file of py-spy (chrometrace) taken beside the trace")
    parser.add_argument("--budget", metavar="FILE", help="limits (YAML); status 1 if one is broken")
    parser.add_argument("--baseline", metavar="FILE", help="call findings new or known, by an earlier --write-baseline")
    parser.add_argument("--write-baseline", metavar="FILE", help="write the findings, to be compared with later")
    parser.add_argument("--top", type=int, default=0, metavar="N", help="only the N dearest findings (terminal)")
    parser.add_argument("--quiet", action="store_true", help="the headline and broken limits alone (terminal)")


def run(arguments: argparse.Namespace) -> int:
    """Print the audit; 1 if a limit of the budget is broken."""
    from tracer.auditor import audit
    from tracer.commands._output import formats, write_report
    from tracer.commands._progress import load_with_bar
    from tracer.errors import UsageError

    if arguments.format not in formats():
        raise UsageError(
            f"there is no format {arguments.format!r}",
            why="--format names it",
            fix=f"use one of: {', '.join(formats())}",
        )
    trace = load_with_bar(arguments.path, source_root=arguments.source_root, samples=arguments.samples)
    found = audit(trace, source=arguments.path, setup=arguments.setup)
    found = _judged(found, arguments, trace)
    if arguments.format == "terminal" and arguments.output is None:
        from tracer.reports import terminal

        terminal.show(found, top=arguments.top, quiet=arguments.quiet)
    else:
        options = {"top": arguments.top, "quiet": arguments.quiet} if arguments.format == "terminal" else {}
        write_report(found, arguments.format, arguments.output, **options)
    return int(any(not line.ok for line in found.budget))


def _judged(found: Audit, arguments: argparse.Namespace, trace: Trace) -> Audit:
    """The audit with its budget and baseline, and paths below the source root."""
    if arguments.source_root or arguments.format != "json":
        from tracer.commands._sources import with_relative_paths

        found = with_relative_paths(found, arguments.source_root)
    if arguments.budget:
        from tracer.auditor.budgets import judge, read_budget

        before = len(found.limits)
        found = judge(found, read_budget(_budget(arguments.budget), arguments.budget), trace)
        if arguments.quiet:  # which leaves out the limits of the audit
            for said in found.limits[before:]:
                print(f"tracer: {said}", file=sys.stderr)
    if arguments.baseline:
        from tracer.analysis.baseline import compare_with_baseline, parse_baseline

        data = _read(arguments.baseline)
        found = compare_with_baseline(found, parse_baseline(data, arguments.baseline), arguments.baseline)
    if arguments.write_baseline:
        from tracer.analysis.baseline import dump_baseline

        _write(arguments.write_baseline, dump_baseline(found))
    return found


def _budget(path: str) -> dict[str, Any]:
    """The mapping in a YAML file; the `budget` section of one that is a config."""
    import yaml

    from tracer.errors import UsageError

    try:
        data = yaml.safe_load(_read(path))
    except yaml.YAMLError as error:
        raise UsageError(
            f"{path} is not YAML", why=str(error).splitlines()[0], fix="see configs/reference.yaml"
        ) from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no budget", fix="write a mapping, for example `syncs: 0`")
    section = data.get("budget", data)
    return section if isinstance(section, dict) else {}


def _read(path: str) -> bytes:
    from tracer.errors import UsageError

    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read", why=str(error), fix="name another file") from error


def _write(path: str, data: bytes | str) -> None:
    from tracer.errors import UsageError

    try:
        Path(path).write_bytes(data.encode() if isinstance(data, str) else data)
    except OSError as error:
        raise UsageError(f"{path} cannot be written", why=str(error), fix="name another file") from error
