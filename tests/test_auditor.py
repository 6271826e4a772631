import dataclasses
from types import MappingProxyType

import numpy as np
import pytest

from tests.conftest import CPU, CPU2, GPU, US, make_timeline
from tests.shared import CASES, H200
from tests.stories import Wait, trace_of
from tracer.analysis.intervals import total
from tracer.auditor import audit, audit_of, examine
from tracer.readers import load
from tracer.trace import NONE, Kind, Steps

NAMES = sorted(path.name.removesuffix(".json.gz") for path in H200.glob("*.json.gz") if "rank" not in path.name)
ITEM = Wait(("aten::item", "aten::_local_scalar_dense"), "DtoH (Device -> Pinned)", text="v = loss.item()")


@pytest.fixture(scope="module")
def audits():
    """The audit of each recording, made once."""
    made = {}

    def get(name):
        if name not in made:
            found = examine(load(H200 / f"{name}.json.gz", source_root=CASES / "inputs"))
            made[name] = found, audit_of(found, source=name)
        return made[name]

    return get


@pytest.mark.parametrize("name", NAMES)
def test_totals_never_exceed_what_there_is(audits, name):
    found, result = audits(name)

    idle = sum(device.idle_ns for device in result.devices)
    assert sum(result.idle.values()) == idle
    assert sum(row.ns for row in result.idle_rows) == idle
    keys = [(r.cause, r.rank, r.device, r.place and (r.place.file, r.place.line)) for r in result.idle_rows]
    assert len(set(keys)) == len(keys)
    assert sum(f.idle_ns for f in result.findings) <= idle
    stalls = found.evidence.stalls
    for track in np.unique(stalls.track):
        mine = stalls.track == track
        assert total(stalls.start_ns[mine], stalls.end_ns[mine]) <= result.window_ns
    for finding in result.findings:
        assert finding.stall_ns <= result.window_ns
        assert finding.waits >= finding.count or finding.rule.startswith(("IDLE", "RACE", "TIME"))


@pytest.mark.parametrize("name", NAMES)
def test_less_than_a_twentieth_of_the_idle_time_is_unknown(audits, name):
    result = audits(name)[1]

    assert result.idle.get("unknown", 0) < 0.05 * sum(result.idle.values())


@pytest.mark.parametrize("name", NAMES)
def test_every_stall_belongs_to_at_most_one_finding(audits, name):
    found = audits(name)[0]

    rows = np.concatenate(list(found.evidence.rows.values()) or [np.empty(0, int)])
    assert len(np.unique(rows)) == len(rows)
    assert np.array_equal(np.sort(rows), np.flatnonzero(found.held.finding != NONE))


def test_the_same_read_is_free_on_a_busy_gpu_and_dear_on_an_idle_one(audits):
    (busy,) = [f for f in audits("IS22")[1].findings if f.kind == "sync.item"]
    (starved,) = [f for f in audits("IS23")[1].findings if f.kind == "sync.item"]

    assert busy.stall_ns > 10 * starved.stall_ns  # 36 ms a step held against 3 ms
    assert busy.harmless
    assert busy.gain_ns.share < 0.03
    assert not starved.harmless
    assert starved.gain_ns.share > 0.2
    assert starved.idle_ns > 5 * busy.idle_ns


def test_harmless_findings_come_last(audits):
    flags = [f.harmless for f in audits("IS02")[1].findings]

    assert flags == sorted(flags)


def test_threads_are_told_apart(audits):
    found, result = audits("TH01")

    (reads,) = [f for f in result.findings if f.kind == "sync.item"]
    main = np.bincount(found.trace.spans.track[found.evidence.launches.call]).argmax()
    assert reads.count == 2_000
    threads = np.unique(found.held.track[found.held.finding == result.findings.index(reads)])
    assert len(np.unique(found.evidence.stalls.track)) == 2
    assert reads.thread == (found.trace.tracks[threads[0]].name or f"thread {found.trace.tracks[threads[0]].lane}")
    assert main is not None


def test_a_step_has_its_wall_busy_and_held_time():
    trace = trace_of(ITEM, times=3)
    steps = Steps.of(
        start_ns=[0, 3_000 * US, 6_000 * US],
        dur_ns=[3_000 * US] * 3,
        number=[7, 8, 9],
        track=[0] * 3,
        traced=[False, True, True],
    )

    result = audit(dataclasses.replace(trace, steps=steps, meta=MappingProxyType({"steps_from": "tracer.step"})))

    assert [(s.number, s.wall_ns, s.busy_ns, s.stalled_ns) for s in result.steps] == [
        (8, 3_000 * US, 1_002 * US, 900 * US),
        (9, 3_000 * US, 1_002 * US, 900 * US),
    ]
    assert (result.pace.steps_from, result.pace.untraced_count, result.pace.traced_count) == ("tracer.step", 1, 2)
    (finding,) = [f for f in result.findings if f.kind == "sync.item"]
    assert finding.per_step.count == 1.5 * 2 / 2 or finding.per_step.count == 1.0
    assert result.pictures[0].title == "typical step"
    assert [curve.name for curve in result.pictures[0].curves] == ["lead", "depth"]


def test_recording_that_slows_the_step_is_a_limit():
    trace = trace_of(ITEM, times=2)
    steps = Steps.of(
        start_ns=[0, 1_000 * US, 2_000 * US, 3_000 * US],
        dur_ns=[1_000 * US] * 3 + [3_000 * US],
        number=[1, 2, 3, 4],
        track=[0] * 4,
        traced=[False, False, False, True],
    )

    result = audit(dataclasses.replace(trace, steps=steps))

    assert any("recording made the step 3.00 times as long" in text for text in result.limits)


