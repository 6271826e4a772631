"""A test that asks for `locate` names the guilty line of a CUDA error in its own failure.

    def test_training(locate):
        train(steps=3)

`@pytest.mark.locate(check=True)` has the inputs of index operators looked at before they
run, so that the offending values are named too. Without CUDA it does nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

_WANTED: pytest.StashKey[bool] = pytest.StashKey()


@pytest.fixture
def locate(request: pytest.FixtureRequest) -> None:
    """Runs the test under progress marks; a CUDA error's note then names the line that launched it."""
    request.node.stash[_WANTED] = True  # a fixture of the user's that bears the same name is none of ours


def pytest_configure(config: pytest.Config) -> None:
    """Say what our marker is for."""
    config.addinivalue_line("markers", "locate(ops=True, check=False): how the `locate` fixture looks for CUDA errors")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Run the body of a test that asked for it under marks."""
    if not pyfuncitem.stash.get(_WANTED, False):
        return (yield)
    from tracer.recording.locate import locate as located

    marker = pyfuncitem.get_closest_marker("locate")
    with located(**(marker.kwargs if marker else {})):
        return (yield)
