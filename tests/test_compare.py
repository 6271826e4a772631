import random
from dataclasses import replace

import pytest

from tests.audits import MS, finding, make_audit, place
from tracer.analysis.compare import compare, compare_benchmarks, differ
from tracer.analysis.paths import below
from tracer.results import Benchmark, Hot, LineCost, Measured, Spread, Step


def stepped(walls_ms, idle_ms=2.0, held_ms=1.0, **changes):
    steps = tuple(
        Step(k, 0, 0, round(wall * MS), round((wall - idle_ms) * MS), round(idle_ms * MS), round(held_ms * MS))
        for k, wall in enumerate(walls_ms)
    )
    return make_audit(steps=steps, **changes)


def figure(diff, name):
    return next(change for change in diff.figures if change.name == name)


STEADY = [10.0, 10.1, 9.9, 10.0, 10.05, 9.95]


def test_a_longer_step_is_a_regression():
    diff = compare(stepped(STEADY), stepped([wall + 1.5 for wall in STEADY]))

    step = figure(diff, "step")
    assert (step.verdict, step.significant, diff.regression) == ("worse", True, True)
    assert "longer, from 10.0 ms to 11.5 ms (+15.0 %)" in diff.text


def test_a_difference_within_the_spread_is_none():
    diff = compare(stepped([6, 14, 8, 12, 10, 9]), stepped([7, 15, 9, 13, 11, 10]))

    step = figure(diff, "step")
    assert (step.verdict, step.significant, diff.regression) == ("worse", False, False)
    assert "within the spread" in diff.text


def test_a_loss_below_the_threshold_is_significant_but_no_regression():
    before, after = stepped(STEADY), stepped([wall + 0.4 for wall in STEADY])

    assert compare(before, after).regression is False
    assert compare(before, after, threshold=0.02).regression is True
    assert figure(compare(before, after), "step").significant


def test_the_same_audit_has_no_difference():
    diff = compare(make_audit(), make_audit())

    assert {change.verdict for change in diff.figures} == {"same"}
    assert {change.verdict for change in diff.findings} == {"same"}
    assert (diff.kernels, diff.regression) == ((), False)


def test_idle_time_is_compared_by_cause_a_step():
    before = stepped(STEADY, idle={"sync.item": 6 * MS, "launch.bound": 3 * MS})
    after = stepped([*STEADY, *STEADY], idle={"sync.item": 24 * MS, "launch.bound": 6 * MS})

    diff = compare(before, after)

    sync, launch = figure(diff, "idle: sync.item"), figure(diff, "idle: launch.bound")
    assert (sync.before, sync.after, sync.verdict, sync.significant) == (1 * MS, 2 * MS, "worse", True)
    assert launch.verdict == "same"


def test_findings_are_matched_though_their_lines_moved():
    stays, moved = finding(), finding(place=replace(place(17), line=40))
    grows = finding(rule="SYNC004", id="b", place=place(18), stall_ns=2 * MS, idle_ns=0)
    grown = replace(grows, stall_ns=20 * MS)
    gone = finding(rule="SYNC007", id="c", place=place(13))
    new = finding(rule="SYNC009", id="d", place=place(14))

    diff = compare(make_audit(findings=(stays, grows, gone)), make_audit(findings=(moved, grown, new)))

    verdicts = {(c.after or c.before).rule: c.verdict for c in diff.findings}
    assert verdicts == {"SYNC001": "same", "SYNC004": "worse", "SYNC007": "gone", "SYNC009": "new"}
    assert "1 new, 1 worse, 1 gone" in diff.text


def test_a_trace_without_lines_still_knows_the_only_finding_of_a_rule():
    known = (finding(), finding(rule="SYNC004", place=place(18)), finding(rule="SYNC004", place=place(19)))
    blind = (finding(place=None), finding(rule="SYNC004", place=None))

    diff = compare(make_audit(findings=known), make_audit(findings=blind))

    verdicts = [((c.after or c.before).rule, c.verdict) for c in diff.findings]
    assert verdicts == [("SYNC004", "new"), ("SYNC004", "gone"), ("SYNC004", "gone"), ("SYNC001", "same")]


