"""A benchmark that cannot measure the launch instead of the work.

- CPU functions are timed by torch.utils.benchmark, which loops inside one timing so that
  the clock's own cost does not show.
- Candidates take turns, so that a drift of the clocks hits all alike.
- Each run is timed three ways at once: on the GPU by CUDA events, on the host until the
  call returns, and on the wall with a synchronisation at both ends.
- Before each run the GPU is kept busy by a delay long enough for the host to launch
  everything behind it: events then measure the work, not the gaps between launches.
- CUDA events carry some microseconds of their own and see one stream. So functions that
  take less than 100 us, and those whose work leaves the current stream, are timed by the
  kernels themselves, in the profiler: from the first one's start to the last one's end.
- The claim of a naive timer (no synchronisation) is given beside it.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch.utils.benchmark import Timer

from tracer.errors import RecordError, UsageError
from tracer.results import SCHEMA, Benchmark, Measured, Spread

_FLUSH_BYTES = 256 << 20  # more than any L2 cache
_DELAY_CYCLES_A_NS = 2.0  # of torch.cuda._sleep; clocks run at up to about 2 GHz
_STABLE = 0.1  # warm-up is over when three runs agree to this part
_WARMUPS = 50
_HOT_RUNS = 15
_SHORT_NS = 100_000.0
_RUNS_IN_A_PROFILE = 20
_LEAST = 10  # runs of each candidate, time permitting
_CPU_BLOCK_NS = 200_000
_FAR = 5.0  # median absolute deviations from which a run is an outlier


def bench(
    *functions: Callable[..., Any],
    candidates: Mapping[str, Callable[..., Any]] | None = None,
    device: str = "auto",
    confidence: float = 0.95,
    precision: float = 0.01,
    rotate: Sequence[Any] | None = None,
    flush: bool = True,
    max_seconds: float = 10.0,
) -> Benchmark:
    """Measure functions against each other.

    `rotate` gives the arguments of each run in turn (a tuple is spread). `flush`
    empties the L2 cache before each run. It stops when the confidence interval of
    each median is within `precision` of it, or after `max_seconds`.

    Raises UsageError without anything to measure, RecordError for a missing device.
    """
    named = {getattr(f, "__name__", f"candidate {i}"): f for i, f in enumerate(functions, 1)} | dict(candidates or {})
    if not named:
        raise UsageError("there is nothing to measure", fix="give a function: tracer.bench(lambda: model(x))")
    on_gpu = _on_gpu(device)
    inputs = _inputs(rotate)
    runs = [_Candidate(name, function, inputs, on_gpu) for name, function in named.items()]
    state = _gpu_state() if on_gpu else {}
    for run in runs:
        run.warm_up(max_seconds / 5 / len(runs))
    delay = _Delay(flush) if on_gpu else None
    deadline = time.perf_counter() + max_seconds * 0.8
    while True:
        for run in runs:
            run.once(delay)
        precise = all(run.is_precise(confidence, precision) for run in runs)
        if (precise and len(runs[0].wall) >= _LEAST) or time.perf_counter() > deadline:
            break
    if delay is not None:
        for run in runs:
            run.time_hot(delay)
    measured = tuple(run.result(confidence) for run in runs)
    notes = (*_compare_states(state, _gpu_state() if on_gpu else {}), *_late_notes(runs, confidence, precision))
    name = torch.cuda.get_device_name() if on_gpu else "cpu"
    return Benchmark(SCHEMA, name, measured, notes, {"torch": str(torch.__version__), "flush": str(flush), **state})


class _Delay:
    """Keeps the GPU busy while the host launches, and empties its cache."""

    def __init__(self, flush: bool) -> None:
        self.buffer = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda") if flush else None

    def between(self, run: Callable[[], Any], host_ns: float, *, flush: bool = True) -> float:
        """GPU time between two events around `run`, in nanoseconds, their own included."""
        begun, done = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.begin(host_ns, flush=flush)
        begun.record()
        run()
        done.record()
        done.synchronize()
        return float(begun.elapsed_time(done)) * 1e6

    def begin(self, host_ns: float, *, flush: bool = True) -> None:
        if flush and self.buffer is not None:
            self.buffer.zero_()
        # Twice the time that launching took, and never so long that a wrong guess stalls the benchmark.
        torch.cuda._sleep(int(min(2 * host_ns + 20_000, 50_000_000) * _DELAY_CYCLES_A_NS))


class _Candidate:
    """One function and the times of its runs, in nanoseconds."""

    def __init__(
        self, name: str, function: Callable[..., Any], inputs: Sequence[tuple[Any, ...]], on_gpu: bool
    ) -> None:
        self.name = name
        self.function = function
        self.arguments = cycle(inputs)
        self.on_gpu = on_gpu
        self.gpu: list[float] = []
        self.host: list[float] = []
        self.wall: list[float] = []
        self.naive: list[float] = []
        self.warmups = 0
        self.notes: list[str] = []
        self.by_kernels = False
        self.streams = 0
        self.hot_ns: float | None = None
        self.loops = 1  # on the CPU, calls inside one timing
        self.timer = Timer("run(*next(arguments))", globals={"run": function, "arguments": self.arguments})

    def _synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def warm_up(self, seconds: float) -> None:
        """Run until three runs agree and the allocator has stopped to grow: loading, compiling, tuning are over."""
        times: list[int] = []
        grown = -1
        end = time.perf_counter() + seconds
        while self.warmups < 3 or (self.warmups < _WARMUPS and time.perf_counter() < end):
            self._synchronize()
            start = time.perf_counter_ns()
            self.function(*next(self.arguments))
            launched = time.perf_counter_ns()
            self._synchronize()
            times.append(time.perf_counter_ns() - start)
            self.naive.append(launched - start)
            self.warmups += 1
            last = times[-3:]
            grew, grown = grown, torch.cuda.memory_stats().get("num_device_alloc", 0) if self.on_gpu else grown
            if len(last) == 3 and max(last) - min(last) <= _STABLE * min(last) and grew == grown:
                break
        else:
            self.notes.append(f"was not stable after {self.warmups} warm-up runs")
        if times[0] > 3 * times[-1]:
            self.notes.append(f"the first run took {times[0] / times[-1]:.0f} times as long as the last warm-up run")
        self.naive = self.naive[-3:]
        self.loops = max(1, int(_CPU_BLOCK_NS / max(times[-1], 1)))
        if self.on_gpu:
            self._choose_clock()

    def _choose_clock(self) -> None:
        """See by some profiled runs whether events would measure this function rightly."""
        spans = self._from_kernels(_Delay(flush=False), runs=3)
        if not spans:
            self.notes.append("launches no GPU work that the profiler can see")
            return
        several = self.streams > 1
        self.by_kernels = several or float(np.median(spans)) < _SHORT_NS
        if self.by_kernels:
            why = "uses several streams" if several else "is short"
            self.notes.append(f"{why}: its GPU time is from its first kernel's start to its last one's end")

    def _from_kernels(self, delay: _Delay, *, runs: int, flush: bool = True) -> list[float]:
        """GPU time of some runs by what CUPTI recorded, in nanoseconds; the delay's kernel parts one from the next."""
        from torch.profiler import ProfilerActivity, profile

        host_ns = float(np.median(self.host or self.naive))
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            for _ in range(runs):
                delay.begin(host_ns, flush=flush)
                self.function(*next(self.arguments))
            torch.cuda.synchronize()
        work = sorted(
            (event.start_ns(), event.end_ns(), event.device_resource_id(), event.name())
            for event in profiler.profiler.kineto_results.events()
            if event.device_type() == torch.autograd.DeviceType.CUDA and event.duration_ns() > 0
        )
        if flush and delay.buffer is not None:
            # The fill that empties the cache of the next run is no work of the function.
            starts = [at for at, item in enumerate(work) if "spin_kernel" in item[3]]
            work = [item for at, item in enumerate(work) if at + 1 not in starts]
        starts = [at for at, item in enumerate(work) if "spin_kernel" in item[3]]
        runs_of_work = [work[low + 1 : high] for low, high in zip(starts, [*starts[1:], len(work)], strict=True)]
        self.streams = max((len({item[2] for item in run}) for run in runs_of_work), default=0)
        return [float(max(item[1] for item in run) - run[0][0]) for run in runs_of_work if run]

    def once(self, delay: _Delay | None) -> None:
        """One timed run."""
        if delay is None:
            self.wall.append(self.timer.timeit(self.loops).mean * 1e9)
            self.host.append(self.wall[-1])
            return
        self._time_gpu(delay)
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        self.function(*next(self.arguments))
        launched = time.perf_counter_ns()
        torch.cuda.synchronize()
        self.wall.append(time.perf_counter_ns() - start)
        self.host.append(launched - start)

    def _time_gpu(self, delay: _Delay) -> None:
        if self.by_kernels:
            self.gpu.extend(self._from_kernels(delay, runs=_RUNS_IN_A_PROFILE))
        else:
            self.gpu.append(self._between_events(delay))

    def _between_events(self, delay: _Delay, *, flush: bool = True) -> float:
        host_ns = float(np.median(self.host or self.naive))
        return delay.between(lambda: self.function(*next(self.arguments)), host_ns, flush=flush)

    def time_hot(self, delay: _Delay) -> None:
        """A few runs with whatever the last run left in the cache, to show what a loop without flush would claim."""
        if delay.buffer is None:
            return
        if self.by_kernels:
            times = self._from_kernels(delay, runs=_HOT_RUNS, flush=False)
        else:
            times = [self._between_events(delay, flush=False) for _ in range(_HOT_RUNS)]
        self.hot_ns = float(np.median(times))

    @property
    def times(self) -> list[float]:
        """What the candidate is judged by: its GPU time, or on a CPU its wall time."""
        return self.gpu or self.wall

    def is_precise(self, confidence: float, precision: float) -> bool:
        low, high = median_interval(self.times, confidence)
        return (high - low) / 2 <= precision * float(np.median(self.times))

    def result(self, confidence: float) -> Measured:
        times = np.array(self.times, dtype=float)
        median = float(np.median(times))
        deviation = float(np.median(np.abs(times - median)))
        gpu = spread_of(self.gpu) if self.gpu else None
        host = spread_of(self.host)
        return Measured(
            name=self.name,
            gpu_ns=gpu,
            host_ns=host,
            wall_ns=spread_of(self.wall),
            interval_ns=median_interval(self.times, confidence),
            confidence=confidence,
            naive_ns=float(np.median(self.naive)),
            launch_bound=gpu is not None and host.p50_ns > gpu.p50_ns,
            repeats=len(times),
            warmups=self.warmups,
            outliers=int(np.sum(np.abs(times - median) > _FAR * max(deviation, 1.0))),
            notes=tuple(self.notes),
            hot_ns=self.hot_ns,
            times_ns=tuple(times.tolist()),
        )


