"""The handed cases: on the recordings of an H200 every expectation is met, and no clean line is blamed."""

from pathlib import Path

import pytest

from tests import case_table
from tests.shared import CASES, H200


@pytest.fixture(scope="module")
def rows():
    return case_table.table(CASES, H200)


def test_recall_exact_lines_and_false_alarms_meet_the_goals(rows):
    totals = case_table.totals(rows)

    assert totals["visible"] >= 36
    assert totals["clean_lines"] == 19
    assert totals["recall"] >= 0.99
    assert totals["exact_line"] >= 0.95
    assert totals["all_right"] >= 0.94
    assert totals["false_alarms"] == 0


def test_what_a_recording_cannot_show_is_found_without_its_line(rows):
    unseen = [row for row in rows if row.verdict.startswith("not visible")]

    assert len(unseen) <= 12
    assert [row for row in unseen if "class only" not in row.verdict] == []


def test_recordings_of_our_own_show_the_lines_that_raw_traces_cannot():
    live = Path(__file__).parent / "data" / "live"

    rows = {(row.case, row.line): row for row in case_table.table(CASES, live, ("LB03", "CG01"))}

    assert {row.verdict for row in rows.values()} == {"ok"}
    assert "IDLE002 input.bound op=next count=10" in rows["LB03", 20].found
    assert "SYNC040 capture.sync op=bool count=1" in rows["CG01", 25].found


@pytest.mark.parametrize("name", case_table.IMPORTED)
def test_imported_traces_say_what_is_expected_of_them(name, monkeypatch):
    monkeypatch.setattr(case_table, "IMPORTED", {name: case_table.IMPORTED[name]})

    (row,) = case_table.imported(CASES)

    assert row.verdict == "ok", row.found
