"""Another thread runs Python and holds the GIL, and the thread that launches waits for it.

Each torch operator gives the GIL away. A thread that is busy with Python then keeps it
for 5 ms (sys.getswitchinterval) before it lets the launching one go on.

Bad:

    threading.Thread(target=augment, args=(queue,)).start()    # Python loops beside the training loop

Good:

    torch.multiprocessing.Process(target=augment, args=(queue,)).start()    # has a GIL of its own
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracer.analysis.launches import feeding_threads
from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._holds import NOTHING, show_place, thread_name
from tracer.rules._idles import by_place, idle_finding, idle_sum, rows_of
from tracer.trace import NONE, Ids

RULE = Rule(
    id="IDLE010",
    kind="host.gil",
    title="another thread holds the GIL and starves the GPU",
    severity="warning",
    fix="move that work to another process (a DataLoader worker), or into code that releases the GIL",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each thread that kept the launching one from going on, at the line it was on most."""
    threads: dict[int, list[Ids]] = {}
    groups = by_place(evidence, rows_of(evidence, RULE.kind))
    for _, track, rows in groups:
        threads.setdefault(track, []).append(rows)
    for track, parts in threads.items():
        rows = np.sort(np.concatenate(parts))
        if idle_sum(evidence, rows) < NOTHING * evidence.span_ns:
            continue
        place = next((one for one, of, _ in groups if of == track and one is not None), None)
        found = idle_finding(evidence, RULE, rows, track, place, op="gil", confidence="medium")
        yield replace(found, notes=(*found.notes, *(() if place else _busy(evidence, rows)), *_waiting(evidence, rows)))


def _longest(evidence: Evidence, rows: Ids) -> int:
    return int(rows[np.argmax(evidence.idle.dur_ns[rows])])


def _busy(evidence: Evidence, rows: Ids) -> tuple[str, ...]:
    """The function that held it, where its lines came too fast to be recorded."""
    stack = int(evidence.idle_stack[_longest(evidence, rows)])
    place = evidence.places.place(stack) if stack != NONE else None
    if place is None:
        return ()
    return (f"it ran {place.function} in {place.file.rpartition('/')[2]}, too busy to be watched line by line",)


def _waiting(evidence: Evidence, rows: Ids) -> tuple[str, ...]:
    """Which thread waited in the longest of these rows, and on which line."""
    idle, launches = evidence.idle, evidence.launches
    longest = _longest(evidence, rows)
    start, end = int(idle.start_ns[longest]), int(idle.start_ns[longest] + idle.dur_ns[longest])
    calls = launches.call[launches.work == idle.next_work[longest]]
    feeds, main = feeding_threads(evidence.trace, launches, int(idle.rank[longest]), int(idle.device[longest]))
    caller = int(evidence.trace.spans.track[calls[0]]) if len(calls) else NONE
    waited = caller if caller != NONE and feeds[caller] else main
    if waited == NONE:
        return ()
    return (f"thread {thread_name(evidence, waited)} waited{show_place(evidence.places.at(waited, start, end))}",)
