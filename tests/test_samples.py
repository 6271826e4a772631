"""The recordings that are kept were made on a real GPU; what they say is held here, on a CPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tracer
from tests.timer_table import OWN, compare, truths

SAMPLES = Path(__file__).resolve().parents[1] / "traces" / "samples"
ALL = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())


def line(program: str, text: str) -> int:
    lines = (Path(__file__).resolve().parents[1] / program).read_text().splitlines()
    (found,) = [number for number, content in enumerate(lines, 1) if text in content]
    return found


@pytest.mark.parametrize("name", ALL)
def test_every_sample_is_whole_and_its_sums_are_right(name):
    audit = tracer.audit(str(SAMPLES / name))

    (device,) = audit.devices
    assert device.name == "NVIDIA H200"
    assert device.busy_ns + device.idle_ns == device.window_ns
    assert sum(audit.idle.values()) == device.idle_ns
    assert audit.launching.before_call_start == 0
    assert all(0 <= step.busy_ns + step.idle_ns <= step.wall_ns + 1 for step in audit.steps)


def test_quickstart_names_its_waits_with_their_lines():
    audit = tracer.audit(str(SAMPLES / "quickstart-h200"))

    found = {(f.kind, f.place.line): f for f in audit.findings if f.place}
    item = found["sync.item", line("configs/quickstart.py", "loss.item()")]
    upload = found["sync.h2d_pageable", line("configs/quickstart.py", "inputs.to(DEVICE)")]
    assert item.count == 10
    assert item.place.columns is not None
    assert upload.count == 20
    # Nearly all of the wait is idle time and the replay sees a gain: it costs, if little, and is drawn so.
    assert upload.idle_ns > 0.9 * upload.stall_ns
    assert not upload.harmless
    drawn = [grey for picture in audit.pictures for _, _, found, grey in picture.stalls if found == upload.id]
    assert drawn
    assert not any(drawn)
    assert any(f.kind == "input.bound" for f in audit.findings)
    assert audit.pace.steps_from == "optimizer"
    assert audit.pace.untraced_ns is not None
    assert len(audit.steps) == 10


def test_the_lying_benchmark_is_named_with_its_factor():
    audit = tracer.audit(str(SAMPLES / "lying-benchmark-h200"))

    (timer,) = audit.timers
    assert (timer.verdict, timer.count) == ("bench.no_sync", 12)
    assert timer.end is not None
    assert timer.end.line == line("configs/lying_benchmark.py", "claimed = time")
    # Twenty products; each kernel takes what the trace says.
    product = max(audit.kernels, key=lambda kernel: kernel.count)
    assert timer.true_ns == pytest.approx(20 * product.mean_ns, rel=0.05)
    assert timer.ratio is not None
    assert timer.ratio > 10


@pytest.mark.parametrize("program", ["lying", "honest"])
def test_timers_are_judged_right(program):
    audit = tracer.audit(str(SAMPLES / f"timers-{program}-h200"))

    said = {f.place.line: f.kind for f in audit.findings if f.rule.startswith("TIME") and f.place}
    rows = list(compare(truths(OWN / f"{program}.py"), said))
    assert len(rows) >= 12
    assert [row for row in rows if row[3] != "right"] == []


def test_the_headline_names_what_removing_one_thing_would_gain_and_the_timer_that_lies():
    quick = tracer.audit(str(SAMPLES / "quickstart-h200")).summary.headline
    lying = tracer.audit(str(SAMPLES / "lying-benchmark-h200")).summary.headline

    assert re.search(r"removing the wait \(item\) at quickstart\.py:25 would save .* us of 7\.\d+ ms \(12 %\)", quick)
    assert lying.startswith("A timer at lying_benchmark.py:18 claims 742 us for 53.4 ms of work; ")
