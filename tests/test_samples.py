"""The samples in the repository were recorded on real GPUs, and can be audited anywhere."""

from __future__ import annotations

import json
from pathlib import Path

from tracer.auditor import audit
from tracer.readers import load

SAMPLES = Path(__file__).resolve().parents[1] / "traces" / "samples"


def test_the_quickstart_on_an_h200_shows_what_the_program_does():
    folder = SAMPLES / "quickstart-h200"
    found = audit(load(folder), source=str(folder))

    assert found.complete
    assert len(found.steps) == 10
    assert found.devices[0].name == "NVIDIA H200"
    assert 0 < found.devices[0].busy_ns < found.window_ns
    assert sum(found.idle.values()) == found.devices[0].idle_ns
    lines = {finding.rule: finding.place.line for finding in found.findings if finding.place}
    source = next(text for name, text in found.sources.items() if name.endswith("quickstart.py")).splitlines()
    assert ".item()" in source[lines["SYNC001"] - 1]
    assert ".to(DEVICE)" in source[lines["SYNC011"] - 1]
    assert found.pace.ratio is not None


def test_the_sample_is_small_and_says_where_it_was_recorded():
    folder = SAMPLES / "quickstart-h200"
    (rank,) = folder.glob("rank*")
    manifest = json.loads((rank / "manifest.json").read_text())

    assert sum(path.stat().st_size for path in folder.rglob("*")) < 2_000_000
    assert manifest["devices"][0]["name"] == "NVIDIA H200"
    readme = (folder / "README.md").read_text()
    assert manifest["versions"]["torch"] in readme
    assert manifest["versions"]["driver"] in readme
