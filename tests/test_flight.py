"""The flight recorder: what a run left in shared memory is read when the program is dead."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from tests.fake_gpu import ASSERT, FakeGpu
from tracer import config
from tracer.recording import flight
from tracer.recording.marks import Marks
from tracer.recording.session import Session

CODE = compile("pass", "train.py", "exec")


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / f"night-{os.getpid()}"
    folder.mkdir()
    flight._folder(folder.name).mkdir()
    return folder


def crash(run_folder, *, tell: bool) -> None:
    gpu = FakeGpu()
    marks = Marks(
        flight._folder(run_folder.name) / "1.ring", lambda name: name in ("train.py", __file__), every_ns=0, gpu=gpu
    )
    for line in (5, 6, 7):
        marks.on_line(CODE, line)
        gpu.launch(fault=ASSERT if line == 6 else 0)
    gpu.run(0)
    if tell:
        try:
            raise RuntimeError("CUDA error: device-side assert triggered")
        except RuntimeError as error:
            marks.errors.note(error)


def test_a_crash_leaves_its_line_in_the_run_s_folder(run_folder):
    crash(run_folder, tell=True)

    found = flight.collect(run_folder, status=1, command="train.py")

    assert found.cause.line == 6
    assert json.loads((run_folder / "flight.json").read_text())["cause"]["line"] == 6
    assert not flight._folder(run_folder.name).exists()


def test_an_abort_without_a_word_is_understood(run_folder):
    crash(run_folder, tell=False)

    assert flight.collect(run_folder, status=134).cause.line == 6


def test_a_run_that_ended_well_says_nothing_and_leaves_nothing(run_folder):
    crash(run_folder, tell=False)

    assert flight.collect(run_folder, status=0) is None
    assert not flight._folder(run_folder.name).exists()


def test_it_is_off_unless_asked_for(tmp_path):
    recorder = flight.Recorder(Session(tmp_path, config.Record(), run_id="x"))
    recorder.arm()
    recorder.open()

    assert recorder.close() == {"on": False, "saw": 0, "dropped": 0, "why": "record.flight_recorder is off"}
    assert flight.collect(tmp_path, status=1) is None


def test_the_manifest_says_how_many_lines_it_saw(tmp_path, monkeypatch):
    marks = Marks(tmp_path / "1.ring", lambda name: True, gpu=FakeGpu())
    marks.on_line(CODE, 5)
    marks.on_line(CODE, 6)
    monkeypatch.setattr(flight, "_running", [SimpleNamespace(marks=marks)])

    said = flight.Recorder(Session(tmp_path, config.Record(flight_recorder=True), run_id="x")).close()

    assert json.loads(json.dumps(said)) == {"on": True, "saw": 2, "dropped": 0, "why": ""}
