"""Two audits side by side on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tracer.reports import _words as words
from tracer.results import Change, Diff, FindingChange

_STYLES = {"better": "green", "gone": "green", "worse": "bold red", "new": "bold red", "same": "dim"}


def diff_parts(diff: Diff) -> Iterator[RenderableType]:
    """The verdict, then the figures, the findings and the kernels that changed."""
    yield Text(words.one_line(diff.text), style="bold red" if diff.regression else "bold")
    yield Text(words.one_line(f"{diff.before} → {diff.after}"), style="dim")
    yield from _section("Figures", [_changes(diff.figures)] if diff.figures else [])
    yield from _section("Findings", [_finding(change) for change in diff.findings if change.verdict != "same"])
    yield from _section("Kernels that changed", [_changes(diff.kernels)] if diff.kernels else [])


def _section(title: str, parts: Sequence[RenderableType]) -> Iterator[RenderableType]:
    if parts:
        yield Text()
        yield Text(title, style="bold underline")
        yield from (Padding(part, (0, 0, 0, 2)) for part in parts)


def _changes(changes: Sequence[Change]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="ellipsis", no_wrap=True, max_width=48)
    for change in changes:
        verdict = Text(change.verdict, style=_STYLES.get(change.verdict, ""))
        if change.verdict != "same" and not change.significant:
            verdict = Text(f"{change.verdict}, within the spread", style="dim")
        before, after = words.amount(change.before, change.unit), words.amount(change.after, change.unit)
        table.add_row(words.one_line(change.name), before, "→", after, verdict)
    return table


def _finding(change: FindingChange) -> Text:
    found = change.after or change.before
    text = Text(f"{change.verdict:6} ", style=_STYLES.get(change.verdict, ""))
    if found is None:
        return text
    text.append(f"{words.one_line(found.rule)} {words.where(found.place or found.library_place)}: ", style="default")
    sides = [words.side(side) for side in (change.before, change.after) if side is not None]
    return text.append(" → ".join(sides), style="default")
