import json

import pytest
import torch

import tracer
from tracer.errors import UsageError
from tracer.recording.schedules import window_of

torch_schedule = torch.profiler.schedule


@pytest.mark.parametrize(
    ("schedule", "window"),
    [
        (torch_schedule(wait=1, warmup=1, active=3, repeat=1), {"skip": 1, "warmup": 1, "steps": 3}),
        (torch_schedule(skip_first=10, wait=2, warmup=1, active=1, repeat=1), {"skip": 12, "warmup": 1, "steps": 1}),
        (torch_schedule(wait=3, warmup=1, active=2), {"skip": 3, "warmup": 1, "steps": 2, "every": 6}),
    ],
)
def test_a_schedule_of_torch_is_a_window(schedule, window):
    assert window_of(schedule) == window


def test_a_schedule_that_never_records_is_an_error():
    with pytest.raises(UsageError) as caught:
        window_of(lambda step: torch.profiler.ProfilerAction.NONE)

    assert "wait=1, warmup=1, active=3" in str(caught.value)


def test_record_with_a_schedule_records_the_steps_that_torch_would(tmp_path):
    """Torch counts the first pass of the loop as step 0, so this schedule records the steps 4, 5 and 6."""
    schedule = torch_schedule(skip_first=2, wait=1, warmup=1, active=3, repeat=1)
    model = torch.nn.Linear(8, 8)

    with tracer.record("scheduled", schedule=schedule, folder=tmp_path, formats=("json",)) as recording:
        for step in range(9):
            with torch.profiler.record_function(f"pass {step}"):
                model(torch.randn(4, 8)).sum().backward()
            recording.step()

    audit = json.loads((recording.folder / "audit.json").read_text())
    assert [step["number"] for step in audit["steps"]] == [4, 5, 6]
    trace = tracer.load(recording.folder)
    assert sorted(name for name in trace.names if name.startswith("pass")) == ["pass 4", "pass 5", "pass 6"]
