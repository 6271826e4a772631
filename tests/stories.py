"""Small traces of one kind of wait, repeated as in a loop, with the Python stack that a ledger would have."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.conftest import CPU, GPU, US
from tracer.auditor import examine
from tracer.building import TraceBuilder
from tracer.results import Finding
from tracer.trace import NONE, Kind, Ledger, Trace

USER = ("/home/me/train.py", 7, "step")
TORCH = "/venv/lib/python3.12/site-packages/torch/"


@dataclass
class Wait:
    """One way to be held: operators from the outermost, calls below the innermost."""

    ops: tuple[str, ...] = ()
    copy: str = ""  # "DtoH (Device -> Pinned)"
    nbytes: int = 4
    call: str = "cudaStreamSynchronize"
    held_us: float = 900  # by the call
    copy_held_us: float = 8  # by the copy call
    stack: tuple[tuple[str, int, str], ...] = (USER,)  # innermost first
    text: str = ""  # the user's line
    before: tuple[str, ...] = ()  # operators just before, on their own
    after: tuple[str, ...] = ()  # and just after
    around: tuple[tuple[Kind, str], ...] = ()  # spans around the operators, the outermost first
    launch: str = "cudaLaunchKernel"
    thread: tuple[object, ...] = CPU
    more: dict[str, object] = field(default_factory=dict)


def trace_of(wait: Wait, times: int = 5) -> Trace:
    """The wait, `times` times, each behind a kernel of 1 ms."""
    builder = TraceBuilder()
    cpu = builder.track(*wait.thread)  # type: ignore[arg-type]
    gpu = builder.track(*GPU)
    corr = 0

    def add(kind: Kind, name: str, track: int, start: float, end: float, corr: int = NONE, nbytes: int = NONE) -> None:
        length = round((end - start) * US)
        builder.add_spans(round(start * US), length, int(kind), builder.name(name), track, corr, nbytes)

    frame = NONE
    for file, line, function in reversed(wait.stack):
        frame = builder.frame(file, line, function, frame)
    ends, frames = [], []
    for i in range(times):
        at = 3_000.0 * i
        corr += 10
        add(Kind.CALL, wait.launch, cpu, at, at + 5, corr)
        add(Kind.KERNEL, "gemm", gpu, at + 10, at + 1_010, corr)
        for j, name in enumerate(wait.before):
            add(Kind.OP, name, cpu, at + 12 + 2 * j, at + 13 + 2 * j)
        start = at + 30
        call = start + 20 + wait.copy_held_us
        end = call + wait.held_us
        for depth, (kind, name) in enumerate(wait.around):
            add(kind, name, cpu, start - 5 + depth, end + 20 - depth)
        for depth, name in enumerate(wait.ops):
            add(Kind.OP, name, cpu, start + depth, end + 10 - depth)
        for j, name in enumerate(wait.after):
            add(Kind.OP, name, cpu, end + 21 + 2 * j, end + 22 + 2 * j)
        if wait.copy:
            add(
                Kind.CALL,
                wait.more.get("copy_call", "cudaMemcpyAsync"),
                cpu,
                start + 15,
                start + 15 + wait.copy_held_us,
                corr + 1,
            )  # type: ignore[arg-type]
            landed = max(at + 1_011, start + 16) if not wait.more.get("late") else end + 50
            add(Kind.COPY, f"Memcpy {wait.copy}", gpu, landed, landed + 2, corr + 1, wait.nbytes)
        if wait.call:
            add(Kind.CALL, wait.call, cpu, call, end, corr + 2)
        ends.append(round((end + 30) * US))
        frames.append(frame)
    add(Kind.CALL, wait.launch, cpu, 3_000 * times, 3_000 * times + 5, 5_001)
    add(Kind.KERNEL, "gemm", gpu, 3_000 * times + 10, 3_000 * times + 1_010, 5_001)
    count = len(ends)
    if wait.stack:
        builder.add_table(
            "ledger",
            Ledger.of(
                start_ns=[NONE] * count,
                end_ns=ends,
                track=[cpu] * count,
                frame=frames,
                what=[builder.name("sync")] * count,
            ),
        )
    if wait.text:
        file, line, _ = next(one for one in wait.stack if "site-packages" not in one[0])
        builder.sources[file] = "\n" * (line - 1) + wait.text + "\n"
    return builder.build()


def findings_of(wait: Wait, times: int = 5) -> list[Finding]:
    """What the rules about stalls find in it."""
    return [found for found in examine(trace_of(wait, times)).findings if not found.rule.startswith("IDLE")]
