import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracer.exports._lanes import free_lanes, nested_lanes, open_at_start


def _sorted(pairs):
    pairs = sorted(pairs, key=lambda p: (p[0], -p[1]))
    return np.array([p[0] for p in pairs], np.int64), np.array([p[1] for p in pairs], np.int64)


def _nest(start: np.ndarray, dur: np.ndarray) -> bool:
    """Walks one lane as Perfetto does: each slice lies inside the innermost open one."""
    stack: list[int] = []
    for begin, length in zip(start.tolist(), dur.tolist()):
        while stack and stack[-1] <= begin:
            stack.pop()
        if stack and begin + length > stack[-1]:
            return False
        stack.append(begin + length)
    return len(stack) < 512


def test_slices_that_nest_share_a_lane():
    start, dur = _sorted([(0, 100), (10, 20), (10, 5), (30, 70), (100, 10)])

    assert nested_lanes(start, dur).tolist() == [0, 0, 0, 0, 0]


def test_of_two_that_cross_the_later_moves():
    start, dur = _sorted([(0, 300), (100, 300), (500, 10)])

    assert nested_lanes(start, dur).tolist() == [0, 1, 0]


def test_shared_borders_and_empty_slices_do_not_cross():
    start, dur = _sorted([(0, 100), (0, 100), (0, 0), (100, 0), (100, 50), (150, 0)])

    assert nested_lanes(start, dur).tolist() == [0] * 6


def test_what_is_deeper_than_perfetto_can_hold_moves_on():
    start, dur = _sorted([(i, 2_000 - 2 * i) for i in range(600)])

    lanes = nested_lanes(start, dur)

    assert np.bincount(lanes).tolist() == [500, 100]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=40))
def test_every_lane_nests_whatever_comes(pairs):
    start, dur = _sorted(pairs)

    lanes = nested_lanes(start, dur)

    for lane in set(lanes.tolist()):
        assert _nest(start[lanes == lane], dur[lanes == lane])
    if _nest(start, dur):
        assert not lanes.any()


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=40))
def test_slices_of_a_flat_lane_never_overlap(pairs):
    start, dur = _sorted(pairs)

    lanes = free_lanes(start, start + dur)

    for lane in set(lanes.tolist()):
        begins, ends = start[lanes == lane], (start + dur)[lanes == lane]
        assert np.all(np.maximum.accumulate(ends)[:-1] <= begins[1:])


def test_a_queue_is_dealt_to_as_many_lanes_as_it_is_deep():
    start = np.array([0, 1, 2, 10, 50, 51])
    end = np.array([5, 11, 12, 13, 52, 53])

    lanes = free_lanes(start, end)

    assert lanes.tolist() == [0, 1, 2, 0, 0, 1]


def test_who_is_open_when_a_slice_starts():
    start, end = np.array([0, 1, 2, 10]), np.array([5, 11, 12, 13])

    assert open_at_start(start, end).tolist() == [0, 1, 2, 2]
