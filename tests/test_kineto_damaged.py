"""What is whole in a damaged trace is read; what was lost is said, with the byte where it was."""

from __future__ import annotations

import gzip

import pytest

from tests.kineto_text import call, event, kernel, write
from tests.shared import CASES, PUBLIC
from tracer.auditor import audit_of, examine
from tracer.errors import TraceError
from tracer.exports import perfetto
from tracer.readers import load
from tracer.trace import Kind, Trace

BAD = PUBLIC / "derived_malformed"
MANY = [kernel(f"k{at}", 1_000 + at * 1_000, 500, at) for at in range(200)]


@pytest.fixture
def read(tmp_path):
    """Reads a trace given as bytes."""

    def read_bytes(data: bytes, name: str = "trace.json") -> Trace:
        path = tmp_path / name
        path.write_bytes(data)
        return load(path)

    return read_bytes


def is_whole(trace: Trace) -> bool:
    """Whether the trace says that nothing is missing."""
    return trace.meta.get("complete") != "false"


@pytest.mark.parametrize(
    ("name", "spans", "losses", "whole"),
    [
        ("bom.json", 114, [], True),
        ("multi_member.json.gz", 114, [], True),
        ("trailing_comma.json", 114, [], True),
        ("negative_launch_latency.json", 114, [], True),
        ("control_char_in_name.json", 114, ["cleaned"], True),
        ("invalid_utf8_in_name.json", 114, ["cleaned"], True),
        ("unescaped_quote_in_name.json", 114, ["not escaped, mended"], True),
        ("windows_backslash_in_name.json", 114, ["wrong backslashes, mended"], True),
        ("kernel_ts0_dur0.json", 113, ["GPU records without a time"], True),
        ("nan_dur.json", 113, ["events without a time", "numbers that are none"], False),
        ("missing_close_bracket.json", 114, ["not closed"], False),
        ("truncated_mid_event.json", 92, ["ends inside an event"], False),
        ("truncated_stream.json.gz", 77, ["ends inside an event", "gzip stream is cut off"], False),
        ("no_events.json", 0, [], True),
    ],
)
def test_handed_damaged_traces(name, spans, losses, whole):
    trace = load(BAD / name)

    assert len(trace.spans) == spans
    assert len(trace.losses) == len(losses)
    for wanted, loss in zip(losses, trace.losses, strict=True):
        assert wanted in loss.what
    assert is_whole(trace) == whole


@pytest.mark.parametrize(
    ("name", "why"), [("empty.json", "it is empty"), ("not_a_trace.json", "without a list of events")]
)
def test_what_is_no_trace_is_refused_in_one_sentence(name, why):
    with pytest.raises(TraceError) as caught:
        load(BAD / name)

    assert caught.value.status == 3
    assert caught.value.what == f"{BAD / name} is not a trace"
    assert why in caught.value.why
    assert "torch.profiler" in caught.value.fix


def test_tr01_a_raw_quote_is_mended_and_its_byte_named():
    trace = load(CASES / "inputs" / "TR01.json")

    (loss,) = trace.losses
    assert len(trace.spans) == 15
    assert (loss.offset, loss.count) == (2473, 1)
    assert '{"device": "cuda"}(12): run_step' in trace.names


def test_tr02_two_names_are_cleaned():
    trace = load(CASES / "inputs" / "TR02.json")

    (loss,) = trace.losses
    assert loss.count == 2
    assert trace.meta["names_cleaned"] == "2"
    assert all(name.isprintable() for name in trace.names)


def test_tr04_kernels_without_time_are_excluded():
    trace = load(CASES / "inputs" / "TR04.json")

    work = trace.is_work
    assert (trace.spans.kind == Kind.KERNEL).sum() == 2
    assert trace.spans.dur_ns[trace.spans.kind == Kind.KERNEL].sum() == 5_000_000
    assert trace.spans.dur_ns[trace.spans.kind == Kind.COPY].sum() == 2_000
    assert [(loss.what, loss.count) for loss in trace.losses] == [("GPU records without a time", 2)]
    assert trace.spans.start_ns[work].min() > 0


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("layout", ["lines", "one line"])
def test_a_file_cut_off_anywhere_keeps_its_whole_events(read, cut, layout):
    data = write(MANY, layout=layout)
    at = int(len(data) * cut)

    trace = read(data[:at])

    assert len(trace.spans) == data[:at].count(b"}}")
    assert not is_whole(trace)
    assert any("cut" in loss.what or "ends inside" in loss.what for loss in trace.losses)
    assert all(loss.offset <= at for loss in trace.losses)


def test_one_broken_event_among_many_costs_only_itself(read):
    lines = write(MANY).split(b"\n")
    lines[100] = lines[100].replace(b'"ph"', b'"ph" garbage', 1)

    trace = read(b"\n".join(lines))

    (loss,) = trace.losses
    assert len(trace.spans) == 199
    assert loss.offset == sum(len(line) + 1 for line in lines[:100]) + lines[100].index(b"garbage")
    assert not is_whole(trace)


def test_a_missing_comma_costs_nothing(read):
    assert len(read(write(MANY).replace(b"},\n", b"}\n", 3)).spans) == 200


