"""Budgets read with the rules at hand, so that a mistyped name is no limit that can never break."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from tracer.analysis.budget import Limit, apply_budget, is_file, parse_budget, scope_of
from tracer.errors import UsageError
from tracer.results import Audit
from tracer.rules import rule_modules
from tracer.trace import Trace


def read_budget(budget: Mapping[str, Any], source: str = "the budget") -> tuple[Limit, ...]:
    """The limits of a budget.

    Raises UsageError for what cannot be understood, and for a rule or class that there is not.
    """
    limits = parse_budget(budget, source)
    rules = {module.RULE.id for module in rule_modules()}
    classes = {module.RULE.kind for module in rule_modules()}
    for name in dict.fromkeys(limit.name for limit in limits):
        what = scope_of(name)
        known = {"rule": rules, "class": classes}.get(what)
        if known is not None and name not in known:
            near = get_close_matches(name, known, 3)
            raise UsageError(
                f"{source} limits {name!r}, and there is no such {what}",
                fix=f"did you mean {', '.join(near)}?" if near else "`tracer explain --table` lists them all",
            )
    return limits


def judge(audit: Audit, limits: Iterable[Limit], trace: Trace) -> Audit:
    """The Audit with a line for each limit, and a word on limits of files that the trace does not know."""
    limits = tuple(limits)
    names = {trace.names[name] for name in set(trace.frames.file.tolist())} | set(trace.sources) | set(audit.sources)
    names |= {found.place.file for found in audit.findings if found.place is not None}
    said = []
    for name in dict.fromkeys(limit.name for limit in limits):
        file = re.sub(r":\d+$", "", name)
        if scope_of(name) == "file" and not any(is_file(path, file) for path in names):
            said.append(f"the budget limits {name}, and nothing in this trace is of a file of that name")
    return replace(apply_budget(audit, limits), limits=(*audit.limits, *said))
