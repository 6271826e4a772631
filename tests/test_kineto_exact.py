"""Figures of real traces, to the nanosecond, against those that were computed from their text independently.

Where other tools are wrong (HTA: stamps rounded to whole microseconds, hip* calls and
cuLaunchKernelEx unknown, GPUs merged, graph launches ignored), these are right.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.shared import PUBLIC
from tracer.analysis.launches import find_launches
from tracer.readers import load

EXACT = sorted((PUBLIC / "exact").glob("*.json"))
NEAREST = 1e-4  # of a microsecond: the figures are given with four decimals


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dlrm")
    with tarfile.open(PUBLIC / "param_dlrm_kineto.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "dlrm_kineto"


def path_of(name: str, ranks: Path) -> Path:
    return PUBLIC / name if (PUBLIC / name).exists() else ranks / name.removeprefix("param_dlrm_")


def merged(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Busy stretches of rows in order of start; an empty row in a hole divides it."""
    end = np.maximum.accumulate(end)
    holes = np.flatnonzero(start[1:] > end[:-1])
    return np.append(start[0], start[1:][holes]), np.append(end[:-1][holes], end[-1])


@pytest.mark.parametrize("exact", EXACT, ids=lambda path: path.name.removesuffix(".json"))
def test_busy_idle_gaps_and_launch_delays_are_exact(exact, ranks):
    wanted = json.loads(exact.read_text())

    trace = load(path_of(wanted["file"], ranks))
    spans, work = trace.spans, trace.is_work
    launches = find_launches(trace)

    assert int(work.sum()) == wanted["gpu_events"]
    assert len(launches) == wanted["with_launch"]
    device = np.array([track.device for track in trace.tracks])[spans.track]
    assert {str(number) for number in np.unique(device[work])} == set(wanted["devices"])
    for number, figures in wanted["devices"].items():
        rows = work & (device == int(number))
        starts, ends = merged(spans.start_ns[rows], spans.end_ns[rows])
        gaps = np.sort(starts[1:] - ends[:-1])
        busy, whole = (ends - starts).sum(), ends[-1] - starts[0]
        assert whole / 1e3 == pytest.approx(figures["span_us"], abs=NEAREST)
        assert busy / 1e3 == pytest.approx(figures["busy_us"], abs=NEAREST)
        assert (whole - busy) / 1e3 == pytest.approx(figures["idle_us"], abs=NEAREST)
        assert len(gaps) == figures["gaps"]
        if len(gaps):
            assert gaps[-1] / 1e3 == pytest.approx(figures["largest_gap_us"], abs=NEAREST)
    called = {}
    for call, delay, gap in zip(
        launches.call.tolist(), launches.delay_ns.tolist(), launches.gap_ns.tolist(), strict=True
    ):
        called.setdefault(trace.names[spans.name[call]], []).append((delay, gap))
    called["all"] = [pair for pairs in called.values() for pair in pairs]
    assert set(called) == set(wanted["launch"])
    for name, pairs in called.items():
        for figures, values in zip(
            (wanted["launch"][name]["from_call_start"], wanted["launch"][name]["from_call_end"]),
            zip(*pairs),
            strict=True,
        ):
            check_spread(np.sort(np.array(values)) / 1e3, figures)


def check_spread(values: np.ndarray, figures: dict[str, float]) -> None:
    assert values.mean() == pytest.approx(figures["mean"], abs=NEAREST)
    assert (values[0], values[-1]) == pytest.approx((figures["min"], figures["max"]), abs=NEAREST)
    for percent in (50, 90, 99):
        assert values[len(values) * percent // 100] == pytest.approx(figures[f"p{percent}"], abs=NEAREST)


def test_hip_calls_launch():
    trace = load(PUBLIC / "hta_mi250_minitoy_rocm62.json.gz")

    callers = {trace.names[name] for name in trace.spans.name[find_launches(trace).call]}
    assert callers == {"hipLaunchKernel", "hipMemcpyWithStream", "hipExtModuleLaunchKernel"}
    assert len(find_launches(trace)) == trace.is_work.sum()


def test_graph_launches_own_all_their_kernels():
    trace = load(PUBLIC / "hta_negative_queue_rank0.json.gz")

    launches = find_launches(trace)
    graphs = np.isin(launches.call, np.flatnonzero(trace.name_rows("cudaGraphLaunch")))
    assert graphs.sum() == 345
    assert len(np.unique(launches.call[graphs])) == 70


def test_eight_ranks_in_one_folder_are_eight_gpus(ranks):
    trace = load(ranks)

    owners = {(track.rank, track.device) for track in trace.tracks if track.on_gpu}
    assert owners == {(rank, rank) for rank in range(8)}
    assert trace.is_work.sum() == sum(
        json.loads(path.read_text())["gpu_events"] for path in EXACT if path.name.startswith("param_")
    )
