import importlib
import io
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from tests.audits import EMPTY, MS, finding, make_audit, place
from tracer.reports import terminal
from tracer.results import Acceptance, BudgetLine, Device, Hot, IdleRow, Place, Step, Verdict


def test_the_report_begins_with_the_verdict_and_ends_with_the_limits():
    text = terminal.render(make_audit())

    order = "GPU idle 37 %|Where the time went|Why the GPU was idle|Findings|Waits that cost no throughput|Timers"
    found = [text.index(piece) for piece in f"{order}|Hottest kernels|Limits of this trace".split("|")]
    assert found == sorted(found)


def test_a_finding_shows_line_range_cost_gain_and_fix():
    text = terminal.render(make_audit(findings=(finding(),)), width=120)

    for piece in (
        "1. SYNC001 a tensor is read with .item()",
        "saves 1.20 to 2.10 ms a step (19 % of the untraced step); the next limit is the GPU",
        "/app/train.py:17 in train, on MainThread",
        "17 |         total += loss.item()",
        "8 calls, host held 26.0 ms, GPU idle 20.0 ms, lead lost 30.0 ms",
        "fix: keep the value on the GPU",
    ):
        assert piece in text


def test_the_marks_stand_below_the_call():
    lines = terminal.render(make_audit(findings=(finding(),))).splitlines()

    at = next(k for k, line in enumerate(lines) if "total += loss.item()" in line)
    code, marks = lines[at], lines[at + 1]
    assert code[marks.index("~") : len(marks)] == "loss.item()"


@pytest.mark.parametrize(
    ("line", "call"),
    [("\tx = loss.item()", "loss.item()"), ("é = '漢字', y.item()", "y.item()"), ("a\t= f(b)", "f(b)")],
)
def test_the_marks_stand_below_the_call_after_tabs_and_wide_letters(line, call):
    first = line.index(call) + 1
    spot = Place("/a.py", 3, "f", (first, first + len(call)), "ledger", True, line)

    lines = terminal.render(make_audit(findings=(finding(place=spot),), sources={})).splitlines()

    at = next(k for k, text in enumerate(lines) if text.endswith(call) and " | " in text)
    start = cell_len(lines[at][: lines[at].index(call)])
    assert lines[at + 1] == " " * start + "~" * len(call)


def test_every_figure_of_a_kernel_is_shown_however_long_its_name():
    kernels = (Hot("k" * 900, 2000, 71_386_807, 1.0, 0.92), Hot("short", 1, 5, 5.0, 0.0001))

    text = terminal.render(make_audit(kernels=kernels), width=80)

    assert re.search(r"71\.4 ms  92 %  2,000 x  k+…\n  5 ns     <1 %  1 x      short\n", text)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width):
    text = terminal.render(make_audit(), width=width)

    assert max(map(len, text.splitlines())) <= width


def test_text_for_a_pipe_has_no_escapes_and_colour_has():
    assert "\x1b" not in terminal.render(make_audit())
    assert "\x1b[" in terminal.render(make_audit(), colour=True)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize(("no_color", "escapes"), [("", True), ("1", False)])
def test_a_terminal_gets_colour_unless_no_color_is_set(monkeypatch, no_color, escapes):
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("NO_COLOR", no_color)

    terminal.show(make_audit())

    assert ("\x1b[" in out.getvalue()) is escapes


def test_stdout_that_knows_only_ascii_gets_ascii(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", out)

    terminal.show(make_audit(findings=(finding(place=place(17, file="/app/é.py")),)))

    out.flush()
    assert b"#####" in out.buffer.getvalue()


def test_top_limits_the_findings_and_says_how_many_there_are():
    text = terminal.render(make_audit(), top=1)

    assert "SYNC004 Python branches" not in text
    assert "3 findings in all; --top 0 shows them" in text


def test_quiet_is_the_verdict_and_the_broken_limits():
    lines = (BudgetLine("gpu_idle", 20.0, 37.1, "%", False, place(17)), BudgetLine("wall a step", 1e9, 1e7, "ns", True))

    text = terminal.render(replace(make_audit(), budget=lines), quiet=True)

    assert text.splitlines()[-1] == "BROKEN gpu_idle at /app/train.py:17 in train: 37.1 %, limit 20.0 %"
    assert "kept" not in text
    assert "Findings" not in text


def test_accepted_findings_and_idle_acceptances_are_shown():
    audit = replace(
        make_audit(findings=(finding(accepted="once an epoch"),)),
        acceptances=(Acceptance("SYNC009", "old", place(13), False), Acceptance("SYNC010", "", place(14), False)),
    )

    text = terminal.render(audit, width=200)

    assert re.search(r"Accepted in the source\n  SYNC001 a tensor is read with .item\(\), .* - once an epoch", text)
    assert "13 in train: `# tracer: ok SYNC009` accepts nothing here: remove it" in text
    assert "`# tracer: ok SYNC010` gives no reason" in text


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u2028x\rY\ud800[red]{0}"


def test_a_hostile_trace_cannot_steer_the_terminal():
    evil = Place(f"/{HOSTILE}.py", 3, HOSTILE, (1, 4), "ledger", True, HOSTILE)
    audit = make_audit(
        source=HOSTILE,
        findings=(finding(place=evil, thread=HOSTILE, title=HOSTILE, fix=HOSTILE, notes=(HOSTILE,)),),
        limits=(HOSTILE,),
        idle={HOSTILE: 5},
    )

    text = terminal.render(audit, width=200)

    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028\ud800-\udfff]", text)
    assert r"\x1b]0;owned\x07" in text
    assert "[red]{0}" in text


