"""pytest plugin: tests fail where the host waits for the GPU, with the line and stack of each wait.

    @pytest.mark.no_implicit_sync            # none in this test; max=1 allows one
    def test_step(model): ...

    def test_logging(sync_budget):
        with sync_budget(max=1):             # here explicit waits count too
            train_step()

`--tracer-report` watches every test and lists what waited; with a FILE it writes JSON.
Without CUDA nothing can wait, so marked tests are skipped and say so. It is loaded in
every pytest of its environment, so it imports neither torch nor numpy before it is used.
"""

from __future__ import annotations

import json
import linecache
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tracer.recording.ledger import Sync

pytest_plugins = ["tracer.integrations.locate_fixture"]

MARK = "no_implicit_sync"
_FIX = "keep values on the GPU, or read them once after the loop"
_RUNNERS = ("/_pytest/", "/pluggy/", "/tracer/integrations/", "/threading.py")
_SYNCS: pytest.StashKey[list[dict[str, Any]]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option `--tracer-report`."""
    parser.getgroup("tracer").addoption(
        "--tracer-report",
        nargs="?",
        const="",
        metavar="FILE",
        help="list the synchronisations with the GPU of every test; with FILE also as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers", f"{MARK}(max=0): fails if the test waits implicitly for the GPU more than max times"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Watch a marked test, or every test for the report."""
    mark = item.get_closest_marker(MARK)
    if mark is None and item.config.getoption("--tracer-report") is None:
        return (yield)
    missing = _missing()
    if missing:
        if mark is not None:
            pytest.skip(missing)
        return (yield)
    syncs: list[Sync] = []
    try:
        with _watch() as syncs:
            result = yield
    finally:
        item.stash[_SYNCS] = [_entry(sync) for sync in syncs]
    if mark is not None:
        _judge([sync for sync in syncs if _is_implicit(sync)], _allowed(mark), "implicit synchronisation")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Hand what was seen to the report, which also travels between processes."""
    report = yield
    if report.when == "call" and item.stash.get(_SYNCS, None):
        report.tracer_syncs = item.stash[_SYNCS]  # type: ignore[attr-defined]
    return report


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The list of `--tracer-report`."""
    wanted = config.getoption("--tracer-report")
    if wanted is None:
        return
    seen = {
        report.nodeid: report.tracer_syncs
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "tracer_syncs", None)
    }
    terminalreporter.section("tracer: synchronisations with the GPU")
    missing = _missing()
    terminalreporter.line(missing or f"tests that waited for the GPU: {len(seen)}")
    for test, entries in sorted(seen.items(), key=lambda pair: -len(pair[1])):
        places = Counter(entry["place"] for entry in entries)
        said = "; ".join(f"{count} at {place}" for place, count in places.most_common())
        terminalreporter.line(f"{len(entries):5} {test}: {said}")
    if wanted:
        Path(wanted).write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
        terminalreporter.line(f"written to {wanted}")


@pytest.fixture
def sync_budget() -> Callable[..., AbstractContextManager[None]]:
    """`with sync_budget(max=1):` fails if the block waits for the GPU more often, explicit waits included."""
    missing = _missing()
    if missing:
        pytest.skip(missing)

    @contextmanager
    def budget(max: int = 0) -> Iterator[None]:
        with _watch() as syncs:
            yield
        _judge(list(syncs), max, "synchronisation")

    return budget


def _missing() -> str:
    """Why nothing can be watched here; empty if it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed, so nothing can wait for a GPU"
    if not torch.cuda.is_available():
        return "no CUDA here, so nothing can wait for a GPU: torch.cuda.is_available() is False"
    return ""


def _watch() -> AbstractContextManager[list[Sync]]:
    from tracer.recording.ledger import forbid_syncs

    return forbid_syncs(max=sys.maxsize)


def _allowed(mark: pytest.Mark) -> int:
    return int(mark.kwargs.get("max", mark.args[0] if mark.args else 0))


def _is_implicit(sync: Sync) -> bool:
    """Whether the program waited without asking to: not through a `synchronize()` of its own."""
    return sync.what == "sync" and not (sync.stack and sync.stack[0][2] == "synchronize")


def _judge(syncs: list[Sync], allowed: int, noun: str) -> None:
    if len(syncs) <= allowed:
        return
    said = [f"{len(syncs)} {noun}{'s' * (len(syncs) != 1)}, {allowed} allowed"]
    for (_, stack), group in _grouped(syncs).items():
        said.append(_place(group[0]) + (f", {len(group)} times" if len(group) > 1 else ""))
        said += [f"    {line}" for file, number, function in stack for line in _frame(file, number, function)]
    pytest.fail("\n".join([*said, f"fix: {_FIX}"]), pytrace=False)


def _grouped(syncs: list[Sync]) -> dict[tuple[str, tuple[Any, ...]], list[Sync]]:
    groups: dict[tuple[str, tuple[Any, ...]], list[Sync]] = {}
    for sync in syncs:
        groups.setdefault((sync.what, tuple(_inside(sync))), []).append(sync)
    return groups


def _inside(sync: Sync) -> Iterator[tuple[str, int, str]]:
    """The frames of the test and what it called: those that belong to pytest are left out."""
    for frame in sync.stack:
        if any(part in frame[0].replace("\\", "/") for part in _RUNNERS):
            return
        yield frame


def _frame(file: str, number: int, function: str) -> Iterator[str]:
    yield f"{file}:{number} in {function}"
    code = linecache.getline(file, number).strip()
    if code:
        yield f"    {code}"


def _place(sync: Sync) -> str:
    return f"{sync} on {sync.thread or 'a thread without a Python name'}"


def _entry(sync: Sync) -> dict[str, Any]:
    file, line, function = sync.place
    return {
        "what": sync.what,
        "implicit": _is_implicit(sync),
        "place": f"{file}:{line}",
        "function": function,
        "thread": sync.thread,
        "stack": [list(frame) for frame in _inside(sync)],
    }
