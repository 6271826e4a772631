"""What torch.profiler wrote, in any age and layout, comes out as the same Trace."""

from __future__ import annotations

import gzip
import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import zstandard

from tests.kineto_text import BASE_NS, PID, call, event, kernel, label, write
from tests.shared import CASES, PUBLIC
from tracer.analysis.launches import find_launches
from tracer.errors import TraceError
from tracer.readers import load
from tracer.trace import NONE, Kind, Trace

LAUNCH = [
    event("cpu_op", "aten::mm", 1_000, 9_000, **{"External id": 1}),
    call("cudaLaunchKernel", 2_000, 5_123, 11),
    kernel("gemm", 20_001, 30_000, 11),
]


def rows(trace: Trace) -> list[tuple[str, str, int, int]]:
    """(kind, name, start since the trace's origin, duration) of every span, in order."""
    spans = trace.spans
    return [
        (Kind(kind).name, trace.names[name], start, dur)
        for kind, name, start, dur in zip(
            spans.kind.tolist(), spans.name.tolist(), spans.start_ns.tolist(), spans.dur_ns.tolist(), strict=True
        )
    ]


@pytest.fixture
def read(tmp_path):
    """Reads a trace given as bytes."""

    def read_bytes(data: bytes, name: str = "trace.json") -> Trace:
        path = tmp_path / name
        path.write_bytes(data)
        return load(path)

    return read_bytes


@pytest.mark.parametrize("layout", ["lines", "one line", "kineto", "crlf"])
@pytest.mark.parametrize("base", ["before", "after"])
@pytest.mark.parametrize("decimals", ["three", "few"])
def test_no_layout_changes_what_is_read(read, layout, base, decimals):
    trace = read(write(LAUNCH, layout=layout, base=base, decimals=decimals))

    assert trace.origin_unix_ns == BASE_NS + 1_000
    assert rows(trace) == [
        ("OP", "aten::mm", 0, 9_000),
        ("CALL", "cudaLaunchKernel", 1_000, 5_123),
        ("KERNEL", "gemm", 19_001, 30_000),
    ]
    assert find_launches(trace).gap_ns.tolist() == [20_001 - 7_123]
    assert trace.losses == ()


def test_epoch_stamps_keep_every_nanosecond(read):
    """Before torch 2.4: no base; a double of such a stamp is a quarter of a microsecond off."""
    start = 1_712_195_495_123_456_789
    trace = read(write([event("cpu_op", "a", start, 1_001), event("cpu_op", "b", start + 1, 3)], base="absent"))

    assert trace.origin_unix_ns == start
    assert rows(trace) == [("OP", "a", 0, 1_001), ("OP", "b", 1, 3)]


@pytest.mark.parametrize("stamps", ["number", "text"])
def test_stamps_may_be_text(read, stamps):
    start = 1_727_592_872_422_811_759

    trace = read(write([event("cpu_op", "a", start, 14_299)], base="absent", stamps=stamps, bare=True))

    assert trace.origin_unix_ns == start
    assert rows(trace) == [("OP", "a", 0, 14_299)]


def test_a_byte_order_mark_is_no_event(read):
    assert len(read(b"\xef\xbb\xbf" + write(LAUNCH)).spans) == 3


def test_gzip_may_have_several_members(read):
    data = write(LAUNCH)
    packed = b"".join(gzip.compress(data[at : at + 100]) for at in range(0, len(data), 100))

    assert len(read(packed, "trace.json.gz").spans) == 3


def test_zstd_is_unpacked(read):
    assert len(read(zstandard.ZstdCompressor().compress(write(LAUNCH)), "trace.json.zst").spans) == 3


def test_a_pipe_is_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(gzip.compress(write(LAUNCH)))))

    assert len(load("-").spans) == 3


def test_categories_of_the_first_torch_versions(read):
    trace = read(
        write(
            [
                event("Operator", "aten::mm", 1_000, 9_000, tid=str(PID), **{"Input Dims": [[2, 3], []]}),
                event("Runtime", "cudaMemcpyAsync", 2_000, 5_000, tid=str(PID), correlation=11),
                event("Memcpy", "Memcpy HtoD (Pageable -> Device)", 20_000, 30_000, pid=0, tid="stream 7", device=0)
                | {"args": {"device": 0, "stream": 7, "correlation": 11, "bytes": 64}},
                event("", "[memory]", 3_000, 0, ph="i") | {"cat": None, "args": {"Bytes": 4}},
            ],
            decimals="few",
        )
    )

    assert [row[0] for row in rows(trace)] == ["OP", "CALL", "COPY"]
    assert trace.spans.nbytes.tolist() == [NONE, NONE, 64]
    assert [(track.pid, track.lane, track.device) for track in trace.tracks] == [(PID, PID, NONE), (PID, 7, 0)]
    assert trace.names[trace.ops.shapes[0]] == "[[2, 3], []]"


