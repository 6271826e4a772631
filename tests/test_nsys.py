"""An export of Nsight Systems gives the same model as a trace of torch.profiler."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from tests.fuzz_readers import make_sqlite
from tests.shared import PUBLIC
from tracer.analysis.launches import find_launches
from tracer.errors import TraceError
from tracer.readers import load
from tracer.trace import NONE, Kind

H100 = PUBLIC / "nsysai_h100_2gpu_1s.sqlite"


@pytest.fixture(scope="module")
def trace():
    return load(H100)


def test_rows_are_those_of_the_tables(trace):
    with closing(sqlite3.connect(f"file:{H100}?mode=ro&immutable=1", uri=True)) as database:
        for kind, table in {
            Kind.KERNEL: "CUPTI_ACTIVITY_KIND_KERNEL",
            Kind.COPY: "CUPTI_ACTIVITY_KIND_MEMCPY",
            Kind.FILL: "CUPTI_ACTIVITY_KIND_MEMSET",
            Kind.CALL: "CUPTI_ACTIVITY_KIND_RUNTIME",
            Kind.WAIT: "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        }.items():
            count, length = database.execute(f"SELECT COUNT(*), SUM(end - start) FROM {table}").fetchone()
            rows = trace.spans.kind == kind
            assert (rows.sum(), trace.spans.dur_ns[rows].sum()) == (count, length)
    assert trace.losses == ()


def test_names_are_those_of_torch_profiler(trace):
    names = {kind: {trace.names[name] for name in trace.spans.name[trace.spans.kind == kind]} for kind in Kind}

    assert {"cudaLaunchKernel", "cudaLaunchKernelExC", "cudaStreamSynchronize"} <= names[Kind.CALL]
    assert {"Memcpy HtoD (Pinned -> Device)", "Memcpy DtoD (Device -> Device)"} <= names[Kind.COPY]
    assert names[Kind.WAIT] == {"Stream Sync", "Stream Wait Event"}
    assert "aten::view" in names[Kind.OP]
    assert not any(", op_id" in name for name in names[Kind.OP])
    assert "Command Buffer Full" in names[Kind.OVERHEAD]


def test_two_processes_and_their_gpus_are_kept_apart(trace):
    gpus = {(track.pid, track.device, track.lane) for track in trace.tracks if track.on_gpu}

    assert gpus == {(111, 0, 7), (112, 1, 15)}


def test_work_is_joined_with_its_calls(trace):
    with closing(sqlite3.connect(f"file:{H100}?mode=ro&immutable=1", uri=True)) as database:
        (wanted,) = database.execute(
            """SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
               ON k.correlationId = r.correlationId AND k.globalPid >> 24 = r.globalTid >> 24"""
        ).fetchone()
    launches = find_launches(trace)
    kernels = trace.spans.kind[launches.work] == Kind.KERNEL

    assert kernels.sum() == wanted


def test_waits_lie_on_the_threads_that_called(trace):
    assert not trace.on_gpu[trace.waits.span].any()
    assert {trace.tracks[track].lane for track in trace.spans.track[trace.waits.span]} == {111, 112}


def test_times_are_unix_times(trace):
    """The session began at 1779630014975716426 ns unix, 35255823190 ns on the target's clock."""
    with closing(sqlite3.connect(f"file:{H100}?mode=ro&immutable=1", uri=True)) as database:
        (first,) = database.execute("SELECT MIN(start) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    kernels = trace.spans.start_ns[trace.spans.kind == Kind.KERNEL]

    assert kernels.min() + trace.origin_unix_ns == first - 35_255_823_190 + 1_779_630_014_975_716_426


def test_a_small_export_with_few_columns(tmp_path):
    path = tmp_path / "a.sqlite"
    path.write_bytes(make_sqlite())

    trace = load(path)

    assert [trace.names[name] for name in trace.spans.name] == ["aten::mm", "cudaLaunchKernel", "gemm"]
    assert trace.spans.parent.tolist() == [NONE, 0, NONE]
    assert trace.ops.sequence.tolist() == [4]
    assert find_launches(trace).gap_ns.tolist() == [1_000]


def test_sampled_python_stacks_are_read(tmp_path):
    path = tmp_path / "a.sqlite"
    path.write_bytes(make_sqlite())
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            """
            INSERT INTO StringIds VALUES (10, 'main'), (11, '/me/train.py:12'), (12, 'memcpy'), (13, '/lib/c.so');
            CREATE TABLE COMPOSITE_EVENTS (id, start, cpu, threadState, globalTid, cpuCycles);
            INSERT INTO COMPOSITE_EVENTS VALUES
              (1, 1500, 0, 0, 281476838981743, 0), (2, 2500, 0, 0, 281476838981743, 0);
            CREATE TABLE SAMPLING_CALLCHAINS (id, symbol, module, stackDepth);
            INSERT INTO SAMPLING_CALLCHAINS VALUES (1, 12, 13, 0), (1, 10, 11, 1), (2, 12, 13, 0);
            """
        )
        database.commit()

    trace = load(path)

    assert trace.samples.time_ns.tolist() == [1_000]  # the other sample has no Python in it
    leaf = trace.samples.frame[0]
    assert (trace.names[trace.frames.file[leaf]], trace.frames.line[leaf]) == ("/me/train.py", 12)


def test_what_nsight_systems_warns_of_is_told(tmp_path):
    path = tmp_path / "a.sqlite"
    path.write_bytes(make_sqlite())
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp, timestampType, source, severity, text, globalPid)")
        said = [(1, "Profiling has started."), (2, "Not all CUDA events might have been collected."), (3, "bad\nend")]
        database.executemany("INSERT INTO DIAGNOSTIC_EVENT (severity, text) VALUES (?, ?)", [*said, said[1]])
        database.commit()

    trace = load(path)

    assert [(loss.what, loss.count) for loss in trace.losses] == [
        ("Nsight Systems warns: Not all CUDA events might have been collected.", 2),
        ("Nsight Systems warns: bad end", 1),
    ]


def test_a_kernel_without_a_readable_name_has_its_short_one(tmp_path):
    path = tmp_path / "a.sqlite"
    path.write_bytes(make_sqlite())
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN shortName")
        database.execute("INSERT INTO StringIds (id, value) VALUES (77, 'short')")
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET shortName = 77, demangledName = NULL")
        database.commit()

    trace = load(path)

    assert [trace.names[name] for name in trace.spans.name[trace.spans.kind == Kind.KERNEL]] == ["short"]


def test_another_database_is_refused(tmp_path):
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE people (name)")
        database.commit()

    with pytest.raises(TraceError, match="no export of Nsight Systems"):
        load(path)


def test_a_damaged_database_is_refused(tmp_path):
    path = tmp_path / "a.sqlite"
    data = bytearray(H100.read_bytes()[:200_000])
    data[5_000:150_000] = bytes(145_000)
    path.write_bytes(bytes(data))

    with pytest.raises(TraceError, match="damaged SQLite file"):
        load(path)


def test_a_view_in_a_database_is_never_run(tmp_path):
    """Names in the file cannot make us run its SQL: only real tables are read."""
    path = tmp_path / "a.sqlite"
    path.write_bytes(make_sqlite())
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE VIEW ThreadNames AS SELECT 1 AS globalTid, load_extension('x') AS nameId")
        database.commit()

    assert np.array_equal(load(path).spans.kind, [Kind.OP, Kind.CALL, Kind.KERNEL])
