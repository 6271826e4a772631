"""The audit in one sentence and a few figures, so that every report says the same."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from tracer.results import Audit, Finding, Summary
from tracer.units import show_ns

_SEEN = 0.01  # of the step: waits that cost less are not worth a word
_SMALL = 0.05  # of the step: idle below this is not worth a word

WORDS = {
    "launch.bound": "launch overhead",
    "launch.queue_full": "a full launch queue",
    "input.bound": "waiting for input",
    "host.gc": "garbage collection",
    "host.gil": "another thread that holds the GIL",
    "host.hot": "CPU work on the user's lines",
    "host.late": "host work that the trace does not name",
    "compile.jit": "compilation",
    "profiler": "the profiler itself",
    "load.library": "libraries setting themselves up",
    "load.lazy": "the first use of kernels",
    "gpu.wait": "work that waits on the GPU",
    "gpu.gap": "the device's own gaps between kernels",
    "unknown": "not explained",
}
WAITS = ("sync.", "copy.", "alloc.free", "alloc.retry")  # classes in which the host waits for the GPU
EDGES = ("head", "tail")  # before the first work and after the last: nobody's fault


def cause_words(cause: str) -> str:
    """How people call a cause of idle time."""
    family, _, rest = cause.partition(".")
    if cause in WORDS:
        return WORDS[cause]
    if family in ("sync", "copy", "alloc"):
        noun = {"sync": "waits", "copy": "copies", "alloc": "allocations"}[family]
        return f"{noun} ({rest.replace('_', ' ')})" if rest else noun
    return cause.replace("_", " ")


def summarise(audit: Audit) -> Summary:
    """Means over the recorded steps; over the devices' windows if there are no steps."""
    steps = audit.steps
    numbers = max(1, len({(step.rank, step.number) for step in steps}))
    calls = sum(f.count for f in audit.findings if f.kind.startswith(WAITS))
    busy = idle = None
    if steps:
        wall = fmean(step.wall_ns for step in steps)
        held = fmean(step.stalled_ns for step in steps)
        if audit.devices:
            busy, idle = fmean(step.busy_ns for step in steps), fmean(step.idle_ns for step in steps)
    else:
        wall = float(audit.window_ns)
        held = min(_most_held(audit), wall)
        if audit.devices:
            busy, idle = fmean(d.busy_ns for d in audit.devices), fmean(d.idle_ns for d in audit.devices)
    summary = Summary(
        of="step" if steps else "window",
        steps=numbers if steps else 0,
        wall_ns=wall,
        busy_ns=busy,
        idle_ns=idle,
        stalled_ns=held,
        busy_share=busy / wall if busy is not None and wall else None,
        idle_share=idle / wall if idle is not None and wall else None,
        stalled_share=held / wall if wall else 0.0,
        syncs=calls / numbers,
    )
    return replace(summary, headline=_headline(audit, summary, numbers))


def _most_held(audit: Audit) -> float:
    """How long the thread was held that was held most: threads that wait side by side are no sum."""
    threads: dict[tuple[int, int, str], float] = {}
    for found in audit.findings:
        key = (found.rank, found.device, found.thread)
        threads[key] = threads.get(key, 0.0) + found.stall_ns
    return max(threads.values(), default=0.0)


def _headline(audit: Audit, summary: Summary, numbers: int) -> str:
    if summary.idle_ns is None or summary.idle_share is None:
        return "No GPU in this trace, so there is no async gap to see."
    costly = [f for f in audit.findings if f.idle_ns and not f.harmless and f.kind.startswith(WAITS)]
    lost = sum(f.idle_ns for f in costly) / numbers
    if summary.idle_share < _SMALL and lost < _SMALL * summary.wall_ns:
        said = "waits of the host cost nothing that shows" if audit.findings else "nothing holds the host"
        return f"GPU busy {100 * (summary.busy_share or 0.0):.0f} % of the {summary.of}; {said}."
    seen = bool(costly) and lost >= _SEEN * summary.wall_ns
    waits = _waits(costly, f"{show_ns(lost)} of {show_ns(summary.wall_ns)}") if seen else ""
    rest = {cause: ns / numbers for cause, ns in _rest(audit).items()}
    top = max(rest, key=lambda cause: rest[cause], default="")
    other = ""
    if top and rest[top] >= _SMALL * summary.wall_ns:
        share = "mostly" if rest[top] > summary.idle_ns / 2 else "the largest part is"
        share = "the largest part of the rest is" if waits and lost >= rest[top] else share
        other = f"{share} {cause_words(top)} ({show_ns(rest[top])})"
    dearest_first = [waits, other] if not other or lost >= rest[top] else [other, waits]
    idle = f"GPU idle {100 * summary.idle_share:.0f} % of the {summary.of}"
    return "; ".join(part for part in (idle, *dearest_first) if part) + "."


def _rest(audit: Audit) -> dict[str, int]:
    """Idle time by cause that no wait answers for; with steps what the findings say, which stay within them."""
    rest: dict[str, int] = {}
    if audit.steps:
        for found in audit.findings:
            rest[found.kind] = rest.get(found.kind, 0) + found.idle_ns
    else:
        rest = dict(audit.idle)
    return {cause: ns for cause, ns in rest.items() if not cause.startswith(WAITS) and cause not in EDGES}


def _waits(costly: list[Finding], price: str) -> str:
    """`a wait (item) at train.py:17 costs 2.58 ms of 11.0 ms`; of several, how many, and the dearest."""
    dearest = max(costly, key=lambda found: found.idle_ns)
    place = dearest.place or dearest.library_place
    at = "" if place is None else f" at {place.file.replace(chr(92), '/').rpartition('/')[2]}:{place.line}"
    kind = f" ({dearest.op})" if dearest.op else ""
    if len(costly) == 1:
        return f"a wait{kind}{at} costs {price}"
    word = {2: "two", 3: "three", 4: "four", 5: "five"}.get(len(costly), str(len(costly)))
    most = 2 * dearest.idle_ns > sum(found.idle_ns for found in costly)
    return f"{word} waits cost {price}" + (f", most of it the one{kind}{at}" if most else "")
