"""A bar on stderr tells how far the reading is, if somebody looks at it; another gzip library changes nothing."""

from __future__ import annotations

import gzip
import io
import os
import pty
import signal
import subprocess
import sys

from tests.kineto_text import call, kernel, write
from tracer.commands._progress import load_with_bar
from tracer.readers import load

EVENTS = [event for at in range(1, 3_000) for event in (call("c", at * 10, 5, at), kernel("k", at * 10 + 7, 5, at))]


def test_no_bar_where_nobody_looks(tmp_path, capsys):
    path = tmp_path / "trace.json"
    path.write_bytes(write(EVENTS))

    trace = load_with_bar(path)

    assert len(trace.spans) == len(EVENTS)
    assert capsys.readouterr().err == ""


def test_a_bar_with_bytes_and_events_on_a_terminal(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(write(EVENTS))
    code = f"from tracer.commands._progress import load_with_bar; print(len(load_with_bar({str(path)!r}).spans))"
    ours, theirs = pty.openpty()

    command, environment = [sys.executable, "-c", code], os.environ | {"TERM": "xterm"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, check=True, env=environment)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)

    assert done.stdout == f"{len(EVENTS)}\n".encode()
    assert "reading trace.json" in shown
    assert "events" in shown
    assert "kB" in shown or "MB" in shown


def test_without_isal_zlib_reads_the_same(tmp_path, monkeypatch):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(write(EVENTS)) + gzip.compress(b" "))
    monkeypatch.setitem(sys.modules, "isal", None)

    assert len(load(path).spans) == len(EVENTS)


def test_a_pipe_of_unknown_length_is_read_with_progress(monkeypatch):
    told = []
    stdin = io.BytesIO(write(EVENTS))
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": stdin}))

    load("-", progress=lambda *state: told.append(state))

    assert told[-1][1] == 0
    assert told[-1][0] > 500_000


def test_ctrl_c_ends_cleanly_in_the_middle_of_a_pipe():
    command = [sys.executable, "-m", "tracer", "audit", "-"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None

    process.stdin.write(write(EVENTS)[:-100])  # more than a pipe holds: when it is written, it is being read
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)

    assert (process.returncode, out, err) == (130, b"", b"")
