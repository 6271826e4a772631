"""Lines need Python 3.12: the checks of tests/newer run on one, unpacked if need be."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.newer_python import newer_python, run_checks
from tracer.recording.lines import Recorder

pytestmark = pytest.mark.timeout(900)  # unpacking takes a minute, or several beside other work

CHECKS = sorted((Path(__file__).parent / "newer").glob("check_*.py"))


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    folder = tmp_path_factory.mktemp("newer")
    yield newer_python(folder)
    shutil.rmtree(folder)  # a whole system: too much to be kept with the other temporary folders


@pytest.mark.parametrize("file", CHECKS, ids=lambda file: file.stem)
def test_on_a_newer_python(file, python):
    done = run_checks(python, [file])

    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_the_guard_of_the_warnings_works_here_too():
    done = run_checks([sys.executable], [Path(__file__).parent / "newer" / "check_warnguard.py"])

    assert done.returncode == 0, done.stdout + done.stderr


def test_an_older_python_is_an_honest_no(monkeypatch):
    monkeypatch.setattr("tracer.recording.lines.AVAILABLE", False)
    recorder = Recorder(SimpleNamespace(record=SimpleNamespace(lines=True)))

    recorder.arm()
    recorder.open()

    assert recorder.close() == {"on": False, "saw": 0, "dropped": 0, "why": "needs Python 3.12 or newer"}
