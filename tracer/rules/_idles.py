"""From idle time with one cause to a Finding at the line that the host spent it on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.analysis.idle import CAUSES
from tracer.analysis.intervals import union
from tracer.analysis.sampled_lines import sampled_lines
from tracer.analysis.sources import Sources
from tracer.results import Finding, Place
from tracer.rules import Evidence, Rule
from tracer.rules._holds import NOTHING, lower, name_of, per_step, show_place, thread_name
from tracer.trace import NONE, Ids, Ints
from tracer.units import show_ns

_COMES_BACK = 3
_SAMPLES = 10  # fewer do not name a line


def rows_of(evidence: Evidence, cause: str) -> Ids:
    """Rows of Idle with a cause, inside the steps if there are any."""
    idle = evidence.idle
    rows = np.flatnonzero(idle.cause == CAUSES.index(cause)).astype(np.int32)
    mine = evidence.steps.take(evidence.steps.traced) if len(evidence.steps) else evidence.steps
    if not len(mine):
        return rows
    low, high = int(mine.start_ns.min()), int((mine.start_ns + mine.dur_ns).max())
    return rows[(idle.start_ns[rows] < high) & (idle.start_ns[rows] + idle.dur_ns[rows] > low)]


def by_place(evidence: Evidence, rows: Ids) -> list[tuple[Place | None, int, Ids]]:
    """Idle rows by the line and thread of the host meanwhile, the dearest first."""
    idle = evidence.idle
    groups: dict[tuple[int, str, int], list[int]] = {}
    places: dict[tuple[int, str, int], Place | None] = {}
    columns = (rows.tolist(), evidence.idle_stack[rows].tolist(), idle.track[rows].tolist())
    for row, stack, track in zip(*columns, strict=True):
        place = evidence.places.place(stack) if stack != NONE else None
        if place is not None and not place.line:  # only the file is known
            place = None
        key = (track, place.file if place else "", place.line if place else 0)
        groups.setdefault(key, []).append(row)
        places.setdefault(key, place)
    for key in [one for one in groups if places[one] is None]:
        place = _sampled_place(evidence, key[0], np.array(groups[key], np.int32))
        if place is not None:
            known = (key[0], place.file, place.line)
            groups.setdefault(known, []).extend(groups.pop(key))
            places.setdefault(known, place)
    found = [(places[key], key[0], np.array(group, np.int32)) for key, group in groups.items()]
    return sorted(found, key=lambda one: -int(idle.dur_ns[one[2]].sum()))


def _sampled_place(evidence: Evidence, track: int, rows: Ids) -> Place | None:
    """The line on which most samples fell during many short idle stretches, none of which holds enough of them."""
    idle = evidence.idle
    when = union(idle.start_ns[rows], idle.start_ns[rows] + idle.dur_ns[rows])
    lines = sampled_lines(evidence.trace, when, track)
    if sum(lines.values()) < _SAMPLES:
        return None
    file, line, function = max(lines, key=lambda one: lines[one])
    if 2 * lines[file, line, function] < sum(lines.values()):
        return None
    return Place(file, line, function, None, "samples", True, Sources(evidence.trace.sources).line(file, line))


def idle_finding(
    evidence: Evidence,
    rule: Rule,
    rows: Ids,
    track: int,
    place: Place | None,
    *,
    op: str = "",
    count: int | None = None,
    stall_ns: int | None = None,
    confidence: str = "high",
    text: str = "",
    details: dict[str, float | int | str] | None = None,
) -> Finding:
    """One finding about idle time; `stall_ns` is what the host waited, if it waited."""
    idle = evidence.idle
    idle_ns = int(idle.dur_ns[rows].sum())
    number = len(rows) if count is None else count
    rank = int(idle.rank[rows[0]])
    longest = int(rows[np.argmax(idle.dur_ns[rows])])
    held = stall_ns or 0
    finding = Finding(
        id=name_of(evidence, rule, place, op or rule.kind, op, thread_name(evidence, track), rank),
        rule=rule.id,
        kind=rule.kind,
        title=rule.title,
        severity=rule.severity,
        place=place,
        op=op,
        thread=thread_name(evidence, track),
        rank=rank,
        device=int(idle.device[rows[0]]),
        confidence=confidence if evidence.trust.whole else lower(confidence),
        count=number,
        waits=0,
        stall_ns=held,
        idle_ns=idle_ns,
        per_step=per_step(evidence, number, 0, held, idle_ns, 0, rank),
        message=text or f"{rule.title}{show_place(place)}: the GPU was idle {show_ns(idle_ns)}",
        fix=rule.fix,
        first_ns=int(idle.start_ns[longest]),
        first_dur_ns=int(idle.dur_ns[longest]),
        details=details or {},
    )
    evidence.idle_rows[finding.id] = rows
    return finding


def idle_sum(evidence: Evidence, rows: Ids | Ints) -> int:
    """How long these rows last together."""
    return int(evidence.idle.dur_ns[rows].sum())


def costly(
    evidence: Evidence,
    rule: Rule,
    cause: str,
    *,
    also: str = "",
    share: float = NOTHING,
    need_place: bool | None = None,
    whole: bool = False,
    often: bool = False,
) -> Iterator[Finding]:
    """Findings for idle time of a cause, one for each place where it is this share of the steps.

    `need_place`: only where the line is known (True) or only where it is not (False).
    `whole`: one for each thread, without a place. `often`: only what comes back; where no
    steps are known, what happens once is set-up.
    """
    rows = rows_of(evidence, cause)
    if also:
        rows = np.concatenate((rows, rows_of(evidence, also)))
    if not len(rows):
        return
    groups = by_place(evidence, rows)
    if whole:
        tracks = {track for _, track, _ in groups}
        groups = [(None, track, np.concatenate([r for _, t, r in groups if t == track])) for track in sorted(tracks)]
    least = _COMES_BACK if often and not len(evidence.steps) else 1
    for place, track, mine in groups:
        if (
            len(mine) >= least
            and idle_sum(evidence, mine) >= share * evidence.span_ns
            and need_place in (None, place is not None)
        ):
            yield idle_finding(evidence, rule, mine, track, place)
