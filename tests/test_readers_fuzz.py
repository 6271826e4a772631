"""The fuzzer, for a bounded time: `python tests/fuzz_readers.py --seconds 600` does it at length."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz_readers import MOST_SECONDS, fuzz, try_one


@pytest.mark.parametrize("seed", [11, 12])
def test_damaged_files_give_a_trace_or_an_error_of_ours(seed, tmp_path):
    came_out, slowest, broken = fuzz(60, seed, tmp_path, most=400)

    assert broken == []
    assert came_out["trace with losses"] > 100  # it was damaged files that were tried
    assert slowest < MOST_SECONDS


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=100).map(lambda data: b'{"traceEvents":[' + data)))
def test_any_bytes_give_a_trace_or_an_error_of_ours(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(data)

        assert try_one(path) in ("refused", "trace with losses", "whole trace")


_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
_KEYS = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id", "other"])
_CATEGORIES = st.sampled_from(["X", "M", "C", "i", "kernel", "cpu_op", "cuda_sync", "gpu_memcpy", "cuda_runtime"])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(_VALUES, st.dictionaries(_KEYS, st.one_of(_VALUES, _CATEGORIES), max_size=8)), max_size=5))
def test_any_json_gives_a_trace_or_an_error_of_ours(events):
    import json

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(json.dumps({"traceEvents": events}))

        assert try_one(path) in ("refused", "trace with losses", "whole trace")
