import io
import json
import sys

import pytest

from tests.shared import CASES, H200
from tracer.analysis.idle import CAUSES
from tracer.commands import main
from tracer.reports.json import parse

IS23 = str(H200 / "IS23.json.gz")
SOURCES = str(CASES / "inputs")


def test_the_terminal_names_line_cost_and_fix(capsys):
    status = main(["audit", IS23, "--source-root", SOURCES])

    out = capsys.readouterr().out
    assert status == 0
    assert "IS23.py:22" in out
    assert "v = float(h[0, 0])" in out


def test_json_is_the_audit(capsys):
    assert main(["audit", IS23, "--format", "json"]) == 0

    audit = parse(capsys.readouterr().out.encode())
    assert [f.place.line for f in audit.findings if f.kind == "sync.item"] == [22]


@pytest.mark.parametrize("name", ["json", "markdown", "sarif", "html", "terminal"])
def test_any_format_goes_to_a_file(tmp_path, capsys, name):
    target = tmp_path / "out.txt"

    assert main(["audit", IS23, "--format", name, "-o", str(target)]) == 0

    assert target.stat().st_size > 500
    assert capsys.readouterr().out == ""


def test_a_broken_budget_is_status_1(tmp_path, capsys):
    budget = tmp_path / "budget.yaml"
    budget.write_text("SYNC001: {max: 5, per: total}\n")

    assert main(["audit", IS23, "--budget", str(budget), "--quiet"]) == 1
    assert "SYNC001" in capsys.readouterr().out

    budget.write_text("budget:\n  SYNC001: {max: 500, per: total}\n")
    assert main(["audit", IS23, "--budget", str(budget), "--quiet"]) == 0


def test_a_baseline_tells_new_findings_from_known_ones(tmp_path, capsys):
    baseline = tmp_path / "base.json"
    assert main(["audit", IS23, "--write-baseline", str(baseline), "--quiet"]) == 0
    capsys.readouterr()

    assert main(["audit", IS23, "--baseline", str(baseline), "--format", "json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert {f["baseline"] for f in told["findings"] if f["kind"] == "sync.item"} == {"known"}


def test_a_trace_comes_through_standard_input(capsys, monkeypatch):
    class Stdin:
        buffer = io.BytesIO((CASES / "inputs" / "TR10.json").read_bytes())

    monkeypatch.setattr(sys, "stdin", Stdin())

    assert main(["audit", "-", "--format", "json"]) == 0
    assert [f["kind"] for f in json.loads(capsys.readouterr().out)["findings"]] == ["sync.item"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["no/such.json"], 3, "does not exist"),
        (["no/such.json"], 3, "fix: "),
        ([IS23, "--format", "xml"], 2, "there is no format 'xml'"),
        ([IS23, "--budget", "no/such.yaml"], 2, "cannot be read"),
        ([IS23, "--format", "json", "-o", "no/such/folder/out.json"], 2, "cannot be written"),
    ],
)
def test_errors_say_what_and_how_to_go_on(capsys, arguments, status, said):
    assert main(["audit", *arguments]) == status

    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_explain_prints_a_rules_page(capsys):
    assert main(["explain", "sync006"]) == 0

    out = capsys.readouterr().out
    assert out.startswith("SYNC006  a boolean mask selects elements")
    assert "Bad:" in out
    assert "Good:" in out


def test_explain_knows_a_near_miss(capsys):
    assert main(["explain", "sync6"]) == 0
    assert capsys.readouterr().out.startswith("SYNC006")
    assert main(["explain", "SYNK006"]) == 2
    assert "did you mean SYNC006" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("input.bound", "IDLE002  the GPU waits"),
        ("sync.item", "SYNC001  "),
        ("host.late", "IDLE005"),
        ("head", "before the first GPU work"),
        ("tail", "after the last GPU work"),
        ("gpu.gap", "own short gaps"),
    ],
)
def test_explain_takes_the_class_words_of_the_reports(capsys, word, said):
    assert main(["explain", word]) == 0

    out = capsys.readouterr().out
    assert out.startswith(f"{word}  ")
    assert said in out


def test_every_cause_of_idle_time_is_explained(capsys):
    for cause in CAUSES:
        assert main(["explain", cause]) == 0
    assert main(["explain", "input.bund"]) == 2
    assert "did you mean input.bound" in capsys.readouterr().err


def test_the_table_in_the_rules_folder_is_the_commands(capsys):
    from pathlib import Path

    import tracer.rules

    assert main(["explain", "--table"]) == 0

    table = capsys.readouterr().out.strip()
    page = (Path(tracer.rules.__file__).parent / "README.md").read_text(encoding="utf-8")
    assert table in page
