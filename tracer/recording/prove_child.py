"""In a process of `tracer prove`: steps stamped with all streams idle, values recorded or given back, no profiler.

Comes in like the recorder, through the injected sitecustomize. The program ends, by
SystemExit at a step's boundary, once enough steps were measured.
"""

from __future__ import annotations

import atexit
import os
import random
import sys
from pathlib import Path
from threading import get_ident
from typing import Any

import msgspec

from tracer.recording.realtime import perf_counter_ns
from tracer.recording.steps import RANKS, StepHooks
from tracer.recording.value_store import Store
from tracer.recording.values import RANGE, Override

VARIABLE = "TRACER_PROVE"
_PROFILED_STEPS = 3
# Without a GPU operators stand for kernels: those that we replace, and views, do no work of the program's.
_REPLACED = ("aten::_local_scalar_dense", "aten::nonzero", "aten::nonzero_static")
_VIEWS = ("view", "_reshape_alias", "as_strided", "reshape", "select", "unbind", "slice", "expand", "t", "transpose")
_NO_WORK = {*_REPLACED, *(f"aten::{name}" for name in _VIEWS)}


class Task(msgspec.Struct, frozen=True):
    """What one process is to do."""

    mode: str  # "plain", "record" or "replay"
    folder: str
    name: str  # of the result
    parent: int
    skip: int = 10
    steps: int = 20
    step_from: str = "auto"
    whole: bool = False  # the program has no steps: all of it is one
    check: bool = False  # list the kernels, compare counts: slow, not for timing
    key: str = "CUDA"
    values: str = ""  # file of values: written by "record", read by "replay"


class Result(msgspec.Struct):
    """What one process found."""

    gpu: bool = False
    steps_seen: int = 0
    steps: int = 0  # measured
    total_ns: int = 0  # of those
    source: str = ""
    seeded: bool = False  # the program seeds itself
    peak_bytes: int = 0
    calls: int = 0
    missed: list[str] = []
    unused: int = 0
    wrong_counts: int = 0
    cost_ns: float = 0.0  # of one replayed read
    kernels: list[str] = []
    graphs: int = 0
    pinned_uploads: int = 0
    compiled: bool = False
    reached: bool = True  # set by the parent: whether there was a result
    status: int = 0  # set by the parent
    output: str = ""  # set by the parent: where its streams went
    why: str = ""  # set by the parent: last line that it wrote


