"""What README.md shows is what the program says. `python tests/test_readme.py` renews the shown outputs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(
    r"(```console\n\$ (python -m tracer (?:\w+ --help|audit traces/samples/[^\n]+))\n)(.*?)(```)", re.DOTALL
)


def output_of(command: str) -> str:
    """What a command prints, on a terminal of 100 columns without colour."""
    arguments = [sys.executable, *command.split()[1:]]
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode in (0, 1), done.stderr  # 1: a budget is broken
    return done.stdout.strip() + "\n"


def shown() -> list[tuple[str, str]]:
    return [(match[2], match[3]) for match in BLOCK.finditer(README.read_text())]


def test_readme_shows_help_and_a_report():
    commands = [command for command, _ in shown()]

    assert any("--help" in command for command in commands)
    assert any("audit traces/samples" in command for command in commands)


@pytest.mark.parametrize(("command", "text"), shown(), ids=[command for command, _ in shown()])
def test_output_in_the_readme_is_the_real_one(command, text):
    assert text.strip() == output_of(command).strip(), "renew it: python tests/test_readme.py"


def test_files_that_the_readme_names_exist():
    text = README.read_text()
    named = set(re.findall(r"\]\((?!http|#)([^)#]+)\)", text))
    named |= set(re.findall(r"`((?:configs|tests|traces|tracer)/[\w./-]+)`", text))

    missing = [name for name in sorted(named) if not (ROOT / name).exists() and "*" not in name]
    assert missing == []


def test_the_two_commands_are_there():
    text = README.read_text()

    assert "<!-- test-command -->" in text
    assert "configs/quickstart.yaml" in text


if __name__ == "__main__":
    README.write_text(BLOCK.sub(lambda match: match[1] + output_of(match[2]) + match[4], README.read_text()))
