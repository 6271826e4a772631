"""The first call loads kernels, creates handles, compiles and autotunes. It belongs to the warm-up.

Bad:

    for _ in range(10):
        times.append(timed(step))       # the first is 100 times the others
    print(mean(times))

Good:

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    for _ in range(10):
        times.append(timed(step))
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._timers import judged

RULE = Rule(
    id="TIME004",
    kind="bench.no_warmup",
    title="the first run, which loads and compiles, is counted",
    severity="warning",
    fix="run it a few times before the timer starts and throw those away, or report the median",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """Timers of the run with this verdict."""
    yield from judged(RULE, evidence.timers)
