"""What the programmer is told to change."""

from __future__ import annotations

import pytest

from tracer.recording import advice
from tracer.recording.advice import advise
from tracer.results import Sighting


def seen(op: str = "", assertion: str = "") -> Sighting:
    return Sighting(False, 1, 1.0, True, op=op, assertions=(assertion,) if assertion else ())


@pytest.mark.parametrize(
    ("op", "assertion", "word"),
    [
        ("aten.embedding(f32[1000, 64], i64[32, 128])", "", "num_embeddings"),
        ("", "indexSelectSmallIndex at Indexing.cu:1284: srcIndex < srcSelectDimSize", "num_embeddings"),
        ("", "nll_loss_forward_reduce at Loss.cu:250: t >= 0 && t < n_classes", "ignore_index"),
        ("aten.binary_cross_entropy(f32[4], f32[4])", "", "sigmoid"),
        ("", "TensorCompare.cu:112: probability tensor contains either inf, nan or element < 0", "NaN"),
        ("aten.gather(f32[4, 4], 1, i64[4, 1])", "", "no negative index"),
        ("aten.index.Tensor(f32[4], [i64[2]])", "", "-size..size-1"),
    ],
)
def test_an_assertion_leads_to_what_must_change(op, assertion, word):
    assert any(word in text for text in advise("async.assert", seen(op, assertion), "train.py", reproduced=True))


def test_the_sanitizer_is_offered_where_it_is_installed(monkeypatch):
    monkeypatch.setattr(advice, "find_sanitizer", lambda: "/cuda/bin/compute-sanitizer")

    texts = advise("async.illegal", seen(), "python train.py", reproduced=True)

    assert (
        "to see the faulting thread and address: /cuda/bin/compute-sanitizer --tool memcheck python train.py" in texts
    )


def test_blocking_launches_are_said_to_be_for_debugging_only():
    assert any("debugging only" in text for text in advise("async.illegal", seen(), "x", reproduced=True))
    assert advise("", seen(), "x", reproduced=True) == ()


def test_what_does_not_come_back_may_be_a_race():
    assert any("race" in text for text in advise("async.assert", seen(), "x", reproduced=False))
