import json
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shared import CASES
from tracer.analysis.places import Places
from tracer.auditor import examine
from tracer.building import TraceBuilder
from tracer.errors import TraceError
from tracer.readers import load, pyspy
from tracer.trace import NONE

MS = 1_000_000


def event(ph, name, ts_us, thread=1, line=10, file="/my/train.py"):
    return {"ph": ph, "name": name, "ts": ts_us, "tid": thread, "pid": 100, "cat": "py-spy",
            "args": {"filename": file, "line": line}}  # fmt: skip


def write(path, *events):
    path.write_text(json.dumps(list(events)))
    return path


def stack_of(trace, frame):
    found = []
    while frame != NONE:
        found.append((trace.names[trace.frames.function[frame]], int(trace.frames.line[frame])))
        frame = trace.frames.parent[frame]
    return found


def test_what_changed_on_one_thread_shows_when_the_other_was_sampled_too(tmp_path):
    path = write(
        tmp_path / "samples.json",
        event("B", "main", 1000),
        event("B", "waits", 1000, line=7),
        event("B", "other", 1010, thread=2, line=1),
        event("E", "other", 11010, thread=2, line=1),
        event("B", "other", 11010, thread=2, line=2),
        event("E", "waits", 21000, line=7),
        event("E", "main", 21000),
        event("E", "other", 21010, thread=2, line=2),
    )

    trace = pyspy.load(path)

    rows = [
        (int(t) // MS, trace.tracks[k].lane, stack_of(trace, f))
        for t, k, f in zip(trace.samples.time_ns, trace.samples.track, trace.samples.frame, strict=True)
    ]
    first = [rows[i] for i in range(len(rows)) if rows[i][1] == 1]
    assert (
        first == [(0, 1, [("waits", 7), ("main", 10)]), (10, 1, [("waits", 7), ("main", 10)])]
        or [row[2] for row in first] == [[("waits", 7), ("main", 10)]] * 2
    )
    assert [row[2] for row in rows if row[1] == 2] == [[("other", 1)], [("other", 2)]]


def test_a_child_with_a_thread_of_the_same_number_is_kept_apart(tmp_path):
    child = event("B", "child", 1000, line=3) | {"pid": 101}
    path = write(tmp_path / "samples.json", event("B", "parent", 1000), child, event("E", "parent", 11000))

    trace = pyspy.load(path)

    found = {(trace.tracks[k].pid, stack_of(trace, f)[0][0]) for k, f in zip(trace.samples.track, trace.samples.frame)}
    assert found == {(100, "parent"), (101, "child")}


def test_a_long_stay_without_events_counts_as_the_samples_that_it_took(tmp_path):
    changes = [
        e for t in range(5) for e in (event("E", "f", t * 10_000, line=t), event("B", "f", t * 10_000, line=t + 1))
    ]
    path = write(tmp_path / "samples.json", *changes[1:], event("E", "f", 100_000, line=5))

    trace = pyspy.load(path)

    stayed = [stack_of(trace, f)[0] for f in trace.samples.frame].count(("f", 5))
    assert stayed == 6
    assert trace.samples.weight_ns.sum() == pytest.approx(100 * MS, rel=0.01)


def beacon_file(path, zero_ms=500, late_every=7):
    """Samples each 10 ms of a program that runs beacons of 5 ms; some stamps come 8 ms late."""
    events, beacons, spins = [], [], []
    rng = np.random.default_rng(1)
    for number in range(400):
        beacons.append((f"tracer_beacon_{number}", number * 5 * MS, (number + 1) * 5 * MS))
    shown = None
    at = 3.0
    while at < 1990:
        at += rng.exponential(8) + 1
        late = 8 if rng.integers(late_every) == 0 else 0.05
        name = f"tracer_beacon_{int(at // 5)}"
        stamp = (at + late - zero_ms) * 1000
        if shown is not None:
            events += [event("E", shown, stamp, thread=9), event("E", spins[-1][1], stamp, line=4)]
        function = "even" if int(at // 20) % 2 == 0 else "odd"
        spins.append((at, function))
        events += [event("B", name, stamp, thread=9, file="/x/tracer/recording/clockmarks.py")]
        events += [event("B", function, stamp, line=4)]
        shown = name
    return write(path, *events), beacons


def test_beacons_give_the_zero_and_put_late_stamps_right(tmp_path):
    path, beacons = beacon_file(tmp_path / "samples.json")
    builder = TraceBuilder()

    pyspy.add_samples(path, builder, rank=0, pid=100, beacons=beacons)
    trace = builder.build()

    assert trace.losses == ()
    assert int(trace.meta["recorder.samples.clock_error_ns"]) < MS
    assert {track.lane for track in trace.tracks} == {1}
    wrong = 0
    for time, frame in zip(trace.samples.time_ns.tolist(), trace.samples.frame.tolist(), strict=True):
        expected = "even" if time // (20 * MS) % 2 == 0 else "odd"
        near_edge = min(time % (20 * MS), 20 * MS - time % (20 * MS)) < 5 * MS
        wrong += stack_of(trace, frame)[0][0] != expected and not near_edge
    assert len(trace.samples) > 150
    assert wrong == 0


def test_beacons_that_contradict_each_other_are_refused(tmp_path):
    path, beacons = beacon_file(tmp_path / "samples.json")
    shuffled = [
        (name, entry + (number % 5) * 300 * MS, end + (number % 5) * 300 * MS)
        for number, (name, entry, end) in enumerate(beacons)
    ]
    builder = TraceBuilder()

    pyspy.add_samples(path, builder, rank=0, pid=100, beacons=shuffled)
    trace = builder.build()

    assert len(trace.samples) == 0
    assert "contradict" in trace.meta["recorder.samples.why"]
    assert "contradict" in trace.losses[0].what


def test_too_few_beacons_are_refused(tmp_path):
    path, beacons = beacon_file(tmp_path / "samples.json")
    builder = TraceBuilder()

    pyspy.add_samples(path, builder, rank=0, pid=100, beacons=beacons[:1])

    assert "too few" in builder.meta["recorder.samples.why"]


@pytest.mark.parametrize("text", ["", "{}", "[", '[{"ph": "B"}]'])
def test_what_is_not_from_py_spy_is_said(tmp_path, text):
    path = tmp_path / "samples.json"
    path.write_text(text)
    builder = TraceBuilder()

    pyspy.add_samples(path, builder, rank=0, pid=1, beacons=[])

    assert builder.losses
    with pytest.raises(TraceError):
        pyspy.load(path)


def test_cf02_the_zero_is_found_from_functions_that_both_saw():
    inputs = CASES / "inputs"

    trace = load(inputs / "CF02_trace.json", samples=inputs / "CF02_samples.json")

    offset, error = (int(trace.meta[f"recorder.samples.{key}"]) for key in ("offset_ns", "clock_error_ns"))
    assert abs(offset - 9 * MS) < MS
    assert error < MS
    [sync] = np.flatnonzero(trace.name_rows("cudaStreamSynchronize"))
    assert any("samples are placed to within" in limit for limit in examine(trace).evidence.trust.limits)
    place = Places(trace).of_span(sync)
    assert (place.file, place.line, place.source) == ("train.py", 15, "samples")


def test_samples_of_another_program_are_not_merged(tmp_path):
    inputs = CASES / "inputs"
    other = write(tmp_path / "other.json", *(event(ph, "elsewhere", t * 1000) for t in range(20) for ph in "BE"))

    trace = load(inputs / "CF02_trace.json", samples=other)

    assert len(trace.samples) == 0
    assert "in common" in trace.meta["recorder.samples.why"]


def test_samples_that_contradict_the_trace_are_not_merged(tmp_path):
    """run_step shows in two places 100 ms apart, but the trace has it once, for 5 ms."""
    inputs = CASES / "inputs"
    times = [0, 1, 2, 3, 100, 101, 102, 103]
    events = [e for t in range(200) for e in (
        event("B", "run_step" if t in times else "<module>", t * 1000, file="train.py"),
        event("E", "run_step" if t in times else "<module>", t * 1000 + 999, file="train.py"))]  # fmt: skip
    path = write(tmp_path / "samples.json", *events)

    trace = load(inputs / "CF02_trace.json", samples=path)

    assert len(trace.samples) == 0
    assert "contradict" in trace.meta["recorder.samples.why"]


def test_a_stack_that_stays_for_years_by_a_damaged_stamp_is_a_few_rows_with_its_whole_weight(tmp_path):
    events = [event(ph, f"f{t}", 10_000 * (t + (ph == "E"))) for t in range(10) for ph in "BE"]
    path = write(tmp_path / "samples.json", *events, event("B", "work", 100_000), event("E", "work", 22 * 10**12))

    samples = load(path).samples

    assert len(samples) < 200_000
    assert samples.weight_ns.sum() == pytest.approx(22e15, rel=0.01)


DAMAGE = [b"", b"9", b"-", b"e", b'"', b"null", b"]", b"1e999", b"99999999999"]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 30))
def test_damaged_samples_give_a_trace_or_an_error_of_ours(seed, damages):
    rng = random.Random(seed)
    whole = (CASES / "inputs" / "CF02_samples.json").read_bytes()
    data = bytearray(whole)
    for _ in range(damages):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(3)] = rng.choice(
            [b"", b"9", b"-", b"e", b'"', b"null", b"]", b"1e999", b"99999999999"]
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.json"
        path.write_bytes(data)
        try:
            trace = pyspy.load(path)
        except TraceError:
            return
        assert len(trace.samples) >= 0
        merged = load(CASES / "inputs" / "CF02_trace.json", samples=path)
        assert len(merged.samples) > 0 or merged.meta["recorder.samples.why"]
