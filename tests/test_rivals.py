"""A program that profiles itself keeps all of its events, and we say what we did."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import LOOP, run_tracer
from tracer.recording.rivals import other_cupti_client

OWN = """
def counted(profiler):
    return sum(event.count for event in profiler.key_averages() if event.key == "aten::linear")
"""


def test_their_profiler_inside_our_window_ends_ours_first(tmp_path: Path):
    program = f"""{LOOP}{OWN}
train(6)  # two of four steps in the window
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    train(5)
print(counted(profiler))
"""
    ran = run_tracer(tmp_path, program)

    assert ran.stdout == "5\n"
    assert ran.stderr == ""
    assert ran.names.count("aten::linear") == 2
    assert not ran.manifest["complete"]
    assert "started its own torch.profiler" in ran.manifest["why"]


def test_their_profiler_around_our_window_is_adopted(tmp_path: Path):
    program = f"""{LOOP}{OWN}
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    train(9)
profiler.export_chrome_trace("theirs.json")
print(counted(profiler))
"""
    ran = run_tracer(tmp_path, program)

    assert ran.stdout == "9\n"
    assert (tmp_path / "theirs.json").stat().st_size > 1000
    assert ran.names.count("aten::linear") == 9
    assert any("own torch.profiler" in note for note in ran.manifest["notes"])


def test_their_profiler_with_a_schedule_is_adopted_though_never_saved(tmp_path: Path):
    program = f"""{LOOP}{OWN}
def ready(profiler):
    print(counted(profiler))
schedule = torch.profiler.schedule(wait=2, warmup=1, active=3, repeat=1)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule,
                            on_trace_ready=ready) as profiler:
    for _ in range(12):
        train(1)
        profiler.step()
"""
    ran = run_tracer(tmp_path, program)

    assert ran.stdout == "3\n"
    assert ran.names.count("aten::linear") == 3
    assert ran.manifest["steps_from"] == "profiler"
    assert ran.manifest["window"]["last_step"] - ran.manifest["window"]["first_step"] == 2  # both included


def test_their_profiler_before_our_window_is_none_of_our_business(tmp_path: Path):
    program = f"""{LOOP}{OWN}
with torch.autograd.profiler.profile() as profiler:
    train(2)
print(counted(profiler))
train(10)
"""
    ran = run_tracer(tmp_path, program)

    assert ran.stdout == "2\n"
    assert ran.manifest["complete"]
    assert ran.names.count("aten::linear") == 4


def test_a_handler_for_tensorboard_keeps_its_file(tmp_path: Path):
    program = f"""{LOOP}
schedule = torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule,
                            on_trace_ready=torch.profiler.tensorboard_trace_handler("logs", use_gzip=True)) as profiler:
    for _ in range(9):
        train(1)
        profiler.step()
"""
    ran = run_tracer(tmp_path, program)

    assert ran.status == 0
    (theirs,) = (tmp_path / "logs").glob("*.json.gz")
    assert theirs.stat().st_size > 500
    assert ran.names.count("aten::linear") == 2


@pytest.mark.parametrize(
    ("path", "who"),
    [
        ("/opt/nvidia/nsight-systems/libToolsInjectionProxy64.so", "nsys"),
        ("/usr/local/cuda/compute-sanitizer/libsanitizer-collection.so", "compute-sanitizer"),
        ("", ""),
    ],
)
def test_another_client_of_cupti_is_named(monkeypatch: pytest.MonkeyPatch, path: str, who: str):
    monkeypatch.setenv("CUDA_INJECTION64_PATH", path)

    name, fix = other_cupti_client()

    assert who in name
    assert bool(fix) == bool(who)
