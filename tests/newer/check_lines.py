"""Lines on the interpreter that has them: run by test_lines.py on Python 3.12 or newer."""

import asyncio
import contextlib
import gc
import itertools
import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from tracer.recording.lines import Recorder

HERE = __file__


class Sink:
    def __init__(self):
        self.rows = []
        self.add = self.rows.append

    def flush(self):
        pass


class Recording:
    """A window around a block, and what was written."""

    def __init__(self, user=(HERE, "<string>", "<ipython-input-1>")):
        self.sink = Sink()
        session = SimpleNamespace(
            record=SimpleNamespace(lines=True),
            sink=lambda name: self.sink,
            is_user_file=lambda name: name in user,
            each_second=lambda call: None,
            manifest={},
        )
        self.recorder = Recorder(session)

    def __enter__(self):
        self.recorder.arm()
        self.recorder.open()
        return self

    def __exit__(self, *error):
        self.said = self.recorder.close()
        self.frames = {row[1]: row for row in self.sink.rows if row[0] == "frame"}
        self.runs = [row for row in self.sink.rows if row[0] == "line"]

    def at(self, moment, native=None):
        """(function, line, column, end column) of what ran on a thread at a time."""
        native = native or threading.get_native_id()
        for _, start, dur, thread, frame in self.runs:
            if thread == native and start <= moment < start + dur:
                return self.frames[frame][5], *self.frames[frame][4:5], *self.frames[frame][6:8]
        return None

    def callers(self, moment):
        native = threading.get_native_id()
        found = []
        for _, start, dur, thread, frame in self.runs:
            if thread == native and start <= moment < start + dur:
                while frame >= 0:
                    found.append((self.frames[frame][5], self.frames[frame][4]))
                    frame = self.frames[frame][2]
        return found


moments = {}


# Notes this moment and the caller's line. Of another file, so that it is not watched itself.
here = eval(
    compile(
        "lambda name, _t=__import__('time').monotonic_ns, _f=__import__('sys')._getframe, _m=moments: "
        "(_m.__setitem__(name, (_t(), _f(1).f_lineno)))",
        "<library>",
        "eval",
    ),
    {"moments": moments},
)


def check(recording, name, function):
    moment, line = moments[name]
    found = recording.at(moment)
    assert found is not None, name
    assert (found[0].rpartition(".")[2], found[1]) == (function, line), name


def callee():
    here("in callee")
    return 1


def caller():
    here("before")
    value = callee() + (here("same line after a call") or 0)
    here("next line")
    return value


def test_each_moment_has_its_line_and_after_a_call_the_caller_s():
    with Recording() as recording:
        caller()

    check(recording, "before", "caller")
    check(recording, "in callee", "callee")
    check(recording, "same line after a call", "caller")
    check(recording, "next line", "caller")
    assert [name for name, _ in recording.callers(moments["in callee"][0])][:2] == ["callee", "caller"]


def split():
    return sum(
        [
            here("first") or 1,
            here("second") or 2,
        ]
    )


def test_a_statement_over_several_lines_gives_the_line_inside():
    with Recording() as recording:
        split()

    check(recording, "first", "split")
    check(recording, "second", "split")
    assert moments["second"][1] == moments["first"][1] + 1


SLEEPS = """
def sleeps():
    before = time.monotonic_ns()
    time.sleep(0.004); middle = time.monotonic_ns(); time.sleep(0.004)
    return before, middle
"""


def test_a_call_into_c_has_its_columns_and_they_end_with_it():
    typed = {"time": time}
    exec(SLEEPS, typed)
    with Recording() as recording:
        before, middle = typed["sleeps"]()

    assert recording.at(before + 2_000_000) == ("sleeps", 4, 5, 22)
    assert recording.at(middle + 2_000_000) == ("sleeps", 4, 54, 71)


class Slow:
    def __bool__(self):
        moments["bool"] = (time.monotonic_ns(), 0)
        return True


def judges(slow):
    if time.sleep(0.001) or slow:
        return 1
    return 0


