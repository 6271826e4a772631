"""The audit as GitHub annotations: workflow commands that mark the user's lines in a pull request.

GitHub shows ten of each level for a step, so the dearest come first.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.reports import _words as words
from tracer.results import Audit, Diff, Finding, Place

SUFFIX = ".github.txt"

_LEVELS = {"error": "error", "warning": "warning", "info": "notice"}


def render(audit: Audit) -> str:
    """One workflow command a line: broken limits, findings, then the headline."""
    return "".join(f"{line}\n" for line in _lines(audit))


def render_diff(diff: Diff) -> str:
    """What became worse, as annotations."""
    lines = [_command("error" if diff.regression else "notice", None, "tracer diff", diff.text)]
    for change in diff.findings:
        if change.after is not None and change.verdict in ("new", "worse"):
            title = f"{change.verdict}: {change.after.rule} {change.after.title}"
            lines.append(_command("warning", change.after.place, title, _message(change.after)))
    return "".join(f"{line}\n" for line in lines)


def _lines(audit: Audit) -> Iterator[str]:
    for line in audit.budget:
        if not line.ok:
            yield _command("error", line.place, "tracer budget", words.limit(line))
    costly, _, _ = words.split(audit)
    for found in costly:
        level = "notice" if found.baseline == "known" else _LEVELS.get(found.severity, "notice")
        yield _command(level, found.place, f"{found.rule} {found.title}", _message(found))
    for acceptance in audit.acceptances:
        if not acceptance.used:
            yield _command("warning", acceptance.place, "tracer", words.unused(acceptance))
    yield _command("notice", None, "tracer audit", audit.summary.headline)


def _message(found: Finding) -> str:
    parts = [", ".join(words.costs(found)), words.gain(found.gain_ns), found.fix]
    return "\n".join(part for part in parts if part) or found.title


def _command(level: str, place: Place | None, title: str, message: str) -> str:
    options = {}
    if place is not None and place.line:
        options = {"file": place.file, "line": str(place.line)}
        if place.columns is not None:
            options |= {"col": str(place.columns[0]), "endColumn": str(place.columns[1])}
    options["title"] = title
    said = ",".join(f"{key}={_property(value)}" for key, value in options.items())
    return f"::{level} {said}::{_data(message)}"


def _data(text: str) -> str:
    safe = "\n".join(words.plain(line) for line in text.splitlines())
    return safe.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
