"""The `locate` fixture, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tracer

ROOT = Path(__file__).resolve().parents[1]
TEST = """
import sys
import pytest

def test_without():
    assert "torch" not in sys.modules

def test_plain(locate):
    assert True

@pytest.mark.locate(check=True)
def test_marked(locate):
    assert True
"""


def test_tests_run_under_the_fixture_and_others_do_not_load_torch(tmp_path):
    (tmp_path / "test_it.py").write_text(TEST)

    done = subprocess.run(
        [
            sys.executable,
            *("-m", "pytest", "-q", "-p", "no:randomly", "-p", "tracer.integrations.locate_fixture"),
            *("-W", "error", "test_it.py"),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_an_error_in_the_block_passes_through():
    with pytest.raises(ValueError, match="mine"), tracer.locate():
        raise ValueError("mine")
