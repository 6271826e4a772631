import threading
import time
from itertools import pairwise

import torch
from torch.profiler import ProfilerActivity, profile

from tracer import config
from tracer.chunks import read_chunks
from tracer.readers._clock import Clock
from tracer.recording.callers import write_callers
from tracer.recording.session import Session

moments = []


def inner(x):
    moments.append((inner, 1, time.time_ns()))
    y = x @ x
    return y.sum().item()


def outer(x):
    torch.cumsum(x, 0)
    value = inner(x)
    y = float(x.sum())
    return value + y


def test_the_calling_line_of_each_call_is_known_and_the_callers_above(tmp_path):
    session = Session(tmp_path, config.Record(stacks="full", user_code=[__file__]))
    session.start()
    x = torch.randn(400, 400)
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as running:
        for _ in range(3):
            outer(x)
    tree = running.profiler.kineto_results.experimental_event_tree()

    count = write_callers(session, tree, threading.get_native_id())
    session.end()

    rows, _ = read_chunks(tmp_path / "lines.chunks")
    frames = {row[1]: row for row in rows if row[0] == "frame"}
    runs = [row for row in rows if row[0] == "line"]
    assert count == len(runs)
    lines = {(frames[run[4]][5], frames[run[4]][4]) for run in runs}
    first, second = inner.__code__.co_firstlineno, outer.__code__.co_firstlineno
    assert {("inner", first + 3), ("outer", second + 1), ("outer", second + 3)} <= lines
    [item] = {run[4] for run in runs if (frames[run[4]][5], frames[run[4]][4]) == ("inner", first + 3)}
    assert frames[frames[item][2]][4:6] == [second + 2, "outer"]
    ordered = sorted((run[1], run[1] + run[2]) for run in runs)
    assert all(a[1] <= b[0] for a, b in pairwise(ordered))


def test_runs_lie_where_they_happened(tmp_path):
    session = Session(tmp_path, config.Record(stacks="full", user_code=[__file__]))
    session.start()
    moments.clear()
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as running:
        outer(torch.randn(64, 64))
    write_callers(session, running.profiler.kineto_results.experimental_event_tree(), 7)
    session.end()
    rows, _ = read_chunks(tmp_path / "lines.chunks")
    frames = {row[1]: row for row in rows if row[0] == "frame"}
    clock = Clock(session.manifest["marks"])

    _, offset, moment = moments[0]
    around = []
    for row in rows:
        if row[0] == "line":
            [start] = clock.unix_ns([row[1]]).tolist()
            if start - 50_000 <= moment <= start + row[2] + 50_000:
                around.append(frames[row[4]][4:6])

    assert [inner.__code__.co_firstlineno + offset, "inner"] in around
