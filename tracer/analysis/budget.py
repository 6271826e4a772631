"""Budgets: limits for the figures of an audit, so that what was fixed stays fixed.

A budget is a mapping from a figure to its limit, each step unless `per: total`:

    tolerance: 5%
    gpu_idle: 20%                 # or a time: 2ms
    host_held: 1ms
    implicit_syncs: 1
    SYNC001: 0                    # calls of a rule; of a class too: sync.item
    train.py: {held: 500us}       # a file: count, held and idle
    train.py:31: {count: 1, per: total}
    gpu_busy: {min: 80%}
    launching.max_queue_depth: 900    # any other number of the audit, by its path
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from tracer.analysis.summary import WAITS
from tracer.errors import TraceError, UsageError
from tracer.results import Audit, BudgetLine, Finding, Place
from tracer.units import parse_ns

FIGURES = ("wall", "gpu_busy", "gpu_idle", "host_held", "syncs", "implicit_syncs", "findings")
_PARTS = ("count", "held", "idle")
_OPTIONS = ("max", "min", "per", "tolerance")
_EXAMPLES = {"ns": "a time (2ms)", "%": "a share (20%)", "": "a number (2)"}
_EXPLICIT = ("sync.explicit", "sync.event")


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a budget."""

    name: str
    part: str  # "", or of a scope "count", "held", "idle"
    value: float
    unit: str  # "ns", "%" or ""
    least: bool  # the figure must be at least this
    per: str  # "step" or "total"
    tolerance: float


def parse_budget(budget: Mapping[str, Any], source: str = "the budget") -> tuple[Limit, ...]:
    """Read and check a budget.

    Raises UsageError for an unknown figure or a limit that is no number.
    """
    common = _share(budget.get("tolerance", 0), f"{source}: tolerance")
    return tuple(
        limit
        for name, wanted in budget.items()
        if name != "tolerance"
        for limit in _limits(str(name), wanted, common, source)
    )


def apply_budget(audit: Audit, limits: Iterable[Limit]) -> Audit:
    """The Audit with one budget line for each limit.

    Raises TraceError if the trace cannot tell a figure that is limited.
    """
    return replace(audit, budget=(*audit.budget, *(_check(audit, limit) for limit in limits)))


def _limits(name: str, wanted: Any, common: float, source: str) -> Iterator[Limit]:
    where = f"{source}: {name}"
    scope = bool(scope_of(name))
    if not scope and name not in FIGURES and "." not in name:
        near = get_close_matches(name, FIGURES, 1)
        hint = f"did you mean {near[0]}?" if near else f"the figures are {', '.join(FIGURES)}, a rule, a file or a line"
        raise UsageError(f"{source} limits {name!r}, which is no figure of an audit", fix=hint)
    options = dict(wanted) if isinstance(wanted, Mapping) else {"max": wanted}
    per = str(options.pop("per", "step"))
    if per not in ("step", "total"):
        raise UsageError(f"{where}: per is {per!r}", fix="write `per: step` or `per: total`")
    tolerance = _share(options.pop("tolerance", common), f"{where}: tolerance")
    if not options:
        raise UsageError(f"{where} has no limit", fix="write for example `max: 2ms`")
    for key, value in options.items():
        if key not in (*_OPTIONS, *(_PARTS if scope else ())):
            raise UsageError(f"{where}: unknown key {key!r}", fix=f"the keys are {', '.join((*_OPTIONS, *_PARTS))}")
        number, unit = _value(value, where)
        part = key if key in _PARTS else ("" if not scope else "held" if unit == "ns" else "count")
        allowed = _units(name, part)
        if unit not in allowed:
            shown = " or ".join(_EXAMPLES[unit] for unit in allowed)
            raise UsageError(f"{where}: {value!r} has the wrong unit", fix=f"write {shown}")
        yield Limit(name, part, number, unit, key == "min", per, tolerance)


def _units(name: str, part: str) -> tuple[str, ...]:
    """The units that a limit of this figure may have."""
    if part:
        return ("",) if part == "count" else ("ns",)
    if name in ("syncs", "implicit_syncs", "findings"):
        return ("",)
    if name in FIGURES:
        return ("ns",) if name == "wall" else ("ns", "%")
    return ("ns",) if name.endswith("_ns") else ("",)


def scope_of(name: str) -> str:
    """What a limit's name selects findings by: "rule", "class", "file" (a line of it, too), or "" if by none."""
    if re.fullmatch(r"[A-Z]+\d{3}", name):
        return "rule"
    if re.search(r"\.py(:\d+)?$", name):
        return "file"
    return "class" if "." in name and name.partition(".")[0] not in Audit.__slots__ else ""


