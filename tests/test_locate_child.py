"""The hooks that locating sets in a process, on the CPU with a GPU that is a row of queues."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

import tracer
from tests.fake_gpu import FakeGpu
from tracer.recording.locate_child import VARIABLE, Hooks, Settings, install
from tracer.recording.ring import read_ring


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    gpu = FakeGpu()
    monkeypatch.setattr("tracer.recording.marks.TorchGpu", lambda: gpu)
    return gpu


def state():
    return (
        sys.excepthook,
        threading.excepthook,
        threading.Thread._bootstrap_inner,
        torch._C._len_torch_dispatch_stack(),
    )


def test_every_hook_is_taken_away_again(tmp_path):
    before = state()
    hooks = Hooks(Settings(str(tmp_path)))
    hooks.install()
    during = state()
    hooks.remove()

    assert all(one != other for one, other in zip(before, during, strict=True))
    assert state() == before


def test_an_error_that_nobody_catches_in_a_thread_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    hooks = Hooks(Settings(str(tmp_path), ops=False))
    hooks.install()

    def work():
        raise RuntimeError("CUDA error: device-side assert triggered")

    helper = threading.Thread(target=work, name="helper")
    helper.start()
    helper.join()
    hooks.remove()

    image = read_ring(hooks.marks.ring.path)
    errors = [event for event in image.events if event[0] == "error"]
    assert [event[4] for event in errors] == ["CUDA error: device-side assert triggered"]
    assert "helper" in image.threads.values()


def test_a_process_that_was_not_asked_is_left_alone(monkeypatch):
    before = state()
    monkeypatch.delenv(VARIABLE, raising=False)

    install()

    assert state() == before


def test_a_cuda_error_in_the_block_gets_a_note_and_others_do_not(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    with pytest.raises(RuntimeError, match="CUDA error") as found, tracer.locate(ops=False):
        raise RuntimeError("CUDA error: device-side assert triggered")
    with pytest.raises(RuntimeError) as other, tracer.locate(ops=False):
        raise RuntimeError("mine")

    assert found.value.__notes__[0].startswith(f"tracer: launched at {__file__}:")
    assert not hasattr(other.value, "__notes__")
