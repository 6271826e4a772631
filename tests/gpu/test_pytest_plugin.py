"""The plugin on a CUDA machine: each case with implicit synchronisations fails on its lines, the clean one passes."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.shared import CASES

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

EXPLICIT = ("none", "sync.event", "sync.explicit")
TESTS = """import runpy
import pytest

@pytest.mark.no_implicit_sync
@pytest.mark.parametrize("case", {names})
def test_case(case):
    runpy.run_path(f"{folder}/{{case}}", run_name="__main__")

@pytest.mark.no_implicit_sync(max=1)
def test_clean():
    runpy.run_path("{folder}/NC01.py", run_name="__main__")

def test_budget(sync_budget):
    with sync_budget(max=19):
        runpy.run_path("{folder}/IS01.py", run_name="__main__")
"""


def cases():
    """The implicit-sync cases: file -> lines that must be found."""
    found = {}
    for case in json.loads((CASES / "cases.json").read_text()):
        if case["id"].startswith("IS"):
            for expect in case["expects"]:
                if expect["fields"]["class"].startswith("sync.") and expect["fields"]["class"] not in EXPLICIT:
                    found.setdefault(expect["file"], set()).add(expect["line"])
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One pytest over all cases: its outcome by test, and the report it wrote."""
    folder = tmp_path_factory.mktemp("cases")
    text = TESTS.format(names=sorted(cases()), folder=CASES / "inputs")
    (folder / "test_cases.py").write_text(text)
    installed = any(point.name == "tracer" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "tracer.integrations.pytest_plugin"]
    search = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--tracer-report=syncs.json", *plugin],
        cwd=folder, capture_output=True, text=True, check=False, timeout=500,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in search if path)},
    )  # fmt: skip
    if results := os.environ.get("RESULTS"):
        Path(results).mkdir(parents=True, exist_ok=True)
        (Path(results) / "pytest_plugin.txt").write_text(done.stdout + done.stderr)
    assert (folder / "syncs.json").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout, json.loads((folder / "syncs.json").read_text())


def outcome(ran, test):
    lines = [line.split(" ")[0] for line in ran[0].splitlines() if f"test_cases.py::{test}" in line]
    return next(word for word in lines if word in ("PASSED", "FAILED", "ERROR", "SKIPPED"))


@pytest.mark.parametrize("case", sorted(cases()))
def test_each_case_fails_on_its_lines(ran, case):
    entries = ran[1].get(f"test_cases.py::test_case[{case}]", [])

    found = {int(e["place"].rpartition(":")[2]) for e in entries if e["implicit"] and f"/{case}:" in e["place"]}
    assert outcome(ran, f"test_case[{case}]") == "FAILED"
    assert cases()[case] <= found


def test_the_clean_case_passes_but_for_its_one_read(ran):
    entries = [entry for entry in ran[1]["test_cases.py::test_clean"] if entry["implicit"]]

    assert outcome(ran, "test_clean") == "PASSED"
    assert [entry["place"].rpartition(":")[2] for entry in entries] == ["25"]


def test_a_budget_of_one_less_than_the_case_needs_is_broken(ran):
    assert outcome(ran, "test_budget") == "FAILED"
    assert "20 synchronisations, 19 allowed" in ran[0]
