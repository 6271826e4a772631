"""The HTML report in a real browser: both themes, a phone, paper, the keyboard, and a hostile trace."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.audits import make_audit
from tests.test_html import hostile
from tracer.reports import html

CHECK = Path(__file__).with_name("html_check.mjs")


def look(audit, folder):
    """What headless Chromium finds on the page of an audit."""
    page = folder / "report.html"
    page.write_text(html.render(audit), encoding="utf-8")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
    done = subprocess.run(
        ["node", CHECK, chromium, page, folder], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return look(make_audit(), tmp_path_factory.mktemp("seen"))


def test_axe_finds_no_barrier_in_either_theme(seen):
    assert seen["violations"] == {"light": [], "dark": []}


def test_the_page_follows_the_theme_and_paper_is_always_white(seen):
    assert seen["paper"] == {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 19, 24)"}
    assert seen["print_paper"] == "rgb(255, 255, 255)"
    assert seen["pdf_bytes"] > 20_000


def test_it_fits_a_phone(seen):
    assert seen["overflow"] == {"1200": 0, "360": 0}


def test_it_reads_without_script_and_loads_nothing_but_itself(seen):
    assert seen["elements"]["script"] == 0
    assert {url.rpartition("/")[2] for url in seen["requests"]} == {"report.html"}
    assert seen["messages"] == []
    assert "total += loss.item()" in seen["text"]


def test_the_keyboard_reaches_the_report_and_a_stall_leads_to_its_finding(seen):
    assert seen["first_focus"] == "Skip to the report"
    assert "SYNC001 a tensor is read with .item()" in seen["target"]


def test_a_hostile_trace_runs_no_script(tmp_path):
    found = look(hostile(), tmp_path)

    assert found["messages"] == []
    assert {url.rpartition("/")[2] for url in found["requests"]} == {"report.html"}
    assert {name: found["elements"][name] for name in ("script", "img", "iframe")} == {
        "script": 0,
        "img": 0,
        "iframe": 0,
    }
    assert "alert(1)" in found["text"]
