"""The first launch of each kernel loads its code, which takes milliseconds; later ones do not.

Bad:

    measure(model)

Good:

    model(x)      # warm-up
    measure(model)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import LABELLED, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC037",
    kind="load.lazy",
    title="kernels and modules are loaded at their first use",
    severity="info",
    fix="warm up before you measure; CUDA_MODULE_LOADING=EAGER moves it to the start",
)
BAND = LABELLED


def matches(wait: Wait) -> str | None:
    """Calls that loaded code."""
    return "load" if wait.load else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE, together=True)