def test_columns_of_a_finished_call_do_not_stay():
    slow_file = {}
    exec(
        compile(
            "import time\nclass Slow:\n    def __bool__(self):\n        self.at = time.monotonic_ns()\n"
            "        return True",
            "<library>",
            "exec",
        ),
        slow_file,
    )
    slow = slow_file["Slow"]()
    with Recording() as recording:
        judges(slow)

    assert recording.at(slow.at) == ("judges", judges.__code__.co_firstlineno + 1, -1, -1)


def fails():
    raise ValueError


def survives():
    with contextlib.suppress(ValueError):
        fails()
    here("after a failure")


def catches():
    try:
        fails()
    except ValueError:
        here("in the handler")


def test_after_an_exception_the_time_is_the_caller_s():
    with Recording() as recording:
        survives()
        catches()

    check(recording, "after a failure", "survives")
    check(recording, "in the handler", "catches")


def counts():
    for i in range(2):
        here(f"generator {i}")
        yield i


def consumes():
    for i in counts():
        here(f"consumer {i}")


def test_a_generator_gives_the_time_back_when_it_yields():
    with Recording() as recording:
        consumes()

    for i in range(2):
        check(recording, f"generator {i}", "counts")
        check(recording, f"consumer {i}", "consumes")


async def leaf(name):
    here(f"{name} before")
    await asyncio.sleep(0.002)
    here(f"{name} after")


async def branch(name):
    await leaf(name)


async def tree():
    await asyncio.gather(branch("a"), branch("b"))


def test_two_tasks_on_one_loop_are_not_confused_and_have_their_await_chain():
    with Recording() as recording:
        asyncio.run(tree())

    for name in ("a", "b"):
        for when in ("before", "after"):
            check(recording, f"{name} {when}", "leaf")
            chain = recording.callers(moments[f"{name} {when}"][0])
            assert [function for function, _ in chain[:2]] == ["leaf", "branch"]
            assert chain[1][1] == branch.__code__.co_firstlineno + 1


def works(go, seen):
    go.wait()
    seen["native"] = threading.get_native_id()
    seen["at"] = time.monotonic_ns()
    time.sleep(0.003)


def test_threads_from_before_and_after_the_opening_have_their_own_lines():
    go, early, late = threading.Event(), {}, {}
    thread = threading.Thread(target=works, args=(go, early))
    thread.start()
    time.sleep(0.01)
    with Recording() as recording:
        go.set()
        thread.join()
        other = threading.Thread(target=works, args=(go, late))
        other.start()
        other.join()

    line = works.__code__.co_firstlineno + 4
    for seen in (early, late):
        found = recording.at(seen["at"] + 1_000_000, seen["native"])
        assert found[:2] == ("works", line)


def notes_itself(natives):
    natives.append(threading.get_native_id())
    caller()


def test_short_threads_leave_their_names_and_are_not_taken_for_each_other():
    natives = []
    with Recording() as recording:
        for number in range(5):
            thread = threading.Thread(target=notes_itself, args=(natives,), name=f"t{number}")
            thread.start()
            thread.join()

    known = {one["native_id"]: one["name"] for one in recording.recorder._session.manifest["threads"]}
    assert [known[native] for native in natives] == [f"t{number}" for number in range(5)]
    assert {row[3] for row in recording.runs} >= set(natives)


def test_what_was_running_when_the_window_opens_is_known():
    with Recording() as recording:
        moment = time.monotonic_ns()
        time.sleep(0.002)

    assert recording.at(moment + 500_000)[0] == "test_what_was_running_when_the_window_opens_is_known"


def test_code_without_a_file_counts_as_the_user_s():
    code = compile("\n\nhere('typed')\n", "<ipython-input-1>", "exec")
    with Recording() as recording:
        exec(code, {"here": here})

    found = recording.at(moments["typed"][0])
    assert found[:2] == ("<module>", 3)


def hot():
    total = 0
    for i in range(200_000):
        total += i
        total -= i
    return total


def nested():
    here("before the hot one")
    hot()
    here("after the hot one")


