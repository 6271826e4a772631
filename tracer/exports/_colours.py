"""Colours of slices in the Perfetto UI, which knows none: it hashes a text.

A slice's colour is the hash of its `correlation_id` or else of its name. These
texts were found by search with the UI's own hash (ui/src/base/hash.ts, the same in
v52 to v58), so that costs are red wherever the trace is opened.
"""

from __future__ import annotations

COSTLY = "costly #1780"  # red
HARMLESS = "harmless #144"  # orange
HONEST = "true #452"  # green
LYING = "false #723"  # red
FINDING = "finding #243"  # dark red

_OF_IDLE = {
    "stall": "syncs #2829",  # red: the host was held
    "input.bound": "input #622",  # yellow
    "launch.bound": "launch #808",  # blue
    "host.hot": "harmless #144",  # orange: the CPU was busy
    "host.late": "harmless #144",
    "host.gil": "harmless #144",  # another thread's CPU work
    "host.gc": "memory #594",  # purple
    "compile.jit": "memory #594",
    "load.library": "memory #594",
    "gpu.gap": "unknown #31",  # pale: nobody's fault
    "gpu.wait": "unknown #31",
    "head": "unknown #31",
    "tail": "unknown #31",
    "profiler": "unknown #31",
    "unknown": "unknown #31",
}


def of_idle(cause: str) -> str:
    """The colour of idle time by its cause; causes that are not listed keep the colour of their name."""
    return _OF_IDLE.get(cause, "")
