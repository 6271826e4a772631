"""The last touches to an Audit, all from the Audit itself: what the source accepts, and the headline."""

from __future__ import annotations

from dataclasses import replace

from tracer.analysis.accept import accept
from tracer.analysis.summary import summarise
from tracer.results import SHOWN_ROWS, Audit, IdleRow


def finish(audit: Audit) -> Audit:
    """The Audit with its acceptances and its summary."""
    audit = accept(audit)
    return replace(audit, idle_others=_others(audit.idle_rows), summary=summarise(audit))


def _others(rows: tuple[IdleRow, ...]) -> IdleRow | None:
    """What a short table leaves out, in one row; a single one is shown instead."""
    rest = rows[SHOWN_ROWS:]
    if len(rest) < 2:
        return None
    ns, count, share = sum(row.ns for row in rest), sum(row.count for row in rest), sum(row.share for row in rest)
    return IdleRow(f"others ({len(rest)} rows)", "", ns, count, share)
