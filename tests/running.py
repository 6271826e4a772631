"""Runs small programs under `python -m tracer run`, and reads what was recorded."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracer.chunks import read_chunks

LOOP = """
import os, sys, time
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
"""
SHORT = ("window.skip=3", "window.warmup=1", "window.steps=4")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}


@dataclass
class Ran:
    """What came of it."""

    status: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def ranks(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*/rank*") if path.is_dir())

    @property
    def manifests(self) -> list[dict[str, Any]]:
        return [json.loads((path / "manifest.json").read_text()) for path in self.ranks]

    @property
    def manifest(self) -> dict[str, Any]:
        (only,) = self.manifests
        return only

    @property
    def names(self) -> list[str]:
        """The names of all events that torch.profiler recorded, of all processes."""
        events: list[dict[str, Any]] = []
        for rank in self.ranks:
            if (rank / "kineto.json.gz").exists():
                with gzip.open(rank / "kineto.json.gz") as file:
                    events += json.load(file)["traceEvents"]
        return [event["name"] for event in events if event.get("ph") == "X"]

    def steps(self, rank: int = 0) -> list[list[Any]]:
        rows, lost = read_chunks(self.ranks[rank] / "steps.chunks")
        assert lost == 0
        return rows


def run_tracer(
    tmp_path: Path,
    program: str,
    *arguments: str,
    settings: tuple[str, ...] = SHORT,
    command: list[str] | None = None,
    formats: str = "[]",
    timeout: float = 120,
    **popen: Any,
) -> Ran:
    """Write the program to a file, run it recorded, and wait for its end."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    words = [sys.executable, "-m", "tracer", "run", f"output.folder={tmp_path / 'traces'}", f"output.formats={formats}"]
    words += [*settings, "--", *(command or ["python", str(script)]), *arguments]
    popen.setdefault("env", ENVIRONMENT)
    popen.setdefault("cwd", tmp_path)
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, **popen)
    return Ran(done.returncode, done.stdout, done.stderr, tmp_path / "traces")
