"""The last touches to an Audit, all from the Audit itself: what is accepted, the headline, the budget."""

from __future__ import annotations

from dataclasses import replace

from tracer.analysis.summary import summarise
from tracer.results import Audit


def finish(audit: Audit) -> Audit:
    """The Audit with its acceptances, summary and budget lines."""
    return replace(audit, summary=summarise(audit))