def test_a_plain_loop_is_switched_off_and_reported_and_its_caller_stays_right():
    with Recording() as recording:
        nested()

    assert recording.said["switched_off"] == [f"{HERE}:{hot.__code__.co_firstlineno} hot"]
    check(recording, "before the hot one", "nested")
    check(recording, "after the hot one", "nested")
    assert len(recording.runs) < 20_000
    lines = {recording.frames[row[4]][4] for row in recording.runs if recording.frames[row[4]][5] == "hot"}
    assert -1 in lines


def tiny(i):
    return i


def calls_often():
    for i in range(300_000):
        tiny(i)
    here("after tiny ones")


def test_a_small_function_called_too_often_is_given_up_wholly():
    with Recording() as recording:
        calls_often()

    assert len(recording.said["switched_off"]) == 2
    assert len(recording.runs) < 30_000
    check_at = recording.at(moments["after tiny ones"][0])
    assert check_at is None or check_at[0] == "calls_often"


def test_nothing_of_us_is_left_and_a_second_window_works():
    for _ in range(2):
        with Recording() as recording:
            caller()
        check(recording, "same line after a call", "caller")
    assert [tool for tool in range(6) if sys.monitoring.get_tool(tool) == "tracer"] == []


def test_another_tool_keeps_its_events():
    seen = []
    monitoring = sys.monitoring
    monitoring.use_tool_id(monitoring.COVERAGE_ID, "coverage")
    try:
        monitoring.register_callback(
            monitoring.COVERAGE_ID, monitoring.events.LINE, lambda code, line: seen.append(line)
        )
        monitoring.set_local_events(monitoring.COVERAGE_ID, caller.__code__, monitoring.events.LINE)
        with Recording() as recording:
            caller()
        check(recording, "next line", "caller")
        caller()
    finally:
        monitoring.set_local_events(monitoring.COVERAGE_ID, caller.__code__, 0)
        monitoring.free_tool_id(monitoring.COVERAGE_ID)

    first = caller.__code__.co_firstlineno
    assert seen == [first + 1, first + 2, first + 3, first + 4] * 2


def test_taken_ids_are_an_honest_no():
    monitoring = sys.monitoring
    taken = [tool for tool in range(6) if monitoring.get_tool(tool) is None]
    for tool in taken:
        monitoring.use_tool_id(tool, "other")
    try:
        with Recording() as recording:
            caller()
    finally:
        for tool in taken:
            monitoring.free_tool_id(tool)

    assert recording.said["on"] is False
    assert "taken" in recording.said["why"]


@pytest.mark.parametrize("lines", [200])
def test_runs_of_a_thread_do_not_overlap_and_have_no_hole(lines):
    with Recording() as recording:
        start = time.monotonic_ns()
        for _ in range(lines):
            caller()
        end = time.monotonic_ns()

    native = threading.get_native_id()
    runs = sorted((s, s + d) for _, s, d, thread, _ in recording.runs if thread == native)
    runs = [run for run in runs if run[1] > start and run[0] < end]
    assert all(a[1] == b[0] for a, b in itertools.pairwise(runs))


def test_recording_many_lines_keeps_the_garbage_collector_asleep():
    def lines():
        for _ in range(20_000):
            caller()

    recording = Recording()
    recording.recorder.arm()
    recording.recorder.open()
    gc.collect()
    before = gc.get_stats()[0]["collections"]
    lines()
    after = gc.get_stats()[0]["collections"]
    waiting = len(recording.recorder._waiting)
    recording.recorder.close()

    assert waiting > 2_000
    assert after - before <= 2


def test_an_error_of_ours_never_reaches_the_program():
    with Recording() as recording:
        recording.recorder._frames = None
        caller()
        split()

    assert "AttributeError" in recording.said["why"]


def test_a_forked_child_records_nothing_and_pays_nothing():
    recording = Recording()
    recording.recorder.arm()
    recording.recorder.open()
    caller()
    child = os.fork()
    if not child:
        recording.recorder.forked()
        caller()
        events = sys.monitoring.get_local_events(4, caller.__code__) if sys.monitoring.get_tool(4) else 0
        os._exit(len(recording.recorder._waiting) + events)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    waiting = len(recording.recorder._waiting)
    recording.recorder.close()

    assert status == 0
    assert waiting > 0
