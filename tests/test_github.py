import re
from dataclasses import replace

from tests.audits import finding, make_audit, place
from tracer.reports import github
from tracer.results import Acceptance, BudgetLine, Place

COMMAND = re.compile(r"^::(error|warning|notice) ([^\n]*?)::([^\n]*)$")


def commands(audit):
    return [COMMAND.match(line) for line in github.render(audit).splitlines()]


def test_each_line_is_a_command_on_the_users_line():
    found = commands(make_audit())

    assert found[0][1] == "warning"
    assert found[0][2] == ("file=/app/train.py,line=17,col=18,endColumn=29,title=SYNC001 a tensor is read with .item()")
    assert found[-1][3].startswith("GPU idle 37 %25 of the step")


def test_a_broken_limit_is_an_error_and_comes_first():
    audit = replace(make_audit(), budget=(BudgetLine("gpu_idle", 20.0, 37.1, "%", False, place(17)),))

    first = commands(audit)[0]

    assert (first[1], first[3]) == ("error", "gpu_idle at /app/train.py:17 in train: 37.1 %25, limit 20.0 %25")


def test_known_findings_are_notices_and_idle_acceptances_warnings():
    audit = replace(
        make_audit(findings=(finding(baseline="known"),)), acceptances=(Acceptance("SYNC009", "old", place(13), False),)
    )

    assert [found[1] for found in commands(audit)] == ["notice", "warning", "notice"]


def test_a_hostile_name_cannot_begin_a_command_of_its_own():
    evil = Place("a,line=9::\n::error::b\r\n.py", 3, "f", None, "ledger", True, "x")

    found = commands(make_audit(findings=(finding(place=evil, fix="::stop-commands::x\n::set-output name=a::b"),)))

    assert all(found)
    assert len(found) == 2
    assert "file=a%2Cline=9%3A%3A%0A%3A%3Aerror%3A%3Ab%0A.py,line=3," in found[0][2]
