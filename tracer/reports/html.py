"""The audit as one HTML file that opens offline, needs no script and prints well.

Everything out of a trace is escaped by the template, and a content policy in the
page forbids scripts besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

import tracer
from tracer.reports import _svg as svg
from tracer.reports import _words as words
from tracer.results import Audit, Diff, LineCost
from tracer.units import show_bytes, show_ns

SUFFIX = ".html"

_HEATS = 5


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the annotated source."""

    number: int
    text: str
    cost: LineCost | None
    heat: int  # 0 to 5: the colour


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the user's, with what its lines cost."""

    name: str
    anchor: str
    lines: tuple[SourceLine, ...]
    costly: bool


def render(audit: Audit) -> str:
    """The whole page."""
    costly, harmless, accepted = words.split(audit)
    sources = _sources(audit)
    return _template("html.jinja").render(
        audit=audit,
        costly=costly,
        harmless=harmless,
        accepted=accepted,
        sources=sources,
        anchors={file.name: file.anchor for file in sources},
        marked={file.name: {line.number for line in file.lines} for file in sources},
        causes=sorted(audit.idle.items(), key=lambda item: -item[1]),
        ids={found.id for found in audit.findings},
        style=_style(),
        version=tracer.__version__,
    )


def render_diff(diff: Diff) -> str:
    """Two audits side by side, as a page."""
    return _template("html_diff.jinja").render(diff=diff, style=_style(), version=tracer.__version__)


@cache
def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.finalize = _safe
    environment.globals |= {"words": words, "svg": svg, "excerpt": _excerpt}
    environment.filters |= {"ns": show_ns, "bytes": show_bytes, "plain": words.one_line, "percent": words.percent}
    return environment


@cache
def _template(name: str) -> Template:
    return _environment().from_string((files("tracer.reports") / name).read_text(encoding="utf-8"))


@cache
def _style() -> Markup:
    return Markup((files("tracer.reports") / "html.css").read_text(encoding="utf-8"))


def _safe(value: Any) -> Any:
    """What the template prints: text out of a trace without control characters."""
    return words.plain(value) if type(value) is str else value


def _excerpt(text: str, columns: tuple[int, int] | None) -> Markup:
    """A line of code with the call marked; escaped."""
    first, after = columns or (0, 0)
    if not 1 <= first < after <= len(text) + 1:
        return Markup("{}").format(words.plain(text))
    before, call, rest = text[: first - 1], text[first - 1 : after - 1], text[after - 1 :]
    return Markup("{}<mark>{}</mark>{}").format(words.plain(before), words.plain(call), words.plain(rest))


def _sources(audit: Audit) -> list[SourceFile]:
    """The user's files; those that cost something first, the dearest line deciding."""
    costs: dict[str, dict[int, LineCost]] = {}
    for cost in audit.lines:
        costs.setdefault(cost.file, {})[cost.line] = cost
    worst = max((_weight(cost) for cost in audit.lines), default=0)
    order = sorted(audit.sources, key=lambda name: (-max(map(_weight, costs.get(name, {}).values()), default=-1), name))
    return [
        SourceFile(name, f"source-{at}", _lines(audit.sources[name], costs.get(name, {}), worst), name in costs)
        for at, name in enumerate(order)
    ]


def _lines(text: str, costs: Mapping[int, LineCost], worst: int) -> tuple[SourceLine, ...]:
    return tuple(
        SourceLine(number, line, costs.get(number), _heat(costs.get(number), worst))
        for number, line in enumerate(text.splitlines(), 1)
    )


def _weight(cost: LineCost) -> int:
    return max(cost.idle_ns, cost.held_ns)


def _heat(cost: LineCost | None, worst: int) -> int:
    if cost is None or not worst:
        return 0
    return max(1, round(_HEATS * _weight(cost) / worst)) if _weight(cost) else 0
