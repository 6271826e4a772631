import gzip
import sys
import threading

import pytest

from tracer.exports._output import Output

PARTS = [bytes([i % 251]) * 100_000 + str(i).encode() for i in range(200)]


@pytest.mark.parametrize("library", ["isal", "zlib"])
def test_blocks_of_many_threads_are_one_gzip_stream(tmp_path, monkeypatch, library):
    if library == "zlib":
        monkeypatch.setitem(sys.modules, "isal", None)  # as if it were not installed
    with Output(tmp_path / "o.gz") as out:
        for i, part in enumerate(PARTS):
            if i % 3:
                out.add(part)
            else:
                out.later(lambda part=part: part, len(part))

    data = (tmp_path / "o.gz").read_bytes()
    assert gzip.decompress(data) == b"".join(PARTS)
    assert out.raw_bytes == sum(map(len, PARTS))
    assert data.count(b"\x1f\x8b\x08\x00\x00\x00\x00\x00") == 1
    assert threading.active_count() == 1


def test_without_compression_the_bytes_are_as_they_came(tmp_path):
    with Output(tmp_path / "o", compress=False) as out:
        for part in PARTS:
            out.later(lambda part=part: part, len(part))

    assert (tmp_path / "o").read_bytes() == b"".join(PARTS)


def test_an_empty_file_is_a_whole_gzip_file(tmp_path):
    with Output(tmp_path / "o.gz"):
        pass

    assert gzip.decompress((tmp_path / "o.gz").read_bytes()) == b""


def test_a_task_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError), Output(tmp_path / "o.gz") as out:
        out.later(lambda: bytes(1 // 0), 1)

    assert list(tmp_path.iterdir()) == []
