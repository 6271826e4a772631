from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace

import pytest

from tests.conftest import CPU, GPU, make_timeline
from tests.perfetto_tools.processor import Processor
from tests.shared import H200
from tracer.commands import main
from tracer.exports._view import read_view
from tracer.exports.perfetto import write
from tracer.readers import load
from tracer.trace import Kind, Steps


@pytest.fixture
def json_trace(tmp_path):
    shutil.copy(H200 / "IS01.json.gz", tmp_path / "run.json.gz")
    return tmp_path / "run.json.gz"


def _steps(count=6):
    """`count` steps of 100 us, each with one launch and kernel; step 3 lasts four times as long."""
    rows, starts, at = [], [], 0
    for step in range(count):
        long = 400 if step == 3 else 100
        rows.append((Kind.CALL, "cudaLaunchKernel", CPU, at + 1, at + 5, step + 1))
        rows.append((Kind.KERNEL, f"work{step}", GPU, at + long - 5, at + long + 10, step + 1))
        starts.append((at, long))
        at += long
    steps = Steps.of(
        start_ns=[start * 1000 for start, _ in starts],
        dur_ns=[long * 1000 for _, long in starts],
        number=[10 + i for i in range(count)],
        track=[0] * count,
        traced=[True] * count,
    )
    return replace(make_timeline(*rows), steps=steps)


def _names(path):
    with Processor(path) as processor:
        assert processor.problems() == {}
        return {row["name"] for row in processor.query("select distinct name from slice")}


def test_any_trace_becomes_a_file_in_the_current_folder(json_trace, tmp_path, monkeypatch, capsys):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    assert main(["export", str(json_trace)]) == 0

    said = capsys.readouterr().out
    assert (here / "run.pftrace").is_file()
    assert not (json_trace.parent / "run.pftrace").exists()
    assert "slices" in said
    assert "python -m tracer open run.pftrace" in said


def test_it_is_gzip_and_says_how_to_look_at_it(json_trace, tmp_path):
    main(["export", str(json_trace), "-o", str(tmp_path / "o.pftrace")])

    assert gzip.decompress((tmp_path / "o.pftrace").read_bytes())[:1] == b"\x0a"
    view = read_view(tmp_path / "o.pftrace")
    assert view is not None
    assert view.stall is not None
    assert "Host stalls" in view.pins
    assert any(name.startswith("SYNC001") for name in view.findings)


def test_steps_are_counted_as_python_counts(tmp_path):
    path = write(_steps(), None, tmp_path / "t.pftrace", steps="11:13").path

    names = _names(path)

    assert {"step 11", "step 12", "work1", "work2"} <= names
    assert not {"step 10", "step 13", "work3"} & names


def test_work_launched_in_a_step_is_kept_where_it_ran(tmp_path):
    names = _names(write(_steps(), None, tmp_path / "t.pftrace", steps="12").path)

    assert {"work1", "work2"} <= names  # work1 still ran when step 12 began, work2 ended after it
    assert not {"work0", "work3"} & names


@pytest.mark.parametrize(
    ("text", "says"), [("90:95", "no recorded step"), ("a:b", "not a range"), ("3:2", "no recorded step")]
)
def test_steps_that_are_not_there_are_an_error(tmp_path, text, says):
    from tracer.errors import UsageError

    with pytest.raises(UsageError, match=says):
        write(_steps(), None, tmp_path / "t.pftrace", steps=text)
    assert not list(tmp_path.iterdir())


def test_what_the_viewer_cannot_hold_is_cut_to_its_worst_steps(tmp_path):
    written = write(_steps(), None, tmp_path / "t.pftrace", most_slices=20)

    names = _names(written.path)
    assert "step 13" in names  # the longest
    assert len([name for name in names if name.startswith("step")]) == 5
    assert "more than the Perfetto UI can hold" in written.notes[0]
    assert "--steps" in written.notes[0]


def test_the_detail_decides_how_much_there_is(json_trace, tmp_path):
    sizes = {}
    for detail in ("low", "normal", "full"):
        main(["export", str(json_trace), "--detail", detail, "-o", str(tmp_path / detail)])
        sizes[detail] = (tmp_path / detail).stat().st_size

    assert sizes["low"] < sizes["normal"] < sizes["full"]


def test_a_wrong_detail_or_format_is_an_error(json_trace, capsys):
    with pytest.raises(SystemExit):
        main(["export", str(json_trace), "--detail", "most"])
    assert main(["export", str(json_trace), "--format", "paper"]) == 2
    assert "perfetto" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(json_trace, tmp_path, capsys):
    assert main(["export", str(json_trace), "-o", str(tmp_path / "none" / "t.pftrace")]) == 2

    assert "cannot be written" in capsys.readouterr().err


def test_a_broken_trace_is_an_error(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps({"something": 1}))

    assert main(["export", str(tmp_path / "t.json")]) == 3


def test_a_file_is_replaced_only_when_it_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "t.pftrace"
    path.write_bytes(b"old")
    monkeypatch.setattr("tracer.exports.perfetto.pack_row", lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        write(_steps(), None, path)

    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["t.pftrace"]


def test_the_same_trace_gives_the_same_file(tmp_path):
    trace = load(H200 / "IS01.json.gz")
    one, two = (write(trace, None, tmp_path / name).path.read_bytes() for name in ("a", "b"))

    assert one == two


def test_the_worst_step_and_its_stall_are_in_view(tmp_path):
    view = read_view(write(_steps(), None, tmp_path / "t.pftrace").path)

    assert view is not None
    assert view.stall is None  # nobody examined it
    low, high = view.window
    assert low >= 0
    assert low <= 300_000 + 10_000  # step 13 lasts from 300 to 700 us
    assert high >= 700_000 - 10_000
    assert high <= 925_000


def test_what_cannot_be_put_in_its_place_is_not_left_beside_it(json_trace, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())

    assert main(["export", str(json_trace), "-o", str(tmp_path / "folder")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
