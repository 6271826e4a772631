"""A schedule of torch.profiler as a window: `schedule(skip_first=, wait=, warmup=, active=, repeat=)`.

The schedule is asked what it would do at each step, so that any function with that
meaning works, also one that is not torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

from tracer.errors import UsageError

_MOST_STEPS = 100_000  # looked ahead for the first window


def window_of(schedule: Callable[[int], Any]) -> dict[str, int]:
    """`skip`, `warmup`, `steps` of the first window, and `every` if it comes again.

    Raises UsageError if the schedule never records.
    """
    actions = [_name(schedule(0))]
    while actions[-1] != "RECORD_AND_SAVE":
        if len(actions) == _MOST_STEPS:
            raise UsageError(
                f"the schedule records no step of the first {_MOST_STEPS:,}",
                fix="write for example schedule=torch.profiler.schedule(wait=1, warmup=1, active=3)",
            )
        actions.append(_name(schedule(len(actions))))
    runs = [(name, len(list(group))) for name, group in groupby(actions)]
    counts = dict.fromkeys(("NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE"), 0) | dict(runs)
    window = {
        "skip": counts["NONE"],
        "warmup": counts["WARMUP"],
        "steps": counts["RECORD"] + counts["RECORD_AND_SAVE"],
    }
    return window | _repeated(schedule, window)


def _repeated(schedule: Callable[[int], Any], window: dict[str, int]) -> dict[str, int]:
    """The distance to the next window, if there is one within the length that torch's schedules have."""
    first = sum(window.values())  # the step after the first window
    for step in range(first, first + sum(window.values()) + 1):
        if _name(schedule(step)) != "NONE":
            return {"every": step - window["skip"]}
    return {}


def _name(action: Any) -> str:
    """The action's name; what is no ProfilerAction counts as doing nothing."""
    return str(getattr(action, "name", "NONE"))
