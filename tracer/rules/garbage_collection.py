"""Python's collector walks all objects while the GPU waits for the next launch.

Bad:

    for batch in data:
        step(batch)

Good:

    gc.freeze(); gc.disable()
    for i, batch in enumerate(data):
        step(batch)
        if i % 500 == 0: gc.collect()
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.results import Finding, Place
from tracer.rules import Evidence, Rule
from tracer.rules._holds import NOTHING
from tracer.rules._idles import by_place, idle_finding, idle_sum, rows_of
from tracer.trace import Ids

RULE = Rule(
    id="IDLE003",
    kind="host.gc",
    title="garbage collection starves the GPU",
    severity="warning",
    fix="gc.freeze() after set-up, gc.disable() in the loop and gc.collect() every few hundred steps",
)


_OFTEN = 5  # collections on one line: then it is that line that makes the garbage


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line that collects or makes garbage, and one for what hit lines by chance."""
    chance: dict[int, list[Ids]] = {}
    for place, track, rows in by_place(evidence, rows_of(evidence, "host.gc")):
        if place is not None and ("gc." in place.excerpt or len(rows) >= _OFTEN):
            yield from _finding(evidence, rows, track, place)
        else:
            chance.setdefault(track, []).append(rows)
    for track, parts in chance.items():
        yield from _finding(evidence, np.concatenate(parts), track, None)


def _finding(evidence: Evidence, rows: Ids, track: int, place: Place | None) -> Iterator[Finding]:
    if idle_sum(evidence, rows) >= NOTHING * evidence.span_ns:
        yield idle_finding(evidence, RULE, rows, track, place, op="collect")
