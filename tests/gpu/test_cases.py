"""The handed cases recorded live: every stall is found at its line, and no clean line is blamed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import case_table

pytestmark = pytest.mark.gpu
CASES = Path(os.environ.get("TRACER_CASES", case_table.CASES))


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    case_table.record(CASES, folder, jobs=3)
    return case_table.table(CASES, folder)


def test_recall_exact_lines_and_false_alarms_meet_the_goals(rows):
    totals = case_table.totals(rows)

    print(*rows, totals, sep="\n")
    assert totals["recall"] >= 0.99
    assert totals["exact_line"] >= 0.95
    assert totals["false_alarms"] == 0


def test_every_script_was_recorded(rows):
    assert [row.case for row in rows if row.verdict == "not recorded"] == []