@pytest.mark.parametrize(
    ("outside_us", "why"),
    [
        ((1_000, 1_000), "only 2 steps were seen outside of the recording"),
        ((1_000, 20, 9_000, 8_000, 30), "the steps outside of the recording differ too much: 30.0 us to 8.00 ms"),
        ((55, 55, 55), "a step took 3.00 ms while recording and 55.0 us outside of it"),
        ((300_000,) * 3, "a step took 3.00 ms while recording and 300 ms outside of it"),
    ],
)
def test_steps_that_tell_no_pace_give_none_and_the_limits_say_why(outside_us, why):
    trace = trace_of(ITEM, times=2)
    durations = np.array([*outside_us, 3_000]) * US
    steps = Steps.of(
        start_ns=np.concatenate(([0], np.cumsum(durations)[:-1])) - durations[:-1].sum(),
        dur_ns=durations,
        number=np.arange(len(durations)),
        track=[0] * len(durations),
        traced=[False] * len(outside_us) + [True],
    )

    result = audit(dataclasses.replace(trace, steps=steps))

    assert (result.pace.untraced_ns, result.pace.ratio) == (None, None)
    assert result.pace.untraced_count == len(outside_us)
    assert sum(why in text for text in result.limits) == 1
    assert all(f.gain_ns is None or f.gain_ns.clock == "traced" for f in result.findings)


def test_lines_carry_the_cost_of_their_findings():
    result = audit(trace_of(ITEM))

    (line,) = result.lines
    assert (line.file, line.line, line.count) == ("/home/me/train.py", 7, 5)
    assert line.held_ns == 5 * 900 * US


def test_tables_of_kernels_ops_and_copies():
    trace = make_timeline(
        (Kind.OP, "aten::mm", CPU, 0, 10),
        (Kind.CALL, "cudaLaunchKernel", CPU, 2, 5, 1),
        (Kind.KERNEL, "gemm", GPU, 10, 90, 1),
        (Kind.CALL, "cudaLaunchKernel", CPU, 12, 15, 2),
        (Kind.KERNEL, "gemm", GPU, 90, 130, 2),
        (Kind.CALL, "cudaMemcpyAsync", CPU, 20, 22, 3),
        (Kind.COPY, "Memcpy HtoD (Pinned -> Device)", GPU, 130, 140, 3, 20_000),
    )

    result = audit(trace)

    assert [(k.name, k.count, k.total_ns) for k in result.kernels] == [("gemm", 2, 120 * US)]
    assert [(o.name, o.total_ns) for o in result.ops] == [("aten::mm", 80 * US)]
    assert [(c.name, c.gb_per_s) for c in result.copies] == [("Memcpy HtoD (Pinned -> Device)", 2.0)]
    assert round(result.kernels[0].share, 3) == round(120 / 130, 3)


def test_the_async_gap_as_a_whole():
    trace = make_timeline(
        (Kind.CALL, "cudaGraphLaunch", CPU, 0, 10, 1),
        *[(Kind.KERNEL, "node", GPU, 20 + i, 21 + i, 1) for i in range(5)],
        (Kind.CALL, "cudaLaunchKernel", CPU, 30, 34, 2),
        (Kind.KERNEL, "k", GPU, 40, 50, 2),
        (Kind.CALL, "cudaLaunchKernel", CPU2, 60, 64, 3),
    )

    launching = audit(trace).launching

    assert (launching.launches, launching.works, launching.orphans) == (2, 6, 1)
    assert (launching.from_call_start.min_ns, launching.from_call_start.max_ns) == (10 * US, 20 * US)
    assert (launching.from_call_end.min_ns, launching.from_call_end.max_ns) == (6 * US, 10 * US)
    assert launching.max_queue_depth == 5


def test_a_trace_without_anything_is_audited_too():
    result = audit(make_timeline())

    assert result.findings == ()
    assert result.verdicts[0].id == "no_gpu"


def test_a_path_is_loaded():
    result = audit(H200 / "IS01.json.gz", source_root=CASES / "inputs")

    assert result.source.endswith("IS01.json.gz")
    assert any(f.place and f.place.excerpt.strip().startswith("history.append") for f in result.findings)


def test_threads_of_one_name_that_wait_at_one_place_are_two_findings_each_with_its_own_waits():
    rows = []
    for pid, times in ((100, 3), (200, 2)):
        cpu, gpu = (0, pid, pid, NONE, "python3"), (0, pid, 7, pid // 100 - 1, "stream 7")
        for number in range(times):
            at, corr = 2_000 * number, 10 * number + 1
            rows += [
                (Kind.CALL, "cudaLaunchKernel", cpu, at, at + 5, corr),
                (Kind.KERNEL, "k", gpu, at + 10, at + 900, corr),
                (Kind.CALL, "cudaStreamSynchronize", cpu, at + 10, at + 910, corr + 1),
            ]
    found = examine(make_timeline(*rows))
    result = audit_of(found)

    assert sorted(finding.count for finding in result.findings if finding.rule.startswith("SYNC")) == [2, 3]
    assert len({finding.id for finding in result.findings}) == len(result.findings)
    for number, finding in enumerate(found.findings):
        assert finding.waits == np.sum(found.held.finding == number)
    assert result.summary.stalled_ns == 3 * 900 * US