def test_only_a_category_makes_gpu_work(read):
    trace = read(
        write(
            [
                call("cudaStreamSynchronize", 1_000, 9_000, 5),
                event(
                    "cuda_sync", "Stream Sync", 2_000, 7_000, pid=0, tid=1_000_007, stream=7, correlation=5, device=0
                ),
                event("cpu_op", "triton_poi_fused_add_0", 20_000, 5_000, stream=7, grid="grid(1,1,1)"),
                event("gpu_user_annotation", "step", 20_000, 5_000, pid=0, tid=7),
                event("python_function", "threading.py(1): run", 500, 90_000, pid=0, tid=0),
            ]
        )
    )

    assert not trace.is_work.any()
    track = {name: trace.tracks[trace.spans.track[at]] for at, (_, name, _, _) in enumerate(rows(trace))}
    assert track["Stream Sync"] == track["cudaStreamSynchronize"]  # the host waited, no stream worked
    assert not track["triton_poi_fused_add_0"].on_gpu
    assert not track["threading.py(1): run"].on_gpu
    assert track["step"].on_gpu
    assert trace.waits.stream.tolist() == [7]


def test_a_synchronisation_without_a_call_lies_on_a_thread_without_number(read):
    trace = read(write([*LAUNCH, event("cuda_sync", "Context Sync", 60_000, 9_000, pid=0, tid=-1, correlation=99)]))

    track = trace.tracks[trace.spans.track[-1]]
    assert (track.pid, track.lane, track.device) == (PID, NONE, NONE)


def test_a_graph_launch_owns_all_its_kernels(read):
    nodes = [kernel(f"node{at}", 50_000 + at * 1_000, 1_000, 100, **{"graph node id": 64 + at}) for at in range(1_566)]
    trace = read(write([call("cudaGraphLaunch", 1_000, 9_000, 100), *nodes]))

    assert len(find_launches(trace)) == 1_566
    assert trace.work.graph_node[:3].tolist() == [64, 65, 66]


def test_several_processes_and_gpus_in_one_file_are_kept_apart(read):
    """Both processes count correlation ids from 1, and both use stream 7 of the same device."""
    trace = read(
        write(
            [
                call("cudaLaunchKernel", 1_000, 2_000, 1, pid=200, tid=200),
                kernel("of200", 10_000, 5_000, 1, device=0),
                call("cudaLaunchKernel", 51_000, 2_000, 1, pid=300, tid=300),
                kernel("of300", 60_000, 5_000, 1, device=0),
                call("cudaLaunchKernel", 71_000, 2_000, 2, pid=300, tid=300),
                kernel("other device", 80_000, 5_000, 2, device=1),
            ]
        )
    )

    where = {name: trace.tracks[trace.spans.track[at]] for at, (_, name, _, _) in enumerate(rows(trace))}
    assert (where["of200"].pid, where["of300"].pid, where["other device"].pid) == (200, 300, 300)
    assert (where["of300"].device, where["other device"].device) == (0, 1)
    assert find_launches(trace).gap_ns.tolist() == [7_000, 7_000, 7_000]


def test_integers_above_64_bits_and_odd_types_are_no_reason_to_stop(read):
    odd = [
        event("cpu_op", "a", 1_000, 2_000, **{"External id": 2**70, "Comms Id": 2**64 - 1, "Sequence number": 2**65}),
        event("cuda_runtime", "cudaLaunchKernel", 2_000, 500, correlation="77"),
        event("kernel", "k", 3_000, 500, pid=0.0, tid=7.0, device="0", stream="7", correlation=77.0),
    ]
    trace = read(write(odd))

    assert find_launches(trace).gap_ns.tolist() == [500]
    assert trace.tracks[trace.spans.track[2]].lane == 7


def test_collectives_tell_their_group_and_size(read):
    own = {
        "Collective name": "allreduce",
        "In msg nelems": 1_000,
        "dtype": "BFloat16",
        "Process Group Name": "3",
        "Seq": 4,
    }
    trace = read(write([kernel("ncclDevKernel", 1_000, 5_000, 1, **own)]))

    found = trace.collectives
    assert (trace.names[found.name[0]], trace.names[found.group[0]]) == ("allreduce", "3")
    assert (found.sequence[0], found.nbytes[0]) == (4, 2_000)


