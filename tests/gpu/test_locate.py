"""Real CUDA errors: the guilty line in one run, the values in the second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tests" / "faults"


def locate(tmp_path: Path, *words: str) -> dict:
    """The command's answer."""
    answer = tmp_path / "answer.json"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "tracer", "locate", "--format", "json", "-o", str(answer), "--limit", "100", *words],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert answer.exists(), done.stderr
    found = json.loads(answer.read_text())
    assert found["status"] == done.returncode
    return found


def fault(tmp_path: Path, name: str, *options: str) -> tuple[dict, int]:
    script = FAULTS / f"{name}.py"
    lines = script.read_text().splitlines()
    guilty = next(number for number, line in enumerate(lines, 1) if line.endswith("# FAULT"))
    return locate(tmp_path, *options, "--", sys.executable, str(script)), guilty


def test_one_run_and_a_second_one_agree(tmp_path):
    found, guilty = fault(tmp_path, "embedding")

    assert found["kind"] == "async.assert"
    assert [place["line"] for place in found["first"]["bracket"]] == [guilty]
    assert (found["cause"]["line"], found["cause_from"], found["confidence"]) == (guilty, "both", "high")
    assert found["offending"] == ["ids[3, 7] = 1000, valid 0..999"]
    assert found["op"].startswith("aten.embedding(f32[1000, 64], i64[32, 128]")
    assert found["first"]["reported"]["line"] != guilty
    assert "of them" in found["first"]["assertions"][0]
    assert any("aten.embedding" in flying["op"] for flying in found["first"]["in_flight"])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("triton_store", ("--no-ops",)),
        ("second_stream", ()),
        ("helper_thread", ("--no-ops",)),
        ("nested_call", ("--no-ops",)),
        ("terminated", ()),
        ("graph_replay", ()),
        ("compiled", ()),
        ("loader_worker", ()),
    ],
)
def test_one_run_is_enough(tmp_path, name, options):
    found, guilty = fault(tmp_path, name, "--no-rerun", *options)

    assert [place["line"] for place in found["first"]["bracket"]] == [guilty], found
    assert found["cause_from"] == "marks"


def test_a_fault_in_the_backward_pass_leads_to_its_forward(tmp_path):
    found, guilty = fault(tmp_path, "backward_op", "--no-rerun")

    assert found["cause"]["line"] == guilty
    assert "# FORWARD" in found["forward"]["excerpt"]


def test_thinned_marks_hold_the_guilty_line(tmp_path):
    found, guilty = fault(tmp_path, "loss_target", "--no-rerun", "--no-ops", "--marks", "sparse")

    assert guilty in [place["line"] for place in found["first"]["bracket"]]


def test_the_time_round_and_later_failures_are_told(tmp_path):
    found, guilty = fault(tmp_path, "swallowed")

    assert (found["cause"]["line"], found["iteration"]) == (guilty, 2)
    assert found["first"]["later"]


def test_the_example_config_finds_its_token(tmp_path):
    found = locate(tmp_path, str(ROOT / "configs" / "device_assert.yaml"))

    assert "self.tokens(ids)" in found["cause"]["excerpt"]
    assert found["offending"] == ["ids[3, 7] = 1000, valid 0..999"]
    assert found["iteration"] == 3
    assert [place["function"] for place in found["callers"]][-2:] == ["main", "<module>"]


TEST = """
import torch

def test_look_up(locate):
    table = torch.zeros(10, 4, device="cuda")
    ids = torch.tensor([11], device="cuda")
    picked = table.index_select(0, ids)
    print(picked.sum().item())
"""


def test_the_fixture_names_the_line_in_the_failure(tmp_path):
    test = tmp_path / "test_it.py"
    test.write_text(TEST)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tracer.integrations.locate_fixture", str(test)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert f"tracer: launched at {test}:7: picked = table.index_select(0, ids)" in done.stdout
