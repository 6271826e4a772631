"""How the reports say things, so that all formats use the same words for the same figures."""

from __future__ import annotations

import re

import msgspec

import tracer
from tracer.results import SHOWN_ROWS, Acceptance, Audit, BudgetLine, Finding, Gain, IdleRow, Place, Timer
from tracer.units import show_ns, show_range

_OFF = 1.1  # a timer's factor from which it is worth a word
# Control characters, and those that reorder or hide text: a trace must not steer a terminal or deceive a reader.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def plain(text: str) -> str:
    """Text out of a trace with everything that could steer a terminal shown as an escape, tabs as spaces."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text.expandtabs(4))


def escape(text: str) -> str:
    """JSON with the same characters in its strings as escapes, so that it reads back as it was."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """The same on one line."""
    return plain(text).replace("\n", " ")


def where(place: Place | None, root: str = "") -> str:
    """`train.py:17 in train`, or `no line known`."""
    if place is None:
        return "no line known"
    name = place.file.removeprefix(root) if root else place.file
    line = f":{place.line}" if place.line else ""
    function = f" in {place.function}" if place.function else ""
    return one_line(f"{name}{line}{function}" + ("" if place.exact else " (function only)"))


def percent(share: float | None) -> str:
    """`38 %`, `<1 %`, or `-`."""
    if share is None:
        return "-"
    return "<1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def count(number: float) -> str:
    """`8`, `1.5`."""
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:,.1f}"


def times(number: float, noun: str) -> str:
    """`1 call`, `8 calls`, `1.5 calls`."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def gain(found: Gain | None) -> str:
    """`saves 1.20 to 2.10 ms a step (19 % of the untraced step); the next limit is the GPU`; empty if not simulated."""
    if found is None:
        return ""
    then = f"; the next limit is {one_line(found.bottleneck)}" if found.bottleneck else ""
    if not found.likely_ns:
        return f"alone it saves nothing{then}"
    span = show_range(found.low_ns, found.likely_ns)
    clock = f" of the {found.clock} {found.of}" if found.clock else ""
    each = "in all" if found.of == "window" else f"a {found.of}"
    return f"saves {span} {each} ({percent(found.share)}{clock}){then}"


def noun(finding: Finding) -> str:
    """What a finding counts: gaps of the GPU where nothing held the host, else calls."""
    return "call" if finding.waits or not finding.rule.startswith("IDLE") else "gap"


def costs(finding: Finding) -> list[str]:
    """What a finding cost, each a short phrase: `8 calls`, `host held 26.0 ms`, ..."""
    said = []
    if finding.count:
        said.append(times(finding.count, noun(finding)))
    if finding.waits and finding.waits != finding.count:
        said.append(times(finding.waits, "wait"))
    if finding.stall_ns:
        said.append(f"host held {show_ns(finding.stall_ns)}")
    if finding.idle_ns:
        said.append(f"GPU idle {show_ns(finding.idle_ns)}")
    if finding.lead_ns:
        said.append(f"lead lost {show_ns(finding.lead_ns)}")
    return said


def per_step(finding: Finding) -> str:
    """`a step: 1 call, held 3.25 ms, idle 2.50 ms`; empty without steps."""
    cost = finding.per_step
    if cost is None:
        return ""
    said = [times(cost.count, noun(finding))] if cost.count else []
    said += [f"held {show_ns(cost.stall_ns)}"] if cost.stall_ns else []
    said += [f"idle {show_ns(cost.idle_ns)}"] if cost.idle_ns else []
    return ", ".join(said)


def verdicts(audit: Audit) -> list[str]:
    """The answers about the window that the headline does not give already."""
    return [one_line(verdict.text) for verdict in audit.verdicts if verdict.id != "no_gpu"]


def side(finding: Finding | None) -> str:
    """A finding's cost in a comparison: a step where there are steps, since two recordings may have more or fewer."""
    if finding is None:
        return "-"
    each = per_step(finding)
    return f"{each} a step" if each else ", ".join(costs(finding)) or "nothing"


def origin(audit: Audit) -> str:
    """What wrote the audit, and the versions and machine of the recording."""
    said = [f"tracer {tracer.__version__}"]
    if audit.meta.get("host"):
        said.append(f"recorded on {one_line(audit.meta['host'])}")
    try:
        versions = msgspec.json.decode(audit.meta.get("versions", "{}"), type=dict[str, str])
    except msgspec.MsgspecError:
        versions = {}
    return ", ".join([*said, *(one_line(f"{name} {version}") for name, version in versions.items())])


