"""The audit as Markdown for a pull request: the verdict, the figures, the findings, their code folded away.

Text out of a trace stands in code spans alone, so that it can neither mark up the
page nor mention people.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tracer.reports import _words as words
from tracer.results import Audit, Change, Diff, Finding, FindingChange, Place
from tracer.units import show_ns

SUFFIX = ".md"

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~!@&$])")


def render(audit: Audit) -> str:
    """The audit as GitHub-flavoured Markdown."""
    return "\n".join(_lines(audit)) + "\n"


def render_diff(diff: Diff) -> str:
    """Two audits side by side."""
    lines = ["# tracer diff", "", f"**{_text(diff.text)}**", "", f"{_code(diff.before)} → {_code(diff.after)}", ""]
    figures = ((_text(c.name), *_change(c)) for c in diff.figures)
    lines += _table(("", "before", "after", "verdict"), figures)
    changed = [c for c in diff.findings if c.verdict != "same"]
    lines += _section("Findings", _table(("", "rule", "place", "before", "after"), map(_changed_row, changed)))
    kernels = ((_code(c.name), *_change(c)) for c in diff.kernels)
    lines += _section("Kernels that changed", _table(("kernel", "before", "after", "verdict"), kernels))
    return "\n".join(lines) + "\n"


def _change(change: Change) -> tuple[str, str, str]:
    verdict = change.verdict if change.significant else f"{change.verdict} (within the spread)"
    return words.amount(change.before, change.unit), words.amount(change.after, change.unit), verdict


def _changed_row(change: FindingChange) -> tuple[str, ...]:
    sides = (change.before, change.after)
    found = next(side for side in reversed(sides) if side is not None)
    costs = [words.side(side) for side in sides]
    return (change.verdict, _text(found.rule), _place(found.place or found.library_place), *costs)


def _lines(audit: Audit) -> Iterator[str]:
    costly, harmless, accepted = words.split(audit)
    yield "# tracer audit"
    yield ""
    yield f"**{_text(audit.summary.headline)}**"
    yield ""
    verdicts = [f"- {_text(verdict)}" for verdict in words.verdicts(audit)]
    yield from [*verdicts, ""] if verdicts else []
    yield from _figures(audit)
    yield from _section("Budget", _table(("", "limit"), (_budget(line.ok, words.limit(line)) for line in audit.budget)))
    yield from _section("Findings", _table(_HEAD, map(_row, costly)))
    for found in costly:
        yield from _details(found)
    yield from _section("Waits that cost no throughput", _table(_HEAD, map(_row, harmless)))
    yield from _section(
        "Accepted in the source",
        _table(
            ("rule", "place", "reason"), ((f.rule, _code(words.where(f.place)), _text(f.accepted)) for f in accepted)
        ),
    )
    yield from _section("Timers", _timers(audit))
    yield from _section("Why the GPU was idle", _idle(audit))
    unused = [f"{words.where(a.place)}: {words.unused(a)}" for a in audit.acceptances if not a.used]
    yield from _section("Limits of this trace", [f"- {_text(limit)}" for limit in (*audit.limits, *unused)])
    yield ""
    yield f"<sub>{_text(audit.source)}, {show_ns(audit.window_ns)} recorded. {_text(words.pace(audit))}</sub>"


_HEAD = ("rule", "place", "calls", "host held", "GPU idle", "gain")


def _row(found: Finding) -> tuple[str, ...]:
    place = _place(found.place or found.library_place)
    gain = words.gain(found.gain_ns) or "-"
    return (
        f"**{_text(found.rule)}** {_text(found.title)}",
        place,
        words.count(found.count) if found.count else "-",
        show_ns(found.stall_ns) if found.stall_ns else "-",
        show_ns(found.idle_ns) if found.idle_ns else "-",
        gain,
    )


def _details(found: Finding) -> Iterator[str]:
    yield ""
    yield f"<details><summary>{_text(found.rule)}: {_text(found.title)}</summary>"
    yield ""
    if found.message:
        yield _text(found.message)
        yield ""
    if found.place is not None and found.place.excerpt:
        fence = "`" * max(3, _longest_run(found.place.excerpt) + 1)
        yield f"{fence}python"
        yield f"{found.place.line}  {words.one_line(found.place.excerpt)}"
        yield fence
        yield ""
    if words.per_step(found):
        yield f"A step: {words.per_step(found)}."
        yield ""
    if found.fix:
        yield f"Fix: {_text(found.fix)}"
        yield ""
    for note in found.notes:
        yield f"- {_text(note)}"
    yield "</details>"


def _figures(audit: Audit) -> list[str]:
    summary = audit.summary
    rows = [("wall", show_ns(summary.wall_ns), "")]
    if summary.busy_ns is not None and summary.idle_ns is not None:
        rows.append(("GPU busy", show_ns(summary.busy_ns), words.percent(summary.busy_share)))
        rows.append(("GPU idle", show_ns(summary.idle_ns), words.percent(summary.idle_share)))
    rows.append(("host held", show_ns(summary.stalled_ns), words.percent(summary.stalled_share)))
    return _table((f"a {summary.of}", "time", "share"), rows)


def _idle(audit: Audit) -> list[str]:
    rows = (
        (
            _text(words.cause(row, audit)),
            show_ns(row.ns),
            words.percent(row.share),
            _code(words.where(row.place)) if row.place else "",
        )
        for row in words.idle_rows(audit)
    )
    return _table(("cause", "time", "share", "place"), rows)


def _timers(audit: Audit) -> list[str]:
    rows = (
        (
            _text(timer.verdict),
            _code(f"{words.where(timer.start)} to {words.where(timer.end)}"),
            words.claim(timer),
            "-" if timer.true_ns is None else show_ns(timer.true_ns),
        )
        for timer in audit.timers
    )
    return _table(("verdict", "place", "claims", "GPU worked"), rows)


def _budget(ok: bool, text: str) -> tuple[str, str]:
    return ("kept" if ok else "**broken**", _text(text))


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"## {title}", "", *lines] if lines else []


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    body = [f"| {' | '.join(row)} |" for row in rows]
    if not body:
        return []
    return [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *body]


def _text(text: str) -> str:
    """Our words, with what is markup in them escaped; a joiner after each @ keeps GitHub from telling people."""
    safe = _MARKUP.sub(r"\\\1", words.one_line(text))
    return safe.replace("\\<", "&lt;").replace("\\&", "&amp;").replace("\\@", "@&#8288;")


def _place(place: Place | None) -> str:
    return words.where(None) if place is None else _code(words.where(place))


def _code(text: str) -> str:
    """A code span that shows exactly this text; a pipe is escaped even there, inside a table."""
    safe = words.one_line(text).replace("|", "\\|")
    fence = "`" * (_longest_run(safe) + 1)
    pad = " " if safe.startswith("`") or safe.endswith("`") or not safe else ""
    return f"{fence}{pad}{safe}{pad}{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
