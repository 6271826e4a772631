"""The SQL that comes with the package, in the real trace processor."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest

from tests.conftest import CPU, GPU, US, make_timeline
from tests.perfetto_tools.processor import Processor
from tests.shared import H200
from tracer.analysis.idle import CAUSES
from tracer.auditor import audit_of, examine
from tracer.exports.perfetto import write
from tracer.readers import load
from tracer.trace import NONE, Kind

SQL = files("tracer.exports").joinpath("tracer.sql").read_text()


@pytest.fixture(scope="module")
def examined():
    return examine(load(H200 / "IS01.json.gz"))


@pytest.fixture(scope="module")
def processor(examined, tmp_path_factory):
    path = tmp_path_factory.mktemp("sql") / "IS01.pftrace"
    write(examined.trace, audit_of(examined), path, examination=examined)
    with Processor(path) as opened:
        opened.query(SQL)
        yield opened


def test_the_async_gap_is_the_models(processor, examined):
    launches = examined.evidence.launches

    rows = processor.query("select gap, delay from async_gap")

    assert sorted(row["gap"] for row in rows) == np.sort(launches.gap_ns).tolist()
    assert sorted(row["delay"] for row in rows) == np.sort(launches.delay_ns).tolist()


def test_stalls_are_those_of_the_auditor(processor, examined):
    rows = processor.query("select dur, place, fix, costs_time from stalls order by ts")

    assert [row["dur"] for row in rows] == examined.held.dur_ns.tolist()
    item = [row for row in rows if row["place"].endswith("IS01.py:21")]
    assert len(item) >= 15
    assert all(row["fix"] != "-" and row["costs_time"] for row in item)


def test_idle_time_sums_to_the_models_by_cause(processor, examined):
    idle = examined.idle

    whole = processor.value("select sum(dur) from idle_causes")
    gpus = processor.query("select distinct gpu from idle_causes")

    assert whole == int(idle.dur_ns.sum())
    assert [row["gpu"] for row in gpus] == ["GPU 0: NVIDIA H200"]


def test_it_can_be_pasted_twice(processor):
    processor.query(SQL)

    assert processor.value("select count(*) from async_gap") > 0


def test_a_launch_after_its_kernel_is_still_a_launch(tmp_path):
    trace = make_timeline((Kind.CALL, "cudaLaunchKernel", CPU, 50, 60, 1), (Kind.KERNEL, "early", GPU, 40, 70, 1))
    path = write(trace, None, tmp_path / "t.pftrace").path

    with Processor(path) as opened:
        opened.query(SQL)
        rows = opened.query("select call, work, gap from async_gap")

    assert rows == [{"call": "cudaLaunchKernel", "work": "early", "gap": -20 * US}]


def _ends(processor, one, other):
    """How many arrows join slices of two categories, whichever end they leave from."""
    pairs = f"(o.category = '{one}' and i.category in ({other})) or (i.category = '{one}' and o.category in ({other}))"
    joined = "flow join slice o on o.id = slice_out join slice i on i.id = slice_in"
    return processor.value(f"select count(*) from {joined} where {pairs}")


def test_a_stall_points_at_the_last_work_that_it_waited_for(processor, examined):
    held = examined.held

    assert _ends(processor, "stall", "'kernel', 'copy'") == int(np.sum(held.last_work != NONE)) > 10


def test_idle_time_points_at_the_launch_that_ended_it(processor, examined):
    idle, launches = examined.idle, examined.evidence.launches
    own = [i for i, cause in enumerate(CAUSES) if cause.startswith("gpu.")]
    launched = np.isin(idle.next_work, launches.work) & ~np.isin(idle.cause, own)

    assert _ends(processor, "idle", "'call'") == int(launched.sum()) > 10
