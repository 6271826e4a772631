"""Values recorded in one run and given back in another; on the CPU's dispatch key, where there is no GPU."""

from __future__ import annotations

import threading

import pytest
import torch

from tracer.recording.value_store import Store, differences
from tracer.recording.values import Override


def reads(x):
    """All kinds of reads at fixed places."""
    out = [x[0].item(), bool(x[0] > 1), int(x[2]), f"{x[2]:.1f}"]
    out.append(x[x > 0].shape[0])
    out.append(x.nonzero().shape[0])
    if x.sum() > 3:
        out.append("large")
    return out


def recorded(x, body=reads):
    override = Override("record", "CPU", Store())
    override.install()
    try:
        override.start()
        found = body(x)
        override.stop()
    finally:
        override.remove()
    return override.store, found


@pytest.fixture
def replaying():
    started = []

    def start(store, **options):
        override = Override("replay", "CPU", store, **options)
        override.install()
        started.append(override)
        override.start()
        return override

    yield start
    for override in started:
        override.remove()


def test_a_replay_gives_back_what_the_recording_saw(replaying, tmp_path):
    store, found = recorded(torch.tensor([1.5, 0.0, 2.0]))
    store.save(tmp_path / "values")
    replay = replaying(Store.load(tmp_path / "values"))

    again = reads(torch.zeros(3))  # other values: those of the recording come

    replay.stop()
    assert again == found == [1.5, True, 2, "2.0", 2, 2, "large"]
    assert replay.missed == []
    assert replay.unused == 0


def test_turns_are_counted_for_each_place(replaying):
    def loop(x):
        found = [x[i].item() for i in range(3)]
        found.append(x[0].item())
        return found

    store, found = recorded(torch.tensor([1.0, 2.0, 3.0]), loop)
    replaying(store)

    assert loop(torch.zeros(3)) == found == [1.0, 2.0, 3.0, 1.0]
    assert sorted(len(values) for values in store.values.values()) == [1, 3]


def test_a_read_that_was_not_recorded_is_done_and_told(replaying):
    store, _ = recorded(torch.ones(3))
    replay = replaying(store)

    assert torch.tensor(7.0).item() == 7.0
    assert len(replay.missed) == 1
    assert "test_values.py" in replay.missed[0]


def test_values_that_nobody_asks_for_are_counted(replaying):
    store, found = recorded(torch.ones(3))
    replay = replaying(store)

    replay.stop()

    assert replay.unused == sum(len(values) for values in store.values.values())
    assert replay.unused >= len(found) - 1


def test_a_size_that_is_no_longer_true_is_found_by_one_read_at_the_end(replaying):
    def mask(x):
        return x[x > 0].shape[0]

    store, _ = recorded(torch.tensor([1.0, 1.0, 0.0]), mask)
    wrong = replaying(store, check=True)
    assert mask(torch.tensor([1.0, 1.0, 1.0])) == 2
    wrong.stop()
    wrong.remove()
    right = replaying(store, check=True)
    assert mask(torch.tensor([0.0, 1.0, 1.0])) == 2
    right.stop()

    assert wrong.wrong_counts() == 1
    assert right.wrong_counts() == 0


def test_nonzero_of_the_recorded_size_finds_the_same_indices(replaying):
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])

    def indices(x):
        return x.nonzero()

    store, found = recorded(x, indices)
    replay = replaying(store)

    again = indices(x)

    replay.stop()
    assert again.tolist() == found.tolist() == [[0, 0], [1, 1]]
    assert replay.missed == []


def test_a_thread_has_turns_of_its_own(replaying):
    def both(x):
        seen = {}

        def read(name, value):
            seen[name] = value.item()

        thread = threading.Thread(target=read, args=("helper", x[1]), name="helper")
        thread.start()
        thread.join()
        read("main", x[0])
        return seen

    store, found = recorded(torch.tensor([1.0, 2.0]), both)
    replaying(store)

    assert both(torch.zeros(2)) == found == {"helper": 2.0, "main": 1.0}
    assert {key.split("|")[0] for key in store.values} == {"main", "helper"}


def test_a_read_in_backward_is_recorded_and_given_back(replaying):
    def hooked(x):
        seen = []
        x = x.clone().requires_grad_()
        x.register_hook(lambda gradient: seen.append(gradient.sum().item()))
        (x * 3).sum().backward()
        return seen

    store, found = recorded(torch.ones(4), hooked)
    replaying(store)

    assert hooked(torch.ones(2)) == found == [12.0]


def test_outside_the_measured_part_torch_itself_works():
    override = Override("replay", "CPU", Store())
    override.install()
    try:
        assert torch.tensor(5.0).item() == 5.0
        assert torch.tensor([0.0, 1.0]).nonzero().tolist() == [[1]]
        override.start()
        override.stop()
        assert torch.tensor(6.0).item() == 6.0
    finally:
        override.remove()
    assert torch.tensor(7.0).item() == 7.0
    assert override.calls == 0


def test_complex_values_survive_the_file(replaying, tmp_path):
    store, found = recorded(torch.tensor([1.0 + 2.0j]), lambda x: x[0].item())
    store.save(tmp_path / "values")
    loaded = Store.load(tmp_path / "values")

    assert found == 1.0 + 2.0j
    assert [value.value for values in loaded.values.values() for value in values] == [[1.0, 2.0]]


def test_the_cost_of_a_replayed_read_is_measured_without_touching_the_store():
    override = Override("replay", "CPU", Store())
    override.install()
    try:
        cost = override.cost_ns(lambda: torch.ones(()), turns=50)
    finally:
        override.remove()

    assert 100 < cost < 1_000_000
    assert override.calls == 150
    assert override.store.values == {}


def test_equal_runs_are_equal_and_rounding_is_no_difference():
    first, _ = recorded(torch.tensor([1.5, 0.0, 2.0]))
    second, _ = recorded(torch.tensor([1.5 + 1e-6, 0.0, 2.0]))

    assert differences(first, first) == ""
    assert differences(first, second) == ""


def test_another_value_or_order_is_named_with_its_place():
    first, _ = recorded(torch.tensor([1.5, 0.0, 2.0]))
    other, _ = recorded(torch.tensor([9.0, 0.0, 2.0]))
    fewer, _ = recorded(torch.tensor([1.5, 0.0, 2.0]), lambda x: x[0].item())

    assert "different values" in differences(first, other)
    assert "test_values.py" in differences(first, other)
    assert "another order or number" in differences(first, fewer)