def test_every_name_may_be_damaged(read):
    windows = [event("python_function", f"C:\\Users\\q\\train{at}.py(3): main", at * 10, 5) for at in range(300)]

    trace = read(write(windows).replace(b"\\\\", b"\\"))

    assert len(trace.spans) == 300
    assert trace.losses[0].count == 300
    assert trace.names[trace.spans.name[7]] == "C:\\Users\\q\\train7.py(3): main"


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"nan", b"1e999", b'"soon"', b"null", b"[1]"])
def test_what_is_no_number_is_no_time(read, number):
    trace = read(write(MANY).replace(b'"dur": 0.500', b'"dur": ' + number, 1))

    assert len(trace.spans) == 199
    assert sum(loss.count for loss in trace.losses if "time" in loss.what) == 1


def test_a_damaged_head_costs_the_head(read):
    data = write(MANY, distributedInfo={"rank": 3, "world_size": 8}).replace(
        b'"schemaVersion": 1', b'"schemaVersion: 1'
    )

    trace = read(data)

    assert len(trace.spans) == 200
    assert "before the events" in trace.losses[0].what
    assert {track.rank for track in trace.tracks} == {3}
    assert trace.origin_unix_ns % 10**9 == 1_000  # the base was found all the same


def test_a_damaged_tail_costs_the_tail(read):
    trace = read(write(MANY, base="after").replace(b'"traceName": "made.json"', b'"traceName": "made.json'))

    assert len(trace.spans) == 200
    assert "after the events" in trace.losses[0].what
    assert trace.origin_unix_ns % 10**9 == 1_000


def test_a_gzip_file_damaged_in_the_middle_gives_what_comes_before(read):
    packed = bytearray(gzip.compress(write(MANY * 50), compresslevel=1))
    middle = len(packed) // 2
    packed[middle : middle + 40] = bytes(40)

    trace = read(bytes(packed), "trace.json.gz")

    assert 0 < len(trace.spans) < 10_000
    assert any("gzip" in loss.what for loss in trace.losses)
    assert not is_whole(trace)


def test_a_gzip_bomb_is_refused_with_a_limit_that_can_be_raised(read, monkeypatch):
    one = gzip.compress(b'{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1},' * 120_000)
    bomb = gzip.compress(b'{"traceEvents": [') + one * 12
    monkeypatch.setattr("tracer.readers._bytes.LEAST_LIMIT", 20 << 20)

    with pytest.raises(TraceError, match=r"unpacks to more than \d+\.\d MiB") as caught:
        read(bomb, "bomb.json.gz")

    assert "TRACER_MAX_UNPACKED" in caught.value.fix
    monkeypatch.setenv("TRACER_MAX_UNPACKED", "0.2GB")
    assert len(read(bomb, "bomb.json.gz").spans) == 12 * 120_000


def test_a_limit_that_is_no_size_is_said(read, monkeypatch):
    monkeypatch.setenv("TRACER_MAX_UNPACKED", "much")

    with pytest.raises(TraceError, match="TRACER_MAX_UNPACKED=much is not a size"):
        read(gzip.compress(write(MANY)), "trace.json.gz")


def test_an_endless_event_does_not_fill_the_memory(read, monkeypatch):
    monkeypatch.setattr("tracer.readers._framing.MOST_EVENT", 1 << 20)
    monkeypatch.setattr("tracer.readers._bytes.BLOCK", 1 << 18)

    with pytest.raises(TraceError, match=r"larger than 1\.0 MiB"):
        read(b'{"traceEvents": [{"ph": "X", "name": "' + b"a" * (4 << 20))


def test_deep_nesting_is_no_way_to_stop_us(read):
    deep = event("cpu_op", "deep", 1_000, 10)
    data = write([deep, *MANY]).replace(
        b'"pid": 100', b'"odd": ' + b"[" * 100_000 + b"]" * 100_000 + b', "pid": 100', 1
    )

    assert len(read(data).spans) >= 200


def test_nothing_of_a_trace_is_lost_when_calls_are_missing(read):
    trace = read(write([*MANY, call("cudaLaunchKernel", 5, 5, 199)]))

    assert (len(trace.spans), trace.losses) == (201, ())


@pytest.mark.parametrize("layout", ["lines", "one line"])
def test_what_looks_like_an_event_inside_an_event_is_none(read, monkeypatch, layout):
    """Nested lists of objects with the keys of events: valid JSON is never taken apart."""
    monkeypatch.setattr("tracer.readers._bytes.BLOCK", 6_000)
    nested = [{"name": "a", "ts": 1}, {"ph": "X", "name": "b"}, {"name": "}, {"}]
    many = [kernel(f"k{at}", 1_000 + at * 10, 5, at, kernels=nested * (at % 7)) for at in range(200)]

    trace = read(write(many, layout=layout))

    assert len(trace.spans) == 200
    assert trace.losses == ()


@pytest.mark.parametrize("strange", [True, False, None, 1.5, [1], {"a": 1}, "", 2**31, 2**63 - 1, 2**80, -(2**80)])
@pytest.mark.parametrize("key", ["pid", "tid", "device", "stream"])
def test_a_strange_process_thread_device_or_stream_is_a_row_like_any_other(read, tmp_path, key, strange):
    rows = [call("cudaLaunchKernel", 1_000, 10, 1), kernel("k", 2_000, 500, 1), kernel("k", 3_000, 500, 1)]
    for row in rows:
        (row if key in ("pid", "tid") else row["args"])[key] = strange
    trace = read(write(rows))
    examination = examine(trace)
    audit = audit_of(examination)

    assert len(trace.spans) == 3
    assert sum(audit.idle.values()) == sum(device.idle_ns for device in audit.devices)
    perfetto.write(trace, audit, tmp_path / "trace.pftrace", examination=examination)
