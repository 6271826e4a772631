"""One session of torch.profiler: warmed up, on, off, saved whole or not at all.

- All threads, CPU and CUDA, synchronisation records on.
- Warmed up by `prepare_trace`, which is what a schedule's warm-up does: a second
  session in the same process may lose the records of its first kernels.
- On a CUDA context that an error has killed, what was recorded until then is kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import json
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tracer import config
from tracer.recording import facts
from tracer.recording.exits import on_main_thread

FILE = "kineto.json.gz"
_PIECE = 1 << 20
_WRONG_THREAD = b"External init callback must run in same thread"  # what Kineto says of any but the main thread


class Profiler:
    """The session of one window.

    Built on the inner profiler of torch.autograd: torch.profiler.profile around it would
    import torch._inductor (seconds, in the program's time) and warn on its stderr.
    """

    def __init__(self, record: config.Record, cuda: bool) -> None:
        from torch.autograd.profiler import profile

        self.failed = ""
        self._cuda = cuda
        self._on = False
        self._mark: Any = None
        self._record = record
        self.inner = profile(  # public, to tell ours from the program's
            use_device="cuda" if cuda else None,
            record_shapes=record.shapes,
            profile_memory=record.memory,
            with_stack=record.stacks == "full",
            use_kineto=True,
            experimental_config=_experimental(record),
        )

    def prepare(self) -> None:
        """Warm up: buffers and callbacks are there, nothing is recorded."""
        with _without(_WRONG_THREAD), _quiet():
            self.inner._prepare_trace()
        _spare_children()

    def start(self) -> None:
        """Record from here on."""
        self.inner._start_trace()
        self._on = True
        self._add_metadata()

    def _add_metadata(self) -> None:
        """What torch.profiler writes into its traces too, for tools that look for it."""
        from torch.autograd import _add_metadata_json

        flags = {"with_stack": self._record.stacks == "full", "record_shapes": self._record.shapes}
        flags["profile_memory"] = self._record.memory
        for name, on in flags.items():
            if on:
                _add_metadata_json(name, "1")
        if facts.world_size() > 1:
            job = {"rank": facts.rank(), "world_size": facts.world_size()}
            _add_metadata_json("distributedInfo", json.dumps(job))

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
        """Record no more. Raises nothing: `failed` says what went wrong.

        What torch's own stop does, less the making of a Python object for each event.
        """
        if not self._on:
            return
        self._on = False
        from torch.autograd import profiler

        for end in (self._drain, self._take_results):
            try:
                end()
            except RuntimeError as error:  # the device is lost: the records of before may still be had
                self.failed = self.failed or str(error).partition("\n")[0]
        profiler._run_on_profiler_stop()

    def _drain(self) -> None:
        """Wait for the GPU: work that is under way would be left out."""
        if self._cuda:
            import torch

            torch.cuda.synchronize()

    def _take_results(self) -> None:
        from torch.autograd import profiler

        self.inner.kineto_results = profiler._disable_profiler()

    def cancel(self) -> None:
        """End a session that was prepared and is not wanted."""
        self.start()
        self.stop()

    def save(self, folder: Path) -> str:
        """Write Kineto's JSON compressed; the name of the file. Raises OSError, and RuntimeError by torch."""
        plain = folder / ".kineto.json"
        if self.inner.kineto_results is None:
            raise RuntimeError(self.failed or "the profiler gave no results")
        plain.touch()  # where nothing can be written, Kineto would say so on the program's stderr
        try:
            self.inner.kineto_results.save(str(plain))
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
            with gzip.GzipFile(part, "wb", compresslevel=2, mtime=0) as packed:
                while piece := file.read(_PIECE):
                    packed.write(piece)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
    return path.name


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Where the program has cleared its environment, Kineto would tell of its own doings on its stderr."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.putenv("KINETO_LOG_LEVEL", "6")  # for the library alone: os.environ stays as it is
    try:
        yield
    finally:
        os.unsetenv("KINETO_LOG_LEVEL")


@cache
def _spare_children() -> None:
    """Have children that are forked from now on end without C++ destructors: what they have flushed is all they leave.

    Kineto's wait for ever for a thread that a child lacks, and crash on a session that was open at the fork.
    """
    libc = ctypes.CDLL(None)
    leave, flush = (ctypes.cast(call, ctypes.c_void_p) for call in (libc._exit, libc.fflush))
    on_exit, at_exit = libc.on_exit, libc["__cxa_atexit"]

    def forked() -> None:  # what is registered last is called first
        on_exit(leave, None)  # with the status
        at_exit(flush, None, None)

    os.register_at_fork(after_in_child=forked)


def _experimental(record: config.Record) -> Any:
    from torch._C._profiler import _ExperimentalConfig

    wanted: dict[str, Any] = {"enable_cuda_sync_events": record.sync_events, "profile_all_threads": True}
    while True:
        try:
            return _ExperimentalConfig(**wanted)
        except TypeError:  # an older torch knows fewer
            wanted.popitem()


@contextlib.contextmanager
def _without(words: bytes) -> Iterator[None]:
    """Keep lines with these words, which Kineto prints on threads other than the main one, off the program's stderr.

    What else is written there meanwhile comes a moment later.
    """
    if on_main_thread():
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            stderr = os.dup(2)
            stack.callback(os.close, stderr)
            held = stack.enter_context(tempfile.TemporaryFile())
        except OSError:  # the program has closed it, or the disk is full: nothing to keep it off, or nowhere to
            yield
            return
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            held.seek(0)
            for line in held.read().splitlines(keepends=True):
                if words not in line:
                    os.write(stderr, line)
