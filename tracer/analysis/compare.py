"""Two audits side by side: what became better, what worse, and what is within the steps' spread.

- A figure changed significantly if the two means differ by more than their steps allow
  (Welch's test, 95 %) and by more than 1 %.
- Without two steps on each side there is no spread, so the threshold alone decides, and the text says so.
- Findings are matched by rule, call, file name, function and text of the line.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean, variance

from tracer.analysis.summary import EDGES, summarise
from tracer.results import SCHEMA, Audit, Benchmark, Change, Diff, Finding, FindingChange, Hot, Spread, Step
from tracer.units import show_ns, show_share

THRESHOLD = 0.05  # of the step: what counts as a regression

_LEAST = 0.01  # relative: a change below it is none
_KERNELS = 20

# Student's t for 95 %, two-sided, by degrees of freedom; beyond the last, the normal distribution's.
_STUDENT = {
    1: 12.71,
    2: 4.30,
    3: 3.18,
    4: 2.78,
    5: 2.57,
    6: 2.45,
    7: 2.36,
    8: 2.31,
    10: 2.23,
    15: 2.13,
    20: 2.09,
    30: 2.04,
}


def compare(before: Audit, after: Audit, threshold: float = THRESHOLD) -> Diff:
    """What changed from one audit to the other; a regression is a loss beyond `threshold` of the step."""
    if bool(before.steps) != bool(after.steps):  # a step cannot be compared with a window
        before, after = _without_steps(before), _without_steps(after)
    old, new = _Side(before), _Side(after)
    figures = [
        _change("step" if old.rows and new.rows else "window", "ns", old, new, lambda step: step.wall_ns, "wall_ns"),
        _change("host held", "ns", old, new, lambda step: step.stalled_ns, "stalled_ns"),
    ]
    if old.audit.summary.busy_ns is not None and new.audit.summary.busy_ns is not None:
        figures.insert(1, _change("GPU busy", "ns", old, new, lambda step: step.busy_ns, "busy_ns"))
        figures.insert(2, _change("GPU idle", "ns", old, new, lambda step: step.idle_ns, "idle_ns"))
        figures += _idle(old, new)
    figures.append(_counted("waiting calls", old.audit.summary.syncs, new.audit.summary.syncs))
    findings = _findings(old, new)
    kernels = _kernels(before.kernels, after.kernels, old.count, new.count)
    worse = [c for c in figures[:4] if c.verdict == "worse" and c.significant and _lost(c, old) > threshold]
    return Diff(
        schema=SCHEMA,
        before=before.source,
        after=after.source,
        figures=tuple(figures),
        findings=tuple(findings),
        kernels=tuple(kernels),
        regression=bool(worse),
        text=_text(figures[0], findings, worse, threshold, has_spread=_have_spread(old, new)),
    )


def compare_benchmarks(
    before: Benchmark, after: Benchmark, names: tuple[str, str], threshold: float = THRESHOLD
) -> Diff:
    """The candidates that both benchmarks have; a change is significant if the medians' intervals do not meet."""
    old = {candidate.name: candidate for candidate in before.candidates}
    figures = []
    for candidate in after.candidates:
        if candidate.name not in old:
            continue
        first, second = old[candidate.name], candidate
        values = (_median(first.gpu_ns or first.wall_ns), _median(second.gpu_ns or second.wall_ns))
        apart = first.interval_ns[1] < second.interval_ns[0] or second.interval_ns[1] < first.interval_ns[0]
        significant = apart and _relative(*values) > _LEAST
        figures.append(Change(candidate.name, *values, "ns", significant, _verdict(*values)))
    worse = [c for c in figures if c.verdict == "worse" and c.significant and _relative(c.before, c.after) > threshold]
    slower = ", ".join(f"{c.name} ({_percent(c)})" for c in worse)
    changed = sum(c.significant for c in figures)
    text = (
        f"Slower beyond {100 * threshold:.0f} %: {slower}."
        if worse
        else (f"No candidate is slower beyond {100 * threshold:.0f} %; {changed} of {len(figures)} changed.")
    )
    return Diff(SCHEMA, *names, tuple(figures), (), (), bool(worse), text)


class _Side:
    """One audit with what every figure needs of it."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit
        self.rows = audit.steps
        self.count = max(audit.summary.steps, 1)
        self.wall_ns = audit.summary.wall_ns


def _without_steps(audit: Audit) -> Audit:
    audit = replace(audit, steps=())
    return replace(audit, summary=summarise(audit))


def _have_spread(old: _Side, new: _Side) -> bool:
    return len(old.rows) > 1 and len(new.rows) > 1


def _change(name: str, unit: str, old: _Side, new: _Side, of: Callable[[Step], float], field: str) -> Change:
    values = getattr(old.audit.summary, field), getattr(new.audit.summary, field)
    if _have_spread(old, new):
        significant = differ([of(step) for step in old.rows], [of(step) for step in new.rows])
    else:
        significant = _relative(*values) > _LEAST
    return Change(name, *values, unit, significant, _verdict(*values))


def differ(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether two sets of at least two values have different means, by Welch's test at 95 %."""
    first, second = fmean(before), fmean(after)
    if _relative(first, second) <= _LEAST:
        return False
    errors = variance(before) / len(before), variance(after) / len(after)
    error = math.sqrt(sum(errors))
    if not error:
        return True
    freedom = sum(errors) ** 2 / (errors[0] ** 2 / (len(before) - 1) + errors[1] ** 2 / (len(after) - 1))
    return abs(first - second) / error > _student(freedom)


def _student(freedom: float) -> float:
    below = [known for known in _STUDENT if known <= freedom]
    return 1.96 if freedom > 60 else _STUDENT[max(below, default=1)]


