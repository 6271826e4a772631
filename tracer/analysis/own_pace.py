"""The program's own pace: the median of its steps outside of the recording, where they tell one."""

from __future__ import annotations

import numpy as np

from tracer.trace import Ints, Steps
from tracer.units import show_ns

_FEW = 3  # steps that tell a median
_ENOUGH = 5  # steps before the recording that need none after it
_ALIKE = (0.5, 5.0)  # recorded over unrecorded: beyond it, one of both is not the step of the other


def steps_outside(steps: Steps) -> Ints:
    """How long the steps outside of the recording took.

    A program can stay slower for a while after a profiler: the steps before count, if there are some. Of many of
    those the later half counts: the first ones load, compile, tune and fill the allocator.
    """
    chosen = np.flatnonzero(~steps.traced & (steps.dur_ns > 0))
    if np.any(steps.traced):
        before = chosen[steps.start_ns[chosen] < steps.start_ns[steps.traced].min()]
        if len(before) >= _ENOUGH:
            before = before[np.argsort(steps.start_ns[before], kind="stable")]
            chosen = before[len(before) // 2 :] if len(before) >= 2 * _ENOUGH else before
    outside: Ints = steps.dur_ns[chosen]
    return outside


def find_own_pace(outside_ns: Ints, recorded_ns: float | None) -> tuple[int | None, str]:
    """The median, or None and why there is none."""
    if not len(outside_ns):
        return None, "it is not in the trace"
    if len(outside_ns) < _FEW:
        steps = "one step was" if len(outside_ns) == 1 else f"{len(outside_ns)} steps were"
        return None, f"only {steps} seen outside of the recording"
    low, median, high = (float(value) for value in np.percentile(outside_ns, (25, 50, 75)))
    if high - low > median:
        return None, f"the steps outside of the recording differ too much: {show_ns(low)} to {show_ns(high)}"
    if recorded_ns is not None and not _ALIKE[0] <= recorded_ns / median <= _ALIKE[1]:
        both = f"{show_ns(recorded_ns)} while recording and {show_ns(median)} outside of it"
        return None, f"a step took {both}, which cannot be the same work"
    return round(median), ""
