import gc
import json
from pathlib import Path

from tests.conftest import US
from tracer.analysis.idle import named_parts
from tracer.chunks import append_chunk, read_chunks
from tracer.config import Record
from tracer.readers import load
from tracer.recording.pauses import Recorder
from tracer.recording.session import Session


class Node:
    """An object in a cycle: only the collector frees it."""

    def __init__(self):
        self.me = self


def recorded(folder, work, **settings):
    session = Session(folder, Record(**settings))
    folder.mkdir(exist_ok=True)
    recorder = Recorder(session)
    recorder.arm()
    session.start()
    recorder.open()
    work()
    told = recorder.close()
    session.end()
    path = folder / "pauses.chunks"
    return told, read_chunks(path)[0] if path.exists() else []


def collect():
    keep = [Node() for _ in range(200_000)]
    del keep
    gc.collect()


def test_a_collection_is_noted_with_its_thread_and_length(tmp_path):
    told, rows = recorded(tmp_path / "r", collect)

    assert told["on"]
    assert told["saw"] == len(rows) >= 1
    longest = max(rows, key=lambda row: row[2])
    assert longest[0] == "pause"
    assert longest[2] > 1_000_000
    assert longest[4] == "Python GC"


def test_nothing_is_left_behind_and_nothing_noted_when_off(tmp_path):
    before = list(gc.callbacks)

    told, rows = recorded(tmp_path / "r", collect, lines=False)

    assert gc.callbacks == before
    assert not told["on"]
    assert rows == []


def test_collections_become_spans_that_explain_idle_time(tmp_path):
    folder = tmp_path / "run" / "rank0-host-1"
    folder.mkdir(parents=True)
    marks = [[1_000_000, 5_000_000_000, 10], [2_000_000_000, 7_000_000_000 - 1_000_000, 10]]
    manifest = {"schema": 1, "complete": True, "rank": 0, "pid": 1, "host": "h", "marks": marks, "kineto": None}
    manifest |= {"window": {"start_mono_ns": 1_000_000, "end_mono_ns": 2_000_000_000}, "threads": [], "recorders": {}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with Path(folder / "pauses.chunks").open("wb") as file:
        append_chunk(file.fileno(), [["pause", 500_000_000, 700 * US, 1, "Python GC"]])

    trace = load(folder)

    starts, ends = named_parts(trace, "host.gc")
    assert (ends - starts).tolist() == [700 * US]
