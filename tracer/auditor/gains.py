"""What removing each finding would gain, and what holds the program as a whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracer.analysis.idle import CAUSES
from tracer.analysis.launches import feeding_threads, find_devices
from tracer.analysis.replay import Prediction, Removal, predict
from tracer.auditor.examination import Examination
from tracer.auditor.idle_table import words_of_idle
from tracer.results import Finding, Gain, Verdict
from tracer.rules import rule_modules
from tracer.rules._holds import HARMLESS_WORDS
from tracer.trace import Bools, Steps
from tracer.units import show_ns

_START_UP = ("load.", "compile.")  # causes of idle time that a program has once
_WORTH = 0.02  # of the step: a gain from here on is worth having
# How the replay takes a finding away, by its kind; kinds that are not here are not replayed.
_HOW = {
    "sync.item": "no_wait",
    "sync.shape": "no_wait",
    "sync.check": "no_wait",
    "sync.event": "no_wait",
    "sync.in_op": "no_wait",
    "sync.driver": "no_wait",
    "sync.extension": "no_wait",
    "sync.h2d_pageable": "pinned_upload",
    "sync.h2d_pinned": "pinned_upload",
    "copy.pageable_h2d": "pinned_upload",
    "copy.sync_api": "pinned_upload",
    "sync.d2h": "later_download",
    "copy.pageable_d2h": "later_download",
    "sync.explicit": "drop",
    "collective.wait": "drop",
    "alloc.malloc": "no_alloc",
    "alloc.free": "drop",
    "alloc.pin": "no_alloc",
    "alloc.unpin": "no_alloc",
    "alloc.retry": "no_alloc",
    "launch.queue_full": "no_queue_wait",
    "load.lazy": "loaded",
}


def with_gains(found: Examination, steps: Steps) -> tuple[Prediction, tuple[Finding, ...]]:
    """What removing each finding would save, and the findings with it."""
    evidence = found.evidence
    removals = []
    for number, finding in enumerate(found.findings):
        rows = evidence.rows.get(finding.id)
        how = "drop" if finding.op == "tensor" else _HOW.get(finding.kind)
        if rows is not None and how is not None and len(rows):
            removals.append(Removal(number, evidence.stalls.call[rows], evidence.stalls.op[rows], how))
    prediction = predict(found.trace, evidence.launches, evidence.stalls, steps, removals)
    findings = list(found.findings)
    beside = _beside(found)
    for removal, gain in zip(removals, prediction.gains, strict=True):
        if beside[evidence.stalls.track[evidence.rows[findings[removal.finding].id][0]]]:
            gain = None  # the replay's step is that of the threads that feed the GPU
        findings[removal.finding] = _priced(findings[removal.finding], gain)
    span = max(evidence.span_ns, 1)
    return prediction, tuple(
        sorted(findings, key=lambda one: (one.harmless, one.severity == "info", -_worth(one, span)))
    )


def _worth(finding: Finding, span_ns: int) -> float:
    """What a finding costs as a share of the step: by its gain, else by the idle time that follows from it."""
    if finding.gain_ns is not None:
        return finding.gain_ns.share
    return finding.idle_ns / span_ns


def _beside(found: Examination) -> Bools:
    """For each track, whether it launches work but feeds no device."""
    trace, launches = found.trace, found.evidence.launches
    launching = np.zeros(len(trace.tracks), np.bool_)
    launching[trace.spans.track[launches.call]] = True
    for device in find_devices(trace):
        launching &= ~feeding_threads(trace, launches, *device)[0]
    return launching


def _priced(finding: Finding, gain: Gain | None) -> Finding:
    """The finding with its gain. What the replay says would go faster is not harmless, however busy the GPU was.

    That is said of what comes again; a single wait at the end of a run has nothing to win.
    """
    if gain is None or gain.share < _WORTH or finding.count < 2 or not finding.idle_ns:
        return replace(finding, gain_ns=gain)
    rule = next(module.RULE for module in rule_modules() if module.RULE.id == finding.rule)
    finding = replace(finding, severity=rule.severity)
    if not finding.harmless:
        return replace(finding, gain_ns=gain)
    message = finding.message.partition(HARMLESS_WORDS)[0] + f"; without it a step would save {show_ns(gain.likely_ns)}"
    return replace(finding, gain_ns=gain, harmless=False, message=message)


def find_verdicts(found: Examination, prediction: Prediction) -> tuple[Verdict, ...]:
    """Answers about the whole window: those of the replay, and that there is no GPU or no input."""
    if not found.evidence.trust.has_gpu:
        return (Verdict("no_gpu", "There is no GPU work in this trace, so no async gap to see"),)
    verdicts = list(prediction.verdicts)
    waited = int(found.idle.dur_ns[found.idle.cause == CAUSES.index("input.bound")].sum())
    share = waited / max(found.evidence.span_ns, 1)
    launching = int(found.idle.dur_ns[found.idle.cause == CAUSES.index("launch.bound")].sum())
    if _starting_up(found, prediction):  # of the program as it runs then, the recording tells nothing
        verdicts = [verdict for verdict in verdicts if verdict.id not in ("launch_bound", "device_bound")]
    if waited > launching:  # the host is slow, but not at launching
        verdicts = [verdict for verdict in verdicts if verdict.id != "launch_bound"]
    if share > 0.1:
        text = f"The GPU waits for input {show_ns(waited)}, {100 * share:.0f} % of the time"
        verdicts.append(Verdict("input_bound", text, share, "traced"))
    return tuple(verdicts)


def _starting_up(found: Examination, prediction: Prediction) -> bool:
    """Whether most of the idle time in what was replayed is the program's start: before the first work, loading."""
    idle = found.idle
    starts, ends = idle.start_ns, idle.start_ns + idle.dur_ns
    inside = np.zeros(len(idle), np.int64)
    for rank, low, high in prediction.windows:
        within = np.maximum(np.minimum(ends, high) - np.maximum(starts, low), 0)
        inside = np.where(idle.rank == rank, within, inside)
    start_up = np.array([word == "head" or word.startswith(_START_UP) for word in words_of_idle(found)], np.bool_)
    return bool(2 * inside[start_up].sum() > inside.sum())
