import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracer.analysis.intervals import clip, covered, gaps, inside, intersect, length, subtract, total, union


def pairs(of):
    return list(zip(of[0].tolist(), of[1].tolist(), strict=True))


def columns(intervals):
    rows = np.array(intervals, np.int64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


def test_union_joins_what_overlaps_or_touches():
    assert pairs(union([30, 0, 5, 20], [40, 10, 20, 22])) == [(0, 22), (30, 40)]


def test_a_long_interval_swallows_those_inside_it():
    assert pairs(union([0, 1, 5], [100, 2, 50])) == [(0, 100)]


def test_empty_intervals_count_for_nothing():
    assert pairs(union([5, 7, 9], [5, 6, 12])) == [(9, 12)]
    assert total([], []) == 0


def test_gaps_reach_from_low_to_high():
    assert pairs(gaps([10, 30], [20, 40], 0, 100)) == [(0, 10), (20, 30), (40, 100)]
    assert pairs(gaps([], [], 0, 7)) == [(0, 7)]
    assert pairs(gaps([0], [50], 10, 40)) == []


def test_covered_is_the_part_of_each_query_that_the_union_holds():
    of = union([10, 30], [20, 40])

    assert covered(of, [0, 15, 12, 20, 0], [5, 35, 13, 30, 100]).tolist() == [0, 10, 1, 0, 20]


def test_clip_cuts_at_both_ends():
    assert pairs(clip(union([0, 20, 60], [10, 50, 70]), 5, 30)) == [(5, 10), (20, 30)]


INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


def moments(intervals):
    return {t for a, b in intervals for t in range(a, b)}


@given(INTERVALS, INTERVALS)
def test_all_agree_with_sets_of_moments(first, second):
    a, b = union(*columns(first)), union(*columns(second))
    in_a, in_b = moments(first), moments(second)

    assert moments(pairs(a)) == in_a
    assert length(a) == total(*columns(first)) == len(in_a)
    assert moments(pairs(intersect(a, b))) == in_a & in_b
    assert moments(pairs(subtract(a, b))) == in_a - in_b
    assert moments(pairs(gaps(*a, 5, 30))) == set(range(5, 30)) - in_a
    assert covered(a, *columns(second)).tolist() == [
        sum(t in in_a for t in range(p, q)) - sum(t in in_a for t in range(q, p)) for p, q in second
    ]
    assert inside(a, np.arange(42)).tolist() == [t in in_a for t in range(42)]
    assert all(later[0] > earlier[1] for earlier, later in zip(pairs(a), pairs(a)[1:]))
