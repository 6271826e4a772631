import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import CPU, CPU2, GPU, make_timeline
from tracer.building import find_parents
from tracer.trace import NONE, Kind


def parents(trace):
    return {
        trace.names[n]: trace.names[trace.spans.name[p]] if p != NONE else None
        for n, p in zip(trace.spans.name, trace.spans.parent, strict=True)
    }


def test_parent_is_the_innermost_op_around_a_call():
    trace = make_timeline(
        (Kind.OP, "outer", CPU, 0, 100),
        (Kind.OP, "first", CPU, 5, 20),
        (Kind.CALL, "launch", CPU, 10, 15),
        (Kind.OP, "second", CPU, 30, 60),
        (Kind.CALL, "sync", CPU, 70, 90),
        (Kind.CALL, "after", CPU, 100, 110),
        (Kind.CALL, "other", CPU2, 10, 15),
        (Kind.KERNEL, "gemm", GPU, 10, 15),
    )

    found = parents(trace)

    assert found == {
        "outer": None,
        "first": "outer",
        "launch": "first",
        "second": "outer",
        "sync": "outer",
        "after": None,
        "other": None,
        "gemm": None,
    }


def slow_parents(start, dur, kind, track):
    found = []
    for i in range(len(start)):
        best = NONE
        for j in range(i):
            if track[j] == track[i] and kind[j] != Kind.CALL and start[j] + dur[j] > start[i]:
                best = j
        found.append(best)
    return found


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 30), st.sampled_from([0, 1, 2]), st.integers(0, 1)), max_size=40
    )
)
def test_parents_are_those_of_the_plain_definition(rows):
    rows = sorted(rows, key=lambda r: (r[0], -r[1], r[2]))
    start, dur, kind, track = (np.array([r[k] for r in rows], dtype=np.int64) for k in range(4))

    found = find_parents(start, dur, kind, track)

    assert found.tolist() == slow_parents(start, dur, kind, track)
