"""A baseline: the findings that a project knows of, so that a check fails only on what is new.

It is a JSON file to keep in the repository. Findings are recognised by rule, call,
file name, function and the line's text, so that moved lines and other machines do not matter.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import msgspec

from tracer.errors import UsageError
from tracer.results import Audit, BudgetLine, Finding

_SCHEMA = 1


@dataclass(frozen=True, slots=True, order=True)
class Known:
    """A finding that the project knows of."""

    identity: tuple[str, ...]
    title: str = ""  # for people who read the file


@dataclass(frozen=True, slots=True)
class Baseline:
    """What `--write-baseline` writes."""

    schema: int
    findings: tuple[Known, ...]


def dump_baseline(audit: Audit) -> str:
    """The baseline file for this audit: all that counts in it is known from now on."""
    known = sorted(Known(found.identity, found.title) for found in audit.findings if _counts(found))
    encoded = msgspec.json.encode(Baseline(_SCHEMA, tuple(known)))
    return msgspec.json.format(encoded, indent=1).decode() + "\n"


def parse_baseline(data: bytes | str, source: str) -> Baseline:
    """Read a baseline file.

    Raises UsageError if it is none.
    """
    try:
        found = msgspec.json.decode(data, type=Baseline)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        fix = f"write one: python -m tracer audit TRACE --write-baseline {source}"
        raise UsageError(f"{source} is not a baseline", why=str(error), fix=fix) from error
    if found.schema != _SCHEMA:
        raise UsageError(f"{source} is a baseline of version {found.schema}, this tracer reads {_SCHEMA}")
    return found


def compare_with_baseline(audit: Audit, baseline: Baseline, source: str = "the baseline") -> Audit:
    """The Audit with each finding marked as known or new, and a budget line that allows nothing new."""
    left = Counter(known.identity for known in baseline.findings)
    marked, new = [], []
    for found in audit.findings:
        known = left[found.identity] > 0
        left[found.identity] -= known
        marked.append(replace(found, baseline="known" if known else "new"))
        if not known and _counts(found):
            new.append(found)
    place = next((found.place or found.library_place for found in new), None)
    line = BudgetLine(f"new findings against {source}", 0.0, float(len(new)), "", not new, place)
    return replace(audit, findings=tuple(marked), budget=(*audit.budget, line))


def _counts(found: Finding) -> bool:
    """Whether a finding can break a check: those accepted in the source and those that cost nothing cannot."""
    return not found.accepted and not found.harmless and found.severity != "info"