def _value(value: Any, where: str) -> tuple[float, str]:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UsageError(f"{where}: {value!r} is no limit", fix="write a number, a time (2ms) or a share (20%)")
    if isinstance(value, int | float):
        return float(value), ""
    text = value.strip()
    try:
        if text.endswith("%"):
            return float(text[:-1]), "%"
        return (float(text), "") if re.fullmatch(r"[0-9.]+", text) else (float(parse_ns(text)), "ns")
    except ValueError as error:
        raise UsageError(f"{where}: {value!r} is no limit", why=str(error)) from error


def _share(value: Any, where: str) -> float:
    number, unit = _value(value, where)
    return number / 100 if unit == "%" else number


def _check(audit: Audit, limit: Limit) -> BudgetLine:
    found = _figure(audit, limit)
    if found is None:
        why = "the trace has no steps" if limit.per == "step" and not audit.steps else "the trace has no GPU"
        fix = "write `per: total` for this limit" if "steps" in why else "check it on a machine with one"
        raise TraceError(f"the budget limits {limit.name}, which this trace cannot tell", why=why, fix=fix)
    actual, unit = found
    slack = limit.value * limit.tolerance
    ok = actual >= limit.value - slack if limit.least else actual <= limit.value + slack
    per = " a step" if limit.per == "step" and unit != "%" and audit.steps else ""
    name = " ".join(word for word in (limit.name, limit.part) if word) + per + (" (minimum)" if limit.least else "")
    place = None if ok else _culprit(audit, limit)
    return BudgetLine(name, limit.value, actual, unit, ok, place, limit.tolerance)


def _figure(audit: Audit, limit: Limit) -> tuple[float, str] | None:
    if scope_of(limit.name):
        return _of_findings(audit, limit, _chooser(limit.name), limit.part or "count")
    if limit.name in ("syncs", "implicit_syncs"):
        return _of_findings(audit, limit, _chooser(limit.name), "count")
    if limit.name == "findings":
        return float(sum(not f.accepted and not f.harmless for f in audit.findings)), ""
    if limit.name in FIGURES:
        return _of_summary(audit, limit)
    return _by_path(audit, limit.name)


def _of_summary(audit: Audit, limit: Limit) -> tuple[float, str] | None:
    summary = audit.summary
    ns, share = {
        "wall": (summary.wall_ns, 1.0),
        "gpu_busy": (summary.busy_ns, summary.busy_share),
        "gpu_idle": (summary.idle_ns, summary.idle_share),
        "host_held": (summary.stalled_ns, summary.stalled_share),
    }[limit.name]
    if ns is None or share is None:
        return None
    if limit.unit == "%":
        return 100 * share, "%"
    if limit.per == "step":
        return (ns, "ns") if audit.steps else None
    return ns * max(summary.steps, 1), "ns"


def _of_findings(audit: Audit, limit: Limit, chosen: Callable[[Finding], bool], part: str) -> tuple[float, str] | None:
    total = 0.0
    for found in audit.findings:
        if chosen(found) and not found.accepted:
            total += {"count": found.count, "held": found.stall_ns, "idle": found.idle_ns}[part]
    unit = "" if part == "count" else "ns"
    if limit.per == "step" and audit.steps:
        return total / audit.summary.steps, unit
    known = limit.per == "total" or not total or not limit.value  # none is none, of steps too
    return (total, unit) if known else None


def _by_path(audit: Audit, path: str) -> tuple[float, str]:
    value: Any = audit
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"the budget limits {path!r}, which is no number of this audit")
    return float(value), "ns" if path.endswith("_ns") else ""


def _chooser(name: str) -> Callable[[Finding], bool]:
    """Whether a finding belongs to what a limit names."""
    if name == "syncs":
        return lambda found: found.kind.startswith(WAITS)
    if name == "implicit_syncs":
        return lambda found: found.kind.startswith(WAITS) and found.kind not in _EXPLICIT
    if re.fullmatch(r"[A-Z]+\d{3}", name):
        return lambda found: found.rule == name
    at = re.fullmatch(r"(.*\.py)(?::(\d+))?", name)
    if at is None:
        return lambda found: found.kind == name
    file, line = at[1], int(at[2] or 0)
    return lambda found: found.place is not None and is_file(found.place.file, file) and line in (0, found.place.line)


def is_file(path: str, file: str) -> bool:
    """Whether a path is what a budget calls so: by its end."""
    path = path.replace("\\", "/")
    return path == file or path.endswith("/" + file.removeprefix("./"))


def _culprit(audit: Audit, limit: Limit) -> Place | None:
    """The dearest line among those that a broken limit counts; findings come dearest first."""
    scoped = bool(scope_of(limit.name)) or limit.name.endswith("syncs")
    chosen = _chooser(limit.name) if scoped else lambda found: not found.harmless
    return next((f.place for f in audit.findings if f.place and chosen(f) and not f.accepted), None)
