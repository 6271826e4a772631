import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.audits import FINDINGS, MS, TRAIN, finding, make_audit, place
from tests.renew_golden import TRACE
from tracer.analysis.accept import accept, find_comments
from tracer.analysis.baseline import compare_with_baseline, dump_baseline, parse_baseline
from tracer.analysis.budget import apply_budget, parse_budget
from tracer.auditor import audit as audit_trace
from tracer.auditor.budgets import read_budget
from tracer.commands import main
from tracer.errors import TraceError, UsageError
from tracer.results import Gain, Replay, Step


def check(budget, **changes):
    return apply_budget(make_audit(**changes), parse_budget(budget)).budget


@pytest.mark.parametrize(
    ("budget", "actual", "unit", "ok"),
    [
        ({"gpu_idle": "40%"}, 37.157, "%", True),
        ({"gpu_idle": "20%"}, 37.157, "%", False),
        ({"gpu_idle": {"max": "30%", "tolerance": "25%"}}, 37.157, "%", True),
        ({"host_held": "3ms"}, 3.4 * MS, "ns", False),
        ({"host_held": {"max": "28ms", "per": "total"}}, 27.2 * MS, "ns", True),
        ({"gpu_busy": {"min": "80%"}}, 60.622, "%", False),
        ({"implicit_syncs": 2}, 2.0, "", True),
        ({"syncs": 2}, 3.0, "", False),
        ({"SYNC001": 0}, 1.0, "", False),
        ({"SYNC001": {"count": 0, "per": "total"}}, 8.0, "", False),
        ({"SYNC001": {"held": "4ms"}}, 3.25 * MS, "ns", True),
        ({"sync.item": 1}, 2.0, "", False),
        ({"train.py": {"idle": "1ms"}}, 2.575 * MS, "ns", False),
        ({"train.py:18": 1}, 1.0, "", True),
        ({"app/train.py:17": {"count": 7, "per": "total"}}, 8.0, "", False),
        ({"other.py": 0}, 0.0, "", True),
        ({"launching.max_queue_depth": 100}, 141.0, "", False),
        ({"pace.untraced_ns": "10ms"}, 9.0 * MS, "ns", True),
        ({"findings": 3}, 3.0, "", True),
    ],
)
def test_any_figure_of_the_audit_can_be_limited(budget, actual, unit, ok):
    (line,) = check(budget)

    assert line.actual == pytest.approx(actual, rel=1e-3)
    assert (line.unit, line.ok) == (unit, ok)


def test_a_broken_limit_names_the_dearest_line():
    first, second, third = check({"gpu_idle": "20%", "SYNC004": 0, "wall": "20ms"})

    assert (first.place.line, second.place.line, third.place) == (17, 18, None)


def test_an_accepted_finding_breaks_no_limit():
    (line,) = check({"SYNC001": 0}, sources={"/app/train.py": accepting(17, "# tracer: ok SYNC001 once an epoch")})

    assert (line.ok, line.actual) == (True, 0.0)


def test_common_tolerance_holds_where_none_is_given():
    loose, strict = check({"tolerance": "15%", "host_held": "3ms", "wall": {"max": "11ms", "tolerance": 0}})

    assert (loose.ok, strict.ok) == (True, False)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"gpu_idel": "20%"}, "did you mean gpu_idle"),
        ({"gpu_idle": 20}, "a time (2ms) or a share (20%)"),
        ({"SYNC001": "20%"}, "a number (2)"),
        ({"wall": {"per": "step"}}, "no limit"),
        ({"wall": {"max": "1ms", "per": "epoch"}}, "per: total"),
        ({"wall": {"max": "soon"}}, "no limit"),
        ({"wall": {"maximum": "1ms"}}, "maximum"),
        ({"launching.nonsense": 3}, "no number"),
    ],
)
def test_a_wrong_budget_says_what_to_write(budget, said):
    with pytest.raises(UsageError) as caught:
        check(budget)

    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("budget", "changes", "said"),
    [({"gpu_idle": "20%"}, {"devices": ()}, "no GPU"), ({"SYNC001": 3}, {"steps": ()}, "no steps")],
)
def test_what_the_trace_cannot_tell_is_no_pass(budget, changes, said):
    with pytest.raises(TraceError) as caught:
        check(budget, **changes)

    assert said in str(caught.value)


