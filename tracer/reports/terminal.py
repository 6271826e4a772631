"""The audit on a terminal: the verdict first, then where the time went, then what to change.

Everything that comes out of a trace loses its control characters, so that a
hostile name cannot steer the terminal. Without colour the text has no escapes.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tracer.reports import _words as words
from tracer.reports._diff_terminal import diff_parts
from tracer.results import Audit, BudgetLine, Diff, Finding, Place, Step
from tracer.units import show_ns

SUFFIX = ".txt"

_ASCII = str.maketrans({"█": "#", "░": ".", "·": "-", "→": ">", "…": "."})  # where stdout knows no more
_STEPS = 12  # bars drawn
_SEVERITY = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def render(audit: Audit, *, width: int | None = None, colour: bool = False, top: int = 0, quiet: bool = False) -> str:
    """The report as text; `top` limits the findings (0: all), `quiet` leaves the verdict and the broken limits."""
    parts = list(_brief(audit) if quiet else _full(audit, top))
    return _print(parts, width, colour)


def render_diff(diff: Diff, *, width: int | None = None, colour: bool = False, quiet: bool = False) -> str:
    """Two audits side by side, as text; `quiet` leaves the verdict."""
    return _print(list(diff_parts(diff))[: 1 if quiet else None], width, colour)


def show(result: Audit | Diff, *, top: int = 0, quiet: bool = False) -> None:
    """Print the report on stdout: as wide as the terminal, in colour if it is one and NO_COLOR is not set."""
    width = shutil.get_terminal_size((100, 24)).columns
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    if isinstance(result, Diff):
        text = render_diff(result, width=width, colour=colour, quiet=quiet)
    else:
        text = render(result, width=width, colour=colour, top=top, quiet=quiet)
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    sys.stdout.write(text)


def _print(parts: list[RenderableType], width: int | None, colour: bool) -> str:
    out = io.StringIO()
    console = Console(
        file=out,
        width=max(width or 100, 20),
        force_terminal=colour,
        no_color=not colour,
        color_system="standard" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    console.print(Group(*parts))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"


def _brief(audit: Audit) -> Iterator[RenderableType]:
    yield Text(words.one_line(audit.summary.headline), style="bold")
    yield from (_budget_line(line) for line in audit.budget if not line.ok)


def _full(audit: Audit, top: int) -> Iterator[RenderableType]:
    costly, harmless, accepted = words.split(audit)
    shown = costly[:top] if top else costly
    yield _heading(audit)
    yield Text()
    yield Text(words.one_line(audit.summary.headline), style="bold")
    yield from map(Text, words.verdicts(audit))
    yield from _section("Where the time went", _time(audit))
    yield from _section("Why the GPU was idle", _idle(audit))
    yield from _section("Findings", [_finding(at, found, audit) for at, found in enumerate(shown, 1)])
    if len(shown) < len(costly):
        yield Padding(Text(f"{words.count(len(costly))} findings in all; --top 0 shows them", style="dim"), (0, 2))
    yield from _section("Waits that cost no throughput", [_short(found) for found in harmless])
    yield from _section("Accepted in the source", [_accepted(found) for found in accepted])
    yield from _section("Timers", _timers(audit))
    yield from _section("Budget", [_budget_line(line) for line in audit.budget])
    yield from _section("Hottest kernels", _kernels(audit))
    yield from _section("Limits of this trace", [_bullet(limit) for limit in _limits(audit)])


def _section(title: str, parts: list[RenderableType]) -> Iterator[RenderableType]:
    if not parts:
        return
    yield Text()
    yield Text(title, style="bold underline")
    yield from (Padding(part, (0, 0, 0, 2)) for part in parts)


def _heading(audit: Audit) -> Text:
    devices = dict.fromkeys(words.one_line(device.name) for device in audit.devices)
    facts = [words.one_line(audit.source), *devices, f"{show_ns(audit.window_ns)} recorded"]
    if audit.steps:
        facts.append(words.times(audit.summary.steps, "step"))
    if not audit.complete:
        facts.append("INCOMPLETE")
    return Text(" · ".join(fact for fact in facts if fact), style="dim")


def _time(audit: Audit) -> list[RenderableType]:
    summary = audit.summary
    table = Table.grid(padding=(0, 2))
    rows = [
        ("GPU busy", summary.busy_ns, summary.busy_share, "green"),
        ("GPU idle", summary.idle_ns, summary.idle_share, "red"),
        ("host held", summary.stalled_ns, summary.stalled_share, "yellow"),
    ]
    for name, ns, share, style in rows:
        if ns is not None and (ns or audit.devices):
            table.add_row(name, _bar(share or 0.0, style), show_ns(ns), words.percent(share))
    title = f"of a {summary.of} of {show_ns(summary.wall_ns)}"
    if summary.of == "step":
        title += f" (mean of {words.count(summary.steps)})"
    parts: list[RenderableType] = [Text(title, style="dim"), table]
    if audit.steps:
        parts += [Text(), _steps(audit)]
    if words.pace(audit):
        parts += [Text(), Text(words.pace(audit), style="dim")]
    return parts


def _bar(share: float, style: str, width: int = 28) -> Text:
    filled = round(min(max(share, 0.0), 1.0) * width)
    return Text("█" * filled, style=style).append("░" * (width - filled), style="dim")


def _steps(audit: Audit) -> RenderableType:
    longest = max(step.wall_ns for step in audit.steps) or 1
    table = Table.grid(padding=(0, 2))
    ranks, gpu = words.has_ranks(audit), bool(audit.devices)
    for step in audit.steps[:_STEPS]:
        name = f"step {step.number}" + (f", rank {step.rank}" if ranks else "")
        table.add_row(name, _step_bar(step, longest, gpu), show_ns(step.wall_ns), _step_words(step, gpu))
    if len(audit.steps) > _STEPS:
        table.add_row("", Text(f"first {_STEPS} of {words.count(len(audit.steps))}", style="dim"))
    return table


def _step_bar(step: Step, longest: int, gpu: bool, width: int = 28) -> Text:
    whole = round(step.wall_ns / longest * width)
    busy = min(round(step.busy_ns / longest * width), whole) if gpu else whole
    bar = Text("█" * busy, style="green" if gpu else "").append("░" * (whole - busy), style="red")
    return bar.append(" " * (width - whole))


def _step_words(step: Step, gpu: bool) -> Text:
    idle = f"idle {show_ns(step.idle_ns)}, " if gpu else ""
    return Text(f"{idle}held {show_ns(step.stalled_ns)}", style="dim")


def _idle(audit: Audit) -> list[RenderableType]:
    if not audit.idle_rows:
        return []
    table = Table.grid(padding=(0, 2))
    for row in words.idle_rows(audit):
        place = "" if row.place is None else words.where(row.place)
        table.add_row(show_ns(row.ns), words.percent(row.share), words.cause(row, audit), Text(place, style="dim"))
    return [table]


def _finding(number: int, finding: Finding, audit: Audit) -> RenderableType:
    title = Text.assemble(
        (f"{number}. ", "bold"),
        (words.one_line(finding.rule), _SEVERITY.get(finding.severity, "bold")),
        (" " + words.one_line(finding.title), "bold"),
    )
    parts: list[RenderableType] = [title]
    if finding.gain_ns is not None:
        parts.append(Text("   " + words.gain(finding.gain_ns), style="green"))
    parts.append(Padding(_at(finding, audit), (0, 0, 0, 3)))
    if finding.place is not None and finding.place.excerpt:
        parts.append(Padding(_code(finding.place), (0, 0, 0, 3)))
    lines = [Text(", ".join(words.costs(finding)))]
    if words.per_step(finding):
        lines.append(Text("a step: " + words.per_step(finding), style="dim"))
    if finding.fix:
        lines.append(Text.assemble(("fix: ", "bold"), words.plain(finding.fix)))
    lines += [Text("note: " + words.plain(note), style="dim") for note in finding.notes]
    parts += [Padding(line, (0, 0, 0, 3)) for line in lines if line.plain]
    parts.append(Text())
    return Group(*parts)


def _at(finding: Finding, audit: Audit) -> Text:
    text = Text(words.where(finding.place or finding.library_place), style="cyan")
    if finding.place is not None and finding.library_place is not None:
        text.append(f", through {words.where(finding.library_place)}")
    if words.thread(finding, audit):
        text.append(f", on {words.thread(finding, audit)}", style="dim")
    if finding.confidence != "high":
        text.append(f", {finding.confidence} confidence", style="dim")
    return text


def _code(place: Place) -> RenderableType:
    """The line, and below it what the call covers."""
    line = place.excerpt.rstrip()
    gutter = f"{place.line} | "
    text = Text(gutter, style="dim", no_wrap=True, overflow="ellipsis").append(words.one_line(line), style="default")
    first, after = place.columns or (0, 0)
    if not 1 <= first < after <= len(line) + 1:
        return text
    before, call = words.one_line(line[: first - 1]), words.one_line(line[: after - 1])
    start, wide = cell_len(before), cell_len(call) - cell_len(before)
    return text.append("\n" + " " * (len(gutter) + start) + "~" * wide, style="red")


def _short(finding: Finding) -> Text:
    place = words.where(finding.place or finding.library_place)
    title = words.one_line(finding.title)
    return Text(f"{words.one_line(finding.rule)} {title}, {place}: ").append(
        ", ".join(words.costs(finding)), style="dim"
    )


def _accepted(finding: Finding) -> Text:
    return _short(finding).append(f" - {words.one_line(finding.accepted)}")


def _timers(audit: Audit) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for timer in audit.timers:
        truth = "" if timer.true_ns is None else f", the GPU worked {show_ns(timer.true_ns)}"
        style = "green" if timer.verdict == "honest" else "red"
        line = Text(words.one_line(timer.verdict), style=style)
        line.append(f" {words.where(timer.start)} to {words.where(timer.end)}: ", style="default")
        claim = words.claim(timer)
        line.append(claim if claim == "raises" else f"says {claim}{truth}", style="default")
        parts.append(line)
    return parts


def _budget_line(line: BudgetLine) -> Text:
    mark = ("kept   ", "green") if line.ok else ("BROKEN ", "bold red")
    return Text.assemble(mark, words.limit(line))


def _kernels(audit: Audit) -> list[RenderableType]:
    rows = [
        (show_ns(hot.total_ns), words.percent(hot.share), f"{words.count(hot.count)} x", words.one_line(hot.name))
        for hot in audit.kernels[:5]
    ]
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        Text(
            "  ".join([*(word.ljust(width) for word, width in zip(row[:3], widths, strict=True)), row[3]]),
            no_wrap=True,
            overflow="ellipsis",
        )
        for row in rows
    ]


def _limits(audit: Audit) -> list[str]:
    unused = [f"{words.where(a.place)}: {words.unused(a)}" for a in audit.acceptances if not a.used]
    return [*audit.limits, *unused]


def _bullet(text: str) -> Text:
    return Text("- " + words.one_line(text), style="dim")