def test_an_empty_trace_still_has_a_report():
    assert "without GPU work nothing can be judged" in terminal.render(EMPTY)
    assert "host held" not in terminal.render(EMPTY)


def test_a_job_of_several_ranks_names_them():
    steps = (Step(3, 0, 0, 9, 5, 4, 1), Step(3, 1, 0, 9, 5, 4, 1))

    text = terminal.render(make_audit(steps=steps, findings=(finding(rank=1),)))

    assert re.search("step 3, rank 0 .*\n  step 3, rank 1 ", text)
    assert "on MainThread of rank 1" in text
    assert "of rank" not in terminal.render(make_audit())


def test_without_a_gpu_the_steps_are_shown_and_nothing_is_said_twice():
    text = terminal.render(make_audit(devices=(), verdicts=(Verdict("no_gpu", "there is no GPU work"),)))

    assert "step 5  ████████████████████████████  13.0 ms  held 3.40 ms" in text
    assert "there is no GPU work" not in text
    assert "idle" not in text.partition("Why the GPU")[0]


@pytest.mark.parametrize("name", ["terminal", "markdown", "html"])
def test_of_several_gpus_each_row_of_idle_time_says_which(name):
    rows = [IdleRow("launch.bound", "IDLE002", 9 * MS, 3, 0.5, None, device, 0) for device in (0, 1)]
    devices = [Device(device, 0, "H200", 55 * MS, 35 * MS, 90 * MS, 5, 1) for device in (0, 1)]
    render = importlib.import_module(f"tracer.reports.{name}").render

    both = render(make_audit(devices=tuple(devices), idle_rows=tuple(rows)))
    assert all(re.search(rf"launch\.bound \(GPU {device}\)", both) for device in (0, 1))
    ranks = render(make_audit(devices=(devices[0], replace(devices[0], rank=1)), idle_rows=(replace(rows[0], rank=1),)))
    assert "launch.bound (rank 1 GPU 0)" in ranks
    assert "launch.bound (" not in render(make_audit(devices=(devices[0],), idle_rows=(rows[0],)))


@pytest.mark.parametrize("name", ["terminal", "markdown"])
def test_the_idle_table_sums_however_many_rows_there_are(name):
    rows = tuple(IdleRow("launch.bound", "IDLE002", MS, 3, 0.05, place(n % 18 + 1), 0, 0) for n in range(20))
    text = importlib.import_module(f"tracer.reports.{name}").render(make_audit(idle_rows=rows))

    assert len(re.findall(r"1\.00 ms .*launch\.bound|launch\.bound.* 1\.00 ms", text)) == 8
    assert re.search(r"others \(12 rows\)", text.replace("\\", ""))
    assert "12.0 ms" in text


def test_a_harmless_wait_has_its_title():
    text = terminal.render(make_audit(), width=200)

    assert "SYNC011 the host waits for an event, /app/train.py:13 in train: 8 calls, host held 5.00 ms" in text


@pytest.mark.parametrize("name", ["terminal", "markdown", "html"])
@pytest.mark.parametrize(
    ("verdict", "ratio", "said"),
    [
        ("bench.no_sync", 15.3, "400 us, 15 times too fast"),
        ("bench.no_sync", 2.61, "400 us, 2.6 times too fast"),
        ("bench.dirty_start", 0.4, "400 us, 2.5 times too slow"),
        ("bench.event_not_ready", 0.0, "raises"),
    ],
)
def test_a_timer_says_by_what_factor_it_is_wrong_or_that_it_raises(name, verdict, ratio, said):
    timer = replace(make_audit().timers[0], verdict=verdict, ratio=ratio)
    text = " ".join(importlib.import_module(f"tracer.reports.{name}").render(make_audit(timers=(timer,))).split())

    assert said in text
    assert ("400 us" in text) is (said != "raises")


def test_a_gain_whose_bounds_read_alike_is_one_value():
    same = replace(finding().gain_ns, low_ns=2_670_000, likely_ns=2_671_000)
    none = replace(same, low_ns=0, of="repetition")

    assert "saves 2.67 ms a step (19 %" in terminal.render(make_audit(findings=(finding(gain_ns=same),)), width=200)
    assert "saves up to 2.67 ms a rep" in terminal.render(make_audit(findings=(finding(gain_ns=none),)), width=200)
