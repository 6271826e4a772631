"""Proofs: real programs through real processes, on the CPU's dispatch key; and the arithmetic of the interval."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch.autograd import DeviceType

from tracer.commands.prove import as_text
from tracer.config import Config, Run, Window
from tracer.errors import UsageError
from tracer.recording.proof import Proof, with_interval
from tracer.recording.prove import examine_values, prove, prove_fix
from tracer.recording.prove_child import sequence
from tracer.recording.prove_runner import Plan, Runner
from tracer.recording.values import RANGE

WINDOW = Window(skip=3, steps=4)
TRAINING = """
import torch
model = torch.nn.Linear(8, 8); optimizer = torch.optim.SGD(model.parameters(), lr=1e-3); x = torch.randn(4, 8)
for i in range(12):
    optimizer.zero_grad(); loss = model(x).pow(2).mean(); loss.backward(); optimizer.step()
    if loss.item() > 1e9:
        break
    kept = x[x > 0].sum()
"""
UNSTEADY = "import os, torch\ntorch.manual_seed(int.from_bytes(os.urandom(4), 'big'))\n" + TRAINING.replace(
    "import torch", "", 1
)
TIMED = """
import sys, time, torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
for i in range(12):
    optimizer.step()
    time.sleep(MS / 1e3)
"""


def config(tmp_path, text, **more):
    script = tmp_path / "program.py"
    script.write_text(text)
    return Config(run=Run(script=str(script), **more), window=WINDOW)


def test_reads_of_a_training_loop_are_given_back_and_pairs_are_timed(tmp_path):
    proof = prove(config(tmp_path, TRAINING), rounds=2, key="CPU", folder=tmp_path / "out")

    # That it got as far as pairs says that the replayed run did the same work.
    assert (tmp_path / "out" / "check.out").read_text().startswith("# tracer prove: in this run reads gave back")
    assert any("by time" in one for one in proof.hazards)
    assert proof.rounds == 2
    assert proof.steps == 4
    assert proof.reads == pytest.approx(2)
    assert proof.read_cost_ns > 0
    assert proof.low_ns <= proof.gain_ns <= proof.high_ns
    assert proof.seeded_by_us
    assert any("seeded with 0 by us" in note for note in proof.notes)
    assert not proof.abstained or "noise exceeds the gain" in proof.abstained


def test_values_that_differ_between_runs_end_it(tmp_path):
    runner = Runner(config(tmp_path, UNSTEADY), tmp_path / "out", key="CPU")
    first = runner.run("plain", "first")

    why, _ = examine_values(runner, runner.plan_after(first))

    assert first.seeded
    assert "different values" in why or "another order" in why
    assert "program.py" in why


def test_on_a_machine_without_a_gpu_nothing_is_run_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr("tracer.recording.prove.may_have_gpu", lambda: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()

    proof = prove(config(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')\n"))

    assert proof.abstained.startswith("this machine has no GPU")
    assert (proof.folder, list((tmp_path / "tmp").iterdir())) == ("", [])
    assert not (tmp_path / "ran").exists()


def test_without_a_gpu_there_is_nothing_to_prove(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(TRAINING)
    settings = tmp_path / "config.yaml"
    settings.write_text(f"run:\n  script: {script}\nwindow:\n  skip: 3\n  steps: 4\n")

    done = subprocess.run(
        [sys.executable, "-m", "tracer", "prove", str(settings), "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["abstained"].endswith("there is nothing to prove")
    assert json.loads(done.stdout)["gain_ns"] is None


def test_a_program_that_fails_keeps_its_status(tmp_path):
    proof = prove(config(tmp_path, "import torch\nraise SystemExit(7)\n"), rounds=2, key="CPU", folder=tmp_path / "out")

    assert proof.status == 7
    assert "itself failed" in proof.abstained


def test_a_program_that_the_recorder_cannot_enter_is_told_apart(tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "msgspec.py").write_text("raise ImportError('not this one')")

    proof = prove(
        config(tmp_path, "import torch\n", env={"PYTHONPATH": str(broken)}),
        rounds=2,
        key="CPU",
        folder=tmp_path / "out",
    )

    assert "recorder could not start" in proof.abstained
    assert "not this one" in proof.abstained


def test_a_program_without_reads_has_nothing_to_give_back(tmp_path):
    text = TRAINING.replace("if loss.item() > 1e9:", "if i > 100:").replace("kept = x[x > 0].sum()", "")

    proof = prove(config(tmp_path, text), rounds=2, key="CPU", folder=tmp_path / "out")

    assert "no read of a GPU value" in proof.abstained


def test_a_patched_program_is_compared_in_pairs(tmp_path):
    slow = config(tmp_path, TIMED.replace("MS", "6"))
    patched = tmp_path / "patched.py"
    patched.write_text(TIMED.replace("MS", "2"))

    proof = prove_fix(slow, patched, rounds=3, folder=tmp_path / "out")

    assert not proof.abstained
    assert 2e6 < proof.low_ns <= proof.gain_ns <= proof.high_ns < 8e6
    assert proof.rounds == 3


def test_a_missing_patch_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="there is no script"):
        prove_fix(config(tmp_path, TIMED), tmp_path / "none.py")


def test_launchers_of_many_processes_are_refused(tmp_path):
    torchrun = tmp_path / "torchrun"
    torchrun.write_text("#!/bin/sh\n")
    torchrun.chmod(0o755)

    with pytest.raises(UsageError, match="one process"):
        Runner(Config(run=Run(command=[str(torchrun), "train.py"])))


def test_fewer_steps_than_asked_for_are_measured_as_far_as_they_go(tmp_path):
    runner = Runner(config(tmp_path, TRAINING), tmp_path / "out", key="CPU")
    runner.asked = Plan(skip=10, steps=100, whole=False)

    plan = runner.plan_after(runner.run("plain", "first"))

    assert (plan.skip, plan.steps) == (4, 7)  # 12 steps: a third skipped, the last one ends with the program


def test_the_interval_is_students():
    # Differences 1, 2, 3: mean 2, deviation 1, half width 4.303 / sqrt(3).
    proof = with_interval(Proof(1, "p", "q"), [11.0, 12.0, 13.0], [10.0, 10.0, 10.0])

    assert proof.gain_ns == pytest.approx(2)
    assert proof.high_ns - proof.gain_ns == pytest.approx(4.303 / 3**0.5)
    assert "noise exceeds the gain" in proof.abstained
    assert proof.share == pytest.approx(2 / 12)


def test_a_proof_reads_as_sentences():
    proof = with_interval(Proof(1, "train", "values replayed", reads=3.0, read_cost_ns=4_000.0), [8e6] * 3, [5e6] * 3)

    text = as_text(proof)

    assert "A step takes 8.00 ms as it is, 5.00 ms with values replayed: 3.00 ms (37.5%) less." in text
    assert "12.0 us a step" in text
    assert Path("train").name in proof.program


@dataclass(frozen=True)
class Event:
    """A row of torch's profiler, as it looks on a CUDA machine."""

    what: str
    start: int
    end: int
    number: int  # correlation
    link: int = 0  # the operator that it belongs to
    on_gpu: bool = False
    thread: int = 1

    def name(self):
        return self.what

    def device_type(self):
        return DeviceType.CUDA if self.on_gpu else DeviceType.CPU

    def start_ns(self):
        return self.start

    def duration_ns(self):
        return self.end - self.start

    def start_thread_id(self):
        return self.thread

    def correlation_id(self):
        return self.number

    def linked_correlation_id(self):
        return self.link

    def is_user_annotation(self):
        return self.what == RANGE


