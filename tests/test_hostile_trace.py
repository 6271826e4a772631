"""A trace whose names were made to harm: no report of it steers a terminal, runs a script or forges a command."""

import json
import re

import pytest

from tests.test_html import Page
from tracer.commands import main
from tracer.plugins import names_in

EVIL = "\x1b]0;owned\x07\x1b[2J</script><script>alert(1)</script><img src=x onerror=alert(2)>\n::error::x\u202e|`"


def event(category, name, start, duration, thread, **args):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": duration,
        "args": args,
    }


@pytest.fixture
def trace(tmp_path):
    """A host that launches, waits and is held, on a GPU, with that text in every name."""
    events = [{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": EVIL}}]
    for step in range(3):
        at = step * 1000
        events += [
            event("user_annotation", f"ProfilerStep#{step}", at, 1000, 1),
            event("cpu_op", EVIL, at + 1, 20, 1),
            event("cuda_runtime", "cudaLaunchKernel", at + 2, 5, 1, correlation=step * 2 + 1),
            event("kernel", EVIL, at + 20, 600, 7, correlation=step * 2 + 1, device=0, stream=7),
            event("cpu_op", "aten::item", at + 30, 620, 1),
            event("cuda_runtime", "cudaStreamSynchronize", at + 40, 590, 1, correlation=step * 2 + 2),
            event("python_function", f"{EVIL}.py(3): {EVIL}", at, 990, 1, **{"Python id": step, "Python module id": 0}),
        ]
    properties = [{"id": 0, "name": EVIL}]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "deviceProperties": properties, "schemaVersion": 1}))
    return path


@pytest.mark.parametrize("name", names_in("tracer.reports"))
def test_no_report_lets_the_trace_act(trace, capsys, name):
    assert main(["audit", str(trace), "--format", name]) == 0

    text = capsys.readouterr().out
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "alert(1)" in text
    if name == "json":
        assert any(EVIL in operator["name"] for operator in json.loads(text)["kernels"])
    if name == "html":
        page = Page(text)
        assert (page.tags["script"], page.tags["img"], page.handlers) == (0, 0, [])
    if name == "github":
        assert all(re.match("::(error|warning|notice) ", line) for line in text.splitlines())
