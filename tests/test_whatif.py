"""`tracer whatif`: gains as a table and as JSON, and honest words where there are none."""

from __future__ import annotations

import json

import pytest

from tests.shared import H200
from tracer.commands import main


def whatif(capsys, *arguments):
    assert main(["whatif", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_a_wait_that_costs_and_one_that_does_not(capsys):
    costly = json.loads(whatif(capsys, H200 / "IS23.json.gz", "--format", "json"))
    free = json.loads(whatif(capsys, H200 / "IS22.json.gz", "--format", "json"))

    assert costly["findings"][0]["kind"] == free["findings"][0]["kind"] == "sync.item"
    assert costly["findings"][0]["gain_ns"]["share"] > 0.25
    assert free["findings"][0]["gain_ns"]["share"] < 0.03
    assert "device_bound" in [verdict["id"] for verdict in free["verdicts"]]
    assert costly["replay"]["error"] < 0.02


def test_the_table_names_the_line_and_what_holds_the_program_then(capsys):
    text = whatif(capsys, H200 / "IS02.json.gz")

    assert "IS02.py:22" in text
    assert "IS02.py:24" in text
    assert "all of these" in text
    assert "then it is held by" in text
    assert "traced clock" in text


def test_two_reads_gain_more_together_than_one_by_one(capsys):
    data = json.loads(whatif(capsys, H200 / "IS02.json.gz", "--format", "json"))

    alone = sum(row["gain_ns"]["likely_ns"] for row in data["findings"])
    assert data["replay"]["together"]["likely_ns"] > 1.2 * alone


def test_a_trace_without_a_gpu_predicts_nothing(capsys, tmp_path):
    trace = tmp_path / "cpu.json"
    trace.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}]}'
    )

    assert whatif(capsys, trace).startswith("No prediction")


@pytest.mark.parametrize("name", ["train_sync", "LB01"])
def test_launch_bound_programs_are_told_what_would_help(capsys, name):
    data = json.loads(whatif(capsys, H200 / f"{name}.json.gz", "--format", "json"))

    assert [verdict["id"] for verdict in data["verdicts"]][:1] == ["launch_bound"]
    assert "CUDA graphs or torch.compile" in data["verdicts"][0]["text"]


@pytest.mark.parametrize("name", ["BM06", "BM01"])
def test_a_recording_that_is_mostly_start_up_gets_no_verdict_about_the_program(capsys, name):
    data = json.loads(whatif(capsys, H200 / f"{name}.json.gz", "--format", "json"))
    ids = {verdict["id"] for verdict in data["verdicts"]}

    # BM06 is replayed as a whole, with 94 of its 105 ms idle in loading; BM01 only where a wait repeats.
    assert ids == (set() if name == "BM06" else {"device_bound"})


def test_without_steps_what_was_replayed_is_named(capsys):
    text = whatif(capsys, H200 / "IS23.json.gz")

    assert text.startswith("A repetition took")
    assert "of each repetition of aten::item (" in text
    assert "of a step" not in text
