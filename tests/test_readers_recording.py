"""A recording's folder: all recorders on one clock, all ranks in one trace, whatever a crash left of it."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from tests.kineto_text import BASE_NS, call, event, kernel, write
from tracer.chunks import append_chunk
from tracer.errors import TraceError
from tracer.readers import load
from tracer.readers._clock import Clock
from tracer.trace import NONE

MONO = 5_000_000_000  # of the clock mark that is at unix BASE_NS
FRAME = ["frame", 0, -1, "train.py", 3, "main", 5, 9]
ELAPSED = ["elapsed", MONO + 90, 100, 7, MONO, MONO + 5, 0, 3, 0]


def rows_of(name: str) -> list[list[object]]:
    return {
        "steps": [["step", MONO + at * 1_000, 10 + at, 100, at >= 2] for at in range(5)],
        "ledger": [FRAME, ["frame", 1, 0, "train.py", 9, "f", 1, 4], ["sync", -1, MONO + 700, 100, 1, "sync"]],
        "lines": [FRAME, ["line", MONO + 100, 400, 100, 0]],
        "clocks": [
            FRAME,
            ["read", MONO + 50, 100, "time.time", 7, 0],
            ["elapsed", MONO + 90, 100, 7, MONO, MONO + 5, 0, 3, 0],
        ],
        "memory": [["counter", MONO + 10, "rss", -1, 5]],
        "samples": [FRAME, ["sample", MONO + 20, 100, 0, 1_000]],
    }[name]


@pytest.fixture
def record(tmp_path):
    """Writes one rank's folder; keys change its manifest."""

    def make(rank: int = 0, **changes: object):
        folder = tmp_path / "run" / f"rank{rank}-host-{100 + rank}"
        folder.mkdir(parents=True)
        manifest = {
            "schema": 1,
            "complete": True,
            "rank": rank,
            "world_size": 2,
            "pid": 100,
            "host": "host",
            "steps_from": "optimizer",
            "marks": [[MONO, BASE_NS, 300], [MONO + 10**9, BASE_NS + 10**9 + 50, 200]],
            "threads": [
                {"ident": 0x7F00_F200_0040, "native_id": 101, "name": "helper"},
                {"native_id": 100, "name": "MainThread"},
            ],
            "recorders": {"ledger": {"on": True, "saw": 1, "dropped": 0}},
            "window": {"start_mono_ns": MONO, "end_mono_ns": MONO + 9_000},
            "devices": [{"index": 0, "name": "NVIDIA H200"}],
            "kineto": "kineto.json.gz",
        }
        (folder / "manifest.json").write_text(json.dumps(manifest | changes))
        (folder / "sources.json").write_text(json.dumps({"train.py": "x = 1\n"}))
        events = [
            event("cpu_op", "aten::mm", 1_000, 900),
            call("cudaLaunchKernel", 1_200, 300, 1),
            kernel("k", 3_000, 900, 1),
            call("cudaStreamSynchronize", 1_300, 50, 2, tid=0xF200_0040 - 2**32),
        ]
        (folder / "kineto.json.gz").write_bytes(gzip.compress(write(events)))
        for name in ("steps", "ledger", "lines", "clocks", "memory", "samples"):
            with (folder / f"{name}.chunks").open("wb") as file:
                append_chunk(file.fileno(), rows_of(name))
        return folder

    return make


def test_every_recorder_is_on_one_clock(record):
    trace = load(record())

    assert trace.origin_unix_ns == BASE_NS
    assert trace.steps.start_ns.tolist() == [0, 1_000, 2_000, 3_000]
    assert trace.steps.number.tolist() == [10, 11, 12, 13]
    assert trace.steps.traced.tolist() == [False, False, True, True]
    assert trace.steps.dur_ns.tolist() == [1_000] * 4
    assert (trace.ledger.start_ns.tolist(), trace.ledger.end_ns.tolist()) == ([NONE], [700])
    assert (trace.lines.start_ns.tolist(), trace.lines.dur_ns.tolist()) == ([100], [400])
    assert trace.reads.time_ns.tolist() == [50]
    assert (trace.event_timings.start_ns.tolist(), trace.event_timings.end_ns.tolist()) == ([0], [5])
    assert trace.samples.time_ns.tolist() == [20]
    assert trace.counters.time_ns.tolist() == [10]
    assert trace.spans.start_ns.tolist() == [1_000, 1_200, 1_300, 3_000]
    assert trace.losses == ()