def has_ranks(audit: Audit) -> bool:
    """Whether the audit is of several processes of a job, so that a rank must be named."""
    ranks = {found.rank for found in audit.findings} | {device.rank for device in audit.devices}
    return len(ranks | {step.rank for step in audit.steps}) > 1


def cause(row: IdleRow, audit: Audit) -> str:
    """Why a GPU was idle; of several GPUs, which."""
    devices = {(device.rank, device.device) for device in audit.devices}
    if len(devices) < 2 or row is audit.idle_others:
        return one_line(row.cause)
    rank = f"rank {row.rank} " if len({rank for rank, _ in devices}) > 1 else ""
    return f"{one_line(row.cause)} ({rank}GPU {row.device})"


def thread(finding: Finding, audit: Audit) -> str:
    """`MainThread`, or `MainThread of rank 1` in a job of several; empty if neither is known."""
    if not has_ranks(audit):
        return one_line(finding.thread)
    return f"{one_line(finding.thread)} of rank {finding.rank}" if finding.thread else f"rank {finding.rank}"


def split(audit: Audit) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """The findings that cost something, those that cost no throughput, and those that the source accepts."""
    accepted = [f for f in audit.findings if f.accepted]
    harmless = [f for f in audit.findings if f.harmless and not f.accepted]
    costly = [f for f in audit.findings if not f.harmless and not f.accepted]
    return costly, harmless, accepted


def nothing(audit: Audit) -> str:
    """What to say where there are no findings: what was not there to be judged is not fine."""
    if audit.meta.get("kind") == "check":
        return "Nothing was found in the source."
    if not audit.devices:
        return "The trace has no GPU work, and without it nothing can be judged."
    return "Nothing that costs throughput was found."


def idle_rows(audit: Audit) -> tuple[IdleRow, ...]:
    """The largest rows of idle time, and one for all others, so that they sum."""
    return (*audit.idle_rows[:SHOWN_ROWS], audit.idle_others) if audit.idle_others else audit.idle_rows


def pace(audit: Audit) -> str:
    """How much recording slowed the program, in one sentence; empty if unknown."""
    found = audit.pace
    if found.traced_ns is None:
        return ""
    if found.untraced_ns is None or found.ratio is None:
        return f"a step while recording: {show_ns(found.traced_ns)} (median); the program's own pace is unknown"
    return (
        f"a step (median): {show_ns(found.untraced_ns)} untraced, {show_ns(found.traced_ns)} while recording"
        f" ({found.ratio:.2f} times); steps from {found.steps_from or 'unknown'}"
    )


def claim(timer: Timer) -> str:
    """What a timer says: `742 us, 72 times too fast`; `raises` where it gives no time at all."""
    if timer.verdict == "bench.event_not_ready":
        return "raises"
    said = show_ns(timer.claimed_ns)
    if timer.verdict == "honest" or not timer.ratio or 1 / _OFF < timer.ratio < _OFF:
        return said
    factor, which = (timer.ratio, "fast") if timer.ratio > 1 else (1 / timer.ratio, "slow")
    return f"{said}, {factor:.2g} times too {which}" if factor < 10 else f"{said}, {factor:,.0f} times too {which}"


def amount(number: float, unit: str) -> str:
    """A figure with its unit: `3.25 ms` where the unit is ns, `38 %` for shares, `8 calls`."""
    if unit == "ns":
        return show_ns(number)
    if unit == "%":
        return f"{number:.1f} %"
    return f"{count(number)} {unit}".rstrip()


def unused(acceptance: Acceptance) -> str:
    """That a comment in the source accepts nothing."""
    if not acceptance.reason:
        return f"`# tracer: ok {acceptance.rule}` gives no reason, so it accepts nothing: write one after the rule"
    return f"`# tracer: ok {acceptance.rule}` accepts nothing here: remove it"


def limit(line: BudgetLine) -> str:
    """`GPU idle: 37.1 %, limit 20.0 %`."""
    place = f" at {where(line.place)}" if line.place else ""
    return f"{one_line(line.name)}{place}: {amount(line.actual, line.unit)}, limit {amount(line.limit, line.unit)}"