def spread_of(times_ns: Sequence[float]) -> Spread:
    """Order statistics of durations."""
    values = np.asarray(times_ns, dtype=float)
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return Spread(
        len(values), float(values.mean()), float(p50), float(p90), float(p99), int(values.min()), int(values.max())
    )


def median_interval(times_ns: Sequence[float], confidence: float) -> tuple[float, float]:
    """Confidence interval of the median by order statistics: no assumption about the distribution."""
    values = np.sort(np.asarray(times_ns, dtype=float))
    size = len(values)
    reach = NormalDist().inv_cdf(0.5 + confidence / 2) * np.sqrt(size) / 2
    low = max(0, int(np.floor(size / 2 - reach)))
    high = min(size - 1, int(np.ceil(size / 2 + reach)))
    return float(values[low]), float(values[high])


def _inputs(rotate: Sequence[Any] | None) -> list[tuple[Any, ...]]:
    if rotate is None:
        return [()]
    if not len(rotate):
        raise UsageError("rotate is empty", fix="give at least one set of arguments")
    return [item if isinstance(item, tuple) else (item,) for item in rotate]


def _on_gpu(device: str) -> bool:
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"bench.device is {device!r}", fix="one of auto, cpu, cuda")
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise RecordError("there is no CUDA device to measure on", fix="use device: cpu, or run on a CUDA machine")
    return available and device != "cpu"


def _gpu_state() -> dict[str, str]:
    """Clocks, temperature and throttling, as nvidia-smi reads them; nothing where it is missing."""
    if shutil.which("nvidia-smi") is None:
        return {}
    keys = ("clocks.sm", "clocks.mem", "temperature.gpu", "clocks_event_reasons.active")
    command = [
        "nvidia-smi",
        f"--query-gpu={','.join(keys)}",
        "--format=csv,noheader",
        "-i",
        str(torch.cuda.current_device()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        return {}
    return dict(zip(keys, (value.strip() for value in done.stdout.strip().split(",")), strict=False))


def _compare_states(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    changed = [f"{key}: {before[key]} -> {after[key]}" for key in before if after.get(key, before[key]) != before[key]]
    return [f"the GPU's state changed while measuring: {', '.join(changed)}"] if changed else []


def _late_notes(runs: Sequence[_Candidate], confidence: float, precision: float) -> list[str]:
    late = [run.name for run in runs if not run.is_precise(confidence, precision)]
    return [f"time was up before the interval was within {precision:.1%}: {', '.join(late)}"] if late else []
