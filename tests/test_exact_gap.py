"""Busy, idle, gaps and launch delays of real traces, to the nanosecond, against figures computed elsewhere."""

import json

import numpy as np
import pytest

from tests.shared import PUBLIC
from tracer.analysis.intervals import gaps, length
from tracer.analysis.launches import busy, find_devices, find_launches
from tracer.readers import load

EXACT = sorted((PUBLIC / "exact").glob("*.json"))
NAMES = [path.stem for path in EXACT if any(PUBLIC.glob(f"{path.stem}.json*"))]


def told(name):
    return json.loads((PUBLIC / "exact" / f"{name}.json").read_text())


def trace_of(name):
    (path,) = PUBLIC.glob(f"{name}.json*")
    return load(path)


def ns(microseconds):
    return round(microseconds * 1_000)


@pytest.mark.parametrize("name", NAMES)
def test_busy_idle_and_gaps_of_each_device(name):
    trace = trace_of(name)

    devices = {str(device): busy(trace, rank, device) for rank, device in find_devices(trace)}

    expected = told(name)["devices"]
    assert devices.keys() == expected.keys()
    for device, (starts, ends) in devices.items():
        figures = expected[device]
        low, high = int(starts[0]), int(ends[-1])
        holes = gaps(starts, ends, low, high)
        assert high - low == ns(figures["span_us"])
        assert length((starts, ends)) == ns(figures["busy_us"])
        assert length(holes) == ns(figures["idle_us"])
        if trace.spans.dur_ns[trace.is_work].all():  # the figures let a kernel without length divide a gap
            assert len(holes[0]) == figures["gaps"]
            assert int((holes[1] - holes[0]).max(initial=0)) == ns(figures["largest_gap_us"] or 0)


@pytest.mark.parametrize("name", NAMES)
def test_delays_from_both_ends_of_the_call(name):
    trace = trace_of(name)

    launches = find_launches(trace)

    expected = told(name)
    assert int(trace.is_work.sum()) == expected["gpu_events"]
    assert len(launches) == expected["with_launch"]
    if not len(launches):
        return
    for column, key in ((launches.delay_ns, "from_call_start"), (launches.gap_ns, "from_call_end")):
        figures = expected["launch"]["all"][key]
        assert int(column.min()) == ns(figures["min"])
        assert int(column.max()) == ns(figures["max"])
        assert abs(float(column.mean()) - figures["mean"] * 1_000) <= 0.1
    assert int((launches.delay_ns < 0).sum()) == expected["launch"]["all"]["before_call_start"]
    by_call = trace.spans.name[launches.call]
    for number in np.unique(by_call).tolist():
        mine = by_call == number
        figures = expected["launch"].get(trace.names[number])
        if figures:
            assert int(mine.sum()) == figures["n"]
            assert int(launches.delay_ns[mine].max()) == ns(figures["from_call_start"]["max"])
