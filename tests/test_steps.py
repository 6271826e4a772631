import dataclasses

import numpy as np

from tests.conftest import CPU, CPU2, GPU, US
from tracer.analysis.steps import find_steps, source_of
from tracer.trace import Kind, Steps


def test_profiler_steps_are_steps(timeline):
    trace = timeline(
        (Kind.MARK, "ProfilerStep#4", CPU, 0, 100),
        (Kind.MARK, "ProfilerStep#5", CPU, 100, 250),
        (Kind.GPU_MARK, "ProfilerStep#5", GPU, 150, 300),
        (Kind.MARK, "Optimizer.step#SGD.step", CPU, 50, 60),
    )

    steps = find_steps(trace)

    assert steps.number.tolist() == [4, 5]
    assert (steps.dur_ns // US).tolist() == [100, 150]
    assert source_of(trace) == "annotations"


def test_recorded_steps_come_before_annotations(timeline):
    trace = timeline((Kind.MARK, "ProfilerStep#4", CPU, 0, 100))
    rows = Steps.of(start_ns=[50, 0], dur_ns=[50, 50], number=[8, 7], track=[0, 0], traced=[True, False])

    steps = find_steps(dataclasses.replace(trace, steps=rows, meta={"steps_from": "optimizer"}))

    assert steps.number.tolist() == [7, 8]
    assert source_of(dataclasses.replace(trace, steps=rows, meta={"steps_from": "optimizer"})) == "optimizer"


def test_a_step_lasts_from_one_optimizer_call_to_the_next_on_the_same_optimizer(timeline):
    calls = [(Kind.MARK, "Optimizer.step#Adam.step", CPU, 100 * i, 100 * i + 10) for i in range(4)]
    others = [(Kind.MARK, "Optimizer.step#SGD.step", CPU, 100 * i + 20, 100 * i + 30) for i in range(4)]
    trace = timeline(*calls, *others, (Kind.OP, "aten::add", CPU2, 0, 5))

    steps = find_steps(trace)

    assert (steps.start_ns // US).tolist() == [10, 110, 210]
    assert np.all(steps.dur_ns == 100 * US)
    assert source_of(trace) == "optimizer"


def test_without_any_sign_of_steps_there_are_none(timeline):
    trace = timeline((Kind.OP, "aten::add", CPU, 0, 5))

    assert len(find_steps(trace)) == 0
    assert source_of(trace) == ""


def test_a_window_of_seconds_has_no_steps_though_our_profiler_marks_one(timeline):
    trace = dataclasses.replace(timeline((Kind.MARK, "ProfilerStep#0", CPU, 0, 100)), meta={"steps_from": "time"})

    assert len(find_steps(trace)) == 0
    assert source_of(trace) == "time"


def test_a_number_that_no_program_counts_to_is_no_step(timeline):
    rows = [(Kind.MARK, f"ProfilerStep#{10 ** (16 + n)}", CPU, 10 * n, 10 * n + 10) for n in range(5)]

    assert find_steps(timeline(*rows)).number.tolist() == [10**16, 10**17]
