"""The last touches to an Audit, all from the Audit itself: what the source accepts, the headline, the budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tracer.analysis.accept import accept
from tracer.analysis.budget import apply_budget, parse_budget
from tracer.analysis.summary import summarise
from tracer.results import Audit


def finish(audit: Audit, budget: Mapping[str, Any] | None = None) -> Audit:
    """The Audit with its acceptances, its summary and a line for each limit of the budget."""
    audit = accept(audit)
    audit = replace(audit, summary=summarise(audit))
    return apply_budget(audit, parse_budget(budget)) if budget else audit
