"""Feeds damaged files to the readers: only a Trace or a TracerError may come out, in bounded time and memory.

    python tests/fuzz_readers.py --seconds 600 --seed 1

Prints what was tried; a file that breaks the rule is kept, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import shutil
import sqlite3
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.kineto_text import call, event, kernel, label, write
from tracer.chunks import append_chunk
from tracer.errors import TracerError
from tracer.readers import load
from tracer.trace import NONE, Trace

TOKENS = [
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"true"),
    *(
        b'"ph":"X"',
        b'"ts":',
        b'"dur":',
        b'"args":{',
        b'"name":"',
        b"},{",
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\r\n",
    ),
    *(b"18446744073709551616", b"9223372036854775807", b"0.0000001", b"1" * 400, b"[" * 3_000, b'{"a":' * 3_000),
    *(b"\\u0000", b"\\ud800", b'"traceEvents":[', b"/*", b"\x1f\x8b", b"1_0", b"0x10", b"+1", b"." * 50),
]
MOST_SECONDS = 20.0  # for one small file; a machine under load is slow, a hang is for ever


def mutate(data: bytes, chance: random.Random) -> bytes:
    """One to six damages."""
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        size = len(data)
        at, to = sorted((chance.randint(0, size), chance.randint(0, size)))
        to = min(to, at + chance.choice((1, 4, 40, 400, 10_000)))
        match chance.randrange(9):
            case 0:
                data = data[:at]
            case 1:
                data = data[:at] + data[to:]
            case 2:
                data = data[:at] + chance.choice(TOKENS) + data[at:]
            case 3:
                data = data[:at] + chance.choice(TOKENS) + data[to:]
            case 4:
                data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
            case 5:
                data = data[:at] + data[at:to] * chance.choice((2, 3, 50)) + data[to:]
            case 6:
                data = data[at:]
            case 7:
                digits = [place for place in range(at, min(at + 200, size)) if data[place : place + 1].isdigit()]
                for place in digits[:20]:
                    data = data[:place] + str(chance.randrange(10)).encode() + data[place + 1 :]
            case _:
                data = data[:at] + bytes(chance.randrange(256) for _ in range(chance.choice((1, 8, 64)))) + data[to:]
    return data


def seeds() -> Iterator[tuple[str, bytes]]:
    """Small whole files of every format; real ones too, where they are at hand."""
    events = [
        label("process_labels", pid=0, labels="GPU 0"),
        event("python_function", "train.py(3): main", 0, 90_000, **{"Python id": 1, "Python parent id": None}),
        event(
            "cpu_op", "aten::mm", 1_000, 9_000, **{"External id": 1, "Sequence number": 4, "Input Dims": [[2, 3], []]}
        ),
        call("cudaLaunchKernel", 2_000, 5_123, 11),
        event("ac2g", "ac2g", 2_000, 0, ph="s", id=11),
        kernel("gemm", 20_001, 30_000, 11, grid=[132, 1, 1], block=[128, 1, 1]),
        event("cuda_sync", "Stream Sync", 52_000, 9_000, pid=0, tid=1_000_007, stream=7, correlation=12),
        event("cpu_instant_event", "[memory]", 5_000, 0, ph="i", **{"Device Type": 1, "Total Allocated": 4}),
    ] * 3
    yield "lines.json", write(events, distributedInfo={"rank": 1})
    yield "kineto.json", write(events, layout="kineto", base="after", deviceProperties=[{"id": 0}, {"id": 1}])
    yield "bare.json", write(events, layout="one line", bare=True, stamps="text")
    yield "packed.json.gz", gzip.compress(write(events))
    shared = Path(os.environ.get("TRACER_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    for path in sorted(shared.glob("cases/inputs/*.json")) + sorted(shared.glob("traces/public/derived_malformed/*")):
        yield path.name, path.read_bytes()
    real = shared / "traces" / "public" / "tl_torch_compile_triton.json.gz"
    if real.exists():
        yield "real.json", gzip.decompress(real.read_bytes())
    yield "export.sqlite", make_sqlite()


def make_sqlite() -> bytes:
    """A small export of Nsight Systems."""
    with tempfile.TemporaryDirectory() as folder, closing(sqlite3.connect(Path(folder) / "a.sqlite")) as database:
        database.executescript(
            """
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel_v7000'), (2, 'gemm');
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId);
            INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1000, 2000, 281476838981743, 5, 1);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL
              (start, end, globalPid, deviceId, streamId, correlationId, demangledName);
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (3000, 9000, 281476838981632, 0, 7, 5, 2);
            CREATE TABLE NVTX_EVENTS (start, end, eventType, globalTid, text, textId);
            INSERT INTO NVTX_EVENTS VALUES (500, 2500, 59, 281476838981743, 'aten::mm, seq = 4, op_id = 7', NULL);
            """
        )
        database.commit()
        return (Path(folder) / "a.sqlite").read_bytes()


def make_recording(folder: Path, chance: random.Random) -> None:
    """A folder as `tracer run` leaves it, with one of its files damaged."""
    rank = folder / "rank0-host-100"
    rank.mkdir(parents=True)
    manifest = {
        "schema": 1,
        "complete": True,
        "rank": 0,
        "pid": 100,
        "marks": [[1_000_000, 1_790_000_000_000_000_000, 300], [2_000_000, 1_790_000_000_001_000_000, 300]],
        "threads": [{"ident": 140_000, "native_id": 100, "name": "MainThread"}],
        "recorders": {"ledger": {"on": True}},
        "window": {"start_mono_ns": 1_000_000, "end_mono_ns": 2_000_000},
        "devices": [{"index": 0, "name": "H200"}],
        "kineto": "kineto.json.gz",
    }
    files = {"manifest.json": json.dumps(manifest).encode(), "sources.json": json.dumps({"a.py": "x = 1\n"}).encode()}
    files["kineto.json.gz"] = gzip.compress(
        write([call("cudaLaunchKernel", 1_000, 900, 1), kernel("k", 3_000, 900, 1)])
    )
    frame = ["frame", 0, -1, "a.py", 3, "main", 1, 5]
    for name, rows in {
        "steps": [["step", 1_000_000 + at * 1_000, at, 100, True] for at in range(5)],
        "ledger": [frame, ["sync", -1, 1_000_900, 100, 0, "sync"]],
        "lines": [frame, ["line", 1_000_000, 900, 100, 0]],
        "clocks": [frame, ["read", 1_000_000, 100, "time.time", 7, 0], ["elapsed", 1_000_500, 100, 7, 1, 2, 0, 0, 0]],
        "memory": [["counter", 1_000_000, "rss", -1, 5.0]],
    }.items():
        path = rank / f"{name}.chunks"
        with path.open("wb") as file:
            append_chunk(file.fileno(), rows)
            odd = [chance.choice(rows)[: chance.randint(0, 6)], chance.choice([None, 7, "step", {}, [[]], ["step"]])]
            append_chunk(file.fileno(), odd if chance.random() < 0.3 else rows)
        files[path.name] = path.read_bytes()
    damaged = chance.choice(sorted(files))
    files[damaged] = mutate(files[damaged], chance)
    for name, data in files.items():
        (rank / name).write_bytes(data)


def check(trace: Trace) -> None:
    """What must be true of every Trace, whatever it was read from."""
    spans = trace.spans
    assert (spans.dur_ns >= 0).all(), "a span ends before it starts"
    assert (np.diff(spans.start_ns) >= 0).all(), "spans are not in order"
    assert (spans.end_ns >= spans.start_ns).all(), "an end does not fit"
    for column, size in ((spans.name, len(trace.names)), (spans.track, len(trace.tracks)), (spans.kind, 11)):
        assert not len(column) or (column.min() >= 0 and column.max() < size), "an id points nowhere"
    assert (spans.parent < np.arange(len(spans))).all(), "a parent comes after its child"
    assert (spans.parent >= NONE).all(), "a parent points nowhere"
    for table in (trace.ops, trace.work, trace.waits, trace.collectives):
        assert not len(table) or (table.span.min() >= 0 and table.span.max() < len(spans)), "a detail of no span"


def try_one(path: Path) -> str:
    """What came out of one file. Raises whatever else than a Trace or a TracerError did."""
    try:
        trace = load(path)
    except TracerError:
        return "refused"
    check(trace)
    return "trace with losses" if trace.losses or trace.meta.get("complete") == "false" else "whole trace"


def fuzz(seconds: float, seed: int, keep: Path, most: int = 10**9) -> tuple[Counter[str], float, list[Path]]:
    """Try damaged files for a while: what came out, the slowest in seconds, and the files that broke the rule."""
    chance = random.Random(seed)
    known = list(seeds())
    came_out: Counter[str] = Counter()
    slowest, broken = 0.0, []
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(most):
            if time.monotonic() > end:
                break
            path = Path(temporary) / "one"
            if chance.random() < 0.1:
                make_recording(path, chance)
            else:
                name, data = chance.choice(known)
                path = path.with_name(name)
                path.write_bytes(mutate(data, chance))
            start = time.monotonic()
            try:
                came_out[try_one(path)] += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                traceback.print_exc()
                broken.append(keep / f"fuzz-{seed}-{number}-{path.name}")
                (shutil.copytree if path.is_dir() else shutil.copy)(path, broken[-1])
            took = time.monotonic() - start
            slowest = max(slowest, took)
            if took > MOST_SECONDS:
                broken.append(keep / f"fuzz-{seed}-{number}-slow-{path.name}")
                (shutil.copytree if path.is_dir() else shutil.copy)(path, broken[-1])
            if path.is_dir():
                shutil.rmtree(path)
    return came_out, slowest, broken


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path(), help="folder for files that break the rule")
    arguments = parser.parse_args()
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    came_out, slowest, broken = fuzz(arguments.seconds, arguments.seed, arguments.keep)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{sum(came_out.values())} files: {dict(came_out)}; slowest {slowest:.2f} s; peak memory {peak} MB")
    print(f"{len(broken)} broke the rule", *broken, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
