"""The callback in the real library, on the CPU."""

import json
import subprocess
import sys
import textwrap

import pytest

import tracer

PROGRAM = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import torch
from {package} import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
from tracer.integrations.lightning import TracerCallback

class Small(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        with torch.profiler.record_function(f"batch {{index}}"):
            if index == {fails_at}:
                raise RuntimeError("broke")
            return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

callback = TracerCallback("small", skip=2, warmup=1, steps=4, folder=sys.argv[1], formats=("json",))
trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                  enable_progress_bar=False, enable_model_summary=False, callbacks=[callback])
data = DataLoader(TensorDataset(torch.randn(48, 8)), batch_size=4)
try:
    trainer.fit(Small(), data)
finally:
    print(callback.recording.folder)
"""


def fit(folder, package, fails_at=-1):
    """Train twelve batches; the run's folder and how the program ended."""
    text = textwrap.dedent(PROGRAM).format(package=package, fails_at=fails_at)
    done = subprocess.run(
        [sys.executable, "-c", text, str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    (run,) = (path for path in folder.iterdir() if path.is_dir())
    return run, done


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_the_callback_records_the_steps_that_it_was_asked_for(tmp_path, package):
    run, done = fit(tmp_path, package)

    assert done.returncode == 0, done.stderr[-2000:]
    audit = json.loads((run / "audit.json").read_text())
    assert [step["number"] for step in audit["steps"]] == [3, 4, 5, 6]
    assert sorted(name for name in tracer.load(run).names if name.startswith("batch")) == [
        f"batch {number}" for number in (3, 4, 5, 6)
    ]
    assert audit["pace"]["steps_from"] == "tracer"


def test_a_training_that_breaks_keeps_its_error_and_what_was_recorded(tmp_path):
    run, done = fit(tmp_path, "lightning.pytorch", fails_at=5)

    assert done.returncode == 1
    assert "RuntimeError: broke" in done.stderr
    (manifest,) = run.glob("rank*/manifest.json")
    assert "RuntimeError was raised" in json.dumps(json.loads(manifest.read_text()))
