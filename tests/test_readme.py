"""What README.md shows is what the program says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
SHOWN = re.findall(r"```console\n\$ (python -m tracer[^\n]*--help)\n(.*?)```", README, re.DOTALL)


def test_readme_shows_the_help():
    assert SHOWN


@pytest.mark.parametrize(("command", "text"), SHOWN, ids=[command for command, _ in SHOWN])
def test_help_in_the_readme_is_the_real_one(command, text):
    arguments = [sys.executable, *command.split()[1:]]
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
    real = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment, cwd=ROOT).stdout

    assert text.strip() == real.strip()


def test_files_that_the_readme_names_exist():
    named = set(re.findall(r"\]\((?!http|#)([^)#]+)\)", README))
    named |= set(re.findall(r"`((?:configs|tests|traces|tracer)/[\w./-]+)`", README))

    missing = [name for name in sorted(named) if not (ROOT / name).exists() and "<" not in name]
    assert missing == []


def test_the_two_commands_are_there():
    assert "<!-- test-command -->" in README
    assert "configs/quickstart.yaml" in README
