"""The rules: one file for each cause. A rule looks at Evidence and yields Findings; it changes nothing.

A module here offers `RULE`, a docstring with Bad and Good code, and `find(evidence)`
(on a trace) or `scan(source)` (on source text, for `tracer check`).

A rule about stalls says in `matches(wait)` which waits are its own, in a word for the
call (`item`, `bool`, `mask_index`), and in `BAND` how early it is asked: each wait goes
to the first rule that takes it, so that no wait is counted twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType

import numpy as np

from tracer.analysis.idle import Idle
from tracer.analysis.launches import Launches
from tracer.analysis.places import Places
from tracer.analysis.stalls import Stalls
from tracer.analysis.trust import Trust
from tracer.plugins import modules_in
from tracer.results import Finding, Timer
from tracer.rules._waits import Wait
from tracer.trace import Ids, Ints, Steps, Trace

# How early a rule is asked, lowest first; a rule that names a cause closer is asked before the general one of its band.
ENVIRONMENT, LABELLED, ALLOCATOR, FRAMEWORK, OPERATOR, GENERAL, COPYING, EXPLICIT, FALLBACK = range(9)


@dataclass(frozen=True, slots=True)
class Rule:
    """What is always true of a rule. `id` never changes its meaning."""

    id: str  # SYNCnnn: the host is held; IDLEnnn: the GPU is starved; TIMEnnn: a clock lies
    kind: str  # class word
    title: str
    severity: str  # "error", "warning", "info"
    fix: str


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """All that a rule may look at."""

    trace: Trace
    launches: Launches
    stalls: Stalls
    idle: Idle
    places: Places
    idle_stack: Ids  # for each row of idle: what its thread did meanwhile, to be asked of places; NONE
    steps: Steps
    trust: Trust
    waits: tuple[Wait, ...]  # the stalls that count, by shape and place
    set_up: tuple[Wait, ...]  # those that lie outside the steps alone
    idle_ns: Ints  # for each stall the GPU idle time that it answers for
    span_ns: int  # how long the steps last; without steps, from the first to the last GPU work
    timers: tuple[Timer, ...] = ()
    rows: dict[str, Ids] = field(default_factory=dict)  # finding's id -> its Stalls, filled as rules run
    idle_rows: dict[str, Ids] = field(default_factory=dict)  # finding's id -> its rows of Idle
    named: Counter[str] = field(default_factory=Counter)  # ids of findings that were given away
    taken: dict[str, list[tuple[Wait, str]]] = field(default_factory=dict)  # rule's id -> its waits

    def taken_by(self, rule: Rule) -> list[tuple[Wait, str]]:
        """The waits that belong to a rule, each with its word for the call."""
        if not self.taken:
            self.taken.update(assign(self.waits))
        return self.taken.get(rule.id, [])


@cache
def rule_modules() -> tuple[ModuleType, ...]:
    """All rules, by id."""
    return tuple(sorted((m for m in modules_in("tracer.rules") if hasattr(m, "RULE")), key=lambda m: str(m.RULE.id)))


def run_rules(evidence: Evidence) -> tuple[tuple[Finding, ...], tuple[Ids, ...]]:
    """What all rules find, dearest first, and for each finding its stalls (rows of Stalls)."""
    found: list[Finding] = []
    for module in rule_modules():
        if hasattr(module, "find"):
            found.extend(module.find(evidence))
    found.sort(key=price)
    nothing = np.empty(0, np.int32)
    return tuple(found), tuple(evidence.rows.get(finding.id, nothing) for finding in found)


def price(finding: Finding) -> tuple[bool, bool, int, int, str]:
    """Sorts findings: harmless ones last, before them those that are for information, then by idle and host time."""
    return (finding.harmless, finding.severity == "info", -finding.idle_ns, -finding.stall_ns, finding.id)


def assign(waits: tuple[Wait, ...]) -> dict[str, list[tuple[Wait, str]]]:
    """Each wait to the first rule that takes it."""
    asked = sorted((m for m in rule_modules() if hasattr(m, "matches")), key=lambda m: (m.BAND, m.RULE.id))
    taken: dict[str, list[tuple[Wait, str]]] = {}
    for wait in waits:
        for module in asked:
            word = module.matches(wait)
            if word is not None:
                taken.setdefault(module.RULE.id, []).append((wait, word))
                break
    return taken


__all__ = ["Evidence", "Rule", "Wait", "assign", "price", "rule_modules", "run_rules"]