def test_memory_marks_are_counters(read):
    mark = {"Device Type": 1, "Device Id": 0, "Bytes": 64, "Total Allocated": 4_096, "Total Reserved": 8_192}
    trace = read(write([*LAUNCH, event("cpu_instant_event", "[memory]", 5_000, 0, ph="i", **mark)]))

    assert [trace.names[name] for name in trace.counters.name] == ["memory allocated (GPU)", "memory reserved (GPU)"]
    assert trace.counters.value.tolist() == [4_096, 8_192]
    assert trace.counters.time_ns.tolist() == [4_000, 4_000]


def test_an_unknown_device_is_shown_but_not_counted(read):
    trace = read(
        write(
            [
                label("process_labels", pid=9, labels="NPU 3"),
                *LAUNCH,
                event("", "MatMul", 5_000, 1_000, pid=9, tid=2) | {"cat": None},
            ]
        )
    )

    row = [name for _, name, _, _ in rows(trace)].index("MatMul")
    assert trace.spans.kind[row] == Kind.GPU_OTHER
    assert trace.tracks[trace.spans.track[row]].device == 3
    assert trace.is_work.sum() == 1


def test_what_starts_and_ends_together_nests_by_the_recorders_count(read):
    """In whole microseconds, `aten::to` and what it calls often look the same."""
    names = ["aten::to", "aten::_to_copy", "aten::copy_"]
    events = [event("cpu_op", name, 5_000, 1_000, **{"External id": 7 + at}) for at, name in enumerate(names)]

    trace = read(write(events[::-1], decimals="few"))

    assert [name for _, name, _, _ in rows(trace)] == names
    assert trace.spans.parent.tolist() == [NONE, 0, 1]


def test_what_the_file_says_of_itself(read):
    trace = read(
        write(
            LAUNCH,
            deviceProperties=[{"id": 0, "name": "NVIDIA H200"}],
            cuda_runtime_version=13000,
            distributedInfo={"backend": "nccl", "rank": 5, "world_size": 16},
        )
    )

    assert trace.meta["device.5.0"] == "NVIDIA H200"
    assert trace.meta["cuda_runtime_version"] == "13000"
    assert (trace.meta["world_size"], trace.meta["backend"]) == ("16", "nccl")
    assert {track.rank for track in trace.tracks} == {5}


def test_the_window_is_the_profilers_own(read):
    spans = event("Trace", "PyTorch Profiler (0)", 500, 90_000, pid="Spans", tid="PyTorch Profiler")
    end = event("", "Record Window End", 99_000, 0, ph="i", pid="", tid="") | {"cat": None}

    assert read(write([*LAUNCH, spans, end])).window_ns == (0, 98_500)
    assert read(write(LAUNCH)).window_ns is None


def test_thread_names_are_the_last_that_were_given(read):
    names = [label("thread_name", name=f"thread {PID} ({name})") for name in ("python3", "pt_main_thread")]

    assert read(write([*LAUNCH, *names])).tracks[0].name == "pt_main_thread"


def test_a_window_larger_than_a_block_is_cut_between_events(read, monkeypatch):
    monkeypatch.setattr("tracer.readers._bytes.BLOCK", 5_000)
    many = [
        kernel(f"k{at}", 1_000 + at * 10, 5, at, grid=[at, 1, 1], notes=[{"a": 1}, {"b": "}, {"}]) for at in range(300)
    ]

    trace = read(write(many, layout="one line", deviceProperties=[{"id": 0}, {"id": 1}]))

    assert [name for _, name, _, _ in rows(trace)] == [f"k{at}" for at in range(300)]
    assert trace.losses == ()


def test_progress_is_told_in_bytes_and_events(tmp_path, monkeypatch):
    monkeypatch.setattr("tracer.readers._bytes.BLOCK", 5_000)
    path = tmp_path / "trace.json"
    path.write_bytes(write([event("cpu_op", "a", at * 10, 5) for at in range(1_000)]))
    told: list[tuple[int, int, int]] = []

    load(path, progress=lambda *state: told.append(state))

    assert told[-1][0] == told[-1][1] == path.stat().st_size
    assert 900 < told[-1][2] <= 1_000
    assert [read for read, _, _ in told] == sorted(read for read, _, _ in told)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("hta_mi250_minitoy_rocm62.json.gz", {Kind.KERNEL: 14, Kind.COPY: 2, Kind.CALL: 21}),
        ("tl_vllm_prefilldecode_piecewise_graph_exec.json.gz", {Kind.KERNEL: 413, Kind.PYTHON: 17_038}),
        ("kineto_resnet50_w4_1623213129365.pt.trace.json.gz", {Kind.KERNEL: 8_868, Kind.OP: 20_562}),
        ("ascend_level0_rank0_trace_view.json", {Kind.GPU_OTHER: 2_454, Kind.PYTHON: 1_275, Kind.KERNEL: 0}),
        ("hta_cpu_only_rank34.pt.trace.json.gz", {Kind.OP: 4, Kind.KERNEL: 0}),
        ("kineto_docs_after_fix.json", {Kind.KERNEL: 1, Kind.WAIT: 2}),
    ],
)
def test_public_traces_hold_what_their_text_holds(name, kinds):
    trace = load(PUBLIC / name)

    assert {kind: int((trace.spans.kind == kind).sum()) for kind in kinds} == kinds
    assert trace.losses == ()


