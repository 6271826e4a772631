"""The table of the GPU's idle time: by cause and line, summing to it exactly."""

from __future__ import annotations

import numpy as np

from tracer.analysis.idle import CAUSES
from tracer.auditor.examination import Examination
from tracer.results import IdleRow, Place
from tracer.trace import NONE

_LISTED = 200  # rows of the table; what is smaller goes to rows without a place


def idle_by_cause(found: Examination) -> dict[str, int]:
    """Nanoseconds by class word, most first; they sum to the idle time of the devices."""
    sums: dict[str, int] = {}
    for word, ns in zip(words_of_idle(found), found.idle.dur_ns.tolist(), strict=True):
        sums[word] = sums.get(word, 0) + ns
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def idle_rows(found: Examination) -> tuple[IdleRow, ...]:
    """The idle time by cause and line; what is small goes to the rows without a line."""
    idle, evidence = found.idle, found.evidence
    sums: dict[tuple[str, int, int, str, int], list[int]] = {}
    named: dict[tuple[str, int, int, str, int], tuple[str, Place | None]] = {}
    columns = (idle.finding.tolist(), evidence.idle_stack.tolist(), idle.device.tolist(), idle.rank.tolist())
    for word, number, stack, device, rank, ns in zip(words_of_idle(found), *columns, idle.dur_ns.tolist(), strict=True):
        finding = found.findings[number] if number != NONE else None
        place = finding.place if finding else evidence.places.place(stack) if stack != NONE else None
        # One row for a cause and line, whether a finding or a sample says the line.
        key = (word, device, rank, place.file if place else "", place.line if place else 0)
        row = sums.setdefault(key, [0, 0])
        if finding or key not in named:
            named[key] = (finding.rule if finding else "", place)
        row[0] += ns
        row[1] += 1
    for key, (ns, count) in sorted(sums.items(), key=lambda item: -item[1][0])[_LISTED:]:
        if key[3]:
            row = sums.setdefault((*key[:3], "", 0), [0, 0])
            row[0] += ns
            row[1] += count
            del sums[key]
    whole = int(idle.dur_ns.sum()) or 1
    rows = []
    for key, (ns, count) in sums.items():
        rule, place = named.get(key, ("", None))
        rows.append(IdleRow(key[0], rule, ns, count, ns / whole, place, key[1], key[2]))
    return tuple(sorted(rows, key=lambda row: -row.ns))


def words_of_idle(found: Examination) -> list[str]:
    """For each row of idle time the class word of its cause."""
    words = [CAUSES[cause] for cause in found.idle.cause.tolist()]
    for row in np.flatnonzero(found.idle.stall != NONE).tolist():
        words[row] = found.kinds[found.idle.stall[row]]
    return words