def test_kernels_that_changed_are_listed_by_their_time_a_step():
    before = make_audit(kernels=(Hot("a", 8, 8 * MS, MS, 0.5), Hot("b", 8, 4 * MS, MS, 0.5), Hot("c", 1, MS, MS, 0.1)))
    after = make_audit(kernels=(Hot("a", 8, 16 * MS, MS, 0.5), Hot("b", 8, 4 * MS, MS, 0.5)))

    kernels = [(c.name, c.before, c.after, c.verdict) for c in compare(before, after).kernels]

    assert kernels == [("a", 1 * MS, 2 * MS, "worse"), ("c", MS / 8, 0.0, "better")]


def test_without_steps_the_threshold_alone_decides_and_the_text_says_so():
    diff = compare(make_audit(steps=()), make_audit(steps=(), window_ns=120 * MS))

    assert diff.regression
    assert "no spread" in diff.text


def test_a_step_is_never_compared_with_a_window():
    diff = compare(make_audit(), make_audit(steps=()))

    window = figure(diff, "window")
    assert (window.before, window.after, window.verdict) == (90 * MS, 90 * MS, "same")


def test_welchs_test_errs_about_one_time_in_twenty():
    chance = random.Random(7)
    draw = lambda: [chance.gauss(100, 10) for _ in range(8)]

    wrong = sum(differ(draw(), draw()) for _ in range(1000))

    assert 20 <= wrong <= 80


@pytest.mark.parametrize(("shift", "found"), [(0.1, False), (20.0, True)])
def test_welchs_test_sees_what_is_larger_than_the_spread(shift, found):
    base = [100.0, 101.0, 99.0, 100.5, 99.5]

    assert differ(base, [value + shift for value in base]) is found


def measured(name, median, low, high):
    spread = Spread(9, median, median, median, median, round(low), round(high))
    return Measured(name, spread, spread, spread, (low, high), 0.95, 1.0, False, 9, 3, 0)


def test_benchmarks_differ_where_their_intervals_do_not_meet():
    before = Benchmark(
        1, "H200", (measured("add", 100, 98, 102), measured("mul", 100, 90, 110), measured("old", 1, 1, 1))
    )
    after = Benchmark(1, "H200", (measured("add", 120, 118, 122), measured("mul", 108, 98, 118)))

    diff = compare_benchmarks(before, after, ("a.json", "b.json"))

    assert [(c.name, c.significant, c.verdict) for c in diff.figures] == [
        ("add", True, "worse"),
        ("mul", False, "worse"),
    ]
    assert diff.regression
    assert "add (+20.0 %)" in diff.text


def places(audit):
    return [found.place.file for found in audit.findings if found.place]


def test_files_below_the_root_become_relative():
    audit = below(make_audit(), "/app", ["train.py", "main.py"])

    assert set(places(audit)) == {"train.py"}
    assert audit.findings[0].callers[0].file == "main.py"
    assert list(audit.sources) == ["train.py"]
    assert {cost.file for cost in audit.lines} == {"train.py"}
    assert audit.findings[2].library_place.file.startswith("/usr/lib/")


def test_a_containers_file_is_found_by_its_longest_tail():
    there = finding(place=place(17, file="/workspace/repo/src/model/train.py"))
    audit = make_audit(
        findings=(there,), sources={}, lines=(LineCost("/workspace/repo/src/model/train.py", 3, 1, 1, 1),)
    )

    found = below(audit, "/home/me/repo", ["tests/train.py", "src/model/train.py", "src/other/model/train.py"])

    assert places(found) == ["src/model/train.py"]
    assert found.lines[0].file == "src/model/train.py"


def test_a_name_that_could_be_two_files_stays_as_it_is():
    audit = make_audit(findings=(finding(place=place(17, file="/w/train.py")),))

    assert places(below(audit, "/home/me", ["a/train.py", "b/train.py"])) == ["/w/train.py"]


def test_a_librarys_file_is_never_taken_for_the_users():
    library = finding(place=place(17, file="/usr/lib/python3/site-packages/foo/train.py"))

    found = below(make_audit(findings=(library,)), "/home/me", ["train.py"])

    assert places(found) == ["/usr/lib/python3/site-packages/foo/train.py"]
