"""Every handed trace, written and counted again: nothing is lost and nothing complained of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.perfetto_tools.processor import Processor
from tests.shared import CASES, H200, PUBLIC
from tracer.auditor import audit_of, examine
from tracer.exports.perfetto import Written, write
from tracer.readers import load
from tracer.trace import NONE, Kind

SHOWN = (Kind.OP, Kind.CALL, Kind.MARK, Kind.PYTHON, Kind.OVERHEAD, Kind.KERNEL, Kind.COPY, Kind.FILL, Kind.GPU_MARK)
HANDED = {
    "h200": sorted(H200.glob("*.json.gz")),
    "public": sorted([*PUBLIC.glob("*.json.gz"), *PUBLIC.glob("kineto*.json")]),
    "cases": sorted(CASES.glob("inputs/TR*.json")),
}


def _write(path: Path, out: Path) -> Written:
    """One trace with all that was found in it; its spans are all there."""
    trace = load(path)
    found = examine(trace)
    written = write(trace, audit_of(found), out, examination=found)

    spans, launches = trace.spans, found.evidence.launches
    ungraphed = np.bincount(launches.call, minlength=1)[launches.call] == 1
    assert written.arrows.get("launch", 0) >= int(np.sum(ungraphed)), path.name
    assert written.slices >= int(np.sum(np.isin(spans.kind, SHOWN))) + len(found.held) + len(found.idle), path.name
    assert written.samples == int(np.sum(trace.samples.frame != NONE)), path.name
    return written


@pytest.mark.parametrize("group", HANDED)
def test_every_handed_trace_counts_the_same_in_perfetto(group, tmp_path):
    # One file after the other is one trace for Perfetto, so that all are loaded at once.
    parts = [_write(path, tmp_path / f"{i}.pftrace") for i, path in enumerate(HANDED[group])]
    whole = tmp_path / "all.pftrace"
    whole.write_bytes(b"".join(part.path.read_bytes() for part in parts))

    with Processor(whole) as processor:
        assert processor.problems() == {}
        assert processor.value("select count(*) from slice") == sum(part.slices for part in parts)
        assert processor.value("select count(*) from slice where dur < 0 or name is null") == 0
        assert processor.value("select count(*) from flow") == sum(sum(part.arrows.values()) for part in parts)
        assert processor.value("select count(*) from perf_sample") == sum(part.samples for part in parts)
        thread = "select count(*) from counter c join track t on c.track_id = t.id where t.name = 'thread_time'"
        counted = processor.value("select count(*) from counter") - processor.value(thread)
        assert counted == sum(part.counters for part in parts)