def test_the_work_of_a_read_itself_is_no_work_of_the_program():
    # Operators count 1, 2, 3...; runtime calls and GPU work 101, 102...: a call and an operator may share a number.
    step = [
        Event("aten::mm", 0, 10, 1),
        Event("cudaLaunchKernel", 2, 4, 101, link=1),
        Event("gemm", 20, 60, 101, link=1, on_gpu=True),
        Event("aten::nonzero", 30, 50, 3),
    ]
    recorded = [
        *step,
        Event("aten::_local_scalar_dense", 12, 28, 2),  # begins before the range that our kernel opens in it
        Event(RANGE, 13, 27, 90),
        Event("cudaMemcpyAsync", 14, 15, 1, link=2),  # shares its number with aten::mm
        Event("Memcpy DtoH (Device -> Pinned)", 61, 62, 102, link=2, on_gpu=True),
        Event(RANGE, 31, 49, 91),
        Event("DeviceReduceKernel", 63, 64, 103, link=3, on_gpu=True),
        Event(RANGE, 61, 62, 92, on_gpu=True),
    ]
    replayed = [
        *step,
        Event("aten::_local_scalar_dense", 12, 14, 2),
        Event(RANGE, 31, 49, 91),
        Event("aten::nonzero_static", 32, 48, 4),
        Event("flag_kernel", 63, 64, 103, link=4, on_gpu=True),
        Event("aten::count_nonzero", 32, 33, 5),
        Event("Memset (Device)", 62, 63, 102, link=5, on_gpu=True),
    ]

    assert sequence(recorded, on_gpu=True) == sequence(replayed, on_gpu=True) == ["gemm"]


def test_other_work_of_the_program_is_seen():
    more = [Event("aten::add", 30, 40, 7), Event("add_kernel", 70, 80, 110, link=7, on_gpu=True)]

    assert sequence(more, on_gpu=True) == ["add_kernel"]
