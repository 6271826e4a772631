"""What was measured: two variants of a program in pairs, and how sure their difference is."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

# Student's t for a 95 % interval, by degrees of freedom from 1 on.
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True, slots=True)
class Proof:
    """What removing the waits of reads (or a patch) was measured to gain."""

    schema: int
    program: str
    compared: str  # "values replayed" or the patched script
    abstained: str = ""  # why nothing is proven
    step_ns: float | None = None  # as it is, mean
    other_ns: float | None = None  # replayed or patched, mean
    gain_ns: float | None = None  # mean of the pairs' differences
    low_ns: float | None = None  # 95 % confidence interval of that
    high_ns: float | None = None
    share: float | None = None  # of the step
    rounds: int = 0
    steps: int = 0  # measured in each run
    step_times_ns: tuple[float, ...] = ()  # each round as it is
    other_times_ns: tuple[float, ...] = ()
    reads: float = 0.0  # values given back in a step
    read_cost_ns: float = 0.0  # host time that a given-back read still takes
    seeded_by_us: bool = False
    hazards: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    status: int = 0  # of the user's program
    folder: str = ""  # where the outputs of the runs are
    predicted_ns: float | None = None  # from a recording of the same program
    predicted_low_ns: float | None = None
    predicted_share: float | None = None


def with_interval(proof: Proof, plain: list[float], other: list[float]) -> Proof:
    """The proof with the mean difference of the pairs and its 95 % interval by Student's t."""
    gains = [a - b for a, b in zip(plain, other, strict=True)]
    mean, step = statistics.fmean(gains), statistics.fmean(plain)
    freedom = len(gains) - 1
    quantile = _T_975[min(freedom, len(_T_975)) - 1] if freedom else math.inf
    half = quantile * statistics.stdev(gains) / math.sqrt(len(gains)) if freedom else math.inf
    low, high = mean - half, mean + half
    unsure = ""
    if low <= 0 <= high:
        unsure = "noise exceeds the gain: the interval of the difference holds zero; more rounds may tell"
    return replace(
        proof,
        abstained=unsure,
        step_ns=step,
        other_ns=statistics.fmean(other),
        gain_ns=mean,
        low_ns=low,
        high_ns=high,
        share=mean / step,
        rounds=len(gains),
        step_times_ns=tuple(plain),
        other_times_ns=tuple(other),
    )
