"""Naming a caught stack costs the program nothing that it did not ask for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.running import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import sys, threading, time
import torch
from tracer.recording import stacks
def inner():
    return stacks.catch()
caught = inner()
before = set(sys.modules)
start = time.perf_counter()
(named,) = stacks.symbolize([caught])
print([(line, function) for _, line, function in named])
print(sorted(name for name in set(sys.modules) - before if name.startswith("torch")))
print("_inductor" in torch.__dict__)
with stacks._without_compiler():
    found = []
    other = threading.Thread(target=lambda: found.append(torch._inductor.config.__name__))
    other.start()
    other.join()
print(found, torch._inductor.__name__, type(torch._inductor).__name__)
"""


def test_naming_a_stack_loads_no_compiler_and_hides_none():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT, check=False
    )

    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "[(6, 'inner'), (7, '<module>')]",
        "[]",
        "False",
        "['torch._inductor.config'] torch._inductor module",
    ]
