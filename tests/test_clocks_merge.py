"""Recorders' clocks against a program that logs the truth, and marks that contradict each other."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer import config
from tracer.chunks import read_chunks
from tracer.readers import load
from tracer.readers._align import by_beacons
from tracer.readers._clock import Clock
from tracer.readers.pyspy import Taken
from tracer.recording import ledger
from tracer.recording.session import Session, read_clocks
from tracer.recording.stacks import FrameTable
from tracer.recording.syncwatch import SyncWatch

MS = 1_000_000


def test_two_clocks_read_at_one_moment_say_how_far_they_may_be_apart():
    mono, unix, error = read_clocks()
    later_mono, later_unix, later_error = read_clocks()

    assert 0 < error < 1_000_000
    assert abs((later_unix - unix) - (later_mono - mono)) <= error + later_error + 1_000


@pytest.mark.parametrize("seconds", [1.0])
def test_stamps_of_a_recorder_meet_the_wall_clock_within_5_us(tmp_path, seconds):
    """The program notes unix time at each sync; the ledger's stamps are brought there by the session's marks."""
    watch = SyncWatch("no such warning")
    watch._listeners = ()
    session = Session(tmp_path, config.Record())
    recorder = ledger.Recorder(session, watch)
    recorder._sink = session.sink("ledger")
    recorder._frames = ledger.stacks.FrameTable.of(recorder._sink)
    session.start()
    import torch

    assert torch.__version__
    truth = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        best = None
        for _ in range(5):
            before = time.time_ns()
            mono = time.monotonic_ns()
            after = time.time_ns()
            if best is None or after - before < best[1] - best[0]:
                best = (before, after, mono)
        recorder._heard("test", best[2], best[2])
        truth.append(best[:2])
        time.sleep(0.01)
    recorder.write()
    session.end()
    rows = [row for row in read_chunks(tmp_path / "ledger.chunks")[0] if row[0] == "sync"]

    clock = Clock(session.manifest["marks"])
    found = clock.unix_ns([row[2] for row in rows])

    off = [max(before - at, at - after, 0) for at, (before, after) in zip(found.tolist(), truth, strict=True)]
    assert len(off) > 30
    assert np.percentile(off, 95) <= 5_000
    assert clock.error_ns < 100_000


def test_drift_between_two_marks_is_shared_out():
    clock = Clock([[0, 1_000_000, 10], [1_000_000_000, 1_001_000_000 + 4_000, 10]])

    assert clock.unix_ns([0, 500_000_000, 1_000_000_000]).tolist() == [1_000_000, 501_002_000, 1_001_004_000]
    assert clock.error_ns == 4_010


def test_a_wall_clock_that_was_set_shows_as_an_error():
    clock = Clock([[0, 0, 10], [1_000_000_000, 1_000_000_000 + 300 * MS, 10]])

    assert clock.error_ns >= 300 * MS
    assert "set by 300.0 ms" in clock.contradiction


def test_a_slewed_clock_is_no_contradiction():
    clock = Clock([[0, 0, 10], [10_000_000_000, 10_004_000_000, 10], [10_000_100_000, 10_004_100_500, 10]])

    assert clock.contradiction == ""


def test_a_recording_whose_marks_contradict_each_other_is_not_merged(tmp_path):
    session = Session(tmp_path / "run" / "rank0", config.Record())
    session.folder.mkdir(parents=True)
    session.start()
    sink = session.sink("lines")
    frames = FrameTable.of(sink)
    sink.add(["line", time.monotonic_ns(), 1000, 7, frames.frame(-1, "/my/train.py", 3, "f")])
    session.end()
    good = load(session.folder)
    mono, unix, error = session.manifest["marks"][-1]
    session.manifest["marks"].append([mono + 1_000_000, unix + 1_000_000 + 400 * MS, error])
    session.save()

    bad = load(session.folder)

    assert len(good.lines) == 1
    assert len(bad.lines) == 0
    assert any("contradict" in loss.what and "400.0 ms" in loss.what for loss in bad.losses)


@given(
    st.integers(-(10**12), 10**12),
    st.lists(st.floats(0, 0.2), min_size=40, max_size=120),
    st.integers(0, 4),
)
def test_the_zero_lies_in_the_stated_interval_whatever_a_few_late_stamps_say(zero, delays, late):
    """Beacons of 5 ms, samples at any moment, stamped up to 0.2 ms late, a few of them 30 ms."""
    beacons = [(f"tracer_beacon_{n}", n * 5 * MS, (n + 1) * 5 * MS) for n in range(4000)]
    rng = np.random.default_rng(len(delays))
    taken = []
    for number, delay in enumerate(delays):
        at = int(rng.integers(0, 4000 * 5 * MS))
        stamp = at + int(delay * MS) + (30 * MS if number < late else 0)
        taken.append(Taken(stamp - zero, 1, ((f"tracer_beacon_{at // (5 * MS)}", "f", 1),), 0))

    found = by_beacons(taken, beacons)

    assert found.why == ""
    assert abs(found.offset_ns - zero) <= found.error_ns + MS // 5