def test_stacks_are_trees_of_frames(record):
    trace = load(record())

    leaf = trace.ledger.frame[0]
    frames = trace.frames
    assert (trace.names[frames.function[leaf]], frames.line[leaf], frames.column[leaf]) == ("f", 9, 1)
    assert trace.names[frames.function[frames.parent[leaf]]] == "main"


def test_a_thread_that_torch_knows_by_its_pthread_id_gets_the_systems_number(record):
    trace = load(record())

    track = trace.tracks[trace.spans.track[trace.name_rows("cudaStreamSynchronize")][0]]
    assert (track.lane, track.name) == (101, "helper")


def test_what_the_manifest_says_is_kept(record):
    trace = load(record())

    assert trace.meta["device.0.0"] == "NVIDIA H200"
    assert json.loads(trace.meta["recorder.ledger"]) == {"on": True, "saw": 1, "dropped": 0}
    assert trace.meta["steps_from"] == "optimizer"
    assert trace.window_ns == (0, 9_000)
    assert dict(trace.sources) == {"train.py": "x = 1\n"}
    assert int(trace.meta["clock_error_ns"]) == 300 + 50 + 2_500


def test_all_ranks_of_a_run_are_one_trace(record):
    run = record(0).parent
    record(1)

    trace = load(run)

    assert {track.rank for track in trace.tracks} == {0, 1}
    assert len(trace.steps) == 8
    assert trace.meta["rank.1.recorder.ledger"]


def test_a_recording_without_its_kineto_file_keeps_the_rest(record):
    folder = record(kineto=None, complete=False, why="killed")

    trace = load(folder)

    assert len(trace.spans) == 0
    assert len(trace.steps) == 4
    assert (trace.meta["complete"], trace.meta["why"]) == ("false", "killed")
    assert trace.steps.start_ns.tolist()[0] == 0


def test_a_damaged_kineto_file_is_a_loss(record):
    folder = record()
    (folder / "kineto.json.gz").write_bytes(b"\x1f\x8bnothing")

    trace = load(folder)

    assert len(trace.steps) == 4
    assert "kineto.json.gz cannot be read" in trace.losses[0].what
    assert trace.meta["complete"] == "false"


def test_damaged_chunks_are_counted(record):
    folder = record()
    path = folder / "steps.chunks"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-3])
    with (folder / "lines.chunks").open("ab") as file:
        append_chunk(file.fileno(), [["line", 1, 2], ["line", "soon", 1, 1, 0], "odd"])

    trace = load(folder)

    assert len(trace.steps) == 4
    assert len(trace.lines) == 1
    assert [loss.count for loss in trace.losses] == [len(whole) - 3, 3]


def test_without_clock_marks_nothing_is_placed_in_time(record):
    trace = load(record(marks=[]))

    assert len(trace.spans) == 4
    assert len(trace.steps) == 0
    assert "no clock marks" in trace.losses[0].what


def test_a_manifest_that_is_none_is_an_error(record):
    folder = record()
    (folder / "manifest.json").write_text("{")

    with pytest.raises(TraceError, match="is not the manifest of a recording"):
        load(folder)


def test_a_perfetto_file_of_ours_leads_to_its_recording(record):
    run = record().parent
    (run / "run.json").write_text("{}")
    (run / "trace.pftrace").write_bytes(b"\x0a\x01x")

    assert len(load(run / "trace.pftrace").spans) == 4


@pytest.mark.parametrize("name", ["zz.pftrace", "trace.pftrace"])
def test_a_perfetto_file_beside_somebody_elses_recording_is_refused(record, name):
    around = record().parent  # a folder in which a recording happens to lie, and no run of its own
    (around / name).write_bytes(b"\x0a\x01x")

    with pytest.raises(TraceError, match="is known to belong to it"):
        load(around / name)


def test_a_drifting_wall_clock_is_followed_between_the_marks():
    clock = Clock([(0, 1_000, 10), (1_000_000, 1_001_500, 20)])

    assert clock.unix_ns([0, 500_000, 1_000_000, 2_000_000, NONE]).tolist() == [
        1_000,
        501_250,
        1_001_500,
        2_001_500,
        NONE,
    ]
    assert clock.error_ns == 20 + 500


def test_large_stamps_lose_no_digit():
    base = 1_796_069_922_423_168_581
    clock = Clock([(MONO, base, 10)])

    found = clock.unix_ns(np.arange(MONO, MONO + 100_000_000_000, 1_000_000_007))

    assert (found - base).tolist() == list(range(0, 100_000_000_000, 1_000_000_007))