def test_without_steps_a_limit_of_none_still_holds():
    (line,) = check({"SYNC001": 0}, steps=())

    assert (line.ok, line.actual) == (False, 8.0)


def accepting(number, comment, text=TRAIN):
    lines = text.splitlines()
    lines[number - 1] += "  " + comment
    return "\n".join(lines) + "\n"


def test_a_comment_accepts_with_its_reason_and_an_idle_one_is_listed():
    text = accepting(17, "# tracer: ok SYNC001: logged once an epoch")
    text = accepting(13, "# tracer: ok SYNC009 left over", text)

    audit = accept(make_audit(sources={"/app/train.py": text}))

    assert [f.accepted for f in audit.findings] == ["logged once an epoch", "", "", ""]
    assert [(a.rule, a.place.line, a.used) for a in audit.acceptances] == [
        ("SYNC009", 13, False),
        ("SYNC001", 17, True),
    ]


def test_a_comment_without_a_reason_accepts_nothing():
    audit = accept(make_audit(sources={"/app/train.py": accepting(17, "# tracer: ok SYNC001")}))

    assert [f.accepted for f in audit.findings] == ["", "", "", ""]
    assert [(a.used, a.reason) for a in audit.acceptances] == [(False, "")]


def test_a_comment_holds_for_its_whole_statement_and_alone_for_the_next():
    text = "a = f(\n    x.item(),\n    2,\n)  # tracer: ok SYNC001 cheap\n"
    text += "# tracer: ok SYNC002, SYNC003 slow path\n\nb = 1\n"

    comments = list(find_comments(text))

    assert [(c.first, c.last, c.rules, c.reason) for c in comments] == [
        (1, 4, ("SYNC001",), "cheap"),
        (7, 7, ("SYNC002", "SYNC003"), "slow path"),
    ]


def test_a_string_accepts_nothing_and_a_broken_file_does_no_harm():
    assert list(find_comments('x = "# tracer: ok SYNC001 no"\n')) == []
    assert [c.rules for c in find_comments("x = 1  # tracer: ok SYNC001 yes\ndef f(:\n   '''")] == [("SYNC001",)]


def test_only_what_a_baseline_does_not_know_breaks_the_check():
    before = make_audit(findings=(finding(),))
    moved = finding(place=replace(place(17), line=21))
    fresh = finding(id="SYNC004-1", rule="SYNC004", place=place(18))
    baseline = parse_baseline(dump_baseline(before), "baseline.json")

    same = compare_with_baseline(make_audit(findings=(moved,)), baseline, "baseline.json")
    more = compare_with_baseline(make_audit(findings=(moved, fresh)), baseline, "baseline.json")

    assert [line.ok for line in same.budget] == [True]
    assert [(line.ok, line.actual, line.place.line) for line in more.budget] == [(False, 1.0, 18)]
    assert [f.baseline for f in more.findings] == ["known", "new"]


def test_a_second_finding_like_a_known_one_is_new():
    baseline = parse_baseline(dump_baseline(make_audit(findings=(finding(),))), "b")

    audit = compare_with_baseline(make_audit(findings=(finding(), finding())), baseline)

    assert [f.baseline for f in audit.findings] == ["known", "new"]


def test_what_costs_nothing_or_is_accepted_is_never_new():
    baseline = parse_baseline(dump_baseline(make_audit(findings=())), "b")
    findings = (finding(harmless=True), finding(severity="info"))

    audit = compare_with_baseline(make_audit(findings=findings), baseline)

    assert audit.budget[0].ok


def test_a_file_that_is_no_baseline_says_how_to_write_one():
    with pytest.raises(UsageError) as caught:
        parse_baseline(b"[]", "b.json")

    assert "--write-baseline b.json" in str(caught.value)


BUSY = tuple(Step(k, 0, k * 11 * MS, 10 * MS, int(9.8 * MS), int(0.2 * MS), 9 * MS) for k in range(8))

