"""Predict what removing each stall would save, alone and together, from a recording or any trace.

The recorded steps are replayed without the waits of a finding. As recorded, the replay
must give back the recorded step; where it does not, there is no prediction. `prove`
measures what this predicts.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracer.results import Audit, Finding, Gain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to replay, and how to print it."""
    parser.add_argument("path", metavar="PATH", help="recording or trace; - reads standard input")
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal")
    parser.add_argument("--source-root", metavar="DIR", help="where the program's files are, if the trace has no copy")


def run(arguments: argparse.Namespace) -> int:
    """Print the gains."""
    from tracer.auditor import audit
    from tracer.commands._progress import load_with_bar

    trace = load_with_bar(arguments.path, source_root=arguments.source_root)
    found = audit(trace, source=arguments.path)
    print(as_json(found) if arguments.format == "json" else as_text(found))
    return 0


_EACH = {"step": "A step", "repetition": "A repetition", "window": "The window"}


def as_json(audit: Audit) -> str:
    """The gains as JSON; names are those of the results."""
    import msgspec

    rows = [
        {"id": one.id, "rule": one.rule, "kind": one.kind, "place": one.place, "gain_ns": one.gain_ns}
        for one in _predicted(audit)
    ]
    data: dict[str, Any] = {
        "schema": audit.schema,
        "source": audit.source,
        "replay": audit.replay,
        "findings": rows,
        "verdicts": audit.verdicts,
        "limits": audit.limits,
    }
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def as_text(audit: Audit) -> str:
    """The gains as a table."""
    from tracer.units import show_ns

    replay = audit.replay
    if replay is None or replay.abstained:
        why = replay.abstained if replay is not None else "there is no GPU work in the trace"
        return f"No prediction: {why}."
    lines = [
        f"{_EACH[replay.of]} took {show_ns(replay.recorded_ns)}; replayed as recorded it takes "
        f"{show_ns(replay.replayed_ns)} ({replay.error:.2%} off)."
    ]
    findings = _predicted(audit)
    if findings:
        head = ("without", "at least", "likely", f"of a {replay.of}", "then it is held by")
        table = [head, *(_row(_name(one), one.gain_ns) for one in findings if one.gain_ns is not None)]
        if replay.together is not None and len(findings) > 1:
            table.append(_row("all of these", replay.together))
        widths = [max(len(row[i]) for row in table) for i in range(len(head))]
        lines.append("")
        for row in table:
            cells = [
                cell.ljust(width) if i in (0, 4) else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths))
            ]
            lines.append("  ".join(cells).rstrip())
        clock = replay.together.clock if replay.together is not None else ""
        lines.append("")
        lines.append(f"Gains are for {'the' if replay.of == 'window' else 'each'} {replay.of}, on the {clock} clock.")
    else:
        lines.append("No finding can be replayed away.")
    lines.extend(f"{verdict.text}." for verdict in audit.verdicts)
    lines.extend(f"Note: {limit}." for limit in audit.limits)
    return "\n".join(lines)


def _predicted(audit: Audit) -> list[Finding]:
    chosen = [one for one in audit.findings if one.gain_ns is not None]
    return sorted(chosen, key=lambda one: -(one.gain_ns.likely_ns if one.gain_ns else 0))


def _name(finding: Finding) -> str:
    place = finding.place
    where = f"{place.file.rpartition('/')[2]}:{place.line}" if place is not None else finding.thread
    return f"{finding.rule} {finding.op or finding.kind} {where}"


def _row(name: str, gain: Gain | None) -> tuple[str, ...]:
    from tracer.units import show_ns

    if gain is None:
        return (name, "", "", "", "")
    return (name, show_ns(gain.low_ns), show_ns(gain.likely_ns), f"{gain.share:.1%}", gain.bottleneck)
