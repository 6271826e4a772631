"""One session of torch.profiler: warmed up, on, off, saved whole or not at all.

- All threads, CPU and CUDA, synchronisation records on.
- Warmed up by `prepare_trace`, which is what a schedule's warm-up does: a second
  session in the same process may lose the records of its first kernels.
- On a CUDA context that an error has killed, what was recorded until then is kept.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from tracer import config

FILE = "kineto.json.gz"
_PIECE = 1 << 20


class Profiler:
    """The session of one window."""

    def __init__(self, record: config.Record, cuda: bool) -> None:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]
        self.cuda = cuda
        self.failed = ""
        self._on = False
        self._mark: Any = None
        self._profile = profile(
            activities=activities,
            record_shapes=record.shapes,
            profile_memory=record.memory,
            with_stack=record.stacks == "full",
            experimental_config=_experimental(record),
            acc_events=True,  # without it torch warns, in the program's own output, that cycles are not kept
        )

    @property
    def inner(self) -> Any:
        """torch's inner profiler, to tell ours from the program's; None before it is prepared."""
        return self._profile.profiler

    def prepare(self) -> None:
        """Warm up: buffers and callbacks are there, nothing is recorded."""
        self._profile.prepare_trace()

    def start(self) -> None:
        """Record from here on."""
        self._profile.start_trace()
        self._on = True

    def step(self, number: int) -> None:
        """Mark where a step begins, by the name that every tool for such traces knows."""
        from torch.autograd.profiler import record_function

        self.end_step()
        self._mark = record_function(f"ProfilerStep#{number}")
        self._mark.__enter__()

    def end_step(self) -> None:
        """Close the last step's mark."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None

    def stop(self) -> None:
        """Record no more. Raises nothing: `failed` says what went wrong."""
        if not self._on:
            return
        self._on = False
        try:
            self._profile.stop_trace()
        except RuntimeError as error:
            # The device is lost; the records of before may still be had.
            self.failed = str(error).partition("\n")[0]
            self._rescue()

    def cancel(self) -> None:
        """End a session that was prepared and is not wanted."""
        self._profile.start_trace()
        self._on = True
        self.stop()

    def _rescue(self) -> None:
        from torch.autograd import profiler as inner

        try:
            self._profile.profiler.kineto_results = inner._disable_profiler()
        except RuntimeError as error:
            self.failed += f"; {str(error).partition(chr(10))[0]}"

    def save(self, folder: Path) -> str:
        """Write Kineto's JSON compressed; the name of the file. Raises OSError, and RuntimeError by torch."""
        plain = folder / ".kineto.json"
        try:
            self._profile.export_chrome_trace(str(plain))
            return compress(plain, folder / FILE)
        finally:
            for left in folder.glob(f"{plain.name}*"):  # Kineto itself writes beside it first
                left.unlink()


def compress(plain: Path, path: Path) -> str:
    """Compress a whole JSON file; its name. Raises OSError if it was cut off, as a full disk does silently."""
    with plain.open("rb") as file:
        file.seek(max(0, plain.stat().st_size - 64))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(f"{plain.name} was cut off while it was written: is the disk full?")
        file.seek(0)
        part = path.with_name(f".{path.name}.part")
        try:
            with gzip.open(part, "wb", compresslevel=2) as packed:
                while piece := file.read(_PIECE):
                    packed.write(piece)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
    return path.name


def _experimental(record: config.Record) -> Any:
    from torch._C._profiler import _ExperimentalConfig

    wanted: dict[str, Any] = {"enable_cuda_sync_events": record.sync_events, "profile_all_threads": True}
    while True:
        try:
            return _ExperimentalConfig(**wanted)
        except TypeError:  # an older torch knows fewer
            wanted.popitem()
