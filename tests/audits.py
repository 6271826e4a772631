"""A hand-made Audit with something of everything, for the tests of the reports."""

from __future__ import annotations

from dataclasses import replace

from tracer.analysis.finish import finish
from tracer.results import (
    SCHEMA,
    Audit,
    Cost,
    Curve,
    Device,
    Finding,
    Gain,
    Hot,
    IdleRow,
    Launching,
    LineCost,
    Pace,
    Picture,
    Place,
    Replay,
    Spread,
    Step,
    Timer,
    Verdict,
)

MS = 1_000_000
TRAIN = """import torch
from torch import nn


def loss_of(model, batch):
    out = model(batch)
    return out.square().mean()


def train(model, optimizer, batches):
    total = 0.0
    for batch in batches:
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
        if torch.isnan(loss):
            raise RuntimeError("NaN")
    return total
"""


def place(line: int, columns: tuple[int, int] | None = None, file: str = "/app/train.py", function: str = "train"):
    return Place(file, line, function, columns, "ledger", True, TRAIN.splitlines()[line - 1])


def finding(**changes) -> Finding:
    base = Finding(
        id="SYNC001-3fa2c1",
        rule="SYNC001",
        kind="sync.item",
        title="a tensor is read with .item()",
        severity="warning",
        place=place(17, (18, 29)),
        op="item",
        thread="MainThread",
        count=8,
        waits=8,
        stall_ns=26 * MS,
        idle_ns=20 * MS,
        lead_ns=30 * MS,
        per_step=Cost(1.0, 1.0, 3.25 * MS, 2.5 * MS, 3.75 * MS),
        gain_ns=Gain(int(1.2 * MS), int(2.1 * MS), 0.19, "untraced", "the GPU"),
        message="8 reads of a CUDA tensor held the host 26.0 ms",
        fix="keep the value on the GPU and read it once, after the loop",
        first_ns=12 * MS,
        first_dur_ns=int(3.4 * MS),
        callers=(Place("/app/main.py", 8, "main", None, "ledger", True, "train(model, optimizer, batches)"),),
    )
    return replace(base, **changes)


FINDINGS = (
    finding(),
    finding(
        id="SYNC004-77ab01",
        rule="SYNC004",
        kind="sync.item",
        title="Python branches on a CUDA tensor",
        op="bool",
        place=place(18, (12, 29)),
        stall_ns=1 * MS,
        idle_ns=int(0.6 * MS),
        lead_ns=0,
        per_step=Cost(1.0, 1.0, 0.125 * MS, 0.075 * MS, 0.0),
        gain_ns=None,
        message="8 branches on a CUDA tensor held the host 1.00 ms",
        fix="test the value every k steps, or torch._assert_async",
        confidence="medium",
        notes=("Removing only the first of the two waits moves the wait here.",),
        callers=(),
    ),
    finding(
        id="IDLE002-1c0ffe",
        rule="IDLE002",
        kind="launch.bound",
        title="the host launches more slowly than the GPU executes",
        severity="info",
        op="",
        place=None,
        library_place=Place("/usr/lib/python3/site-packages/torch/optim/adam.py", 480, "step", None, "samples", False),
        count=0,
        waits=0,
        stall_ns=0,
        idle_ns=9 * MS,
        lead_ns=0,
        per_step=Cost(0.0, 0.0, 0.0, 1.125 * MS, 0.0),
        gain_ns=None,
        message="small kernels: the GPU waited 9.00 ms for launches",
        fix="torch.compile, CUDA graphs, or a fused optimizer",
        callers=(),
    ),
    finding(
        id="SYNC011-aa0001",
        rule="SYNC011",
        kind="sync.event",
        title="the host waits for an event",
        op="Event.synchronize",
        severity="info",
        place=place(13, (16, 38)),
        count=8,
        waits=8,
        stall_ns=5 * MS,
        idle_ns=0,
        lead_ns=0,
        per_step=Cost(1.0, 1.0, 0.625 * MS, 0.0, 0.0),
        gain_ns=None,
        harmless=True,
        message="8 event waits held the host 5.00 ms behind a busy GPU",
        fix="",
        callers=(),
    ),
)


