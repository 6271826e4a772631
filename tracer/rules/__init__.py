"""The rules: one file for each cause. A rule looks at Evidence and yields Findings; it changes nothing.

A module here offers `RULE`, a docstring with Bad and Good code, and `find(evidence)`
(on a trace) or `scan(source)` (on source text, for `tracer check`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """What is always true of a rule. `id` never changes its meaning."""

    id: str  # SYNCnnn: the host is held; IDLEnnn: the GPU is starved; TIMEnnn: a clock lies
    kind: str  # class word
    title: str
    severity: str  # "error", "warning", "info"
    fix: str
