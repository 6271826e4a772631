"""Which lines of the user's code a sampler saw, at moments that matter."""

from __future__ import annotations

import numpy as np

from tracer.analysis.intervals import Union, inside
from tracer.analysis.sources import Sources
from tracer.trace import NONE, Trace

Line = tuple[str, int, str]  # file, line, function


def sampled_lines(trace: Trace, when: Union, track: int = NONE) -> dict[Line, int]:
    """How many samples of one thread (or of all) fell on each line while one of these intervals lasted."""
    samples = trace.samples
    if not len(samples) or not len(when[0]):
        return {}
    mine = inside(when, samples.time_ns)
    if track != NONE:
        mine &= samples.track == track
    leaves, counts = np.unique(samples.frame[mine], return_counts=True)
    sources, frames = Sources(trace.sources), trace.frames
    found: dict[Line, int] = {}
    for leaf, count in zip(leaves.tolist(), counts.tolist(), strict=True):
        at = leaf
        while at != NONE and not sources.is_user(trace.names[frames.file[at]]):
            at = int(frames.parent[at])
        if at != NONE:
            key = (trace.names[frames.file[at]], int(frames.line[at]), trace.names[frames.function[at]])
            found[key] = found.get(key, 0) + count
    return found