def _idle(old: _Side, new: _Side) -> list[Change]:
    """Idle time a step by cause; what changes by less than the steps' idle time itself wavers is not significant."""
    noise = _noise([s.idle_ns for s in old.rows], [s.idle_ns for s in new.rows]) if _have_spread(old, new) else 0.0
    changes = []
    for cause in dict.fromkeys((*old.audit.idle, *new.audit.idle)):
        if cause in EDGES:
            continue
        values = old.audit.idle.get(cause, 0) / old.count, new.audit.idle.get(cause, 0) / new.count
        significant = abs(values[1] - values[0]) > noise and _relative(*values) > _LEAST
        changes.append(Change(f"idle: {cause}", *values, "ns", significant, _verdict(*values)))
    return sorted(changes, key=lambda change: -abs(change.after - change.before))


def _noise(before: Sequence[float], after: Sequence[float]) -> float:
    error = math.sqrt(variance(before) / len(before) + variance(after) / len(after))
    return error * _student(min(len(before), len(after)) - 1)


def _counted(name: str, before: float, after: float) -> Change:
    return Change(name, before, after, "", _relative(before, after) > _LEAST, _verdict(before, after))


def _findings(old: _Side, new: _Side) -> list[FindingChange]:
    """Pairs of the same finding, twins in their order; what is new first."""
    pairs, left, fresh = _paired(old.audit.findings, new.audit.findings, lambda found: found.identity)
    # A trace without lines knows the rule alone: enough where no other finding has it.
    more, left, fresh = _paired(left, fresh, lambda found: (found.rule, found.op), alone=True)
    changes = [FindingChange(_judge(before, after, old, new), before, after) for before, after in (*pairs, *more)]
    changes += [FindingChange("new", None, found) for found in fresh]
    changes += [FindingChange("gone", found, None) for found in left]
    order = ("new", "worse", "better", "gone", "same")
    return sorted(changes, key=lambda change: order.index(change.verdict))


def _paired(
    before: Sequence[Finding],
    after: Sequence[Finding],
    key: Callable[[Finding], tuple[str, ...]],
    *,
    alone: bool = False,
) -> tuple[list[tuple[Finding, Finding]], list[Finding], list[Finding]]:
    """The findings with the same key, and what is left on both sides; `alone`: only where one side has no line."""
    waiting: dict[tuple[str, ...], list[Finding]] = defaultdict(list)
    for found in before:
        waiting[key(found)].append(found)
    counts = Counter(map(key, after))
    pairs, fresh = [], []
    for found in after:
        twins = waiting[key(found)]
        unsure = alone and not (len(twins) == counts[key(found)] == 1 and None in (twins[0].place, found.place))
        if twins and not unsure:
            pairs.append((twins.pop(0), found))
        else:
            fresh.append(found)
    return pairs, [found for twins in waiting.values() for found in twins], fresh


def _judge(before: Finding, after: Finding, old: _Side, new: _Side) -> str:
    """By held and idle time a step; a change below 1 % of the step is none, nor one below a tenth of the finding."""
    first = (before.stall_ns + before.idle_ns) / old.count
    second = (after.stall_ns + after.idle_ns) / new.count
    if abs(second - first) <= max(_LEAST * old.wall_ns, 0.1 * first):
        return "same"
    return _verdict(first, second)


def _kernels(before: Iterable[Hot], after: Iterable[Hot], old: int, new: int) -> list[Change]:
    """Kernels whose GPU time a step changed by more than a twentieth."""
    first = {hot.name: hot.total_ns / old for hot in before}
    second = {hot.name: hot.total_ns / new for hot in after}
    changes = []
    for name in dict.fromkeys((*first, *second)):
        values = first.get(name, 0.0), second.get(name, 0.0)
        if _relative(*values) > 0.05:
            changes.append(Change(name, *values, "ns", True, _verdict(*values)))
    return sorted(changes, key=lambda change: -abs(change.after - change.before))[:_KERNELS]


def _verdict(before: float, after: float) -> str:
    if _relative(before, after) <= _LEAST:
        return "same"
    return "worse" if after > before else "better"


def _relative(before: float, after: float) -> float:
    largest = max(abs(before), abs(after))
    return abs(after - before) / largest if largest else 0.0


def _lost(change: Change, old: _Side) -> float:
    return (change.after - change.before) / old.wall_ns if old.wall_ns else 0.0


def _median(spread: Spread) -> float:
    return spread.p50_ns


def _percent(change: Change) -> str:
    sign = "+" if change.after >= change.before else ""
    return f"{sign}{show_share(change.after - change.before, change.before)}"


def _text(
    wall: Change, findings: Sequence[FindingChange], worse: Sequence[Change], threshold: float, *, has_spread: bool
) -> str:
    times = f"from {show_ns(wall.before)} to {show_ns(wall.after)}"
    if wall.verdict == "same":
        text = f"The {wall.name} is as long as before ({times})"
    else:
        sure = "" if wall.significant else ", within the spread of the steps"
        text = (
            f"The {wall.name} is {'longer' if wall.verdict == 'worse' else 'shorter'}, {times} ({_percent(wall)}{sure})"
        )
    counts = {verdict: sum(c.verdict == verdict for c in findings) for verdict in ("new", "worse", "better", "gone")}
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    text += f"; findings: {said}" if said else "; the findings are the same"
    if worse:
        names = " and ".join(change.name for change in worse)
        text += f". A regression beyond {100 * threshold:.0f} % of the {wall.name}: {names}"
    if not has_spread:
        text += ". Without two steps on each side there is no spread to judge by"
    return text + "."
