"""Write the golden reports and the published schema anew: `python tests/renew_golden.py`. Then read the diff.

The recording is one H200 running tests/data/golden/IS23.py: a value is read each step, and
the CPU work after it starves the GPU.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import yaml

GOLDEN = Path(__file__).with_name("data") / "golden"
TRACE = GOLDEN / "IS23.json.zst"
sys.path[:0] = [str(GOLDEN.parents[2])]

from tracer.analysis.compare import compare  # noqa: E402
from tracer.analysis.paths import below  # noqa: E402
from tracer.auditor import audit  # noqa: E402
from tracer.plugins import names_in  # noqa: E402
from tracer.reports import json as json_report  # noqa: E402
from tracer.results import Audit  # noqa: E402

SCHEMA = Path(json_report.__file__).with_name("audit.schema.json")


@cache
def golden_audit() -> Audit:
    """The audit of the recording, with the program's text."""
    budget = yaml.safe_load((GOLDEN / "budget.yaml").read_text())
    found = audit(TRACE, source=TRACE.name, source_root=GOLDEN, budget=budget)
    return below(found, str(GOLDEN), ["IS23.py"])


def reports() -> dict[str, str]:
    """Every format's file name and text, of the audit and of its comparison with itself without its findings."""
    found = golden_audit()
    made = {}
    for name in names_in("tracer.reports"):
        report = import_module(f"tracer.reports.{name}")
        made[f"audit{report.SUFFIX}"] = report.render(found)
        made[f"diff{report.SUFFIX}"] = report.render_diff(compare(golden_without_findings(), found))
    return made


def golden_without_findings() -> Audit:
    """The same audit as if nothing had been found, to have something to compare with."""
    from dataclasses import replace

    return replace(golden_audit(), findings=(), source="before")


def main() -> None:
    """Write all files."""
    for name, text in reports().items():
        (GOLDEN / name).write_text(text, encoding="utf-8")
        print(f"{len(text):8} {GOLDEN.name}/{name}")
    SCHEMA.write_text(json.dumps(json_report.schema(), indent=2) + "\n", encoding="utf-8")
    print(f"wrote {SCHEMA.name}")


if __name__ == "__main__":
    main()
