"""On a GPU: values given back without waiting measure what the hand fix gains."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tracer.config import Config, Run, Window
from tracer.recording.prove import examine_values, prove
from tracer.recording.prove_runner import Runner

pytestmark = pytest.mark.gpu
WINDOW = Window(skip=5, steps=15)

SERIAL = """
import time, torch
w = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) / 64
x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
import tracer
for i in range(40):
    tracer.step()
    h = x
    for _ in range(12):
        h = h @ w
    if h[0, 0] > 1e9:
        break
    until = time.perf_counter() + 0.003
    while time.perf_counter() < until:
        pass
"""

MASK = """
import torch, tracer
x = torch.randn(4_000_000, device="cuda")
for i in range(30):
    tracer.step()
    kept = x[x > 0.5]
    part = (kept * 2).tolist() if kept.numel() < 10 else kept.sum()
    if part.item() < 0:
        break
"""

HOOK = """
import torch, tracer
model = torch.nn.Linear(512, 512).cuda()
seen = []
model.weight.register_hook(lambda g: seen.append(g.norm().item()))
x = torch.randn(256, 512, device="cuda")
for i in range(30):
    tracer.step()
    model.zero_grad()
    model(x).pow(2).mean().backward()
"""

UNSTEADY = """
import os, torch, tracer
torch.manual_seed(int.from_bytes(os.urandom(4), "big"))
for i in range(30):
    tracer.step()
    torch.rand(10, device="cuda").sum().item()
"""


def config(tmp_path: Path, text: str) -> Config:
    script = tmp_path / "program.py"
    script.write_text(text)
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return Config(run=Run(script=str(script), env={"PYTHONPATH": path}), window=WINDOW)


def test_giving_a_read_back_gains_what_the_wait_cost(tmp_path):
    proof = prove(config(tmp_path, SERIAL), rounds=3, folder=tmp_path / "out")

    assert not proof.abstained
    assert proof.share is not None
    assert proof.share > 0.25  # 2 ms of GPU work and 3 of host work run beside each other
    assert proof.reads == pytest.approx(1)
    assert 0 < proof.read_cost_ns < 100_000


@pytest.mark.parametrize("text", [MASK, HOOK], ids=["mask", "hook"])
def test_a_replayed_run_does_the_same_work(tmp_path, text):
    runner = Runner(config(tmp_path, text), tmp_path / "out")
    plan = runner.plan_after(runner.run("plain", "first"))
    assert plan is not None

    why, _ = examine_values(runner, plan)

    assert why == ""


def test_a_program_whose_values_change_is_not_replayed(tmp_path):
    proof = prove(config(tmp_path, UNSTEADY), rounds=2, folder=tmp_path / "out")

    assert "different values" in proof.abstained
    assert proof.gain_ns is None
