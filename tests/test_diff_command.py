import json

import pytest

from tests.audits import MS, make_audit
from tests.test_compare import STEADY, measured, stepped
from tracer.commands import main
from tracer.plugins import names_in
from tracer.reports import json as json_report
from tracer.results import Benchmark


@pytest.fixture
def audits(tmp_path):
    """Writes audits as the JSON files a.json, b.json, ...; their paths."""

    def write(*made):
        paths = []
        for name, audit in zip("abc", made, strict=False):
            path = tmp_path / f"{name}.json"
            path.write_text(json_report.render(audit), encoding="utf-8")
            paths.append(str(path))
        return paths

    return write


@pytest.mark.parametrize("format_name", names_in("tracer.reports"))
def test_every_format_shows_a_regression_and_ends_with_1(audits, capsys, format_name):
    before, after = audits(stepped(STEADY), stepped([wall + 2 for wall in STEADY]))

    status = main(["diff", before, after, "--format", format_name])

    assert status == 1
    assert "from 10.0 ms to 12.0 ms" in capsys.readouterr().out.replace("\n", " ")


def test_the_same_audit_ends_with_0(audits, capsys):
    before, after = audits(make_audit(), make_audit())

    assert main(["diff", before, after]) == 0
    assert "as long as before" in capsys.readouterr().out


def test_the_threshold_decides(audits, capsys):
    before, after = audits(stepped(STEADY), stepped([wall + 0.4 for wall in STEADY]))

    assert main(["diff", before, after, "--threshold", "2%", "--quiet"]) == 1
    assert main(["diff", before, after, "--threshold", "0.1"]) == 0
    capsys.readouterr()


def test_a_file_gets_the_report(audits, tmp_path):
    before, after = audits(make_audit(), make_audit(window_ns=1))

    main(["diff", before, after, "--format", "json", "-o", str(tmp_path / "d.json")])

    assert json.loads((tmp_path / "d.json").read_text())["before"].startswith("traces/quickstart")


def test_two_benchmarks_are_compared(tmp_path, capsys):
    for name, median in (("a", 100 * MS), ("b", 130 * MS)):
        result = Benchmark(1, "H200", (measured("add", median, median * 0.99, median * 1.01),))
        (tmp_path / f"{name}.json").write_text(json_report.render_benchmark(result))

    status = main(["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")])

    assert status == 1
    assert "add (+30.0 %)" in capsys.readouterr().out


def test_a_benchmark_and_an_audit_are_not_compared(tmp_path, audits, capsys):
    (audit,) = audits(make_audit())
    (tmp_path / "bench.json").write_text(json_report.render_benchmark(Benchmark(1, "H200", ())))

    assert main(["diff", audit, str(tmp_path / "bench.json")]) == 2
    assert "different kinds" in capsys.readouterr().err


def test_a_threshold_without_its_percent_sign_is_not_taken_for_a_multiple(audits, capsys):
    before, after = audits(stepped(STEADY), stepped(STEADY))

    assert main(["diff", before, after, "--threshold", "5"]) == 2
    assert "write 5%" in capsys.readouterr().err
    assert main(["diff", before, after, "--threshold", "150%"]) == 0
    assert main(["diff", before, after, "--threshold", "nan"]) == 2


def test_a_wrong_threshold_is_an_error_of_usage(audits, capsys):
    before, after = audits(make_audit(), make_audit())

    assert main(["diff", before, after, "--threshold", "much"]) == 2
    assert "5% or 0.05" in capsys.readouterr().err


def test_an_audit_of_another_version_is_refused(tmp_path, audits, capsys):
    (audit,) = audits(make_audit())
    other = tmp_path / "other.json"
    other.write_text(json_report.render(make_audit(schema=99)))

    assert main(["diff", audit, str(other)]) == 3
    assert "schema version 99" in capsys.readouterr().err
