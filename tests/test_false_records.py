"""What profilers write that was not so: it is told, and nothing that we say rests on it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import CPU, GPU, US, make_timeline
from tests.kineto_text import BASE_NS, call, event, kernel, write
from tracer.analysis.idle import CAUSES, find_idle
from tracer.analysis.launches import find_launches
from tracer.analysis.stalls import find_stalls
from tracer.analysis.trust import find_trust
from tracer.analysis.work import is_blocking
from tracer.auditor import audit
from tracer.errors import TraceError
from tracer.readers import load
from tracer.readers._salvage import CLEANED
from tracer.trace import NONE, Kind

MS = 1_000_000
CPU_R1, GPU_R1 = (1, 100, 100, NONE, "main"), (1, 100, 7, 1, "stream 7")


@pytest.fixture
def read(tmp_path):
    def read(events, **how):
        path = tmp_path / "made.json"
        path.write_bytes(events if isinstance(events, bytes) else write(events, **how))
        return load(path)

    return read


def limits_of(trace):
    return " | ".join(find_trust(trace, find_launches(trace)).limits)


def python(name, start_ns, dur_ns):
    return event("python_function", name, start_ns, dur_ns)


def launch(at_ns, corr, start_ns, dur_ns, name="gemm", **where):
    return [call("cudaLaunchKernel", at_ns, 5_000, corr), kernel(name, start_ns, dur_ns, corr, **where)]


# -- ids ----------------------------------------------------------------------------------


@pytest.mark.parametrize("queued_us", [0, 300])
def test_ids_that_count_anew_name_the_last_call_before_the_work(queued_us):
    rows = []
    for window in (0, 10_000, 20_000):
        for corr in (1, 2, 3):
            at = window + 100 * corr
            rows += [(Kind.CALL, "cudaLaunchKernel", CPU, at, at + 5, corr)]
            rows += [(Kind.KERNEL, f"k{window}", GPU, at + 10 + queued_us, at + 20 + queued_us, corr)]
    trace = make_timeline(*rows)

    launches = find_launches(trace)

    assert len(launches) == 9
    assert set(launches.delay_ns.tolist()) == {(10 + queued_us) * US}
    assert find_trust(trace, launches).complete


def test_an_id_used_anew_by_a_graph_still_owns_all_its_kernels():
    rows = []
    for at in (0, 1_000):
        rows += [(Kind.CALL, "cudaGraphLaunch", CPU, at, at + 5, 4)]
        rows += [(Kind.KERNEL, "node", GPU, at + 10 * n, at + 10 * n + 9, 4) for n in (1, 2, 3)]

    launches = find_launches(make_timeline(*rows))

    assert np.bincount(launches.call).max() == 3
    assert len(np.unique(launches.call)) == 2


def test_work_without_an_id_is_no_dropped_record():
    rows = [(Kind.CALL, "hipExtLaunchKernel", CPU, 100 * n, 100 * n + 5, n + 1) for n in range(10)]
    rows += [(Kind.KERNEL, "ncclDevKernel_Generic", GPU, 100 * n + 10, 100 * n + 60, 0) for n in range(10)]

    trace = make_timeline(*rows)
    trust = find_trust(trace, find_launches(trace))

    assert trust.complete
    assert not trust.dropped
    assert "10 pieces of GPU work have no correlation id" in trust.limits[0]
    assert "dropped" not in limits_of(trace)
    assert "before the window" not in limits_of(trace)


@pytest.mark.parametrize("record", ["Context Sync", "Stream Sync"])
def test_ids_of_another_rank_name_neither_device_nor_call(record):
    rows = []
    for rank, (cpu, gpu) in enumerate([(CPU, GPU), (CPU_R1, GPU_R1)]):
        rows += [(Kind.CALL, "cudaLaunchKernel", cpu, 0, 5, 1), (Kind.KERNEL, "gemm", gpu, 10, 1_000, 1)]
        if record == "Context Sync" or rank == 1:  # rank 0 waits without a call: a library did it
            rows += [(Kind.CALL, "cudaDeviceSynchronize", cpu, 20, 1_005, 2)]
        rows += [(Kind.WAIT, record, cpu, 20, 1_005, 2)]
    trace = make_timeline(*rows)

    stalls = find_stalls(trace, find_launches(trace))

    assert [trace.tracks[track].rank for track in stalls.track] == [0, 1]
    assert stalls.device.tolist() == [0, 1]


def test_a_record_names_the_device_of_its_own_rank(tmp_path):
    for rank in (0, 1):
        wait = call("cudaDeviceSynchronize", 20_000, 900_000, 2)
        record = event("cuda_sync", "Context Sync", 21_000, 899_000, pid=rank, tid=-1)
        record["args"] = {"stream": -1, "correlation": 2, "device": rank}
        events = [*launch(0, 1, 10_000, 900_000, device=rank), wait, record]
        text = write(events, distributedInfo={"rank": rank, "world_size": 2})
        (tmp_path / f"rank{rank}.json").write_bytes(text)
    trace = load(tmp_path)

    stalls = find_stalls(trace, find_launches(trace))

    assert [(trace.tracks[t].rank, d) for t, d in zip(stalls.track, stalls.device, strict=True)] == [(0, 0), (1, 1)]


@pytest.mark.parametrize("devices", [(0, 0), (0, 1)])
def test_processes_of_one_file_whose_ids_are_the_same_keep_their_work(read, devices):
    events = []
    for pid, device, after in ((100, devices[0], 0), (200, devices[1], 300_000)):
        for n in range(4):
            events += [call("cudaLaunchKernel", after + 20_000 * n, 5_000, n + 1, pid=pid, tid=7)]
            events += [kernel(f"of {pid}", after + MS * (n + 1), MS // 2, n + 1, device=device)]
    events += [call("cudaStreamSynchronize", 500_000, MS, 9, pid=200, tid=7)]
    events += [call("cudaLaunchKernel", 90_000, 5_000, 9), kernel("of 100", 6 * MS, MS, 9, device=devices[0])]

    trace = read(events)
    launches = find_launches(trace)

    assert len(launches) == 9
    for made, done in zip(launches.call, launches.work, strict=True):
        assert trace.names[trace.spans.name[done]] == f"of {trace.tracks[trace.spans.track[made]].pid}"


# -- records ------------------------------------------------------------------------------


def test_a_record_that_stands_twice_counts_once(read):
    events = [python("train.py(3): main", 0, 9 * MS), *launch(0, 1, 10_000, 3 * MS), *launch(9_000, 2, 4 * MS, MS)]
    events += [call("cudaStreamSynchronize", 100_000, 5 * MS, 3)]

    once, twice = read(events), read(events + events)

    assert len(twice.spans) == len(once.spans) + 1  # the Python function, which may call itself
    assert len(find_launches(twice)) == 2
    assert find_stalls(twice, find_launches(twice)).lead_ns.tolist() == [3_910_000]
    assert [loss.what for loss in twice.losses] == ["records that stand twice or more, taken once"]
    assert twice.losses[0].count == 5
    assert not once.losses


def test_nodes_of_a_graph_that_differ_in_their_number_alone_are_two(read):
    nodes = [kernel("node", 10_000, 1_000, 1, **{"graph node id": n}) for n in (5, 6, 6)]

    trace = read([call("cudaGraphLaunch", 0, 5_000, 1), *nodes])

    assert trace.work.graph_node.tolist() == [5, 6]
    assert trace.work.span.tolist() == np.flatnonzero(trace.spans.kind == Kind.KERNEL).tolist()


def test_a_kernel_that_outlasts_what_follows_it_on_its_stream_is_told(read):
    events = [one for n in range(10) for one in launch(n * MS, n + 1, n * MS + 10_000, MS // 2, f"k{n}")]
    events[7]["dur"] = 2_000 * MS  # k3

    text = limits_of(read(events))

    assert "k3 takes 2.00 s, beyond the end of 6 pieces of work begun after it on its stream" in text


def test_kernels_that_overlap_their_successor_or_a_branch_of_their_graph_are_not_blamed(read):
    tail = [one for n in range(5) for one in launch(n * MS, n + 1, n * MS + 10_000, MS + 3_000)]
    node = {"graph node id": 3}
    branches = [call("cudaGraphLaunch", 9 * MS, 5_000, 9), kernel("long", 9 * MS + 10_000, MS, 9, **node)]
    branches += [kernel("short", 9 * MS + 20_000, 1_000, 9, **(node | {"graph node id": 4}))]

    text = limits_of(read(tail + branches))

    assert "overlap the one before" in text
    assert "beyond the end" not in text


def test_a_launch_whose_kernel_was_dropped_leaves_the_gap_unexplained():
    rows = [(Kind.CALL, "cudaLaunchKernel", CPU, 20 * n, 20 * n + 5, n + 1) for n in range(6)]
    rows += [(Kind.KERNEL, "gemm", GPU, 200 + 1_000 * n, 1_200 + 1_000 * n, n + 1) for n in range(6) if n != 2]
    rows += [(Kind.KERNEL, "after a wait", GPU, 7_000, 8_000, 90), (Kind.CALL, "cudaLaunchKernel", CPU, 130, 135, 90)]
    trace = make_timeline(*rows)
    launches = find_launches(trace)

    idle = find_idle(trace, launches, find_stalls(trace, launches))
    causes = {}
    for cause, dur in zip(idle.cause.tolist(), idle.dur_ns.tolist(), strict=True):
        causes[CAUSES[cause]] = causes.get(CAUSES[cause], 0) + dur

    assert causes["unknown"] == 1_000 * US
    assert causes["gpu.wait"] == 800 * US  # nothing is missing before this one


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_function_whose_return_was_missed_is_not_where_later_work_comes_from(read, depth):
    events = [python("train.py(1): <module>", 0, 30 * MS), python("train.py(12): step", MS, 6 * MS)]
    events += [python(f"util.py({n + 2}): lost{n}", MS + n * 10_000, 29 * MS - n * 10_000) for n in range(1, depth + 1)]
    events += [python("train.py(20): log", 8 * MS, 9 * MS), call("cudaStreamSynchronize", 10 * MS, MS, 1)]
    events += [call("cudaDeviceSynchronize", 20 * MS, MS, 2), call("cudaStreamSynchronize", 5 * MS, MS, 3)]

    trace = read(events)
    spans = trace.spans
    callers = {
        int(corr): trace.names[spans.name[parent]]
        for corr, parent in zip(spans.corr, spans.parent, strict=True)
        if corr > 0
    }

    assert callers == {
        1: "train.py(20): log",
        2: "train.py(1): <module>",
        3: f"util.py({depth + 2}): lost{depth}",
    }
    assert spans.dur_ns.min() > 0
    (loss,) = trace.losses
    assert loss.what == "Python functions that outlive their caller (no return was seen), cut"
    assert loss.count == depth


def test_a_function_stamped_a_little_later_than_its_caller_is_left_alone(read):
    trace = read([python("a.py(1): f", 0, MS), python("a.py(2): g", 1_000, MS + 4_000)])

    assert trace.spans.dur_ns.tolist() == [MS, MS + 4_000]
    assert not trace.losses


@pytest.mark.parametrize("nested", [False, True])
def test_time_between_two_windows_of_the_profiler_is_nobodys(read, nested):
    def window(at):
        events = [event("Trace", "PyTorch Profiler (0)", at, 5 * MS, pid="Spans", tid="PyTorch Profiler")]
        return [*events, event("cpu_op", "aten::mm", at, 20_000), *launch(at + 10_000, at // MS + 1, at + 30_000, MS)]

    events = window(0) + window(400 * MS)
    if nested:
        events += [event("Trace", "the same (1)", 0, 405 * MS, pid="Spans", tid="PyTorch Profiler")]
    trace = read(events)

    found = audit(trace)

    assert found.idle.get("profiler", 0) == (0 if nested else 395 * MS)
    assert ["the profiler was off for 395 ms" in loss.what for loss in trace.losses] == ([] if nested else [True])


def test_events_in_two_halves_are_one(read):
    whole = [python("train.py(1): main", 0, 9 * MS), event("cpu_op", "aten::mm", 1_000, 20_000)]
    whole += [event("cpu_op", "aten::mm", 21_000, 9_000), event("cpu_op", "aten::mul", 21_000, 5_000, tid=7)]
    halves = []
    for one in [call("cudaLaunchKernel", 5_000, 5_000, 1), *whole]:
        rest = {key: value for key, value in one.items() if key != "dur"}
        halves += [rest | {"ph": "B"}, {"ph": "E", "pid": one["pid"], "tid": one["tid"], "ts": one["ts"] + one["dur"]}]
    halves.sort(key=lambda half: (half["ts"], half["ph"] == "B"))

    trace = read([*halves, kernel("gemm", 30_000, MS, 1)])

    assert not trace.losses
    assert sorted(trace.spans.dur_ns.tolist()) == [5_000, 5_000, 9_000, 20_000, MS, 9 * MS]
    assert len(find_launches(trace)) == 1


def test_a_half_without_the_other_is_told(read):
    begin, end = ({"ph": ph, "name": "x", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 5_000, "args": {}} for ph in "BE")

    trace = read([end, begin, begin, *launch(0, 1, 10_000, MS)])

    assert [(loss.what, loss.count) for loss in trace.losses] == [
        ("events that end and never began", 1),
        ("events that begin and never end", 2),
    ]


def test_a_gap_with_a_dropped_kernel_in_it_has_no_cause_even_if_the_host_was_late():
    rows = [(Kind.CALL, "cudaLaunchKernel", CPU, 1_000 * n, 1_000 * n + 5, n + 1) for n in range(12)]
    rows += [(Kind.KERNEL, "gemm", GPU, 1_000 * n + 10, 1_000 * n + 910, n + 1) for n in range(12) if n not in (2, 5)]
    trace = make_timeline(*rows)

    found = audit(trace)

    assert found.idle["unknown"] == 2 * 1_100 * US
    assert found.idle["host.late"] < 7 * 100 * US
    assert "idle time in which the missing work may have run has no cause" in limits_of(trace)


def test_a_second_list_of_events_is_told(read):
    one, other = (write(launch(at, 1, at + 10_000, MS)).decode() for at in (0, 5 * MS))

    trace = read(f"{one[:-1]}, {other[1:]}".encode())

    assert len(find_launches(trace)) == 1
    assert [loss.what for loss in trace.losses] == ["a second list of events in the same file, left out"]
    assert trace.meta["complete"] == "false"


# -- values -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "inf", "N/A", "-nan(ind)", "1.#INF", "-1.#IND00"])
def test_a_figure_that_is_none_costs_no_event_and_no_trust(read, number):
    events = [*launch(0, 1, 10_000, MS), *launch(9_000, 2, 2 * MS, MS)]
    text = write(events).replace(b'"stream": 7', b'"stream": 7, "memory bandwidth (GB/s)": ' + number.encode(), 1)

    trace = read(text)

    assert len(find_launches(trace)) == 2
    assert [loss.what for loss in trace.losses] == ["numbers that are none (NaN, Infinity, N/A), left out"]
    assert trace.meta.get("complete", "true") == "true"


@pytest.mark.parametrize("half", [r"\ud800", r"\udc00", r"\ud83d\ud83d\ude00", r"\ude00\ud83d"])
def test_half_a_surrogate_pair_costs_a_letter(read, half):
    trace = read(write(launch(0, 1, 10_000, MS, "gemm_a")).replace(b"gemm_a", f"gemm{half}_a".encode()))

    (name,) = {trace.names[i] for i in trace.spans.name[trace.spans.kind == Kind.KERNEL]}
    assert name.startswith("gemm")
    assert name.endswith("_a")
    assert "\ufffd" in name
    assert [loss.what for loss in trace.losses] == [CLEANED]


def test_ids_in_hexadecimal_are_ids(read):
    pairs = [launch(n * MS, f"0x{n + 10:x}", n * MS + 10_000, 1_000, stream=f"0x7f12345{n}0") for n in range(3)]

    trace = read([one for pair in pairs for one in pair])

    assert len(find_launches(trace)) == 3
    assert len(np.unique(trace.spans.track[trace.is_work])) == 3


@pytest.mark.parametrize("base", ["before", "absent"])
@pytest.mark.parametrize("mark", ["end", "span"])
def test_a_mark_of_the_window_far_from_all_events_is_not_the_window(read, mark, base):
    first = 0 if base == "before" else BASE_NS
    events = [*launch(first, 1, first + 10_000, MS), *launch(first + 9_000, 2, first + 2 * MS, MS)]
    wrong = 2 * BASE_NS // 3
    if mark == "end":
        events += [{"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": wrong, "args": {}}]
    else:
        events += [event("Trace", "PyTorch Profiler (0)", wrong, MS, pid="Spans", tid="PyTorch Profiler")]

    trace = read(events, base=base)

    assert trace.window_ns is None
    assert "more than a day from all events" in trace.losses[0].what
    assert audit(trace).devices[0].window_ns == 3 * MS


def test_a_call_without_stamps_is_no_wait(read):
    trace = read([*launch(5_000, 1, 20_000, MS), call("cudaStreamSynchronize", 0, 0, 2)])

    assert not len(find_stalls(trace, find_launches(trace)))
    assert trace.losses[0].what == "events without a time"


@pytest.mark.parametrize("digits", [6, 8, 10])
def test_stamps_that_lost_their_digits_are_told(read, digits):
    events = [one for n in range(20) for one in launch(n * MS, n + 1, n * MS + 30_000, 500_000)]
    for one in events:
        one["ts"] = round(float(f"{BASE_NS + one['ts']:.{digits}e}"))

    text = limits_of(read(events, base="absent"))

    assert "their stamps lost digits" in text


def test_stamps_with_all_digits_or_as_coarse_as_durations_are_not_doubted():
    exact = [(Kind.CALL, "cudaLaunchKernel", CPU, 20 * n, 20 * n + 7, n + 1) for n in range(20)]
    coarse = [(Kind.CALL, "cudaLaunchKernel", CPU, 2_000 * n, 2_000 * n + 2_000, n + 1) for n in range(20)]

    for rows in (exact, coarse):
        assert "digits" not in limits_of(make_timeline(*rows))


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("CopyHostToDevice", "Memcpy HtoD (Host -> Device)"),
        ("CopyDeviceToHost", "Memcpy DtoH (Device -> Host)"),
        ("CopyDeviceToHost2D", "Memcpy DtoH (Device -> Host)"),
        ("Memcpy M2D", "Memcpy HtoD (Pageable -> Device)"),
        ("D2H", "Memcpy DtoH (Device -> Pinned)"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("Memcpy PtoP (Device -> Device)", "Memcpy PtoP (Device -> Device)"),
    ],
)
def test_copies_have_one_way_to_say_where_they_go(read, written, read_as):
    copy = event("gpu_memcpy", written, 10_000, MS, pid=0, tid=7, device=0, stream=7, correlation=1, bytes=4)

    trace = read([call("hipMemcpyAsync", 0, 5_000, 1), copy])

    assert trace.names[trace.spans.name[trace.spans.kind == Kind.COPY][0]] == read_as


def test_stamps_beyond_all_years_are_refused_with_a_way_to_go_on(read):
    events = launch(BASE_NS * 1_000, 1, BASE_NS * 1_000 + MS, MS)

    with pytest.raises(TraceError) as refused:
        read(events, base="absent")

    assert refused.value.why == "none of its events has a time that can be read"
    assert "nanoseconds" in refused.value.fix


# -- clocks -------------------------------------------------------------------------------


def test_kernels_early_by_the_clock_do_not_look_as_if_every_launch_waited():
    def of(shift_us):
        rows = [(Kind.CALL, "cudaLaunchKernel", CPU, 100 * n, 100 * n + 6, n + 1) for n in range(30)]
        rows += [(Kind.KERNEL, "tiny", GPU, 100 * n + 1 - shift_us, 100 * n + 5 - shift_us, n + 1) for n in range(30)]
        trace = make_timeline(*rows)
        return is_blocking(trace, find_launches(trace))

    assert of(0)
    assert not of(10)
    assert not of(392)


def test_causes_of_idle_time_are_looked_for_on_the_hosts_clock():
    def causes(early_us):
        rows = []
        for n in range(4):
            at = 2_000 * n
            rows += [(Kind.CALL, "cudaLaunchKernel", CPU, at + 10, at + 15, 2 * n + 1)]
            rows += [(Kind.KERNEL, "gemm", GPU, at + 10 - early_us, at + 1_000 - early_us, 2 * n + 1)]
            rows += [(Kind.CALL, "cudaStreamSynchronize", CPU, at + 20, at + 1_005, 50 + n)]
            rows += [(Kind.OP, "aten::sort", CPU, at + 1_005, at + 1_905)]
        trace = make_timeline(*rows)
        launches = find_launches(trace)
        idle = find_idle(trace, launches, find_stalls(trace, launches))
        found = idle.take(~np.isin(idle.cause, [CAUSES.index("head"), CAUSES.index("tail")]))
        return found.cause.tolist(), (found.start_ns + early_us * US).tolist(), found.dur_ns.tolist()

    assert causes(0) == causes(700) == causes(25_000)


@pytest.mark.parametrize("wait", ["copy", "device"])
def test_work_that_outlasts_its_wait_is_a_clock_that_is_late(wait):
    def of(late_us):
        at = late_us
        rows = [(Kind.CALL, "cudaLaunchKernel", CPU, 0, 5, 1), (Kind.KERNEL, "gemm", GPU, at + 10, at + 900, 1)]
        if wait == "copy":
            rows += [(Kind.OP, "aten::item", CPU, 10, 950), (Kind.CALL, "cudaMemcpyAsync", CPU, 12, 18, 2)]
            rows += [(Kind.COPY, "Memcpy DtoH (Device -> Pinned)", GPU, at + 900, at + 902, 2, 4)]
            rows += [(Kind.CALL, "cudaStreamSynchronize", CPU, 20, 910, 3)]
        else:
            rows += [(Kind.CALL, "cudaDeviceSynchronize", CPU, 20, 908, 3)]
        trace = make_timeline(*rows)
        return find_trust(trace, find_launches(trace))

    assert of(0).skew_ns == 0
    trust = of(5_000)
    end = 902 - 910 if wait == "copy" else 900 - 908
    assert trust.skew_ns == -(5_000 + end) * US
    assert "1 of 1 waits of the host end before the work that they wait for" in " ".join(trust.limits)
    assert not trust.whole


def test_a_clock_of_a_rank_that_runs_ahead_is_told_by_the_ends_of_collectives():
    def of(ahead_us):
        rows = []
        for n in range(4):
            for at, cpu, gpu, late in ((0, CPU, GPU, 0), (ahead_us, CPU_R1, GPU_R1, 45_000)):
                begin, corr = at + 100_000 * n, n + 1
                rows += [(Kind.CALL, "cudaLaunchKernel", cpu, begin, begin + 5, corr)]
                rows += [(Kind.KERNEL, "ncclDevKernel_AllReduce", gpu, begin + 20_000 + late, begin + 70_000, corr)]
        return limits_of(make_timeline(*rows))

    assert "clock of rank" not in of(0)
    assert "the clock of rank 1 is 7.00 ms ahead of that of rank 0" in of(7_000)
    assert "the clock of rank 1 is 7.00 ms behind that of rank 0" in of(-7_000)


def test_collectives_that_are_missing_on_one_rank_are_told():
    rows = [(Kind.KERNEL, "ncclDevKernel_AllReduce", GPU, 1_000 * n, 1_000 * n + 900, n + 1) for n in range(4)]
    rows += [(Kind.KERNEL, "ncclDevKernel_AllReduce", GPU_R1, 1_000 * n, 1_000 * n + 900, n + 1) for n in range(3)]

    assert "different numbers of collectives (rank 0: 4, rank 1: 3)" in limits_of(make_timeline(*rows))
