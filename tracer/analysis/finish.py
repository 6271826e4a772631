"""The last touches to an Audit, all from the Audit itself: what the source accepts, and the headline."""

from __future__ import annotations

from dataclasses import replace

from tracer.analysis.accept import accept
from tracer.analysis.summary import summarise
from tracer.results import Audit


def finish(audit: Audit) -> Audit:
    """The Audit with its acceptances and its summary."""
    audit = accept(audit)
    return replace(audit, summary=summarise(audit))
