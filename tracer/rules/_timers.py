"""From a judged timer, or one seen in source text, to a Finding: the same for all rules that speak of clocks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from tracer.analysis.open_timers import SourceTimer
from tracer.analysis.source_calls import Read
from tracer.results import Finding, Place, Timer
from tracer.rules import Rule

# Rules about what came in from before are about the start; all others are about the read that ends the timer.
_AT_START = ("bench.dirty_start",)


def judged(rule: Rule, timers: Iterable[Timer]) -> Iterator[Finding]:
    """A Finding for each timer of a recorded run that has this rule's verdict."""
    for timer in timers:
        if timer.rule == rule.id:
            place = timer.start if rule.kind in _AT_START else timer.end
            yield _finding(rule, place, timer.message, timer.count, "high", _numbers(timer))


def suspected(rule: Rule, file: str, timer: SourceTimer, message: str, *, at_start: bool = False) -> Finding:
    """A Finding for a timer in source text; it may be wrong, and says so."""
    read = timer.start if at_start else timer.end
    return _finding(rule, place_of(file, read, timer.function), message, 1, "low", {})


def reported(rule: Rule, place: Place, message: str) -> Finding:
    """A Finding for something in source text that is certain."""
    return _finding(rule, place, message, 1, "high", {})


def place_of(file: str, read: Read, function: str) -> Place:
    """Where a read stands in a file."""
    return Place(file, read.line, function, (read.column, read.end_column), "source")


def _numbers(timer: Timer) -> dict[str, float | int | str]:
    numbers: dict[str, float | int | str] = {
        "claimed_ns": timer.claimed_ns,
        "still_running_ns": timer.still_running_ns,
        "ran_in_ns": timer.ran_in_ns,
        "clock": timer.clock,
    }
    if timer.true_ns is not None:
        numbers["true_ns"] = timer.true_ns
    if timer.ratio is not None:
        numbers["ratio"] = timer.ratio
    if timer.first_over_median is not None:
        numbers["first_over_median"] = timer.first_over_median
    return numbers


def _finding(
    rule: Rule, place: Place | None, message: str, count: int, confidence: str, details: dict[str, float | int | str]
) -> Finding:
    where = f"{place.file}:{place.line}" if place else ""
    return Finding(
        id=f"{rule.id}-{hashlib.sha1(where.encode()).hexdigest()[:6]}",
        rule=rule.id,
        kind=rule.kind,
        title=rule.title,
        severity=rule.severity,
        place=place,
        confidence=confidence,
        count=count,
        message=message,
        fix=rule.fix,
        details=details,
    )