LIE = finding(
    rule="TIME001",
    kind="bench.no_sync",
    severity="error",
    place=place(15),
    stall_ns=0,
    idle_ns=0,
    gain_ns=None,
    details={"claimed_ns": 742_000.0, "true_ns": 53.4 * MS, "ratio": 72.0},
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            "GPU idle 37 % of the step; removing the wait (item) at train.py:17 would save 1.20 to 2.10 ms of 11.1 ms "
            "(19 %); the largest part of the rest is launch overhead (1.12 ms).",
        ),
        (
            {"findings": tuple(replace(found, gain_ns=None) for found in FINDINGS)},
            "GPU idle 37 % of the step; two waits cost 2.58 ms of 11.2 ms, most of it the one (item) at train.py:17;"
            " the largest part of the rest is launch overhead (1.12 ms).",
        ),
        (
            {"findings": (finding(gain_ns=None),)},
            "GPU idle 37 % of the step; a wait (item) at train.py:17 costs 2.50 ms of 11.2 ms.",
        ),
        (
            {"findings": (finding(), replace(LIE, kind="bench.other_stream"))},
            "GPU idle 37 % of the step; removing the wait (item) at train.py:17 would save 1.20 to 2.10 ms of 11.1 ms "
            "(19 %); a timer at train.py:15 claims 742 us for 53.4 ms of work.",
        ),
        (
            {"steps": BUSY, "findings": (LIE, replace(LIE, details={"ratio": 2.0}))},
            "A timer at train.py:15 claims 742 us for 53.4 ms of work, and 1 more timer is wrong; GPU busy 98 % of",
        ),
        (
            {"findings": (replace(LIE, kind="bench.event_not_ready", title="it raises"),)},
            "A timer at train.py:15 is wrong: it raises; GPU idle 37 % of the step",
        ),
        ({"findings": (replace(LIE, accepted="known"),)}, "GPU idle 37 % of the step."),
        ({"devices": ()}, "No GPU in this trace"),
        (
            {"findings": (replace(FINDINGS[2], idle_ns=33 * MS),)},
            "GPU idle 37 % of the step; mostly launch overhead (4.12 ms).",
        ),
        ({"findings": (FINDINGS[2],)}, "GPU idle 37 % of the step; the largest part is launch overhead (1.12 ms)."),
        ({"steps": ()}, "GPU idle 39 % of the window"),
        (
            # Much of each repetition, but they are a small part of the window.
            {
                "steps": (),
                "findings": (finding(gain_ns=Gain(0, 2 * MS, 0.5, "traced", "", "repetition")),),
                "idle": {"launch.bound": 9 * MS},
                "replay": Replay(4 * MS, 4 * MS, 0.0, "", None, "repetition", 4, "aten::item"),
            },
            "GPU idle 39 % of the window; the largest part is launch overhead (9.00 ms); removing the wait (item) at "
            "train.py:17 would save up to 2.00 ms of 4.00 ms (50 %) in each repetition of aten::item (4 of them).",
        ),
        (
            {"steps": BUSY, "findings": (finding(harmless=True),)},
            "GPU busy 98 % of the step; waits of the host cost no",
        ),
        # The GPU was idle between the steps.
        (
            {"steps": BUSY, "findings": (finding(gain_ns=None),)},
            "GPU idle 2 % of the step; a wait (item) at train.py:17 costs 2.5",
        ),
    ],
)
def test_the_headline_says_idle_then_its_price_then_the_rest(changes, said):
    assert make_audit(**changes).summary.headline.startswith(said)


def test_without_steps_the_thread_that_was_held_most_speaks_for_all():
    threads = [finding(thread=f"worker {n}", stall_ns=(40 + n) * MS) for n in range(4)]
    same = finding(stall_ns=60 * MS, thread="worker 3", rule="SYNC004")

    assert make_audit(steps=(), findings=tuple(threads)).summary.stalled_ns == 43 * MS
    held = make_audit(steps=(), findings=(*threads, same)).summary
    assert (held.stalled_ns, held.stalled_share) == (90 * MS, 1.0)


