import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from tracer.exports import _packing as packing

_UNIX_NS = 1_764_000_000_123_456_789


def _events(data: bytes) -> list[pb.TracePacket]:
    return list(pb.Trace.FromString(data).packet)


@pytest.mark.parametrize("width", range(1, 11))
def test_a_varint_of_any_width_reads_back_as_it_was(width):
    largest = min((1 << 7 * width) - 1, (1 << 63) - 1)
    values = np.array([0, 1, min(127, largest), largest // 2, largest], np.int64)

    rows = packing.pack(packing.message(1, packing.hole(8, values, width)), len(values))

    assert [packet.timestamp for packet in _events(rows.tobytes())] == values.tolist()


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=20))
def test_whole_numbers_of_any_sign_read_back(values):
    column = np.array(values, np.int64)
    event = packing.message(11, packing.hole(30, column))

    data = packing.pack(packing.message(1, event), len(values)).tobytes()

    assert [packet.track_event.counter_value for packet in _events(data)] == values


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=20))
def test_doubles_read_back(values):
    event = packing.message(11, packing.fixed(44, np.array(values)))

    data = packing.pack(packing.message(1, event), len(values)).tobytes()

    assert [packet.track_event.double_counter_value for packet in _events(data)] == values


def test_the_width_is_the_least_that_holds_all():
    assert packing.width_of(np.array([0, 127])) == 1
    assert packing.width_of(np.array([128])) == 2
    assert packing.width_of(np.array([_UNIX_NS])) == 9
    assert packing.width_of(np.array([5, -1])) == 10
    assert packing.width_of(np.array([], np.int64)) == 1


def test_records_of_two_shapes_come_out_in_the_order_asked_for():
    short = packing.pack(packing.message(1, packing.hole(8, np.array([10, 30]))), 2)
    long = packing.pack(packing.message(1, [*packing.hole(8, np.array([20, 40])), b"\x50\x07"]), 2)

    data = packing.scatter([short, long], [np.array([0, 2]), np.array([1, 3])])

    assert [packet.timestamp for packet in _events(data)] == [10, 20, 30, 40]
    assert [packet.trusted_packet_sequence_id for packet in _events(data)] == [0, 7, 0, 7]


def test_a_message_says_how_long_its_parts_are():
    inner = packing.message(11, packing.fixed(47, np.array([1 << 40])))

    data = packing.pack(packing.message(1, [*packing.hole(8, np.array([_UNIX_NS])), *inner]), 1).tobytes()

    (packet,) = _events(data)
    assert packet.timestamp == _UNIX_NS
    assert list(packet.track_event.flow_ids) == [1 << 40]
