"""With every launch blocking, each small operation pays a round trip to the GPU, and nothing overlaps.

Bad:

    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    t0 = time.perf_counter()

Good:

    torch.cuda.synchronize()
    t0 = time.perf_counter()
    y = model(x)
    torch.cuda.synchronize()
    t1 = time.perf_counter()
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.source_file import Source, read_any
from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._timers import judged, place_of, reported, suspected

RULE = Rule(
    id="TIME009",
    kind="bench.launch_blocking",
    title="times are taken with CUDA_LAUNCH_BLOCKING on",
    severity="error",
    fix="unset CUDA_LAUNCH_BLOCKING, which is for finding errors only, and synchronize around what you time",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """Timers of the run with this verdict, and where the program switched it on."""
    found = list(judged(RULE, evidence.timers))
    yield from found
    for file, text in evidence.trace.sources.items() if found else ():
        if "CUDA_LAUNCH_BLOCKING" in text and (source := read_any(file, text)) is not None:
            yield from _switches(source)


def scan(source: Source) -> Iterator[Finding]:
    """Where the text switches it on, and its timers of GPU work."""
    yield from _switches(source)
    for timer in source.timers if source.blocking else ():
        if timer.launches and not timer.deadline:
            yield suspected(RULE, source.file, timer, "times blocking launches, each with a round trip to the GPU")


def _switches(source: Source) -> Iterator[Finding]:
    for switch in source.blocking:
        place = place_of(source.file, switch, "<module>")
        yield reported(RULE, place, "every launch of this program waits for its kernel")
