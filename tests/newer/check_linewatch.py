"""Line events for progress marks, on a Python that has them."""

from __future__ import annotations

import sys
import threading

import pytest

from tracer.recording.linewatch import DISABLE, LineWatch, is_user_frame, launching_lines

LIBRARY = "def call(f):\n    return f() + 1\n\ndef fail():\n    raise ValueError('library')\n"
USER = """\
def inner():
    x = id(1)
    return 1

def outer():
    a = call(inner)
    return a

def loop(x):
    for row in range(2):
        x.append(row)
    b = x
    return b

def numbers():
    yield len("1")
    yield len("12")

def consume():
    for number in numbers():
        abs(number)

def catch():
    try:
        fail()
    except ValueError:
        pass
"""


@pytest.fixture
def told():
    return []


@pytest.fixture
def names():
    names: dict[str, object] = {}
    exec(compile(LIBRARY, "library.py", "exec"), names)
    exec(compile(USER, "train.py", "exec"), names)
    return names


@pytest.fixture
def watch(told):
    def on_line(code, line):
        if line not in watching.launching[id(code)]:
            return DISABLE
        told.append(("line", code.co_name, line))
        return None

    watching = LineWatch(
        lambda name: name == "train.py",
        on_line,
        lambda code, line: told.append(("return", code and code.co_name, line)),
        lambda error: told.append(("raise", str(error), 0)),
    )
    assert watching.start()
    yield watching
    watching.stop()
    assert all(sys.monitoring.get_tool(tool) != "tracer marks" for tool in range(6))


def test_a_line_goes_on_after_its_callee(names, watch, told):
    names["outer"]()

    assert [entry for entry in told if entry[0] != "raise"] == [
        ("line", "outer", 6),
        ("line", "inner", 2),
        ("return", "outer", 6),
        ("return", None, 0),
    ]


def test_lines_that_launch_nothing_stay_quiet(names, watch, told):
    names["loop"]([])
    names["loop"]([])

    assert [entry for entry in told if entry[0] == "line"] == [("line", "loop", 11)] * 4


def test_generators_hand_over_at_each_yield(names, watch, told):
    names["consume"]()

    assert ("line", "numbers", 16) in told
    assert told.index(("return", "consume", 20)) > told.index(("line", "numbers", 16))
    assert told.count(("line", "consume", 21)) == 2


def test_caught_errors_are_told(names, watch, told):
    names["catch"]()

    assert ("raise", "library", 0) in told


def test_a_thread_that_runs_already_is_watched(told):
    go, ready = threading.Event(), threading.Event()
    names = {"wait": go.wait, "ready": ready}
    exec(compile("def work():\n    ready.set()\n    wait()\n    abs(-1)\n", "train.py", "exec"), names)
    helper = threading.Thread(target=names["work"])
    helper.start()
    ready.wait()
    watching = LineWatch(lambda name: name == "train.py", lambda code, line: told.append(line), lambda code, line: None)
    assert watching.start()
    go.set()
    helper.join()
    watching.stop()

    assert told == [4]


def test_what_a_dataclass_makes_of_itself_is_not_the_user_s(told):
    import dataclasses

    Point = dataclasses.make_dataclass("Point", ["x"])
    watching = LineWatch(lambda name: name == "<string>", lambda code, line: told.append(line), lambda code, line: None)
    assert watching.start()
    Point(1)
    watching.stop()

    assert told == []


def test_compiled_code_is_not_the_user_s():
    names = {"__compiled_fn_1": lambda: sys._getframe(1)}
    exec(compile("def pick():\n    return __compiled_fn_1()", "train.py", "exec"), names)

    assert not is_user_frame(lambda name: True, names["pick"]())


def test_launching_lines_are_those_that_call_something(names):
    assert launching_lines(names["loop"].__code__) == {11}
    assert launching_lines(names["inner"].__code__) == {2}


def test_what_other_tools_switched_off_stays_off_and_a_second_watch_hears_all(names, told):
    monitoring, heard = sys.monitoring, []
    monitoring.use_tool_id(1, "coverage")
    monitoring.register_callback(1, monitoring.events.LINE, lambda code, line: heard.append(line) or monitoring.DISABLE)
    monitoring.set_local_events(1, names["inner"].__code__, monitoring.events.LINE)
    try:
        for _ in range(2):
            watching = LineWatch(
                lambda name: name == "train.py", lambda code, line: told.append(line), lambda *at: None
            )
            assert watching.start()
            names["outer"]()
            watching.stop()
    finally:
        monitoring.set_local_events(1, names["inner"].__code__, 0)
        monitoring.free_tool_id(1)

    assert heard == [2, 3]
    assert told[: len(told) // 2] == told[len(told) // 2 :]
    assert 6 in told