def picture(title: str, step: int, start_ns: int, wall_ns: int) -> Picture:
    at = tuple(start_ns + wall_ns * k // 20 for k in range(21))
    lead = tuple(float((k % 10) * 0.2 * MS) for k in range(21))
    part = wall_ns // 10
    return Picture(
        title,
        step,
        start_ns,
        wall_ns,
        (Curve("lead", "ns", at, lead), Curve("depth", "launches", at, tuple(float(k % 7) for k in range(21)))),
        tuple((start_ns + k * part, part - part // 3) for k in range(9)),
        (
            (start_ns + 3 * part, 2 * part, "SYNC001-3fa2c1", False),
            (start_ns + 8 * part, part // 2, "SYNC011-aa0001", True),
        ),
    )


def make_audit(**changes) -> Audit:
    """Eight steps of 11 ms on one H200, two reads, a launch-bound rest; `changes` replace fields before finish()."""
    steps = tuple(
        Step(k, 0, k * 11 * MS, 11 * MS + (2 * MS if k == 5 else 0), int(6.82 * MS), int(4.18 * MS), int(3.4 * MS))
        for k in range(8)
    )
    fields = {
        "schema": SCHEMA,
        "source": "traces/quickstart-20261130-220000/rank0-host-100",
        "window_ns": 90 * MS,
        "steps": steps,
        "pace": Pace("optimizer", 9 * MS, 11 * MS, 1.22, 40, 8),
        "devices": (Device(0, 0, "NVIDIA H200", 55 * MS, 35 * MS, 90 * MS, 512, 2),),
        "findings": FINDINGS,
        "idle": {"sync.item": int(20.6 * MS), "launch.bound": 9 * MS, "unknown": int(4.4 * MS), "head": 1 * MS},
        "idle_rows": (
            IdleRow("sync.item", "SYNC001", 20 * MS, 8, 0.5714, place(17)),
            IdleRow("launch.bound", "IDLE002", 9 * MS, 88, 0.2571, None),
            IdleRow("unknown", "", int(4.4 * MS), 31, 0.1257, None),
            IdleRow("head", "", 1 * MS, 1, 0.0286, None),
            IdleRow("sync.item", "SYNC004", int(0.6 * MS), 8, 0.0171, place(18)),
        ),
        "lines": (
            LineCost("/app/train.py", 17, 8, 26 * MS, 20 * MS, 3),
            LineCost("/app/train.py", 18, 8, 1 * MS, int(0.6 * MS)),
            LineCost("/app/train.py", 13, 8, 5 * MS, 0),
        ),
        "timers": (
            Timer(place(13), place(15), "time.perf_counter", 8, 0.4 * MS, 6.1 * MS, 15.3, 5.9 * MS, 0.2 * MS,
                  "bench.no_sync", "TIME001", "the clock was read while the GPU was still working"),
        ),
        "launching": Launching(
            520, 512, 8, 0,
            Spread(512, 1.1 * MS, 0.9 * MS, 2.0 * MS, 3.1 * MS, 8_000, int(3.2 * MS)),
            Spread(512, 1.0 * MS, 0.8 * MS, 1.9 * MS, 3.0 * MS, 4_000, int(3.1 * MS)),
            0, 141, 1.3 * MS, 4 * MS,
        ),
        "kernels": (
            Hot("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64>(Params)", 192, 40 * MS, 208_333.0, 0.727),
            Hot("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>", 320, 11 * MS,
                34_375.0, 0.2),
        ),
        "ops": (Hot("aten::addmm", 192, 40 * MS, 208_333.0, 0.727), Hot("aten::mul", 320, 11 * MS, 34_375.0, 0.2)),
        "copies": (Hot("HtoD (Pageable)", 8, 4 * MS, 500_000.0, 0.073, 64 << 20, 16.8),),
        "verdicts": (
            Verdict("sync_bound", "synchronisations hold the program: without them a step would take 8.9 ms", 0.19,
                    "untraced"),
        ),
        "limits": ("no memory events were recorded", "sampling was off: 3 idle gaps have no line"),
        "replay": Replay(11 * MS, int(10.8 * MS), 0.018, "", Gain(int(1.3 * MS), int(2.4 * MS), 0.22, "untraced",
                                                              "the GPU")),
        "pictures": (picture("typical step", 3, 33 * MS, 11 * MS), picture("worst step", 5, 55 * MS, 13 * MS)),
        "sources": {"/app/train.py": TRAIN},
        "meta": {"torch": "2.11.0+cu130", "host": "node1"},
    }  # fmt: skip
    return finish(Audit(**(fields | changes)))


_NONE = (
    "steps",
    "devices",
    "findings",
    "idle_rows",
    "lines",
    "timers",
    "kernels",
    "ops",
    "copies",
    "verdicts",
    "limits",
)
EMPTY = make_audit(**dict.fromkeys((*_NONE, "limits"), ()), idle={}, sources={}, replay=None, window_ns=0)
