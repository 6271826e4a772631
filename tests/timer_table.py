"""Which timers are called lying, against what they are: `python tests/timer_table.py [RECORDING ...]`.

Without arguments: the static check over the programs in tests/timers and the handed BM
scripts. With recordings (folders made by `python -m tracer run`): the verdicts of the
run. Truth stands in the programs: `# TIMER: word`, and in handed ones `# EXPECT: class=word`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

OWN = Path(__file__).parent / "timers"
_MARK = re.compile(r"# (?:TIMER: |EXPECT: class=)(bench\.\w+|honest|none)")
# What text alone cannot tell: it depends on the run.
RUN_ONLY = {"bench.no_warmup", "bench.other_stream", "bench.launch_overhead", "bench.l2_hot"}


def truths(path: Path) -> dict[int, str]:
    """line -> what the timer that is judged there is."""
    found = {}
    for number, text in enumerate(path.read_text().splitlines(), 1):
        mark = _MARK.search(text)
        if mark:
            found[number] = "honest" if mark[1] == "none" else mark[1]
    return found


def compare(truth: dict[int, str], said: dict[int, str]) -> Iterator[tuple[int, str, str, str]]:
    """(line, expected, said, verdict) for each line that either speaks of."""
    for line in sorted(truth.keys() | said.keys()):
        expected, found = truth.get(line, "honest"), said.get(line, "honest")
        if expected == found:
            verdict = "right"
        else:
            verdict = "missed" if found == "honest" else "false alarm" if expected == "honest" else "other word"
        yield line, expected, found, verdict


def static_verdicts(path: Path) -> dict[int, str]:
    from tracer.checking import check_paths

    return {f.place.line: f.kind for f in check_paths([str(path)]).findings if f.place}


def run_verdicts(recording: Path) -> dict[str, dict[int, tuple[str, float | None]]]:
    """file name -> line -> (verdict, ratio), from the audit of a recording."""
    import tracer

    found: dict[str, dict[int, tuple[str, float | None]]] = {}
    audit = tracer.audit(str(recording))
    for timer in audit.timers:
        if timer.end:
            found.setdefault(Path(timer.end.file).name, {})
    for finding in audit.findings:
        if finding.rule.startswith("TIME") and finding.place:
            ratio = finding.details.get("ratio")
            found.setdefault(Path(finding.place.file).name, {})[finding.place.line] = (finding.kind, ratio)
    return found


def print_rows(name: str, rows: list[tuple[int, str, str, str]], extra: dict[int, str] | None = None) -> None:
    for line, expected, found, verdict in rows:
        print(f"{name:12} {line:4}  {expected:24} {found:24} {verdict:12} {(extra or {}).get(line, '')}".rstrip())


def summary(rows: list[tuple[int, str, str, str]]) -> str:
    lying = [row for row in rows if row[1] != "honest"]
    called = [row for row in rows if row[2] != "honest"]
    right = [row for row in called if row[3] == "right"]
    recall = len(right) / len(lying) if lying else 1.0
    precision = len(right) / len(called) if called else 1.0
    return f"{len(rows)} timers, {len(lying)} lying: recall {recall:.0%}, precision {precision:.0%}"


def main(arguments: list[str]) -> int:
    rows: list[tuple[int, str, str, str]] = []
    if arguments:
        for folder in map(Path, arguments):
            for name, verdicts in run_verdicts(folder).items():
                program = next((p for p in _programs() if p.name == name), None)
                if program is None:
                    continue
                mine = list(compare(truths(program), {line: word for line, (word, _) in verdicts.items()}))
                ratios = {line: f"true/claimed {ratio:.3g}" for line, (_, ratio) in verdicts.items() if ratio}
                print_rows(name, mine, ratios)
                rows += mine
    else:
        for program in _programs():
            expected = {line: "honest" if word in RUN_ONLY else word for line, word in truths(program).items()}
            mine = list(compare(expected, static_verdicts(program)))
            print_rows(program.name, mine)
            rows += mine
    print(summary(rows))
    return 0 if all(row[3] == "right" for row in rows) else 1


def _programs() -> list[Path]:
    import os

    handed = Path(os.environ.get("TRACER_CASES", Path(__file__).resolve().parents[2] / "shared" / "cases")) / "inputs"
    return [*sorted(OWN.glob("*.py")), *sorted(handed.glob("BM*.py"))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
