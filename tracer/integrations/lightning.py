"""A callback for PyTorch Lightning: records some training steps of `Trainer.fit`, then audits them.

    trainer = Trainer(callbacks=[TracerCallback(skip=10, steps=20)])

Each batch is a step. Validation and what comes after training are left alone.
"""

from __future__ import annotations

import sys
from typing import Any

from tracer.recording import record

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning.callbacks import Callback
else:
    from lightning.pytorch.callbacks import Callback


class TracerCallback(Callback):  # type: ignore[misc]
    """Records on one rank; the keywords are those of `tracer.record`."""

    def __init__(self, name: str = "lightning", *, rank: int = 0, **options: Any) -> None:
        super().__init__()
        self.recording: record | None = None  # its `folder` is where the run lies
        self._arguments = (name, {"skip": 10, "steps": 20} | options)
        self._rank = rank
        self._open = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count steps."""
        if trainer.global_rank == self._rank:
            name, options = self._arguments
            self.recording = record(name, **options)
            self.recording.__enter__()
            self._open = True

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The next step begins; the first began with the training."""
        if self.recording is not None and self._open:
            self.recording.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write and audit what was recorded."""
        self._close(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Keep what was recorded until the training broke."""
        self._close(exception)

    def _close(self, error: BaseException | None) -> None:
        if self.recording is not None and self._open:
            self._open = False
            self.recording.__exit__(type(error) if error is not None else None, error, None)
