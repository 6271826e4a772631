"""Any trace that our writer makes from random events comes back the same, in whatever order they are in the file."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.scale import scale
from tests.kineto_text import BASE_NS, call, event, kernel, write
from tracer.analysis.launches import find_launches
from tracer.readers import load
from tracer.readers._stamps import ns_of, ns_of_texts
from tracer.trace import NONE, Kind, Trace

STARTS = st.integers(1, 7_889_238_000_000_000)  # Kineto's base is never older than three months
DURATIONS = st.one_of(st.integers(0, 50), st.integers(0, 10**12))
NAMES = st.text(max_size=20)
CORRELATIONS = st.integers(1, 2**32)


def _host(kind: str, durations: st.SearchStrategy[int] = DURATIONS) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(event, st.just(kind), NAMES, STARTS, durations, tid=st.integers(1, 3))


def _record(found: dict[str, Any]) -> Any:
    """What two records with a correlation id must not share, for then they are one."""
    return repr(found) if "correlation" in found["args"] else id(found)


EVENTS = st.lists(
    st.one_of(
        _host("cpu_op"),
        _host("user_annotation"),
        _host("python_function", st.integers(0, 10_000)),  # what outlives its caller by more is cut
        st.builds(call, NAMES, STARTS, DURATIONS, CORRELATIONS, tid=st.integers(1, 3)),
        st.builds(kernel, NAMES, STARTS, DURATIONS, CORRELATIONS, device=st.integers(0, 2), stream=st.integers(0, 9)),
    ),
    min_size=1,
    max_size=40,
    unique_by=_record,
)
KINDS = {
    "cpu_op": Kind.OP,
    "user_annotation": Kind.MARK,
    "python_function": Kind.PYTHON,
    "cuda_runtime": Kind.CALL,
    "kernel": Kind.KERNEL,
}


def read(data: bytes) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(data)
        return load(path)


def content(trace: Trace) -> list[tuple[Any, ...]]:
    """Every span without the numbers that we gave to names and tracks, and its parent likewise."""
    spans = trace.spans
    columns = (spans.start_ns + trace.origin_unix_ns, spans.dur_ns, spans.kind, spans.name, spans.track, spans.corr)
    rows = [
        (start, dur, kind, trace.names[name], (trace.tracks[track].lane, trace.tracks[track].device), corr)
        for start, dur, kind, name, track, corr in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return [(*row, rows[parent] if parent != NONE else None) for row, parent in zip(rows, spans.parent.tolist())]


@settings(max_examples=120, deadline=None)
@given(
    EVENTS,
    st.sampled_from(["lines", "one line", "kineto"]),
    st.sampled_from(["before", "after", "absent"]),
    st.sampled_from(["three", "few"]),
    st.sampled_from(["number", "text"]),
)
def test_what_is_written_is_read(events, layout, base, decimals, stamps):
    trace = read(write(events, layout=layout, base=base, decimals=decimals, stamps=stamps))

    shift = 0 if base == "absent" else BASE_NS
    wanted = sorted(
        (
            found["ts"] + shift,
            found["dur"],
            int(KINDS[found["cat"]]),
            found["name"],
            (found["tid"], found["pid"] if found["cat"] == "kernel" else NONE),
            found["args"].get("correlation", NONE),
        )
        for found in events
    )
    assert sorted(row[:-1] for row in content(trace)) == wanted
    assert trace.losses == ()


@settings(max_examples=80, deadline=None)
@given(EVENTS, st.randoms(use_true_random=False))
def test_the_order_of_events_changes_nothing(events, chance):
    shuffled = events.copy()
    chance.shuffle(shuffled)

    assert content(read(write(events))) == content(read(write(shuffled)))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 2**43 * 1_000 - 1), min_size=1, max_size=50))
def test_doubles_hold_todays_stamps_exactly(ns):
    """Three decimals below 2**43 us: what makes typed decoding of stamps right."""
    found = ns_of([float(f"{value // 1000}.{value % 1000:03d}") for value in ns])

    assert found is not None
    assert found.tolist() == ns


def test_doubles_that_lose_digits_are_found_out():
    assert ns_of([1_712_195_495_123_456.789]) is None
    assert ns_of([1_712_195_495_123_456.0]) is not None


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"1712195495123456.789", 1_712_195_495_123_456_789),
        (b'"1712195495123456.7"', 1_712_195_495_123_456_700),
        (b"12", 12_000),
        (b"-3.5", -3_500),
        (b"1e3", 1_000_000),
        (b"1.0005", 1_000),
        (b"", NONE),
        (b"null", NONE),
        (b'"soon"', NONE),
        (b"1e400", NONE),
    ],
)
def test_stamps_are_cut_from_their_text(text, ns):
    import msgspec

    for company in ([], [b"5"], [b"5.25"], [b'"x"']):
        raws = [msgspec.Raw(value) for value in [text, *company]]

        assert ns_of_texts(raws)[0] == ns


def test_shuffled_real_events_are_the_same_trace(tmp_path):
    chance = random.Random(3)
    events = [
        event("cpu_op", f"op{depth}", at * 10_000 + depth, 9_000 - 2 * depth, **{"External id": at * 9 + depth})
        for at in range(50)
        for depth in range(9)
    ]
    first = content(read(write(events)))
    chance.shuffle(events)

    assert content(read(write(events))) == first
    assert np.array([row[-1] is None for row in first]).sum() == 50


@pytest.mark.parametrize("layout", ["kineto", "compact"])
def test_a_trace_grown_by_repetition_is_read_whole(tmp_path, layout):
    """What the benchmark makes large files of: links stay inside each repetition."""
    small = tmp_path / "small.json"
    small.write_bytes(
        write(
            [
                event("user_annotation", "ProfilerStep#7", 500, 90_000),
                event("cpu_op", "aten::mm", 1_000, 9_000, **{"External id": 5}),
                call("cudaLaunchKernel", 2_000, 5_123, 11),
                kernel("gemm", 20_001, 30_000, 11),
            ]
        )
    )
    large = tmp_path / "large.json"

    events = scale(small, large, 100_000, layout)
    trace = load(large)

    assert len(trace.spans) == events > 400
    launches = find_launches(trace)
    assert set(launches.gap_ns.tolist()) == {20_001 - 7_123}
    assert len(launches) == events // 4
    assert len({name for name in trace.names if name.startswith("ProfilerStep#")}) == events // 4
    assert trace.losses == ()
