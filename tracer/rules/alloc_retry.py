"""When cudaMalloc fails, torch waits for outstanding work, frees its cache and tries again.

Bad:

    x = model(batch_of_any_size)

Good:

    x = model(padded_batch)      # few shapes, and room below the limit
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.results import Finding
from tracer.rules import ENVIRONMENT, Evidence, Rule, Wait
from tracer.rules._holds import held_findings, name_of

RULE = Rule(
    id="SYNC033",
    kind="alloc.retry",
    title="GPU memory was full: the allocator waited, freed its cache and tried again",
    severity="error",
    fix="use less memory at the peak; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; fixed shapes",
)
BAND = ENVIRONMENT


def matches(wait: Wait) -> str | None:
    """Allocation, wait and free within one operator."""
    return wait.outermost or "malloc" if wait.retried else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread; where only the allocator's counters tell of it, one for each GPU."""
    found = list(held_findings(evidence, RULE))
    yield from found
    if not found:
        yield from _counted(evidence)


def _counted(evidence: Evidence) -> Iterator[Finding]:
    """Retries that the allocator counted in the window."""
    trace, counters = evidence.trace, evidence.trace.counters
    named = [i for i, name in enumerate(trace.names) if name == "allocator retries"]
    rows = np.flatnonzero(np.isin(counters.name, named))
    for device in np.unique(counters.device[rows]).tolist():
        mine = rows[counters.device[rows] == device]
        times = counters.time_ns[mine]
        count = int(counters.value[mine[times.argmax()]] - counters.value[mine[times.argmin()]])
        if count > 0:
            yield Finding(
                id=name_of(evidence, RULE, None, "retry", "retry", "", 0),
                rule=RULE.id,
                kind=RULE.kind,
                title=RULE.title,
                severity=RULE.severity,
                place=None,
                op="retry",
                device=device,
                confidence="medium",
                count=count,
                message=f"{RULE.title}: {count} times in the window, by the allocator's own count",
                fix=RULE.fix,
                first_ns=int(times.min()),
            )
