import json
import os
import subprocess
import sys

import pytest

from tracer.recording import lines
from tracer.recording.known_faults import known_faults


def doctor(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "tracer", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )


@pytest.fixture(scope="module")
def checks():
    done = doctor("--format", "json")
    return {check["name"]: check for check in json.loads(done.stdout)}, done


def test_a_machine_without_cuda_is_told_so_with_the_fix_and_status_1(checks):
    found, done = checks

    assert found["CUDA"]["state"] == "no"
    assert "torch built with CUDA" in found["CUDA"]["fix"]
    assert done.returncode == 1


def test_every_no_and_note_has_a_fix(checks):
    found, _ = checks

    assert [name for name, check in found.items() if check["state"] != "yes" and not check["fix"]] == []


def test_lines_are_said_to_be_recorded_only_where_they_are(checks):
    found, _ = checks

    assert (found["lines"]["state"] == "yes") == lines.AVAILABLE
    assert "settrace" not in found["lines"]["found"]


def test_what_works_is_found_out_by_trying(checks):
    found, done = checks

    assert found["profiler"]["state"] == "yes"
    assert int(found["profiler"]["found"].split()[0]) > 0
    assert found["py-spy"]["found"].startswith("py-spy 0.")
    assert found["perfetto"]["state"] == "yes"
    assert done.stderr == ""


def test_the_holder_of_cupti_is_named_on_the_terminal():
    done = doctor(CUDA_INJECTION64_PATH="/opt/nsys/libToolsInjection64.so")

    lines = done.stdout.splitlines()
    at = next(k for k, line in enumerate(lines) if "CUPTI" in line)
    assert lines[at].split()[:2] == ["no", "CUPTI"]
    assert "Nsight Systems" in lines[at]
    assert "run without nsys" in lines[at + 1]
    assert lines[-1].endswith("are missing")


@pytest.mark.parametrize(
    ("package", "version", "number"),
    [
        ("python", (3, 12, 4), "155446"),
        ("python", (3, 12, 5), ""),
        ("cuda", (13, 0), "192021"),
        ("cuda", (12, 8), "192021"),
        ("cuda", (12, 4), ""),
        ("torch", (2, 13, 0), "1459"),
        ("torch", (2, 14, 0), ""),
        ("py-spy", (0, 4, 3), ""),
    ],
)
def test_known_faults_go_by_version(package, version, number):
    found = known_faults(lambda name: version if name == package else ())

    assert bool(found) is bool(number)
    assert number in " ".join(text for text, _ in found)
