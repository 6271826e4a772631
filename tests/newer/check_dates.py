"""Dates as clocks, on the interpreter that tells of calls: run by test_lines.py on Python 3.12 or newer."""

import datetime
from datetime import datetime as moment

from tracer.chunks import read_chunks
from tracer.config import Record
from tracer.recording.clocks import Recorder as Clocks
from tracer.recording.lines import Recorder as Lines
from tracer.recording.session import Session

HERE = __file__


def recorded(folder, program, **options):
    """(clock, line below the first of the program) of each read."""
    session = Session(folder, Record(user_code=[HERE], **options))
    lines, clocks = Lines(session), Clocks(session)
    for recorder in (lines, clocks):
        recorder.arm()
        recorder.open()
    try:
        program()
    finally:
        clocks.close()
        lines.close()
        clocks.disarm()
        lines.disarm()
    session.flush()
    path = folder / "clocks.chunks"
    rows = read_chunks(path)[0] if path.exists() else []
    frames = {row[1]: row for row in rows if row[0] == "frame"}
    first = program.__code__.co_firstlineno
    return [(row[3], frames[row[5]][4] - first, row[4]) for row in rows if row[0] == "read"]


def ask():
    before = datetime.datetime.now().timestamp()
    after = moment.now().timestamp()
    assert after >= before
    return moment.fromtimestamp(0)


def test_dates_are_noted_with_their_line_and_time(tmp_path):
    began = datetime.datetime.now().timestamp() * 1e9

    reads = recorded(tmp_path, ask)

    assert [(clock, line) for clock, line, _ in reads] == [("datetime.now", 1), ("datetime.now", 2)]
    assert all(0 <= value - began < 60e9 for _, _, value in reads)


def test_no_dates_without_the_recorder_of_clocks(tmp_path):
    assert recorded(tmp_path, ask, clocks=False) == []
