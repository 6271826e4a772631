"""Recording on a GPU: nothing lost, nothing harmed, the program's own end kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.running import ENVIRONMENT, run_tracer
from tracer.chunks import read_chunks

pytestmark = pytest.mark.gpu
CONFIGS = Path(__file__).resolve().parents[2] / "configs"

LOOP = """
import os, sys, time
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8, device="cuda")).sum().backward()
        optimizer.step()
"""


def kernels(names: list[str], word: str) -> int:
    return sum(word in name for name in names)


def test_the_quickstart_shows_kernels_syncs_and_the_line_that_waits(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "tracer", "run", str(CONFIGS / "quickstart.yaml"), f"output.folder={tmp_path}"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    (rank,) = folder.glob("rank0-*")
    manifest = json.loads((rank / "manifest.json").read_text())
    audit = json.loads((folder / "audit.json").read_text())
    assert manifest["complete"], manifest["why"]
    assert manifest["devices"][0]["name"] == torch.cuda.get_device_properties(0).name
    assert len(audit["steps"]) == 10
    assert audit["devices"][0]["busy_ns"] > 0
    assert manifest["recorders"]["ledger"]["saw"] >= 10
    rows, lost = read_chunks(rank / "ledger.chunks")
    assert lost == 0
    assert any(row[0] == "sync" for row in rows)
    line = next(
        n for n, text in enumerate((CONFIGS / "quickstart.py").read_text().splitlines(), 1) if ".item()" in text
    )
    places = [finding["place"] for finding in audit["findings"] if finding["place"]]
    assert any(place["line"] == line and place["file"].endswith("quickstart.py") for place in places)
    assert (folder / "trace.pftrace").stat().st_size > 10_000
    assert sum(path.stat().st_size for path in folder.rglob("*")) < 2_000_000


def test_no_kernel_of_the_window_is_lost(tmp_path: Path):
    program = (
        LOOP
        + "x = torch.zeros(64, device='cuda')\nfor _ in range(12):\n    train(1)\n    for _ in range(9): x.erfinv_()\n"
    )

    ran = run_tracer(tmp_path, program)

    assert ran.manifest["complete"]
    # From one optimizer step to the next: four steps with nine such kernels each.
    assert kernels(ran.names, "erfinv_kernel") == 36


def test_a_program_without_steps_is_recorded_from_its_first_cuda_call(tmp_path: Path):
    program = "import torch\nx = torch.zeros(64, device='cuda')\nfor _ in range(30):\n    x.erfinv_()\nx.sum().item()\n"

    ran = run_tracer(tmp_path, program, settings=())

    assert ran.manifest["complete"]
    assert kernels(ran.names, "erfinv_kernel") == 30
    assert ran.manifest["recorders"]["ledger"]["saw"] == 1


def test_a_poisoned_context_leaves_a_recording_and_the_programs_own_end(tmp_path: Path):
    program = LOOP + "train(7)\nbad = torch.tensor([9], device='cuda')\ntorch.arange(4, device='cuda')[bad]\ntrain(5)\n"
    program += "torch.cuda.synchronize()\n"

    ran = run_tracer(tmp_path, program)

    alone = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert ran.status == alone.returncode == 1
    assert "device-side assert triggered" in ran.stderr
    assert "recording" not in "".join(line for line in ran.stderr.splitlines() if line.startswith("  File"))
    assert not ran.manifest["complete"]
    assert ran.manifest["window"]["first_step"] == 4
    assert [row[2] for row in ran.steps()][:9] == [0, 1, 2, 3, -1, 4, 5, 6, 7]


def test_workers_forked_by_a_program_that_uses_cuda_later_work(tmp_path: Path):
    program = """
import torch
from torch.utils.data import DataLoader, TensorDataset
assert not torch.cuda.is_initialized()
loader = DataLoader(TensorDataset(torch.ones(64, 8)), batch_size=4, num_workers=2, pin_memory=True)
model = torch.nn.Linear(8, 8)
optimizer = None
for (batch,) in loader:
    if optimizer is None:
        model.cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.zero_grad()
    model(batch.cuda(non_blocking=True)).sum().backward()
    optimizer.step()
for (batch,) in loader:
    model(batch.cuda(non_blocking=True)).sum().backward()
    optimizer.step()
print("done")
"""

    ran = run_tracer(tmp_path, program)

    assert ran.stdout == "done\n"
    assert ran.stderr == ""
    assert ran.manifest["complete"]
    assert len(ran.ranks) == 1


def test_recording_is_not_what_initialises_cuda(tmp_path: Path):
    program = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(12):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
print(torch.cuda.is_initialized())
"""

    ran = run_tracer(tmp_path, program)

    assert ran.stdout == "False\n"
    assert ran.manifest["complete"]


def test_their_profiler_keeps_its_kernels(tmp_path: Path):
    program = LOOP + (
        "train(6)\n"
        "x = torch.zeros(64, device='cuda')\n"
        "with torch.profiler.profile() as profiler:\n"
        "    for _ in range(7): x.erfinv_()\n"
        "print(sum(e.count for e in profiler.key_averages() if 'erfinv_kernel' in e.key))\n"
    )

    ran = run_tracer(tmp_path, program)

    assert ran.stdout == "7\n"
    assert "started its own torch.profiler" in ran.manifest["why"]


def test_two_ranks_over_nccl_land_in_one_folder(tmp_path: Path):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    done = subprocess.run(
        [sys.executable, "-m", "tracer", "run", str(CONFIGS / "torchrun.yaml"), f"output.folder={tmp_path}"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    manifests = [json.loads(path.read_text()) for path in sorted(folder.glob("rank*/manifest.json"))]
    assert [manifest["rank"] for manifest in manifests] == [0, 1]
    assert all(manifest["complete"] for manifest in manifests)
    assert manifests[0]["window"]["last_step"] == manifests[1]["window"]["last_step"]


def test_a_window_holds_more_than_kinetos_usual_share_of_memory(tmp_path: Path):
    """128 MB of GPU records are some 1.5 million: a longer window needs the larger buffers that we ask for."""
    ran = run_tracer(
        tmp_path,
        "import torch, tracer\nx = torch.zeros(8, device='cuda')\n"
        "for _ in range(4):\n    for _ in range(5000): x.add_(1)\n    tracer.step()\n",
        settings=("window.skip=1", "window.warmup=1", "window.steps=1"),
    )

    config = next(ran.folder.glob("*/kineto.conf")).read_text()
    assert int(config.rpartition("=")[2]) > 128
    assert kernels(ran.names, "elementwise") == 5000
