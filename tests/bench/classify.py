"""How long it takes to classify a trace of a million events, after loading.

    python tests/bench/classify.py [--events 1000000] [--rounds 3] [NAME ...]

A recording from an H200 is laid end to end until it has that many events, so that the
mix of operators, calls, kernels and waits is a real one.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.shared import H200
from tracer.auditor import audit_of, examine
from tracer.readers import load
from tracer.trace import NONE, Ledger, Spans, Trace, WaitDetails


def repeat(trace: Trace, times: int) -> Trace:
    """The trace, again and again, one after the other."""
    spans, size = trace.spans, len(trace.spans)
    length = int(spans.end_ns.max() - spans.start_ns.min()) + 1_000_000
    most = int(spans.corr.max()) + 1
    parts, ledgers, waits = [], [], []
    for n in range(times):
        columns = {name: getattr(spans, name) for name in Spans.columns()}
        columns["start_ns"] = spans.start_ns + n * length
        columns["corr"] = np.where(spans.corr == NONE, NONE, spans.corr + n * most)
        columns["parent"] = np.where(spans.parent == NONE, NONE, spans.parent + n * size).astype(np.int32)
        parts.append(Spans(**columns))
        ledger = {name: getattr(trace.ledger, name) for name in Ledger.columns()}
        ledger["end_ns"] = trace.ledger.end_ns + n * length
        ledger["start_ns"] = np.where(trace.ledger.start_ns == NONE, NONE, trace.ledger.start_ns + n * length)
        ledgers.append(Ledger(**ledger))
        waiting = {name: getattr(trace.waits, name) for name in WaitDetails.columns()}
        waiting["span"] = (trace.waits.span + n * size).astype(np.int32)
        waits.append(WaitDetails(**waiting))
    return replace(
        trace,
        spans=Spans.join(parts),
        ledger=Ledger.join(ledgers),
        waits=WaitDetails.join(waits),
        window_ns=None,
        ops=type(trace.ops).empty(),
        work=type(trace.work).empty(),
        counters=type(trace.counters).empty(),
    )


def main() -> int:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["IS20", "IS21", "LB01", "train_sync"])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    for name in arguments.names:
        one = load(H200 / f"{name}.json.gz")
        trace = repeat(one, -(-arguments.events // len(one.spans)))
        walls, cpus, audits = [], [], []
        for _ in range(arguments.rounds):
            start, start_cpu = time.perf_counter(), time.process_time()
            found = examine(trace)
            walls.append(time.perf_counter() - start)
            cpus.append(time.process_time() - start_cpu)
            start_cpu = time.process_time()
            audit_of(found)
            audits.append(time.process_time() - start_cpu)
        stalls, findings = len(found.evidence.stalls), len(found.findings)
        print(
            f"{name:10} {len(trace.spans):8} events, {stalls:6} waits, {findings:3} findings: "
            f"classified in {min(walls):.2f} s ({min(cpus):.2f} s of CPU), gains and figures {min(audits):.2f} s of CPU"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
