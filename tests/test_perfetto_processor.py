"""What is written, counted again by Perfetto's own trace processor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import CPU, CPU2, GPU, GPU1, GPU_S2, US, make_timeline
from tests.perfetto_tools.processor import Processor
from tests.shared import H200
from tracer.auditor import examine
from tracer.building import TraceBuilder
from tracer.exports._naming import short_name
from tracer.exports.perfetto import write
from tracer.readers import load
from tracer.trace import NONE, Counters, Frames, Kind, Lines, OpDetails, Reads, Samples, WaitDetails

# Counters that are not rows of ours: a thread's working time, and the clock that samples are taken by.
_OTHERS = "('thread_time', 'perf_cpu_counter', 'perf_global_counter')"
_UNIX_NS = 1_764_000_000_000_000_123


def _counted(trace, path, **options):
    """Write, load, and hold the counts against each other; the open processor."""
    written = write(trace, None, path, **options)
    processor = Processor(path).__enter__()
    try:
        assert processor.problems() == {}
        assert processor.value("select count(*) from slice") == written.slices
        assert processor.value("select count(*) from slice where dur < 0 or name is null") == 0
        assert processor.value("select count(*) from flow") == sum(written.arrows.values())
        assert processor.value("select count(*) from perf_sample") == written.samples
        counters = f"select count(*) from counter join counter_track t on track_id = t.id where t.type not in {_OTHERS}"
        assert processor.value(counters) == written.counters
    except BaseException:
        processor.close()
        raise
    return processor, written


@pytest.fixture
def counted(tmp_path):
    """Writes and loads a trace; closes it after the test."""
    opened = []

    def load(trace, **options):
        processor, written = _counted(trace, tmp_path / f"{len(opened)}.pftrace", **options)
        opened.append(processor)
        return processor, written

    yield load
    for processor in opened:
        processor.close()


def _slices(processor, *columns):
    return processor.query(f"select {', '.join(columns)} from slice order by ts, dur desc, id")


def test_a_launch_and_its_kernel_are_joined_by_an_arrow(counted):
    trace = make_timeline(
        (Kind.OP, "aten::mm", CPU, 0, 20),
        (Kind.CALL, "cudaLaunchKernel", CPU, 5, 10, 1),
        (Kind.KERNEL, "gemm", GPU, 105, 200, 1),
    )

    processor, written = counted(trace)

    assert written.arrows["launch"] == 1
    (arrow,) = processor.query(
        "select o.name as launch, i.name as work, i.ts - o.ts - o.dur as gap from flow "
        "join slice o on o.id = slice_out join slice i on i.id = slice_in"
    )
    assert arrow == {"launch": "cudaLaunchKernel", "work": "gemm", "gap": 95_000}
    assert processor.value("select extract_arg(arg_set_id, 'debug.gap_ns') from slice where name = 'gemm'") == 95_000
    by = "select extract_arg(arg_set_id, 'debug.launched_by') from slice where name = 'gemm'"
    assert processor.value(by) == "aten::mm"


def test_hard_nesting_comes_out_as_it_went_in(counted):
    trace = make_timeline(
        (Kind.OP, "outer", CPU, 0, 100),
        (Kind.OP, "same start", CPU, 0, 40),
        (Kind.OP, "empty at start", CPU, 0, 0),
        (Kind.OP, "inner", CPU, 10, 40),
        (Kind.OP, "next at border", CPU, 40, 100),
        (Kind.OP, "after at border", CPU, 100, 150),
        (Kind.OP, "empty at border", CPU, 150, 150),
    )

    processor, _ = counted(trace)

    depths = {row["name"]: (row["depth"], row["dur"]) for row in _slices(processor, "name", "depth", "dur")}
    assert depths == {
        "outer": (0, 100 * US),
        "same start": (1, 40 * US),
        "empty at start": (2, 0),
        "inner": (2, 30 * US),
        "next at border": (1, 60 * US),
        "after at border": (0, 50 * US),
        "empty at border": (0, 0),
    }


def test_slices_that_cross_keep_their_own_length(counted):
    trace = make_timeline(
        (Kind.MARK, "one", CPU, 0, 300),
        (Kind.MARK, "two", CPU, 100, 400),
        (Kind.OP, "a", CPU, 0, 300),
        (Kind.OP, "b", CPU, 100, 400),
        (Kind.KERNEL, "k", GPU, 0, 300),
        (Kind.KERNEL, "l", GPU, 100, 400),
        (Kind.KERNEL, "m", GPU, 150, 200),
    )

    processor, _ = counted(trace)

    lengths = {row["name"]: row["dur"] for row in _slices(processor, "name", "dur")}
    assert lengths == dict.fromkeys(("one", "two", "a", "b", "k", "l"), 300 * US) | {"m": 50 * US}


def test_a_kernel_before_its_launch_keeps_its_arrow(counted):
    trace = make_timeline(
        (Kind.CALL, "cudaLaunchKernel", CPU, 50, 60, 1),
        (Kind.KERNEL, "early", GPU, 40, 70, 1),
        (Kind.CALL, "cudaLaunchKernel", CPU, 100, 110, 2),
        (Kind.KERNEL, "at once", GPU, 100, 120, 2),
    )

    processor, _ = counted(trace)

    ends = processor.query(
        "select o.name as a, i.name as b from flow join slice o on o.id = slice_out join slice i on i.id = slice_in"
    )
    assert {tuple(sorted(row.values())) for row in ends} == {
        ("cudaLaunchKernel", "early"),
        ("at once", "cudaLaunchKernel"),
    }
    gap = "select extract_arg(arg_set_id, 'debug.gap_ns') from slice where name = 'early'"
    assert processor.value(gap) == -20_000


def test_six_hundred_levels_stay_six_hundred_slices(counted):
    trace = make_timeline(*[(Kind.PYTHON, f"f{i}", CPU, i, 2_000 - i) for i in range(600)])

    processor, _ = counted(trace, detail="full")

    lengths = {row["name"]: row["dur"] for row in _slices(processor, "name", "dur")}
    assert lengths == {f"f{i}": (2_000 - 2 * i) * US for i in range(600)}


def test_two_ranks_with_one_pid_are_two_processes(counted):
    other_cpu, other_gpu = (1, 100, 100, NONE, "main"), (1, 100, 7, 0, "stream 7")
    trace = make_timeline(
        (Kind.CALL, "cudaLaunchKernel", CPU, 0, 10, 1),
        (Kind.KERNEL, "of rank 0", GPU, 20, 30, 1),
        (Kind.CALL, "cudaLaunchKernel", other_cpu, 5, 10, 1),
        (Kind.KERNEL, "of rank 1", other_gpu, 40, 50, 1),
    )

    processor, _ = counted(trace)

    rows = processor.query(
        "select p.upid, count(*) as n from slice s join thread_track t on s.track_id = t.id "
        "join thread using (utid) join process p using (upid) group by 1"
    )
    assert [row["n"] for row in rows] == [1, 1]
    groups = processor.query("select name from track where name like 'GPU 0 of rank%' order by 1")
    assert [row["name"] for row in groups] == ["GPU 0 of rank 0", "GPU 0 of rank 1"]


def test_stamps_of_today_lose_no_digit(counted):
    builder = TraceBuilder()
    track = builder.track(0, 100, 100)
    builder.add_spans([_UNIX_NS, _UNIX_NS + 7], [101, 3], int(Kind.OP), builder.name("op"), track)

    processor, written = counted(builder.build())

    assert written.base_ns == _UNIX_NS
    rows = _slices(processor, "ts", "dur")
    assert rows == [{"ts": 0, "dur": 101}, {"ts": 7, "dur": 3}]


def test_the_date_of_a_trace_is_told(counted):
    builder = TraceBuilder(origin_unix_ns=_UNIX_NS)
    builder.add_spans([1_000], [5], int(Kind.OP), builder.name("op"), builder.track(0, 100, 100))

    processor, _ = counted(builder.build())

    assert processor.value("select to_realtime(ts) from slice") == _UNIX_NS + 1_000


def test_a_graph_is_one_slice_over_its_kernels_with_one_arrow(counted):
    trace = make_timeline(
        (Kind.CALL, "cudaGraphLaunch", CPU, 0, 5, 9),
        *[(Kind.KERNEL, f"node{i}", GPU, 10 * i + 10, 10 * i + 18, 9) for i in range(4)],
        (Kind.CALL, "cudaLaunchKernel", CPU, 5, 8, 10),
        (Kind.KERNEL, "alone", GPU, 60, 70, 10),
    )

    processor, written = counted(trace)

    assert written.arrows == {"launch": 1, "graph launch": 1}
    rows = processor.query(
        "select s.name as name, p.name as above from slice s left join slice p on s.parent_id = p.id"
    )
    above = {row["name"]: row["above"] for row in rows}
    assert [above[f"node{i}"] for i in range(4)] == ["CUDA graph, 4 kernels"] * 4
    assert above["alone"] is None


def test_counters_say_what_the_model_says(counted):
    trace = make_timeline(
        (Kind.CALL, "cudaLaunchKernel", CPU, 0, 10, 1),
        (Kind.CALL, "cudaLaunchKernel", CPU, 10, 20, 2),
        (Kind.KERNEL, "a", GPU, 30, 130, 1),
        (Kind.KERNEL, "b", GPU, 130, 230, 2),
    )

    processor, _ = counted(trace)

    depth = processor.query(
        "select c.ts, c.value from counter c join counter_track t on c.track_id = t.id where t.name = 'Queue depth'"
    )
    assert [(row["ts"] // US, row["value"]) for row in depth] == [(0, 1), (10, 2), (130, 1), (230, 0)]
    lead = "select max(c.value) from counter c join counter_track t on c.track_id = t.id where t.name like 'Host%lead'"
    assert processor.value(lead) == pytest.approx(200, abs=0.5)


def test_samples_are_callstacks_of_their_threads(counted):
    trace = make_timeline((Kind.OP, "op", CPU, 0, 100), (Kind.OP, "other", CPU2, 0, 100))
    names = (*trace.names, "main", "train.py", "step")
    main, file, step = range(len(trace.names), len(names))
    frames = Frames.of(
        function=[main, step],
        file=[file, file],
        line=[40, 31],
        column=[NONE] * 2,
        end_column=[NONE] * 2,
        parent=[NONE, 0],
    )
    samples = Samples.of(
        time_ns=np.arange(10) * 10 * US, track=[0] * 7 + [1] * 3, frame=[1] * 6 + [0] * 4, weight_ns=[10 * US] * 10
    )

    processor, _ = counted(replace(trace, names=names, frames=frames, samples=samples))

    by_thread = processor.query(
        "select t.tid, count(*) as n from perf_sample join thread t using (utid) group by 1 order by 1"
    )
    assert [(row["tid"], row["n"]) for row in by_thread] == [(100, 7), (101, 3)]
    tree = processor.query(
        "include perfetto module linux.perf.samples; "
        "select name, self_count, cumulative_count from linux_perf_samples_summary_tree order by cumulative_count desc"
    )
    assert [tuple(row.values()) for row in tree] == [("main (train.py:40)", 4, 10), ("step (train.py:31)", 6, 6)]


def test_an_event_wait_is_an_arrow_between_streams(counted):
    trace = make_timeline(
        (Kind.CALL, "cudaLaunchKernel", CPU, 0, 5, 1),
        (Kind.CALL, "cudaEventRecord", CPU, 10, 12, 2),
        (Kind.CALL, "cudaStreamWaitEvent", CPU, 15, 18, 3),
        (Kind.WAIT, "Stream Wait Event", CPU, 15, 18, 3),
        (Kind.CALL, "cudaLaunchKernel", CPU, 20, 25, 4),
        (Kind.KERNEL, "before", GPU, 30, 90, 1),
        (Kind.KERNEL, "after", GPU_S2, 95, 120, 4),
    )
    wait = int(np.flatnonzero(trace.spans.kind == Kind.WAIT)[0])
    waits = WaitDetails.of(span=[wait], stream=[20], source_stream=[7], source_corr=[2], device=[0])

    processor, written = counted(replace(trace, waits=waits))

    assert written.arrows["event"] == 1
    rows = processor.query(
        "select o.name as a, i.name as b from flow join slice o on o.id = slice_out join slice i on i.id = slice_in"
    )
    assert {"a": "before", "b": "after"} in rows


def test_memory_counters_are_rows_in_bytes(counted):
    trace = make_timeline((Kind.OP, "op", CPU, 0, 100), (Kind.KERNEL, "k", GPU, 0, 10), (Kind.KERNEL, "k", GPU1, 0, 10))
    counters = Counters.of(
        time_ns=[0, 50 * US], name=[len(trace.names)] * 2, track=[NONE] * 2, device=[0] * 2, value=[1 << 30, 1 << 31]
    )

    processor, _ = counted(replace(trace, names=(*trace.names, "memory allocated"), counters=counters))

    rows = processor.query(
        "select t.unit, c.value from counter c join counter_track t on c.track_id = t.id where t.name like 'memory%'"
    )
    assert [(row["unit"], row["value"]) for row in rows] == [("bytes", float(1 << 30)), ("bytes", float(1 << 31))]


def test_two_files_one_after_the_other_are_one_trace(tmp_path):
    parts = []
    for rank in (0, 1):
        cpu, gpu = (rank, 100, 100, NONE, "main"), (rank, 100, 7, rank, "stream 7")
        trace = make_timeline((Kind.CALL, "launch", cpu, 0, 10, 1), (Kind.KERNEL, "work", gpu, 20, 30, 1))
        parts.append(write(trace, None, tmp_path / f"{rank}.pftrace"))
    both = tmp_path / "both.pftrace"
    both.write_bytes(b"".join(part.path.read_bytes() for part in parts))

    with Processor(both) as processor:
        assert processor.problems() == {}
        assert processor.value("select count(*) from slice") == sum(part.slices for part in parts)
        assert processor.value("select count(*) from flow") == 2


@pytest.mark.parametrize("detail", ["low", "normal", "full"])
@pytest.mark.parametrize("compress", [True, False])
def test_every_detail_is_a_whole_trace(counted, detail, compress):
    trace = make_timeline(
        (Kind.OP, "aten::mm", CPU, 0, 20),
        (Kind.CALL, "cudaLaunchKernel", CPU, 5, 10, 1),
        (Kind.KERNEL, "gemm", GPU, 105, 200, 1),
        (Kind.COPY, "Memcpy HtoD (Pinned -> Device)", GPU, 205, 300, 2, 64 << 20),
    )

    processor, _ = counted(trace, detail=detail, compress=compress)

    assert "HtoD (Pinned -> Device) 64.0 MiB" in {row["name"] for row in _slices(processor, "name")}


def test_a_trace_without_anything_can_be_written_too(counted):
    counted(make_timeline())


def test_lines_of_the_program_are_a_row_with_their_text(counted):
    trace = make_timeline((Kind.OP, "aten::mm", CPU, 0, 100))
    names = (*trace.names, "step", "/home/me/train.py")
    frames = Frames.of(
        function=[1, 1], file=[2, 2], line=[1, 2], column=[-1] * 2, end_column=[-1] * 2, parent=[NONE] * 2
    )
    lines = Lines.of(start_ns=[0, 40 * US], dur_ns=[40 * US, 60 * US], track=[0, 0], frame=[0, 1])
    sources = {"/home/me/train.py": "out = model(x)\n    loss.backward()\n"}

    processor, _ = counted(replace(trace, names=names, frames=frames, lines=lines, sources=sources))

    rows = processor.query("select name, dur from slice where category = 'line' order by ts")
    assert [tuple(row.values()) for row in rows] == [
        ("train.py:1 out = model(x)", 40 * US),
        ("train.py:2 loss.backward()", 60 * US),
    ]


def test_clock_reads_and_what_they_time_are_rows(counted):
    trace = make_timeline(
        (Kind.CALL, "cudaLaunchKernel", CPU, 10, 15, 1),
        (Kind.KERNEL, "gemm", GPU, 20, 500, 1),
    )
    names = (*trace.names, "time.perf_counter", "bench", "bench.py")
    frames = Frames.of(
        function=[3, 3], file=[4, 4], line=[5, 7], column=[-1] * 2, end_column=[-1] * 2, parent=[NONE] * 2
    )
    reads = Reads.of(time_ns=[0, 30 * US], track=[0, 0], clock=[2, 2], value_ns=[0, 30 * US], frame=[0, 1])

    processor, _ = counted(replace(trace, names=names, frames=frames, reads=reads))

    (timer,) = processor.query(
        "select name, dur, extract_arg(arg_set_id, 'debug.claimed_ns') as claimed, "
        "extract_arg(arg_set_id, 'debug.true_ns') as true_ns from slice where category = 'timer'"
    )
    assert timer == {"name": "claims 30.0 us, true 480 us", "dur": 30 * US, "claimed": 30 * US, "true_ns": 480 * US}
    places = processor.query(
        "select extract_arg(arg_set_id, 'debug.line') as at from slice where category = 'clock read'"
    )
    assert [row["at"] for row in places] == ["bench.py:5", "bench.py:7"]


def test_a_backward_operator_knows_its_forward(counted):
    forward, backward = (0, 100, 100, NONE, "main"), (0, 100, 101, NONE, "pt_autograd_0")
    trace = make_timeline(
        (Kind.OP, "aten::linear", forward, 0, 50),
        (Kind.OP, "aten::addmm", forward, 10, 40),
        (Kind.OP, "evaluate_function: AddmmBackward0", backward, 100, 150),
        (Kind.OP, "AddmmBackward0", backward, 110, 140),
    )
    ops = OpDetails.of(span=[0, 1, 2, 3], sequence=[5] * 4, forward_lane=[0, 0, 1, 1], shapes=[NONE] * 4)

    processor, written = counted(replace(trace, ops=ops))

    assert written.arrows == {"backward": 1}
    ends = "select o.name as a, i.name as b from flow join slice o on o.id = slice_out join slice i on i.id = slice_in"
    assert processor.query(ends) == [{"a": "aten::addmm", "b": "evaluate_function: AddmmBackward0"}]


def test_a_wait_is_pale_and_work_is_not(counted, tmp_path):
    found = examine(load(H200 / "IS01.json.gz"))
    written = write(found.trace, None, tmp_path / "t.pftrace", examination=found)

    with Processor(written.path) as processor:
        waits = processor.query(
            "select dur, thread_dur from slice where name = 'cudaStreamSynchronize' and dur > 1000000"
        )
        works = processor.query("select thread_dur from slice where name = 'cuLaunchKernelEx'")

    assert len(waits) >= 10
    assert all(row["thread_dur"] < row["dur"] / 100 for row in waits)
    assert all(row["thread_dur"] is None for row in works)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
            "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
            "vectorized_elementwise_kernel<FillFunctor>",
        ),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("_Z9my_kernelPfi", "my_kernel"),
        ("void (anonymous namespace)::elementwise<add>(float*)", "elementwise<add>"),
        ("triton_poi_fused_relu_0", "triton_poi_fused_relu_0"),
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
            "::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}, 4>(int)",
            "unrolled_elementwise_kernel<direct_copy_kernel_cuda>",
        ),
    ],
)
def test_kernel_names_are_what_people_say(name, short):
    assert short_name(name) == short


def test_random_rows_come_out_slice_by_slice(counted):
    """Whatever overlaps, nests, touches or is empty: every slice keeps its start and its length."""
    random = np.random.default_rng(7)
    builder = TraceBuilder()
    for number in range(120):
        size = int(random.integers(1, 40))
        start = random.integers(0, 60, size) * 1_000 + random.integers(0, 2, size)
        dur = random.integers(0, 20, size) * random.integers(0, 1_500, size)
        kind = int(random.choice([Kind.OP, Kind.CALL, Kind.MARK, Kind.PYTHON, Kind.KERNEL, Kind.COPY]))
        device = number % 3 if kind in (Kind.KERNEL, Kind.COPY) else NONE
        builder.add_spans(start, dur, kind, builder.name(f"n{number}"), builder.track(0, 100, 100 + number, device))
    trace = builder.build()

    processor, _ = counted(trace)

    spans = trace.spans
    wanted = [
        (trace.names[name], start, dur)
        for name, start, dur in zip(spans.name.tolist(), spans.start_ns.tolist(), spans.dur_ns.tolist())
    ]
    rows = processor.query(
        "select name, ts, dur from slice where category in ('op', 'call', 'annotation', 'python', 'kernel', 'copy')"
    )
    base = min(start for _, start, _ in wanted)
    assert sorted((row["name"], row["ts"] + base, row["dur"]) for row in rows) == sorted(wanted)
