"""Gains against what fixing by hand gained: recordings of an H200, with the steps measured without recording."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracer

GAINS = Path(__file__).with_name("data") / "gains"
MEASURED = json.loads((GAINS / "measured.json").read_text())


@pytest.fixture(scope="module")
def audits():
    return {name: tracer.audit(str(GAINS / name)) for name in MEASURED}


def off(audits, name):
    """The error of the predicted step against the step fixed by hand, as a share of the step as it was."""
    untraced, fixed = MEASURED[name]["untraced_ms"], MEASURED[name]["fixed_ms"]
    return abs(untraced * (1 - audits[name].replay.together.share) - fixed) / untraced


def test_predictions_are_near_the_hand_fix(audits):
    errors = {name: off(audits, name) for name in MEASURED}

    assert max(errors.values()) < 0.15
    assert sum(errors.values()) / len(errors) < 0.05


@pytest.mark.parametrize("name", MEASURED)
def test_the_replay_gives_back_the_recorded_step_on_the_programs_own_clock(audits, name):
    replay = audits[name].replay

    assert replay.error < 0.02
    assert not replay.abstained
    assert replay.together.clock == "untraced"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("p02_pageable_h2d", "SYNC011"),
        ("p09_new_tensor", "SYNC012"),
        ("mask", "SYNC006"),
        ("pageable_both", "SYNC011"),
        ("pageable_both", "SYNC017"),
    ],
)
def test_the_gain_stands_at_the_wait_that_the_hand_fix_removes(audits, name, rule):
    gains = {finding.rule: finding.gain_ns.share for finding in audits[name].findings if finding.gain_ns is not None}

    assert gains[rule] > 0.2


def test_a_device_bound_program_is_told_that_its_waits_cost_nothing(audits):
    (verdict,) = audits["device_bound"].verdicts

    assert verdict.id == "device_bound"
    assert audits["device_bound"].replay.together.share < 0.03