def test_tr07_synchronisations_are_three_host_waits_and_no_kernels():
    trace = load(CASES / "inputs" / "TR07.json")

    assert trace.spans.dur_ns[trace.spans.kind == Kind.KERNEL].sum() == 5_798_000
    assert (trace.spans.kind == Kind.KERNEL).sum() == 4
    waits = trace.spans.kind == Kind.WAIT
    assert sorted(trace.spans.dur_ns[waits].tolist()) == [300_000, 500_000, 5_010_000]
    assert not trace.on_gpu[waits].any()


def test_tr10_base_after_the_events_and_integers_above_64_bits():
    trace = load(CASES / "inputs" / "TR10.json")

    assert trace.origin_unix_ns == BASE_NS
    stall = trace.name_rows("cudaStreamSynchronize")
    assert trace.spans.dur_ns[stall].tolist() == [5_010_000]


def test_tr11_ranks_are_brought_to_one_time_by_their_own_bases(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_bytes((CASES / "inputs" / f"TR11_rank{rank}.json").read_bytes())

    trace = load(tmp_path)

    nccl = trace.name_rows("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    rank = np.array([track.rank for track in trace.tracks])[trace.spans.track]
    ends = [trace.spans.end_ns[nccl & (rank == which)] for which in (0, 1)]
    waits = [trace.spans.dur_ns[nccl & (rank == which)] for which in (0, 1)]
    assert (ends[0] == ends[1]).all()
    assert (waits[0] - waits[1]).sum() == 180_000_000


def test_cf03_neighbours_of_less_than_a_microsecond_stay_neighbours():
    trace = load(CASES / "inputs" / "CF03.json")

    kernels = trace.spans.kind == Kind.KERNEL
    assert trace.spans.dur_ns[kernels].tolist() == [400, 400, 400]
    assert (np.diff(trace.spans.start_ns[kernels]) == 400).all()
    assert (trace.spans.parent[kernels] == NONE).all()


def test_a_file_that_lists_something_else_is_refused(read):
    with pytest.raises(TraceError, match="not a trace"):
        read(b"[1, 2, 3]")
    with pytest.raises(TraceError, match="without a list of events"):
        read(json.dumps({"hello": "world"}).encode())


def test_a_file_cannot_speak_for_our_own_readers(read):
    trace = read(write(LAUNCH, **{"recorder.ledger": "no JSON", "complete": "false", "clock_error_ns": "x"}))

    assert not {"recorder.ledger", "complete", "clock_error_ns"} & set(trace.meta)


def test_stamps_before_the_base_are_times_like_others(read):
    trace = read(write([call("cudaLaunchKernel", -9_000, 500, 1), kernel("k", -3_000, 900, 1)]))

    assert trace.origin_unix_ns == BASE_NS - 9_000
    assert find_launches(trace).gap_ns.tolist() == [5_500]


@pytest.mark.parametrize("runtime", ["xpu_runtime", "xpu_driver", "mtia_runtime", "privateuse1_runtime", "cuda_driver"])
def test_other_runtimes_launch_kernels_too(read, runtime):
    launch = event(runtime, "launch", 1_000, 500, correlation=3)

    trace = read(write([launch, kernel("k", 3_000, 900, 3)]))

    assert [row[0] for row in rows(trace)] == ["CALL", "KERNEL"]
    assert find_launches(trace).gap_ns.tolist() == [1_500]


def test_rows_of_mtia_and_of_categories_that_nobody_knows_are_kept(read):
    odd = [event("mtia_ccp_events", "dma", 1_000, 50, pid=0, tid=3), event("quantum", "collapse", 2_000, 50)]

    trace = read(write(odd))

    assert [row[:2] for row in rows(trace)] == [("GPU_OTHER", "dma"), ("OP", "collapse")]
    assert not trace.is_work.any()