def test_a_limit_from_below_says_so():
    assert [line.name for line in check({"gpu_busy": {"min": "80%"}, "wall": "20ms"})] == [
        "gpu_busy (minimum)",
        "wall a step",
    ]


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"SYNC777": 0}, "no such rule"),
        ({"SYNC0001": 0}, "no figure"),
        ({"sync.itme": 0}, "did you mean sync.item"),
        ({"gpu.gap": 0}, "no such class"),
    ],
)
def test_a_mistyped_rule_or_class_is_no_limit_that_never_breaks(budget, said):
    with pytest.raises(UsageError) as caught:
        audit_trace(TRACE, source_root=TRACE.parent, budget=budget)

    assert said in str(caught.value)


def test_a_file_that_the_trace_does_not_know_is_said():
    limits = {"nosuch.py": 0, "nosuch.py:3": {"held": "1ms", "per": "total"}, "IS23.py": {"held": "1s", "per": "total"}}

    said = audit_trace(TRACE, source_root=TRACE.parent, budget=limits).limits

    assert [line for line in said if "IS23.py" in line] == []
    assert sum("nosuch.py" in line for line in said) == 2


def gate(*arguments):
    return main(["audit", str(TRACE), "--source-root", str(TRACE.parent), "--quiet", *map(str, arguments)])


def test_the_command_ends_with_1_and_names_the_line_that_broke_the_limit(tmp_path, capsys):
    (tmp_path / "b.yaml").write_text("budget:\n  SYNC001: 0\n  gpu_busy: {min: 1%}\n")

    assert gate("--budget", tmp_path / "b.yaml") == 1
    said = capsys.readouterr().out
    assert "BROKEN SYNC001 count at IS23.py:22 in <module>: 20, limit 0" in said
    assert "gpu_busy" not in said


def test_the_command_says_beside_a_quiet_audit_that_a_file_is_unknown(tmp_path, capsys):
    (tmp_path / "b.yaml").write_text("nosuch.py: 0\n")

    assert gate("--budget", tmp_path / "b.yaml") == 0
    assert "limits nosuch.py" in capsys.readouterr().err


def test_the_command_ends_with_0_if_every_limit_is_kept(tmp_path, capsys):
    (tmp_path / "b.yaml").write_text("SYNC001: {count: 20, per: total}\n")

    assert gate("--budget", tmp_path / "b.yaml") == 0
    assert "BROKEN" not in capsys.readouterr().out


def test_the_command_fails_only_on_what_its_baseline_does_not_know(tmp_path, capsys):
    known, nothing = tmp_path / "known.json", tmp_path / "nothing.json"
    nothing.write_text('{"schema": 1, "findings": []}')

    assert gate("--write-baseline", known) == 0
    assert gate("--baseline", known) == 0
    assert gate("--baseline", nothing) == 1
    assert "at IS23.py:22 in <module>: 1, limit 0" in capsys.readouterr().out.replace("\n", " ")


def test_a_wrong_budget_file_ends_with_2(tmp_path, capsys):
    (tmp_path / "b.yaml").write_text("gpu_idel: 5%\n")

    assert gate("--budget", tmp_path / "b.yaml") == 2
    assert "did you mean gpu_idle" in capsys.readouterr().err


def test_a_wrong_budget_in_a_config_is_an_error_before_anything_runs(tmp_path, capsys):
    (tmp_path / "train.py").write_text("print('ran')\n")
    (tmp_path / "c.yaml").write_text("run:\n  script: train.py\nbudget:\n  gpu_idel: 5%\n")

    assert main(["run", str(tmp_path / "c.yaml")]) == 2
    said = capsys.readouterr()
    assert "did you mean gpu_idle" in said.err
    assert "ran" not in said.out


def test_the_budget_among_the_configs_is_understood():
    text = (Path(__file__).parents[1] / "configs" / "budget.yaml").read_text()

    assert {limit.name for limit in read_budget(yaml.safe_load(text))} >= {"gpu_idle", "host_held"}


def test_the_budget_that_the_reference_config_shows_is_understood():
    lines = (Path(__file__).parents[1] / "configs" / "reference.yaml").read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("budget:")) + 1
    shown = [line.removeprefix("#") for line in itertools.takewhile(lambda line: line.startswith("#  "), lines[begin:])]

    limits = parse_budget(yaml.safe_load("\n".join(shown)))

    assert {limit.name for limit in limits} >= {"gpu_idle", "gpu_busy", "SYNC001", "train.py", "train.py:31"}
