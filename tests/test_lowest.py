"""The lower bounds in pyproject.toml are the versions that CI runs the tests on."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

TESTS = Path(__file__).parent
UNBOUND = {"torch", "py-spy"}  # pinned in constraints.txt; old torch runs on the CUDA machine, py-spy is a program


def test_the_oldest_versions_tested_are_the_bounds():
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]
    bounds = dict(text.split(">=") for text in project["dependencies"])
    tested = dict(re.findall(r"^([\w-]+)==([\d.]+)$", (TESTS / "lowest.txt").read_text(), re.MULTILINE))

    assert set(tested) == set(bounds) - UNBOUND
    for name, version in tested.items():
        assert version.startswith(bounds[name]), name
