"""The plugin in real pytest runs. There is no GPU here, so another warning of torch that takes the same way
(indexing with uint8) stands for a synchronisation, as in test_ledger.py; tests/gpu has the real ones."""

import json
import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

STAND_IN = """
import torch
from tracer.recording.syncwatch import WATCH

mode = [0]
torch.cuda.is_available = lambda: True
torch.cuda._lazy_call = lambda call: call()
torch._C._cuda_set_sync_debug_mode = lambda value: mode.__setitem__(0, value)
torch._C._cuda_get_sync_debug_mode = lambda: mode[0]
WATCH._text = "indexing with dtype torch.uint8"
"""
MODEL = """import torch

def read():
    return torch.arange(4.0)[torch.tensor([1, 0, 1, 0], dtype=torch.uint8)]

def step(times):
    for _ in range(times):
        read()
"""
TESTS = """import threading
import pytest
from model import step

@pytest.mark.no_implicit_sync
def test_waits():
    step(3)

@pytest.mark.no_implicit_sync
def test_does_not_wait():
    step(0)

@pytest.mark.no_implicit_sync(max=3)
def test_may_wait():
    step(3)

@pytest.mark.no_implicit_sync
def test_breaks():
    step(1)
    raise KeyError("mine")

@pytest.mark.no_implicit_sync
def test_thread():
    worker = threading.Thread(target=step, args=(1,), name="loader")
    worker.start()
    worker.join()

def test_within(sync_budget):
    with sync_budget(max=2):
        step(2)
    step(9)

def test_beyond(sync_budget):
    with sync_budget(max=1):
        step(2)

def test_unmarked():
    step(2)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A pytest run of those tests: what it printed, by test, and the report it wrote."""
    folder = tmp_path_factory.mktemp("ran")
    for name, text in (("conftest", STAND_IN), ("model", MODEL), ("test_it", TESTS)):
        (folder / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--tracer-report=syncs.json"],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    report = json.loads((folder / "syncs.json").read_text())
    return done.stdout.replace(f"{folder}/", ""), report


def outcome(ran, test):
    return next(line for line in ran[0].splitlines() if f"test_it.py::{test}" in line and line[:6] in "PASSEDFAILED")


@pytest.mark.parametrize("test", ["test_does_not_wait", "test_may_wait", "test_within", "test_unmarked"])
def test_what_waits_no_more_than_it_may_passes(ran, test):
    assert outcome(ran, test).startswith("PASSED")


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("test_waits", "3 implicit synchronisations, 0 allowed"),
        ("test_thread", "1 implicit synchronisation, 0 allowed"),
        ("test_beyond", "2 synchronisations, 1 allowed"),
        ("test_breaks", "KeyError: 'mine'"),
    ],
)
def test_what_waits_more_often_fails_and_the_tests_own_error_comes_first(ran, test, said):
    assert outcome(ran, test).startswith("FAILED")
    assert said in outcome(ran, test)


def test_a_failure_shows_the_line_and_the_stack_down_to_the_test(ran):
    begin = ran[0].index("3 implicit synchronisations, 0 allowed\n")
    failure = ran[0][begin:].partition("fix:")[0].splitlines()[1:]

    assert failure == [
        "model.py:4 in read: a synchronisation on MainThread, 3 times",
        "    model.py:4 in read",
        "        return torch.arange(4.0)[torch.tensor([1, 0, 1, 0], dtype=torch.uint8)]",
        "    model.py:8 in step",
        "        read()",
        "    test_it.py:7 in test_waits",
        "        step(3)",
    ]


def test_another_threads_wait_names_the_thread(ran):
    assert "model.py:4 in read: a synchronisation on loader\n" in ran[0]


def test_the_report_lists_every_test_that_waited(ran):
    text, report = ran

    assert "    2 test_it.py::test_unmarked: 2 at model.py:4" in text
    assert {name.rpartition("::")[2]: len(entries) for name, entries in report.items()} == {
        "test_waits": 3, "test_may_wait": 3, "test_thread": 1, "test_within": 11, "test_beyond": 2, "test_unmarked": 2,
        "test_breaks": 1,
    }  # fmt: skip


def test_without_cuda_marked_tests_are_skipped_and_say_why(pytester):
    pytester.makepyfile(model=MODEL, test_it=TESTS)

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rs", "-k", "waits or within or unmarked")

    result.assert_outcomes(skipped=2, passed=1, deselected=5, warnings=1)
    result.stdout.fnmatch_lines(["SKIPPED*no CUDA here*torch.cuda.is_available() is False"])


def test_loading_the_plugin_imports_neither_torch_nor_numpy(pytester):
    pytester.makepyfile(
        "import sys\n\ndef test_modules():\n    assert not {'torch', 'numpy', 'rich', 'msgspec'} & set(sys.modules)\n"
    )

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")

    result.assert_outcomes(passed=1)


def test_the_mark_is_known():
    done = subprocess.run([sys.executable, "-m", "pytest", "--markers"], capture_output=True, text=True, check=True)

    assert "@pytest.mark.no_implicit_sync(max=0): fails if the test waits implicitly" in done.stdout
