"""Which steps are recorded, and where a step begins."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from tracer import config
from tracer.recording.steps import StepHooks, Turns
from tracer.recording.window import Phase, Plan


def phases(plan: Plan, upto: int) -> str:
    letters = {Phase.WAITING: ".", Phase.WARMING: "w", Phase.OPEN: "R", Phase.DONE: "-"}
    return "".join(letters[plan.at(number)] for number in range(upto))


def test_steps_are_skipped_then_warmed_up_then_recorded():
    plan = Plan(config.Window(skip=3, warmup=2, steps=4))

    assert plan.waits_for == 5
    assert plan.closes_at == 9
    assert phases(plan, 12) == "...wwRRRR---"


def test_without_skip_and_warmup_the_first_step_is_recorded():
    assert phases(Plan(config.Window(skip=0, warmup=0, steps=2)), 4) == "RR--"


def test_windows_repeat_from_start_to_start():
    assert phases(Plan(config.Window(skip=1, warmup=1, steps=2, every=5)), 13) == ".wRR..wRR..wR"


def test_a_window_on_demand_opens_when_asked():
    plan = Plan(config.Window(skip=0, warmup=1, steps=2, signal="SIGUSR2"))

    before = phases(plan, 5)
    plan.ask()
    after = "".join(plan.at(number).name[0] for number in range(5, 9))

    assert before == "....."
    assert after == "WOOW"


def test_a_window_of_seconds_waits_to_be_asked():
    plan = Plan(config.Window(skip=2, seconds=1.5))

    assert plan.by_time
    assert plan.skip_seconds == 2
    assert phases(plan, 4) == "...."
    plan.ask()
    assert plan.at(5) is Phase.OPEN
    assert plan.at(50) is Phase.OPEN


@pytest.mark.parametrize(
    ("calls", "begins"),
    [
        ("AAAA", "1111"),  # one optimizer
        ("ABABAB", "101010"),  # two that take turns
        ("ABCABC", "100100"),
        ("AAABBB", "111011"),  # one phase after the other
    ],
)
def test_a_step_is_the_second_call_on_the_same_optimizer(calls: str, begins: str):
    turns = Turns()

    assert "".join(str(int(turns.call(ord(name)))) for name in calls) == begins


class Loop:
    """A tiny model with an optimizer, and what the hooks said."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def backward(self) -> None:
        self.model(torch.ones(1, 2)).sum().backward()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def hooks(loop: Loop) -> Iterator[StepHooks]:
    found = StepHooks("auto", loop.seen.append)
    yield found
    found.remove()


def test_gradient_accumulation_counts_the_steps_of_the_optimizer(loop: Loop, hooks: StepHooks):
    for batch in range(8):
        loop.backward()
        if batch % 4 == 3:
            loop.optimizer.step()

    assert loop.seen == ["optimizer"] * 2


def test_a_step_that_the_scaler_skips_counts(loop: Loop, hooks: StepHooks):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for turn in range(5):
        loop.optimizer.zero_grad()
        scaler.scale(loop.model(torch.ones(1, 2)).sum()).backward()
        if turn in (1, 3):
            loop.model.weight.grad.fill_(float("inf"))  # type: ignore[union-attr]
        scaler.step(loop.optimizer)
        scaler.update()

    assert loop.seen == ["optimizer"] * 5


def test_two_optimizers_and_one_scaler_count_once_a_round(loop: Loop, hooks: StepHooks):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
    for turn in range(4):
        other.param_groups[0]["params"][0].grad = None
        loop.optimizer.zero_grad()
        loss = loop.model(torch.ones(1, 2)).sum() + other.param_groups[0]["params"][0].sum()
        scaler.scale(loss).backward()
        if turn == 2:
            loop.model.weight.grad.fill_(float("inf"))  # type: ignore[union-attr]
        scaler.step(loop.optimizer)
        scaler.step(other)
        scaler.update()

    assert loop.seen == ["optimizer"] * 4


def test_the_programs_own_profiler_says_where_steps_are(loop: Loop, hooks: StepHooks):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            loop.backward()
            profiler.step()

    assert loop.seen == ["profiler"] * 3


def test_an_annotation_says_where_steps_are(loop: Loop):
    hooks = StepHooks("mark:train", loop.seen.append)
    for _ in range(3):
        with torch.profiler.record_function("train"), torch.profiler.record_function("inner"):
            loop.backward()
    hooks.remove()
    with torch.profiler.record_function("train"):
        pass

    assert loop.seen == ["mark"] * 3


def test_removed_hooks_leave_torch_as_it_was():
    from torch.amp.grad_scaler import GradScaler
    from torch.autograd.profiler import record_function
    from torch.optim import optimizer

    def state() -> list[object]:
        own = [(GradScaler, "update"), (torch.profiler.profile, "step"), (record_function, "__enter__")]
        return [owner.__dict__[name] for owner, name in own] + list(optimizer._global_optimizer_post_hooks)

    before = state()
    hooks = StepHooks("auto", lambda source: None)
    during = state()
    hooks.remove()

    assert state() == before
    assert during != before


def test_a_hook_is_in_no_traceback(loop: Loop, hooks: StepHooks):
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(AssertionError) as caught, warnings.catch_warnings():
        scaler.update()

    assert not [entry for entry in caught.traceback if "recording" in str(entry.path)]
