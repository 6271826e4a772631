"""Every rule, reader, report, viewer format and command keeps the contract of its folder."""

from __future__ import annotations

import inspect
import re

import pytest

from tracer.plugins import modules_in
from tracer.rules import Rule

RULES = modules_in("tracer.rules")
KINDS = re.compile(r"(sync|copy|alloc|launch|load|input|host|bench|capture|race|collective|compile|gpu)\.\w+")


def short(module):
    return module.__name__.rpartition(".")[2]


@pytest.mark.parametrize("module", RULES, ids=short)
def test_a_rule_is_a_page(module):
    doc = module.__doc__ or ""

    assert isinstance(module.RULE, Rule)
    assert re.fullmatch(r"[A-Z]+\d{3}", module.RULE.id)
    assert KINDS.fullmatch(module.RULE.kind), module.RULE.kind
    assert module.RULE.severity in ("error", "warning", "info")
    assert len(module.RULE.fix) > 10
    assert "Bad:" in doc
    assert "Good:" in doc
    assert hasattr(module, "find") or hasattr(module, "scan")


def test_rule_ids_are_unique():
    ids = [module.RULE.id for module in RULES]

    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("module", modules_in("tracer.reports"), ids=short)
def test_a_report_format_renders_an_audit(module):
    assert module.SUFFIX.startswith(".")
    assert next(iter(inspect.signature(module.render).parameters)) == "audit"


@pytest.mark.parametrize("module", modules_in("tracer.readers"), ids=short)
def test_a_reader_accepts_and_loads(module):
    if hasattr(module, "load"):
        assert list(inspect.signature(module.accepts).parameters)[:2] == ["path", "head"]


@pytest.mark.parametrize("module", modules_in("tracer.commands"), ids=short)
def test_a_command_has_help_arguments_and_a_status(module):
    first = (module.__doc__ or "").partition("\n")[0]

    assert first.endswith(".")
    assert callable(module.add_arguments)
    assert callable(module.run)
