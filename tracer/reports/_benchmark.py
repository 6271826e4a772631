"""A benchmark on a terminal: figures side by side with the naive claim, and the distribution of the runs."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from tracer.reports import _words as words
from tracer.results import Benchmark, Measured
from tracer.units import show_ns

_BARS = " ▁▂▃▄▅▆▇█"
_BINS = 40


def render_benchmark(result: Benchmark, width: int = 110) -> str:
    """The benchmark as text, without colour."""
    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("candidate", "GPU", "interval", "host launch", "wall", "naive timer says", "runs", "outliers"):
        table.add_column(name, justify="left" if name == "candidate" else "right", no_wrap=True)
    for one in result.candidates:
        low, high = one.interval_ns
        table.add_row(
            words.one_line(one.name),
            show_ns(one.gpu_ns.p50_ns) if one.gpu_ns else "-",
            f"{show_ns(low)} .. {show_ns(high)}",
            show_ns(one.host_ns.p50_ns),
            show_ns(one.wall_ns.p50_ns),
            show_ns(one.naive_ns),
            str(one.repeats),
            str(one.outliers),
        )
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False, no_color=True)
    console.print(f"{words.one_line(result.device)}, medians of runs in turn")
    console.print(table)
    for one in result.candidates:
        console.print(f"\n{words.one_line(one.name)}: {'launch-bound: ' if one.launch_bound else ''}{_histogram(one)}")
        if one.hot_ns is not None and one.gpu_ns is not None:
            console.print(f"  with a hot L2 cache {show_ns(one.hot_ns)}, cold {show_ns(one.gpu_ns.p50_ns)}")
        for note in one.notes:
            console.print(f"  {words.one_line(note)}")
    for note in result.notes:
        console.print(words.one_line(note))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _histogram(one: Measured) -> str:
    """How the runs spread between the fastest and the 99th percentile."""
    times = sorted(one.times_ns)
    low, high = times[0], times[min(len(times) - 1, int(0.99 * len(times)))]
    if high <= low:
        return f"every run {show_ns(low)}"
    counts = [0] * _BINS
    for time_ns in times:
        counts[min(_BINS - 1, int((time_ns - low) / (high - low) * _BINS))] += 1
    scale = (len(_BARS) - 1) / max(counts)
    bars = "".join(_BARS[-int(-count * scale // 1)] for count in counts)
    return f"{show_ns(low)} {bars} {show_ns(high)}"
