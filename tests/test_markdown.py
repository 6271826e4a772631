import re
from dataclasses import replace

from markdown_it import MarkdownIt

from tests.audits import finding, make_audit
from tracer.reports import markdown
from tracer.results import BudgetLine, Change, Diff, FindingChange, Place


def test_the_page_has_the_headline_the_findings_and_the_folded_code():
    text = markdown.render(make_audit())

    assert text.startswith("# tracer audit\n\n**GPU idle 37 % of the step; removing the wait")
    assert "| **SYNC001** a tensor is read with .item() | `/app/train.py:17 in train` | 8 | 26.0 ms | 20.0 ms |" in text
    assert "```python\n17          total += loss.item()\n```" in text


def test_every_row_of_a_table_has_as_many_cells_as_its_head():
    evil = Place("/a|b`c.py", 3, "f|g", None, "ledger", True, "x|y")
    text = markdown.render(make_audit(findings=(finding(place=evil, title="a | b"),)))

    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert tables
    for table in tables:
        cells = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(cells) == 1, table


def test_a_broken_limit_is_bold():
    text = markdown.render(replace(make_audit(), budget=(BudgetLine("gpu_idle", 20.0, 37.1, "%", False),)))

    assert "| **broken** | gpu\\_idle: 37.1 %, limit 20.0 % |" in text


def test_text_out_of_a_trace_is_no_markup():
    evil = "<script>alert(1)</script> @everyone [x](http://e) ![i](j) **b** `c` \x1b[31m"
    fences = Place("/a.py", 3, evil, None, "ledger", True, "x = '''```\n````'''")

    text = markdown.render(
        make_audit(findings=(finding(place=fences, title=evil, fix=evil, notes=(evil,)),), source=evil)
    )

    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    assert not re.search("<(script|a |img|strong>b)", page)
    assert "3  x = " in page
    assert not re.search(r"@\w", re.sub("<code>.*?</code>", "", page))
    assert "\x1b" not in text


def test_a_diff_escapes_too():
    evil = "<script>x</script>|"
    figures = (Change(evil, 1.0, 2.0, "ns", True, "worse"),)
    diff = Diff(1, evil, evil, figures, (FindingChange("new", None, finding(rule=evil)),), (), True, evil)

    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown.render_diff(diff))

    assert "<script" not in page
    assert page.count("<td>") == 9
