import json
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType

import jsonschema
import pytest

import tracer.reports
from tests.audits import finding, make_audit, place
from tracer.errors import TraceError
from tracer.reports import json as report
from tracer.results import SCHEMA, Audit

PUBLISHED = Path(tracer.reports.__file__).with_name("audit.schema.json")


def test_the_keys_are_the_fields_of_an_audit():
    found = json.loads(report.render(make_audit()))

    assert list(found) == [field.name for field in fields(Audit)]
    assert found["schema"] == SCHEMA
    assert found["findings"][0]["place"]["columns"] == [18, 29]
    assert found["findings"][1]["gain_ns"] is None


def test_it_reads_back_as_the_same_audit():
    audit = make_audit()

    assert report.parse(report.render(audit)) == audit


def test_the_published_schema_is_the_real_one_and_accepts_what_is_written():
    published = json.loads(PUBLISHED.read_text())

    assert published == json.loads(json.dumps(report.schema())), "renew it: python tests/renew_golden.py"
    jsonschema.Draft202012Validator(published).validate(json.loads(report.render(make_audit())))


def test_the_schema_refuses_a_finding_without_a_rule():
    found = json.loads(report.render(make_audit()))
    del found["findings"][0]["rule"]

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_text())).validate(found)


def test_odd_text_and_read_only_mappings_are_written():
    odd = replace(make_audit(), meta=MappingProxyType({"a\ud800": "\x00\ud800"}))
    odd = replace(odd, findings=(finding(place=place(17, file="/a\udcff.py")),))

    found = json.loads(report.render(odd))

    assert found["meta"] == {"a\\ud800": "\x00\\ud800"}
    assert found["findings"][0]["place"]["file"] == "/a\\udcff.py"


@pytest.mark.parametrize("data", [b"", b"[]", b'{"schema": 1}', b"\xff"])
def test_what_is_no_audit_says_so(data):
    with pytest.raises(TraceError) as caught:
        report.parse(data, "x.json")

    assert "x.json is not an audit" in str(caught.value)
