"""The clocks recorder in a real process of its own: what the program sees must not change."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from tracer.chunks import read_chunks

HEAD = """
import sys, json, time
{before}
from pathlib import Path
from tracer.config import Record
from tracer.recording.session import Session
from tracer.recording.clocks import Recorder

session = Session(Path({folder!r}), Record(user_code=["*program.py"]))
recorder = Recorder(session)
recorder.arm()
recorder.open()
"""
TAIL = """
saw = recorder.close()
recorder.disarm()
session.flush()
print(json.dumps(saw))
"""


def run(tmp_path, body: str, before: str = ""):
    """Run a program under the recorder; (its rows, what the recorder said, the other output)."""
    program = tmp_path / "program.py"
    program.write_text(HEAD.format(folder=str(tmp_path), before=before) + textwrap.dedent(body) + TAIL)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    *out, saw = done.stdout.splitlines()
    path = tmp_path / "clocks.chunks"
    rows = read_chunks(path)[0] if path.exists() else []
    return rows, json.loads(saw), out


def places(rows, text: str):
    """(clock, source text of the exact columns) of each read."""
    frames = {row[1]: row for row in rows if row[0] == "frame"}
    lines = text.splitlines()
    found = []
    for row in rows:
        if row[0] == "read":
            _, _, _, _, line, _, column, end = frames[row[5]]
            found.append((row[3], lines[line - 1][column - 1 : end - 1]))
    return found


def test_reads_are_noted_with_clock_place_and_columns(tmp_path):
    rows, saw, _ = run(
        tmp_path,
        """
        from time import perf_counter as clock
        import timeit
        a = time.perf_counter()
        b = clock()
        c = [time.time_ns(), timeit.default_timer()]
        """,
    )

    text = (tmp_path / "program.py").read_text()
    columns = [span for _, span in places(rows, text)]
    assert columns == ["time.perf_counter()", "clock()", "time.time_ns()", "timeit.default_timer()"]
    assert [clock for clock, _ in places(rows, text)] == [
        "time.perf_counter",
        "time.perf_counter",
        "time.time_ns",
        "time.perf_counter",
    ]
    assert saw == {"on": True, "saw": 4, "dropped": 0}


def test_values_are_what_the_program_got_and_stamps_are_monotonic(tmp_path):
    rows, _, out = run(tmp_path, "a = time.perf_counter_ns()\nb = time.monotonic()\nprint(a, b)")

    first, second = [row for row in rows if row[0] == "read"]
    a, b = out[0].split()
    assert first[4] == int(a)
    assert abs(second[4] - float(b) * 1e9) < 1_000
    assert 0 <= second[1] - second[4] < 50_000_000


def test_a_name_imported_before_is_replaced_and_given_back(tmp_path):
    _, saw, out = run(
        tmp_path,
        """
        early()
        recorder.disarm()
        print(early.__class__.__name__, time.perf_counter.__class__.__name__, early is time.perf_counter)
        """,
        before="from time import perf_counter as early",
    )

    assert saw["saw"] == 1
    assert out == ["builtin_function_or_method builtin_function_or_method True"]


def test_the_replaced_functions_behave_as_the_builtins(tmp_path):
    _, _, out = run(
        tmp_path,
        """
        import pickle, copy
        class Timer:
            clock = time.perf_counter
        print(type(Timer().clock()).__name__)
        print(pickle.loads(pickle.dumps(time.time)) is not None, time.time.__name__, time.time.__module__)
        print(copy.deepcopy({"clock": time.monotonic})["clock"]() > 0)
        try:
            time.time(1)
        except TypeError:
            print("TypeError")
        """,
    )

    assert out == ["float", "True time time", "True", "TypeError"]


def test_reads_of_libraries_are_not_noted(tmp_path):
    _, saw, _ = run(tmp_path, "import threading\nthreading.Event().wait(0.01)\nimport logging\nlogging.warning('x')")

    assert saw["saw"] == 0


def test_a_helper_function_keeps_its_caller(tmp_path):
    rows, _, _ = run(tmp_path, "def now():\n    return time.perf_counter()\nt = [now()]\nt.append(now())\n")

    frames = {row[1]: row for row in rows if row[0] == "frame"}
    callers = [frames[frames[row[5]][2]][4] for row in rows if row[0] == "read"]
    assert callers[1] == callers[0] + 1


@pytest.mark.parametrize("threads", [4])
def test_threads_do_not_lose_reads(tmp_path, threads):
    rows, _, _ = run(
        tmp_path,
        f"""
        import threading
        def spin():
            for _ in range(500):
                time.perf_counter()
        all_ = [threading.Thread(target=spin) for _ in range({threads})]
        [t.start() for t in all_]; [t.join() for t in all_]
        """,
    )

    reads = [row for row in rows if row[0] == "read"]
    assert len(reads) == threads * 500
    assert len({row[2] for row in reads}) == threads
    frames = {row[1]: row for row in rows if row[0] == "frame"}
    assert all(frames[row[5]][5] == "spin" for row in reads)


def test_a_loop_that_polls_a_clock_is_cut_off_and_wakes_no_collection(tmp_path):
    _, saw, out = run(
        tmp_path,
        """
        import gc
        gc.collect()
        before = gc.get_stats()[2]["collections"]
        for _ in range(60_000):
            time.perf_counter()
        print(gc.get_stats()[2]["collections"] - before)
        """,
    )

    assert out == ["0"]
    assert (saw["saw"], saw["dropped"]) == (10_000, 50_000)
