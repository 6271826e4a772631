"""The recorder inside the program: when it begins, and that its own faults stay its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from tests.running import LOOP, run_tracer
from tracer import config
from tracer.recording import runs
from tracer.recording.begin import is_helper, when_cuda_is_up
from tracer.recording.child import Child


def child_of(folder: Path, **window: Any) -> Child:
    run = runs.RunFile(
        run_id="r",
        name="n",
        argv=[],
        kind="script",
        window=config.Window(**window),
        record=config.Record(samples=False),
        parent=0,
        started_unix_ns=time.time_ns(),
    )
    return Child(folder, run)


@pytest.fixture
def profile_function() -> Any:
    def nothing(frame: FrameType, event: str, arg: Any) -> None:
        pass

    return nothing


def test_recording_begins_when_cuda_is_up_and_not_in_the_middle(monkeypatch: pytest.MonkeyPatch, profile_function: Any):
    seen: list[str] = []
    queued: list[Callable[[], None]] = []
    state = {"up": False}

    def _lazy_init() -> None:
        for call in queued:
            call()
        seen.append("initialising")
        state["up"] = True

    monkeypatch.setattr(torch.cuda, "_lazy_init", _lazy_init)
    monkeypatch.setattr(torch.cuda, "_lazy_call", queued.append)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: state["up"])
    when_cuda_is_up(lambda: seen.append("armed"))
    sys.setprofile(profile_function)
    try:
        torch.cuda._lazy_init()
        seen.append("back in the program")
        assert sys.getprofile() is profile_function
    finally:
        sys.setprofile(None)

    assert seen == ["initialising", "armed", "back in the program"]


def test_cuda_that_fails_to_start_arms_nothing(monkeypatch: pytest.MonkeyPatch):
    seen: list[str] = []
    queued: list[Callable[[], None]] = []

    def _lazy_init() -> None:
        queued[0]()
        raise RuntimeError("no driver")

    monkeypatch.setattr(torch.cuda, "_lazy_init", _lazy_init)
    monkeypatch.setattr(torch.cuda, "_lazy_call", queued.append)
    when_cuda_is_up(lambda: seen.append("armed"))
    with pytest.raises(RuntimeError, match="no driver"):
        torch.cuda._lazy_init()

    assert sys.getprofile() is None
    assert seen == []


@pytest.mark.parametrize(
    ("words", "serves"),
    [
        ("python /venv/bin/torchrun --standalone train.py", True),
        ("python -m torch.distributed.run train.py", True),
        ("python /venv/bin/accelerate launch train.py", True),
        ("python -c from_multiprocessing.resource_tracker_import_main", True),
        ("python -c spawn_main() --multiprocessing-fork", True),
        ("python /site-packages/torch/_inductor/compile_worker/__main__.py --workers=2", True),
        ("python train.py --launcher torchrun", False),
        ("python -u /home/me/accelerate/train.py", False),
    ],
)
def test_who_only_serves_others_is_told_by_its_command_line(words: str, serves: bool):
    assert is_helper(words.split()) is serves


def test_a_fault_of_ours_ends_the_recording_and_not_the_program(tmp_path: Path):
    program = LOOP + "import tracer.recording.capture as c\nc.Capture.warm = None\ntrain(12)\nprint('done')\n"

    ran = run_tracer(tmp_path, program)

    assert ran.stdout == "done\n"
    assert ran.status == 0
    assert "the recorder failed: TypeError" in ran.manifest["why"]
    assert "TypeError" in next(ran.folder.glob("*/unreached.txt")).read_text()


def test_a_recorder_that_fails_is_left_out(tmp_path: Path):
    program = LOOP + "import tracer.recording.clocks as c\nc.Recorder.open = None\ntrain(12)\nprint('done')\n"

    ran = run_tracer(tmp_path, program)

    assert ran.stdout == "done\n"
    assert ran.manifest["complete"]
    assert "open failed" in ran.manifest["recorders"]["clocks"]["why"]


def test_a_boundary_outside_the_window_costs_microseconds(tmp_path: Path):
    child = child_of(tmp_path, skip=10**9, steps=1)
    child.watch(at_once=True)
    try:
        times = []
        for _ in range(50):
            start = time.perf_counter_ns()
            for _ in range(100):
                child.boundary("tracer")
            times.append(time.perf_counter_ns() - start)
    finally:
        child.finish()

    assert min(times) / 100 < 20_000
    assert child.number == 5000


def test_a_window_opens_by_time_where_no_step_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    child = child_of(tmp_path, skip=3, steps=5)
    monkeypatch.setattr("tracer.recording.child._NO_STEP_S", 0.0)
    child.watch(at_once=True)
    try:
        child._each_second()
        until = time.monotonic() + 10
        while child._capture is not None and not child._capture.open_now and time.monotonic() < until:
            time.sleep(0.01)
        assert child._capture is not None
        assert child._capture.open_now
        assert any("no step was seen" in note for note in child._capture.session.manifest["notes"])
    finally:
        child.finish()
