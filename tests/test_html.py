import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.audits import EMPTY, FINDINGS, TRAIN, finding, make_audit, picture, place
from tracer.reports import html
from tracer.results import Acceptance, BudgetLine, Diff, Hot, LineCost, Place, Verdict


class Page(HTMLParser):
    """What a test wants to know of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.handlers, self.words = Counter(), [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        found = dict(attrs)
        if "id" in found:
            self.ids.append(found["id"])
        if "href" in found:
            self.links.append(found["href"])
        self.handlers += [name for name in found if name.startswith("on")]

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def page_of(audit):
    return Page(html.render(audit))


@pytest.mark.parametrize("audit", [make_audit(), EMPTY], ids=["full", "empty"])
def test_every_id_is_unique_and_every_link_leads_to_one(audit):
    page = page_of(audit)

    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    assert [link for link in page.links if link[0] != "#" or link[1:] not in page.ids] == []


def test_nothing_is_loaded_from_elsewhere_and_there_is_no_script():
    text = html.render(make_audit())

    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|src=", text)
    assert "default-src 'none'" in text


def test_every_line_of_the_users_files_stands_beside_its_cost():
    text = html.render(make_audit())

    rows = re.findall(r'<tr id="source-0-(\d+)"[^>]*>(.*?)</tr>', text)
    assert [int(number) for number, _ in rows] == list(range(1, len(TRAIN.splitlines()) + 1))
    cells = re.findall("<td[^>]*>(.*?)</td>", rows[16][1])
    assert cells == ["17", "8", "26.0 ms", "20.0 ms", "        total += loss.item()"]


def test_the_dearest_line_is_the_hottest_and_dear_files_come_first():
    text = html.render(make_audit(sources={"/app/a.py": "x\n", "/app/train.py": TRAIN}))

    assert re.search(r'<tr id="source-0-17" class="heat-5"', text)
    assert re.findall(r'<details( open)?><summary class="file">(\S+)</summary>', text) == [
        (" open", "/app/train.py"),
        ("", "/app/a.py"),
    ]


def test_a_finding_marks_the_call_in_its_line():
    assert "total += <mark>loss.item()</mark>" in html.render(make_audit())


def test_a_stall_in_the_picture_leads_to_its_finding():
    text = html.render(make_audit())

    assert re.search(r'<a href="#SYNC001-3fa2c1" aria-label="[^"]*">\s*<rect class="stall"', text)
    assert len(re.findall('<rect class="busy"', text)) == 9 + 9 + 8


def test_budget_acceptances_and_new_findings_are_shown():
    audit = replace(
        make_audit(findings=(finding(baseline="new"), finding(id="x", accepted="once an epoch"))),
        budget=(BudgetLine("gpu_idle", 20.0, 37.1, "%", False, place(17)),),
        acceptances=(Acceptance("SYNC009", "old", place(13), False),),
    )

    text = page_of(audit).text

    for piece in ("gpu_idle at /app/train.py:17 in train: 37.1 %, limit 20.0 %", "broken", " new ", "once an epoch",
                  "accepts nothing here"):  # fmt: skip
        assert piece in text


EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}</style></svg>\x1b[31m\ud800"


def hostile():
    """An Audit with hostile text wherever a trace or a program can put some."""
    spot = Place(EVIL, 1, EVIL, (1, 9), "ledger", True, EVIL)
    found = finding(title=EVIL, place=spot, library_place=spot, thread=EVIL, message=EVIL, fix=EVIL, notes=(EVIL,),
                    callers=(spot,))  # fmt: skip
    return replace(
        make_audit(
            source=EVIL,
            findings=(found, replace(FINDINGS[3], place=spot, title=EVIL), replace(found, id="b", accepted=EVIL)),
            idle={EVIL: 5},
            lines=(LineCost(EVIL, 1, 1, 5, 5),),
            sources={EVIL: EVIL},
            kernels=(Hot(EVIL, 1, 1, 1.0, 1.0),),
            pictures=(replace(picture(EVIL, 1, 0, 100), stalls=((1, 2, EVIL, False),)),),
            verdicts=(Verdict("x", EVIL),),
            limits=(EVIL,),
            meta={EVIL: EVIL},
        ),
        budget=(BudgetLine(EVIL, 1, 2, "", False, spot),),
        acceptances=(Acceptance(EVIL, EVIL, spot, False),),
    )


def test_hostile_text_is_shown_and_never_markup():
    text = html.render(hostile())
    page = Page(text)

    assert (page.tags["script"], page.tags["img"], page.handlers) == (0, 0, [])
    assert page.text.count("alert(1)") > 20
    assert "{{7*7}}" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text)


def test_a_diffs_page_escapes_too():
    diff = Diff(1, EVIL, EVIL, (), (), (), False, EVIL)

    page = Page(html.render_diff(diff))

    assert (page.tags["script"], page.tags["img"]) == (0, 0)


def test_without_a_gpu_no_busy_or_idle_time_is_drawn():
    text = html.render(make_audit(devices=(), pictures=()))

    assert "GPU busy" not in Page(text).text
    assert 'class="idle"' not in text.partition("<body>")[2]


def test_the_environment_of_the_recording_is_not_shown():
    meta = {"env": '{"LANG": "C", "HOME": "/home/me"}', "host": "node1", "versions": '{"torch": "2.11.0+cu130"}'}

    text = page_of(make_audit(meta=meta)).text

    assert "recorded on node1, torch 2.11.0+cu130" in text
    assert "/home/me" not in text


def test_without_gpu_work_the_page_says_that_nothing_can_be_judged():
    page = html.render(EMPTY)

    assert "without it nothing can be judged" in page
    assert "Nothing that costs throughput" not in page
    assert "waiting calls" not in page
    assert "waiting calls" in html.render(make_audit())
