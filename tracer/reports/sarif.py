"""The findings as SARIF 2.1.0, for code scanning.

- A file below the source root is relative to `%SRCROOT%`; others keep their full path.
- A finding inside a library sits on the user's line; the library's line is a related location.
- Columns count UTF-16 units from 1, as the format wants; ours count characters.
- The fingerprint is made of the rule, file, function and text of the line, so that it survives moved lines.
- A finding without any place becomes a notification: code scanning refuses results without one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec

import tracer
from tracer.reports import _words as words
from tracer.results import Audit, Diff, Finding, Place

SUFFIX = ".sarif"

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def render(audit: Audit) -> str:
    """A SARIF log with one run."""
    placed = [found for found in audit.findings if _shown(found) is not None]
    seen: Counter[str] = Counter()
    return _log(
        _rules(placed),
        [_result(found, audit, seen) for found in placed],
        list(_notifications(audit)),
        complete=audit.complete,
    )


def render_diff(diff: Diff) -> str:
    """The findings of the second audit, each with its state against the first; those that are gone are absent."""
    states = {"new": "new", "gone": "absent", "better": "updated", "worse": "updated", "same": "unchanged"}
    seen: Counter[str] = Counter()
    results, shown = [], []
    for change in diff.findings:
        found = change.after or change.before
        if found is not None and _shown(found) is not None:
            shown.append(found)
            results.append(_result(found, None, seen) | {"baselineState": states[change.verdict]})
    return _log(_rules(shown), results, [_notification(diff.text, "error" if diff.regression else "note")])


def _log(
    rules: list[dict[str, Any]],
    results: list[dict[str, Any]],
    notifications: list[dict[str, Any]],
    *,
    complete: bool = True,
) -> str:
    numbers = {rule["id"]: at for at, rule in enumerate(rules)}
    for result in results:
        result["ruleIndex"] = numbers[result["ruleId"]]
    driver = {"name": "tracer", "version": tracer.__version__, "semanticVersion": tracer.__version__, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": "tracer/audit/"},
        "columnKind": "utf16CodeUnits",
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "The root of the source tree."}}},
        "invocations": [{"executionSuccessful": complete, "toolExecutionNotifications": notifications}],
        "results": results,
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(log), indent=2).decode() + "\n"


def _rules(findings: list[Finding]) -> list[dict[str, Any]]:
    rules = {}
    for found in findings:
        help_text = found.fix or found.title
        rules[found.rule] = {
            "id": found.rule,
            "name": "".join(part.capitalize() for part in words.one_line(found.kind).replace("_", ".").split(".")),
            "shortDescription": {"text": words.one_line(found.title)},
            "fullDescription": {"text": f"{words.one_line(found.title)} ({words.one_line(found.kind)})"},
            "help": {"text": words.plain(help_text)},
            "defaultConfiguration": {"level": _LEVELS.get(found.severity, "warning")},
            "properties": {"tags": ["performance", words.one_line(found.kind)]},
        }
    return list(rules.values())


def _result(found: Finding, audit: Audit | None, seen: Counter[str]) -> dict[str, Any]:
    place = _shown(found)
    assert place is not None
    mark = _fingerprint(found)
    seen[mark] += 1
    level = "note" if found.harmless else _LEVELS.get(found.severity, "warning")
    result: dict[str, Any] = {
        "ruleId": found.rule,
        "kind": "fail",
        "level": level,
        "message": {"text": _message(found)},
        "locations": [_location(place, audit)],
        "partialFingerprints": {"primaryLocationLineHash": f"{mark}:{seen[mark]}", "tracerFinding/v1": found.id},
        "properties": {
            "count": found.count,
            "waits": found.waits,
            "stall_ns": found.stall_ns,
            "idle_ns": found.idle_ns,
            "lead_ns": found.lead_ns,
            "gain_ns": found.gain_ns.likely_ns if found.gain_ns else None,
            "harmless": found.harmless,
            "confidence": found.confidence,
        },
    }
    if found.count:
        result["occurrenceCount"] = found.count
    if found.library_place is not None and found.library_place != place:
        related = _location(found.library_place, audit)
        result["relatedLocations"] = [related | {"id": 1, "message": {"text": "where it waits, in a library"}}]
    if found.callers:
        frames = [{"location": _location(caller, audit)} for caller in (place, *found.callers)]
        result["stacks"] = [{"message": {"text": "how the program came here"}, "frames": frames}]
    if found.accepted:
        reason = words.one_line(found.accepted)
        result["suppressions"] = [{"kind": "inSource", "status": "accepted", "justification": reason}]
    if found.baseline:
        result["baselineState"] = "new" if found.baseline == "new" else "unchanged"
    return result


def _shown(found: Finding) -> Place | None:
    return found.place or found.library_place


def _message(found: Finding) -> str:
    first = found.message or found.title
    parts = [first, ", ".join(words.costs(found)), words.gain(found.gain_ns), found.fix and f"Fix: {found.fix}"]
    return ". ".join(words.one_line(part).rstrip(".") for part in parts if part) + "."


def _location(place: Place, audit: Audit | None) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": _artifact(place.file)}
    if place.line > 0:
        physical["region"] = _region(place, audit)
    location: dict[str, Any] = {"physicalLocation": physical}
    if place.function:
        location["logicalLocations"] = [{"name": words.one_line(place.function), "kind": "function"}]
    return location


def _artifact(file: str) -> dict[str, str]:
    path = words.one_line(file).replace("\\", "/")
    if path.startswith("/"):
        return {"uri": "file://" + quote(path)}
    if path[1:3] == ":/":
        return {"uri": "file:///" + quote(path, safe="/:")}
    return {"uri": quote(path.removeprefix("./")), "uriBaseId": "%SRCROOT%"}


def _region(place: Place, audit: Audit | None) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": place.line}
    line = _text_of(place, audit)
    if line:
        region["snippet"] = {"text": words.plain(line)}
    if place.columns is not None and line:
        region["startColumn"] = _utf16(line, place.columns[0])
        region["endColumn"] = _utf16(line, place.columns[1])
    return region


def _text_of(place: Place, audit: Audit | None) -> str:
    source = audit.sources.get(place.file) if audit is not None else None
    lines = source.splitlines() if source is not None else []
    return lines[place.line - 1] if 0 < place.line <= len(lines) else place.excerpt


def _utf16(line: str, column: int) -> int:
    """The column in UTF-16 units: a character beyond the basic plane counts two."""
    return len(line[: column - 1].encode("utf-16-le", "surrogatepass")) // 2 + 1


def _fingerprint(found: Finding) -> str:
    return hashlib.sha256("\0".join(found.identity).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _notifications(audit: Audit) -> Iterator[dict[str, Any]]:
    yield _notification(audit.summary.headline, "note")
    for found in audit.findings:
        if _shown(found) is None:
            yield _notification(f"{found.rule}: {_message(found)}", "note")
    for line in audit.budget:
        if not line.ok:
            yield _notification(f"budget broken: {words.limit(line)}", "error")
    for limit in audit.limits:
        yield _notification(limit, "note")
    for acceptance in audit.acceptances:
        if not acceptance.used:
            yield _notification(f"{words.where(acceptance.place)}: {words.unused(acceptance)}", "warning")


def _notification(text: str, level: str) -> dict[str, Any]:
    return {"level": level, "message": {"text": words.one_line(text) or "no text"}}
