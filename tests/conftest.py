"""Fixtures that let a test draw its timeline."""

from __future__ import annotations

import signal

import hypothesis
import pytest

from tracer.building import TraceBuilder
from tracer.trace import NONE, Kind, Trace

CPU = (0, 100, 100, NONE, "main")
CPU2 = (0, 100, 101, NONE, "helper")
GPU = (0, 100, 7, 0, "stream 7")
GPU_S2 = (0, 100, 20, 0, "stream 20")
GPU1 = (0, 100, 7, 1, "stream 7")
US = 1_000

hypothesis.settings.register_profile("any machine", deadline=None)  # a busy one is slow, not wrong
hypothesis.settings.load_profile("any machine")


def make_timeline(*rows: tuple[object, ...], **tables: object) -> Trace:
    """A Trace from rows of (kind, name, track, start_us, end_us[, correlation[, bytes]])."""
    builder = TraceBuilder()
    for kind, name, track, start, end, *rest in rows:
        corr = rest[0] if rest else NONE
        nbytes = rest[1] if len(rest) > 1 else NONE
        builder.add_spans(
            round(start * US),  # type: ignore[operator,call-overload]
            round((end - start) * US),  # type: ignore[operator,call-overload]
            int(kind),  # type: ignore[call-overload]
            builder.name(str(name)),
            builder.track(*track),  # type: ignore[misc]
            corr,
            nbytes,
        )
    return builder.build()


@pytest.fixture
def timeline():
    """Builds a Trace from (kind, name, track, start_us, end_us[, correlation[, bytes]])."""
    return make_timeline


@pytest.fixture
def kind():
    return Kind


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs CUDA where there is none; torch is asked only if such a test was collected."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="needs CUDA: torch.cuda.is_available() is False"))


def pytest_configure() -> None:
    """Started in the background of a shell we ignore SIGINT, and so would the programs that the tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
