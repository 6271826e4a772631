"""Every format, from one recording of a real H200; `python tests/renew_golden.py` writes the files anew."""

import html
import json
import re
from importlib import import_module

import pytest

from tests.audits import make_audit
from tests.renew_golden import GOLDEN, golden_audit, reports
from tracer.plugins import names_in
from tracer.units import show_bytes, show_ns

FORMATS = names_in("tracer.reports")
SUFFIXES = [import_module(f"tracer.reports.{name}").SUFFIX for name in FORMATS]
NUMBER = re.compile(
    r"(?<![\w.:-])([\d][\d,.]*\d|\d)(\s?(?:ns|us|ms|s|%|KiB|MiB|GiB|B|times|calls?|waits?|steps?|gaps?|launches|x)(?![\w]))"
)


@pytest.mark.parametrize("name", [f"{kind}{suffix}" for suffix in SUFFIXES for kind in ("audit", "diff")])
def test_each_format_is_as_it_was(name):
    assert reports()[name] == (GOLDEN / name).read_text(encoding="utf-8"), (
        "look at it, then: python tests/renew_golden.py"
    )


def test_the_recording_shows_what_the_program_does():
    (found,) = [f for f in golden_audit().findings if f.rule == "SYNC001"]

    assert (found.place.file, found.place.line, found.count) == ("IS23.py", 22, 20)
    assert found.place.excerpt[slice(*(c - 1 for c in found.place.columns))] == "float(h[0, 0])"


def test_there_is_no_golden_file_without_a_format():
    known = {f"{kind}{suffix}" for suffix in SUFFIXES for kind in ("audit", "diff")}

    assert {path.name for path in GOLDEN.glob("audit.*")} | {path.name for path in GOLDEN.glob("diff.*")} == known


def values_of(audit):
    """Every number in an audit, and every text."""
    tree = json.loads(import_module("tracer.reports.json").render(audit))
    numbers, texts, left = set(), [], [tree]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            left += [*item.values(), *item]
        elif isinstance(item, list):
            numbers.add(len(item))
            left += item
        elif isinstance(item, str):
            texts.append(item)
        elif isinstance(item, int | float):
            numbers.add(item)
    return numbers, texts


def tokens(text):
    return {"".join(found).replace(" ", "") for found in NUMBER.findall(text)}


def visible(name, text):
    """What a reader sees; scales of pictures are no figures."""
    if name != "html":
        return text
    text = re.sub(r"<style>.*?</style>", "", text, flags=re.S)
    text = re.sub(r'<text class="tick"[^>]*>.*?</text>', "", text)
    return html.unescape(re.sub(r"<[^>]+>", " ", text))


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "json"])
@pytest.mark.parametrize("make", [make_audit, golden_audit], ids=["made", "recorded"])
def test_no_format_computes_a_number_of_its_own(name, make):
    audit = make()
    numbers, texts = values_of(audit)
    shown = {f"{value:.0f}%" for value in (100 * n for n in numbers)} | {"1%"}  # of "<1 %"
    shown |= {f"{n:.1f}%" for n in numbers}
    for n in numbers:
        units = ("", "times", "call", "calls", "wait", "waits", "step", "steps", "gap", "gaps", "launches", "x")
        shown |= {f"{word}{unit}" for word in (f"{n:,.0f}", f"{n:,.1f}", f"{n:,.2f}") for unit in units}
        shown |= {show_ns(n).replace(" ", ""), show_bytes(n).replace(" ", ""), show_ns(n).split(" ")[0]}
    for text in texts:
        shown |= tokens(text)

    seen = tokens(visible(name, import_module(f"tracer.reports.{name}").render(audit)))

    assert seen
    assert seen - shown == set()