class _Child:
    def __init__(self, task: Task) -> None:
        import torch

        self.torch: Any = torch
        self.task = task
        self.result = Result()
        self.number = 0
        self._done = self._measuring = False
        self._began_ns = 0
        self._profiler: Any = None
        self._seed()
        self.override: Override | None = None
        usable = task.key != "CUDA" or torch.version.cuda is not None or torch.version.hip is not None
        if task.mode != "plain" and usable:
            store = Store.load(Path(task.values)) if task.mode == "replay" else Store()
            self.override = Override(task.mode, task.key, store, check=task.check)
            self.override.install()
        self._listen()

    def _seed(self) -> None:
        """Same numbers in every run; a program that seeds itself does so after us."""
        torch, result = self.torch, self.result
        random.seed(0)
        torch.manual_seed(0)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(0)
        original = torch.manual_seed

        def manual_seed(seed: int) -> Any:
            result.seeded = True
            return original(seed)

        torch.manual_seed = torch.random.manual_seed = manual_seed

    def _listen(self) -> None:
        import tracer.recording

        atexit.register(self._at_exit)
        if self.task.whole:
            self._begin()
            return
        self._hooks = StepHooks(self.task.step_from, self.boundary)
        tracer.recording._current.append(self)  # type: ignore[arg-type]

    def boundary(self, source: str) -> None:
        """A step begins here, says `source`."""
        rank, known = RANKS[source], RANKS.get(self.result.source, 0)
        if self._done:
            _leave()
        if rank < known or self._inside == get_ident():
            return
        if rank > known:
            self.result.source = source
            if known:
                return
        self.number += 1
        task, self._inside = self.task, get_ident()
        if self.number == task.skip + 1:
            self._begin()
        elif self._profiler is not None and self.number == task.skip + 1 + _PROFILED_STEPS:
            self._read_profiler()
        if self.number == task.skip + 1 + task.steps:
            self._end(task.steps)
            raise SystemExit(0)
        self._inside = 0

    _inside = 0

    def _begin(self) -> None:
        self._settle()
        if self.task.check:
            self._start_profiler()
        if self.override is not None:
            self.override.start()
        self._measuring = True
        self._began_ns = perf_counter_ns()

    def _end(self, steps: int) -> None:
        if self.override is not None:
            self.override.active = False
        self._settle()
        result, torch = self.result, self.torch
        result.total_ns = perf_counter_ns() - self._began_ns
        result.steps = steps
        result.steps_seen = self.number
        self._measuring, self._done = False, True
        result.gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        if result.gpu:
            result.peak_bytes = sum(torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count()))
        dynamo = sys.modules.get("torch._dynamo.utils")
        result.compiled = bool(dynamo is not None and getattr(dynamo, "counters", {}).get("frames"))
        if self._profiler is not None:
            self._read_profiler()
        if self.override is not None:
            self._ask_override(self.override)
        path = Path(self.task.folder) / f"{self.task.name}.json"
        path.write_bytes(msgspec.json.encode(result))

    def _ask_override(self, override: Override) -> None:
        result, task = self.result, self.task
        override.stop()
        result.calls, result.missed, result.unused = override.calls, override.missed[:10], override.unused
        result.wrong_counts = override.wrong_counts()
        if task.mode == "record":
            override.store.save(Path(task.values))
        elif not task.check:
            device = "cuda" if task.key == "CUDA" else task.key.lower()
            result.cost_ns = override.cost_ns(lambda: self.torch.ones((), device=device))
        override.remove()

    def _at_exit(self) -> None:
        """The program ended by itself: the whole of it, or fewer steps than asked for."""
        if self._done or os.getpid() != self._pid:
            return
        if self._measuring:
            self._end(1 if self.task.whole else max(self.number - self.task.skip - 1, 0))
        else:
            self._began_ns = perf_counter_ns()
            self._end(0)

    _pid = os.getpid()

    def _settle(self) -> None:
        """Wait until nothing runs any more."""
        cuda = self.torch.cuda
        if cuda.is_available() and cuda.is_initialized():
            for device in range(cuda.device_count()):
                cuda.synchronize(device)

    def _start_profiler(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self.task.key == "CUDA":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(activities=activities)
        self._profiler.__enter__()

    def _read_profiler(self) -> None:
        """The names of what ran, without what our own kernels did."""
        profiler, self._profiler = self._profiler, None
        profiler.__exit__(None, None, None)
        events = profiler.profiler.kineto_results.events()
        result = self.result
        result.kernels = sequence(events, on_gpu=self.task.key == "CUDA")
        names = [event.name() for event in events]
        result.graphs = sum("GraphLaunch" in name for name in names)
        result.pinned_uploads = sum(name.startswith("Memcpy HtoD (Pinned") for name in names)


def sequence(events: Any, *, on_gpu: bool) -> list[str]:
    """Kernels in the order of their launches (or operators, without a GPU) that none of our ranges holds."""
    from torch.autograd import DeviceType

    host = [e for e in events if e.device_type() == DeviceType.CPU]
    ranges: dict[int, list[tuple[int, int]]] = {}
    for event in host:
        if event.name() == RANGE:
            ranges.setdefault(event.start_thread_id(), []).append(
                (event.start_ns(), event.start_ns() + event.duration_ns())
            )

    def ours(event: Any) -> bool:
        at = event.start_ns()
        return any(low <= at < high for low, high in ranges.get(event.start_thread_id(), ()))

    if not on_gpu:
        ops = [e for e in host if e.name().startswith("aten::") and not ours(e)]
        return [e.name() for e in sorted(ops, key=lambda e: e.start_ns()) if e.name() not in _NO_WORK]
    # Operators count by themselves; runtime calls are linked to one and count by another number.
    # The operators that we replace began before our range in them did.
    ops = [e for e in host if not e.linked_correlation_id()]
    hidden = {e.correlation_id() for e in ops if e.name() in _REPLACED or (ranges and ours(e))}
    work = [e for e in events if e.device_type() == DeviceType.CUDA and not getattr(e, "is_user_annotation", bool)()]
    work = [e for e in work if e.linked_correlation_id() not in hidden]
    return [e.name() for e in sorted(work, key=lambda e: e.correlation_id())]


def _leave() -> None:
    """The program caught SystemExit and steps on."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def install() -> None:
    """Called by the injected sitecustomize once torch is imported."""
    task = msgspec.json.decode(Path(os.environ[VARIABLE]).read_bytes(), type=Task)
    if os.getppid() == task.parent:
        _Child(task)
