"""What `load` takes, and what it says about what it does not."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys

import pytest

from tests.kineto_text import call, event, kernel, write
from tests.shared import CASES, H200
from tracer.errors import TraceError
from tracer.readers import load
from tracer.trace import NONE, Kind

LAUNCH = [call("cudaLaunchKernel", 1_000, 500, 1), kernel("k", 3_000, 900, 1)]


def test_a_path_that_is_not_there():
    with pytest.raises(TraceError, match="nowhere does not exist"):
        load("nowhere")


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x02\x01", b"hello world", b"PK\x03\x04zip", b"<html>"])
def test_what_is_no_trace_costs_one_sentence(tmp_path, data):
    path = tmp_path / "thing.bin"
    path.write_bytes(data)

    with pytest.raises(TraceError) as caught:
        load(path)

    assert caught.value.status == 3
    assert caught.value.what == f"{path} is not a trace"
    assert caught.value.fix


def test_an_empty_folder_is_not_a_trace(tmp_path):
    with pytest.raises(TraceError, match="is not a trace") as caught:
        load(tmp_path)

    assert caught.value.why == "there is no trace in the folder"


def test_a_folder_of_folders_of_traces_names_them(tmp_path):
    (tmp_path / "iteration_10").mkdir()
    (tmp_path / "iteration_10" / "rank0_trace.json").write_bytes(write(LAUNCH))

    with pytest.raises(TraceError) as caught:
        load(tmp_path)

    assert caught.value.fix == "give one of the folders in it: iteration_10"


def test_a_folder_of_ranks_is_one_trace(tmp_path):
    """The rank is in the file, else in its name, else the file's place in the folder."""
    (tmp_path / "a.json").write_bytes(write(LAUNCH, distributedInfo={"rank": 7}))
    (tmp_path / "b_rank3.json.gz").write_bytes(gzip.compress(write(LAUNCH)))
    (tmp_path / "audit.json").write_text("{}")

    trace = load(tmp_path)

    assert {track.rank for track in trace.tracks} == {3, 7}
    assert len(trace.spans) == 4
    assert trace.losses == ()


def test_a_folder_of_files_that_tell_no_rank_counts_them(tmp_path):
    for name in ("host_10.1.pt.trace.json", "host_9.1.pt.trace.json"):
        (tmp_path / name).write_bytes(write(LAUNCH))

    assert [track.rank for track in load(tmp_path).tracks if track.on_gpu] == [0, 1]


def test_two_sessions_of_one_rank_are_not_mixed(tmp_path):
    for name in ("first.json", "second.json"):
        (tmp_path / name).write_bytes(write(LAUNCH, distributedInfo={"rank": 0}))

    trace = load(tmp_path)

    assert len(trace.spans) == 2
    assert "another recording of the same rank" in trace.losses[0].what


def test_a_foreign_perfetto_trace_is_refused_with_the_reason(tmp_path):
    path = tmp_path / "trace.pftrace"
    path.write_bytes(b"\x0a\x10whatever")

    with pytest.raises(TraceError, match="Perfetto trace without a recording beside it"):
        load(path)


def test_a_ledger_beside_the_trace_is_read_and_seated_on_its_thread():
    trace = load(H200 / "IS01.json.gz")

    assert len(trace.ledger) == 20
    leaf = trace.ledger.frame[0]
    assert (trace.names[trace.frames.file[leaf]], trace.frames.line[leaf]) == ("IS01.py", 21)
    assert (trace.ledger.start_ns == NONE).all()
    main = trace.spans.track[trace.name_rows("cudaStreamSynchronize")][0]
    assert set(trace.ledger.track.tolist()) == {main}


def test_a_ledger_of_two_threads_is_told_apart_by_time():
    trace = load(H200 / "TH01.json.gz")

    assert len(trace.ledger) == 2_000
    assert trace.losses == ()
    lanes = {trace.tracks[track].lane for track in trace.ledger.track.tolist()}
    assert lanes == {1912604992}  # the thread that copies in a loop


def test_sources_below_a_root_are_found_by_the_end_of_their_path(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("x = 1\n")
    path = tmp_path / "trace.json"
    path.write_bytes(write([event("python_function", "/home/me/pkg/train.py(1): main", 1_000, 50)]))

    assert dict(load(path).sources) == {}
    assert dict(load(path, source_root=tmp_path).sources) == {"/home/me/pkg/train.py": "x = 1\n"}


def test_sources_beside_the_trace_are_found_by_its_name(tmp_path):
    for name in ("TR13.json", "TR13_train.py"):
        shutil.copy(CASES / "inputs" / name, tmp_path / name)

    sources = load(tmp_path / "TR13.json").sources

    assert sources["train.py"] == (tmp_path / "TR13_train.py").read_text()


def test_nothing_outside_the_source_root_is_read(tmp_path):
    (tmp_path / "secret.py").write_text("x\n")
    root = tmp_path / "root"
    root.mkdir()
    path = tmp_path / "trace.json"
    path.write_bytes(write([event("python_function", "../secret.py(1): main", 1_000, 50)]))

    assert dict(load(path, source_root=root).sources) == {}


def test_reading_imports_no_torch():
    code = f"import sys; from tracer import load; load({str(H200 / 'IS01.json.gz')!r}); print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


def test_real_h200_traces_lose_nothing():
    for path in sorted(H200.glob("*.json.gz")):
        trace = load(path)
        assert trace.losses == (), path.name
        assert (trace.spans.kind == Kind.KERNEL).any()
