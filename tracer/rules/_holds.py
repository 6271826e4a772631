"""From the waits that a rule has taken to its Findings: one for each place, thread and kind of call."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from tracer.analysis.intervals import total
from tracer.results import Cost, Finding, Place
from tracer.rules import Evidence, Rule, Wait
from tracer.trace import NONE, Ids, Kind
from tracer.units import show_bytes, show_ns

HARMLESS = 0.05  # of the time that the host was held: less GPU idle time than this costs no throughput
_WORTH_A_WORD_NS = 100_000  # a wait from here on
_NAME = 60  # letters of a kernel's name in a sentence
_LONGEST_NS = 1_000_000_000  # of a kernel that is looked for
NOTHING = 0.01  # of the steps: nor does this, unless most of the wait was idle time
_MOST = 0.5
HARMLESS_WORDS = " behind a busy GPU; it costs no throughput now"


def held_findings(
    evidence: Evidence,
    rule: Rule,
    *,
    accept: Callable[[list[Wait]], bool] = bool,
    confidence: str = "high",
    together: bool = False,
    by_op: bool = True,
    notes: Callable[[list[Wait]], tuple[str, ...]] = lambda waits: (),
) -> Iterator[Finding]:
    """Findings of a rule about stalls.

    `together`: one for each thread, wherever it happened. `by_op`: where lines are not
    known, one for each operator.
    """
    groups: dict[tuple[object, ...], list[tuple[Wait, str]]] = {}
    for wait, word in evidence.taken_by(rule):
        where: tuple[object, ...] = (wait.track,)
        if not together:
            where += (word, _where(wait, by_op))
        groups.setdefault(where, []).append((wait, word))
    for group in groups.values():
        waits = [wait for wait, _ in group]
        if accept(waits):
            yield _finding(evidence, rule, waits, group[0][1], confidence, together, notes(waits))


def _where(wait: Wait, by_op: bool) -> tuple[object, ...]:
    if wait.place is not None:
        return wait.place.file, wait.place.line
    if not by_op:
        return ()
    return wait.library.file if wait.library else "", wait.outermost or wait.call


def _finding(
    evidence: Evidence,
    rule: Rule,
    waits: list[Wait],
    word: str,
    confidence: str,
    together: bool,
    notes: tuple[str, ...],
) -> Finding:
    stalls = evidence.stalls
    rows = np.sort(np.concatenate([wait.rows for wait in waits]))
    dearest = max(waits, key=lambda wait: int(stalls.dur_ns[wait.rows].sum()))
    place = None if together else dearest.place
    library = None if together else _library(waits, dearest)
    count = len(np.unique(stalls.group[rows]))
    stall_ns = total(stalls.start_ns[rows], stalls.end_ns[rows])
    idle_ns = int(evidence.idle_ns[rows].sum())
    lead_ns = int(stalls.lead_ns[rows].sum())
    harmless = evidence.trust.has_gpu and is_harmless(evidence, stall_ns, idle_ns)
    little = evidence.trust.has_gpu and idle_ns <= NOTHING * evidence.span_ns
    longest = int(rows[np.argmax(stalls.dur_ns[rows])])
    track = evidence.trace.tracks[dearest.track]
    device = int(Counter(stalls.device[rows].tolist()).most_common(1)[0][0])
    finding = Finding(
        id=name_of(evidence, rule, place, dearest.outermost or dearest.call, word, dearest.thread, track.rank),
        rule=rule.id,
        kind=rule.kind,
        title=rule.title,
        severity="info" if rule.severity == "warning" and (harmless or little) else rule.severity,
        place=place,
        library_place=library,
        op=word,
        thread=thread_name(evidence, dearest.track),
        rank=track.rank,
        device=max(device, 0),
        confidence=confidence if evidence.trust.whole else lower(confidence),
        count=count,
        waits=len(rows),
        stall_ns=stall_ns,
        idle_ns=idle_ns,
        lead_ns=lead_ns,
        per_step=per_step(evidence, count, len(rows), stall_ns, idle_ns, lead_ns, track.rank),
        harmless=harmless,
        message=_message(rule, place, dearest, count, len(rows), stall_ns, idle_ns, harmless),
        fix=rule.fix,
        notes=(*notes, *_waited_for(evidence, longest)),
        first_ns=int(stalls.start_ns[longest]),
        first_dur_ns=int(stalls.dur_ns[longest]),
        callers=() if together else dearest.callers,
        details=_details(evidence, rows, waits),
    )
    evidence.rows[finding.id] = rows.astype(np.int32)
    return finding


def _waited_for(evidence: Evidence, stall: int) -> tuple[str, ...]:
    """What the longest wait waited for: the work that took most of it, where it was launched, and in which step."""
    trace, stalls = evidence.trace, evidence.stalls
    spans = trace.spans
    low, high = int(stalls.start_ns[stall]), int(stalls.end_ns[stall])
    if stalls.last_work[stall] == NONE or high - low < _WORTH_A_WORD_NS:
        return ()
    first, last = np.searchsorted(spans.start_ns, (low - _LONGEST_NS, high))
    rows = np.arange(first, last)
    devices = np.array([t.device for t in trace.tracks])[spans.track[rows]]
    rows = rows[(devices == stalls.device[stall]) & (spans.kind[rows] == Kind.KERNEL) & (spans.end_ns[rows] > low)]
    if not len(rows):
        return ()
    took = np.minimum(spans.end_ns[rows], high) - np.maximum(spans.start_ns[rows], low)
    at = np.unique(spans.name[rows], return_inverse=True)[1]
    most = rows[at == np.bincount(at, weights=took).argmax()]
    launches = evidence.launches
    found = np.searchsorted(launches.work, most[0])
    name = trace.names[spans.name[most[0]]]
    text = f"it waits for {name if len(name) <= _NAME else name[: _NAME - 1] + '…'}"
    if found == len(launches) or launches.work[found] != most[0]:
        return (text,)
    call = launches.call[found : found + 1]
    stack = int(evidence.places.frames_of(call)[0])
    text += show_place(evidence.places.place(stack)) if stack != NONE else ""
    steps = evidence.steps.start_ns
    before = np.searchsorted(steps, spans.start_ns[call[0]], "right") < np.searchsorted(steps, low, "right")
    return (text + (", launched in the step before" if before else ""),)


def is_harmless(evidence: Evidence, stall_ns: int, idle_ns: int) -> bool:
    """Whether being held cost the GPU next to nothing."""
    return idle_ns <= HARMLESS * stall_ns or idle_ns <= min(NOTHING * evidence.span_ns, _MOST * stall_ns)


def per_step(
    evidence: Evidence, count: int, waits: int, stall_ns: int, idle_ns: int, lead_ns: int, rank: int
) -> Cost | None:
    """The cost in one step of this rank, on average; None without steps."""
    steps = evidence.steps
    ranks = np.array([t.rank for t in evidence.trace.tracks] or [0])
    mine = steps.traced & (ranks[steps.track] == rank) if len(steps) else np.zeros(0, np.bool_)
    number = len(np.unique(steps.number[mine]))
    if not number:
        return None
    return Cost(*(value / number for value in (count, waits, stall_ns, idle_ns, lead_ns)))


def thread_name(evidence: Evidence, track: int) -> str:
    """How a report calls a thread."""
    if track == NONE:
        return ""
    one = evidence.trace.tracks[track]
    return one.name or f"thread {one.lane}"


def name_of(evidence: Evidence, rule: Rule, place: Place | None, call: str, word: str, thread: str, rank: int) -> str:
    """The id of a finding: the same in two runs for the same rule and place; threads of one name are numbered."""
    where = f"{'/'.join(place.file.split('/')[-2:])}:{place.line}" if place else call
    key = "|".join((rule.id, where, word, thread, str(rank)))
    name = f"{rule.id}-{hashlib.sha256(key.encode()).hexdigest()[:6]}"
    evidence.named[name] += 1
    return name if evidence.named[name] == 1 else f"{name}-{evidence.named[name]}"


def lower(confidence: str) -> str:
    """One step less sure."""
    return {"high": "medium"}.get(confidence, "low")


def show_place(place: Place | None) -> str:
    """A place in a sentence."""
    return f" at {place.file.rpartition('/')[2]}:{place.line}" if place else ""


def _library(waits: list[Wait], dearest: Wait) -> Place | None:
    """The library line below the user's: of the dearest wait, else of any."""
    return dearest.library or next((wait.library for wait in waits if wait.library), None)


def _message(
    rule: Rule, place: Place | None, wait: Wait, count: int, waits: int, stall_ns: int, idle_ns: int, harmless: bool
) -> str:
    times = "once" if count == 1 else f"{count} times"
    below = f" ({waits} waits below)" if waits != count else ""
    moved = f", {show_bytes(wait.nbytes)} each" if wait.copy and wait.nbytes > 16 else ""
    text = f"{rule.title}{show_place(place)}: {times}{below}{moved}, the host was held {show_ns(stall_ns)}"
    if harmless:
        return f"{text}{HARMLESS_WORDS}"
    return f"{text}, and the GPU was idle {show_ns(idle_ns)} from it"


def _details(evidence: Evidence, rows: Ids, waits: list[Wait]) -> dict[str, float | int | str]:
    durations = evidence.stalls.dur_ns[rows]
    details: dict[str, float | int | str] = {
        "median_ns": float(np.median(durations)),
        "longest_ns": int(durations.max()),
        "call": waits[0].call,
    }
    if waits[0].copy:
        details["copy"] = waits[0].copy
        details["nbytes"] = max(wait.nbytes for wait in waits)
    return details
