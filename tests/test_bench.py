"""The benchmark on a CPU; what needs a GPU is in tests/gpu/test_bench.py."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

import tracer
from tracer.commands import main
from tracer.errors import RecordError, UsageError
from tracer.recording.bench import median_interval, spread_of

CONFIG = """
bench:
  setup: |
    import time
    inputs = [0.001, 0.003]
  candidates:
    sleeps: time.sleep(x)
    nothing: x
  rotate: inputs
  device: cpu
  max_seconds: 1
"""


def test_a_function_of_known_length_is_measured():
    result = tracer.bench(lambda: time.sleep(0.004), device="cpu", max_seconds=1)

    (one,) = result.candidates
    low, high = one.interval_ns
    assert 4e6 <= low <= one.wall_ns.p50_ns <= high < 8e6
    assert one.gpu_ns is None
    assert one.repeats >= 10


def test_candidates_take_turns_over_the_inputs():
    calls = []

    tracer.bench(
        candidates={"a": lambda x: calls.append(("a", x)), "b": lambda x: calls.append(("b", x))},
        rotate=[1, 2, 3],
        device="cpu",
        max_seconds=0.3,
    )

    for name in "ab":
        seen = [x for who, x in calls if who == name]
        assert seen[:6] == [1, 2, 3, 1, 2, 3]
    firsts = [who for who, _ in calls]
    assert firsts.index("b") < len(firsts) - firsts[::-1].index("a")


def test_the_interval_of_the_median_holds_it_as_often_as_it_says():
    random = np.random.default_rng(1)
    true_median = float(np.exp(0.0))
    hits = 0
    for _ in range(400):
        low, high = median_interval(random.lognormal(0.0, 1.0, 60), 0.9)
        hits += low <= true_median <= high

    assert 0.86 <= hits / 400 <= 0.97


def test_spread_gives_order_statistics():
    spread = spread_of([1.0, 2.0, 3.0, 4.0, 100.0])

    assert (spread.count, spread.p50_ns, spread.min_ns, spread.max_ns, spread.mean_ns) == (5, 3.0, 1, 100, 22.0)


def test_the_command_prints_a_table_and_writes_json(tmp_path, capsys):
    config = tmp_path / "bench.yaml"
    config.write_text(CONFIG)

    status = main(["bench", str(config), "-o", str(tmp_path / "b.json")])

    out = capsys.readouterr().out
    saved = json.loads((tmp_path / "b.json").read_text())
    sleeps, nothing = saved["candidates"]
    assert status == 0
    assert "naive timer says" in out
    assert "sleeps" in out
    assert 1e6 < sleeps["wall_ns"]["p50_ns"] < 6e6
    assert nothing["wall_ns"]["p50_ns"] < 1e5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bench:\n  setup: x = 1\n", "names nothing to measure"),
        ("bench:\n  candidates:\n    a: 'x ='\n", "is not Python"),
        ("bench:\n  candidates:\n    a: nowhere:f\n", "cannot be imported"),
        ("bench:\n  candidates:\n    a: pass\n  rotate: xs\n", "which bench.setup does not make"),
        ("bench:\n  candidate:\n    a: pass\n", "did you mean 'candidates'"),
    ],
)
def test_bad_configs_say_what_is_wrong(tmp_path, capsys, text, words):
    config = tmp_path / "bench.yaml"
    config.write_text(text)

    assert main(["bench", str(config)]) == 2
    assert words in capsys.readouterr().err


def test_errors():
    with pytest.raises(UsageError, match="nothing to measure"):
        tracer.bench()
    with pytest.raises(RecordError, match="no CUDA device"):
        tracer.bench(lambda: None, device="cuda")
