"""The audit in one sentence and a few figures, so that every report says the same."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from tracer.results import Audit, Finding, Gain, Summary
from tracer.units import show_ns, show_range

_SEEN = 0.01  # of the step: waits that cost less are not worth a word
_LARGE = 0.1  # of the step: a gain that matters more than a timer's wrong figure
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
        return "No GPU in this trace, so there is no async gap to see: without GPU work nothing can be judged."
    best = _best(audit)
    lie = _lie(audit)
    parts = _speed(audit, summary, numbers, best)
    # A figure that is wrong misleads more than a step that could be a little faster.
    parts = [lie, *parts] if best is None or best.share < _LARGE else [*parts, lie]
    said = "; ".join(part for part in parts if part)
    return f"{said[:1].upper()}{said[1:]}."


def _speed(audit: Audit, summary: Summary, numbers: int, best: Gain | None) -> list[str]:
    """How idle the GPU was, and what that comes from: the dearest first."""
    idle_ns, idle_share = summary.idle_ns or 0.0, summary.idle_share or 0.0
    costly = [f for f in audit.findings if f.idle_ns and not f.harmless and f.kind.startswith(WAITS)]
    lost = sum(f.idle_ns for f in costly) / numbers
    if best is None and idle_share < _SMALL and lost < _SMALL * summary.wall_ns:
        said = "waits of the host cost nothing that shows" if audit.findings else "nothing holds the host"
        return [f"GPU busy {100 * (summary.busy_share or 0.0):.0f} % of the {summary.of}", said]
    seen = bool(costly) and lost >= _SEEN * summary.wall_ns
    waits = _waits(costly, f"{show_ns(lost)} of {show_ns(summary.wall_ns)}") if seen else ""
    weight = lost / summary.wall_ns if seen else 0.0
    if best is not None:
        waits, weight = _saving(audit, best), best.share
        if best.of == "repetition" and audit.replay is not None:  # a part of the window only
            weight = best.likely_ns * audit.replay.times / max(summary.wall_ns, 1.0)
    rest = {cause: ns / numbers for cause, ns in _rest(audit).items()}
    top = max(rest, key=lambda cause: rest[cause], default="")
    other = ""
    dearer = not top or weight * summary.wall_ns >= rest[top]
    if top and rest[top] >= _SMALL * summary.wall_ns:
        share = "mostly" if rest[top] > idle_ns / 2 else "the largest part is"
        share = "the largest part of the rest is" if waits and dearer else share
        other = f"{share} {cause_words(top)} ({show_ns(rest[top])})"
    dearest_first = [waits, other] if not other or dearer else [other, waits]
    return [f"GPU idle {100 * idle_share:.0f} % of the {summary.of}", *dearest_first]


def _can_be_saved(finding: Finding) -> bool:
    return not (finding.harmless or finding.accepted or finding.kind.startswith("load."))


def _best(audit: Audit) -> Gain | None:
    """The largest gain that removing one finding has, if it is worth a word."""
    gains = [f.gain_ns for f in audit.findings if f.gain_ns is not None and _can_be_saved(f)]
    best = max(gains, key=lambda gain: gain.share, default=None)
    return best if best is not None and best.share >= _SEEN else None


def _saving(audit: Audit, gain: Gain) -> str:
    """`removing the wait (item) at train.py:25 would save 990 to 998 us of 7.27 ms (14 %)`."""
    found = next(f for f in audit.findings if f.gain_ns is gain and _can_be_saved(f))
    word = (
        f"the wait{f' ({found.op})' if found.op else ''}" if found.kind.startswith(WAITS) else cause_words(found.kind)
    )
    saved = f"{show_range(gain.low_ns, gain.likely_ns)} of {show_ns(gain.likely_ns / gain.share)}"
    said = f"removing {word}{_at(found)} would save {saved} ({100 * gain.share:.0f} %)"
    if gain.of != "repetition" or audit.replay is None:
        return said
    return f"{said} in each repetition of {audit.replay.repeats} ({audit.replay.times} of them)"


def _lie(audit: Audit) -> str:
    """`a timer at bench.py:19 claims 742 us for 53.4 ms of work`: the worst of those whose figure is wrong."""
    lies = [f for f in audit.findings if f.rule.startswith("TIME") and f.severity == "error" and not f.accepted]
    if not lies:
        return ""
    worst = max(lies, key=lambda found: float(found.details.get("ratio", 0.0)))
    more = f", and {len(lies) - 1} more {'timer is' if len(lies) == 2 else 'timers are'} wrong" if lies[1:] else ""
    claimed, true = worst.details.get("claimed_ns"), worst.details.get("true_ns")
    if worst.kind == "bench.event_not_ready" or claimed is None or true is None:
        return f"a timer{_at(worst)} is wrong: {worst.title}{more}"
    return f"a timer{_at(worst)} claims {show_ns(float(claimed))} for {show_ns(float(true))} of work{more}"


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
    at = _at(dearest)
    kind = f" ({dearest.op})" if dearest.op else ""
    if len(costly) == 1:
        return f"a wait{kind}{at} costs {price}"
    word = {2: "two", 3: "three", 4: "four", 5: "five"}.get(len(costly), str(len(costly)))
    most = 2 * dearest.idle_ns > sum(found.idle_ns for found in costly)
    return f"{word} waits cost {price}" + (f", most of it the one{kind}{at}" if most else "")


def _at(finding: Finding) -> str:
    """` at train.py:17`; empty if no line is known."""
    place = finding.place or finding.library_place
    return "" if place is None else f" at {place.file.replace(chr(92), '/').rpartition('/')[2]}:{place.line}"
