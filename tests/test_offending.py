"""Offending values, on the CPU, through the dispatch mode that calls the check."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tracer.recording.offending import check

functional = torch.nn.functional


class Checked(TorchDispatchMode):
    """Collects what the check says, and does not run what would fail."""

    def __init__(self):
        super().__init__()
        self.texts: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.texts += check(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def said(call) -> list[str]:
    # On the CPU the operator itself refuses; the check came first.
    with Checked() as mode, contextlib.suppress(IndexError, RuntimeError):
        call()
    return mode.texts


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values)


ROWS = torch.zeros(1000, 4)
TABLE = torch.zeros(8, 100)


def test_the_value_its_place_and_the_valid_range_are_quoted():
    tokens = torch.zeros(32, 128, dtype=torch.long)
    tokens[3, 7] = 1000

    assert said(lambda: functional.embedding(tokens, ROWS)) == ["indices[3, 7] = 1000, valid 0..999"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: torch.gather(TABLE, 1, ids(0, -1).view(1, 2)), "index[0, 1] = -1, valid 0..99"),
        (lambda: torch.zeros(32).scatter_add_(0, ids(32), torch.ones(1)), "index[0] = 32, valid 0..31"),
        (lambda: torch.zeros(32).scatter(0, ids(40), 1.0), "index[0] = 40, valid 0..31"),
        (lambda: TABLE.index_select(0, ids(1, 8)), "index[1] = 8, valid 0..7"),
        (lambda: TABLE[ids(0, 8)], "index[1] = 8, valid -8..7"),
        (lambda: TABLE[:, ids(-101)], "index[0] = -101, valid -100..99"),
        (lambda: TABLE[ids(0), ids(100)], "index 1[0] = 100, valid -100..99"),
        (lambda: TABLE.clone().__setitem__(ids(9), 1.0), "index[0] = 9, valid -8..7"),
        (lambda: functional.cross_entropy(torch.zeros(2, 10), ids(3, 10)), "target[1] = 10, valid 0..9 or -100"),
        (
            lambda: functional.cross_entropy(torch.zeros(1, 21, 2, 2), torch.full((1, 2, 2), 255)),
            "target[0, 0, 0] = 255, valid 0..20 or -100",
        ),
        (
            lambda: functional.binary_cross_entropy(torch.tensor([0.5, 1.5]), torch.ones(2)),
            "input[1] = 1.5, valid 0..1",
        ),
        (lambda: torch.multinomial(torch.tensor([0.5, -0.5]), 1), "probs[1] = -0.5, valid finite"),
        (lambda: torch.multinomial(torch.tensor([0.0, 0.0]), 1), "the sum of probs = 0, valid more than 0"),
        (lambda: torch._assert_async(torch.tensor(False)), "condition = False, valid true"),
    ],
)
def test_the_common_operators_are_known(call, text):
    assert any(found.startswith(text) for found in said(call)), said(call)


def test_valid_inputs_are_not_mentioned():
    assert said(lambda: functional.embedding(ids(0, 999), ROWS)) == []
    assert said(lambda: functional.cross_entropy(torch.zeros(2, 10), ids(-100, 9))) == []
    assert said(lambda: TABLE[ids(-8, 7)]) == []
    assert said(lambda: TABLE[TABLE > 0]) == []


def test_many_wrong_values_are_counted_rather_than_listed():
    texts = said(lambda: ROWS.index_select(0, torch.full((64,), 1000)))

    assert texts[:2] == ["index[0] = 1000, valid 0..999", "index[1] = 1000, valid 0..999"]
    assert texts[-1] == "index: 64 of 64 values are outside"


def test_not_a_number_is_outside_of_zero_to_one():
    texts = said(lambda: functional.binary_cross_entropy(torch.tensor([float("nan")]), torch.ones(1)))

    assert texts == ["input[0] = nan, valid 0..1"]
