"""How many stalls get their exact line, by which recorder, on a CUDA machine.

    python tests/bench/exact_lines.py --cases CASES [--jobs 6] [--out rates.json] [NAME ...]

Every case script is recorded once with everything on. What a recorder finds alone is
asked of the same recording without the others' rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tracer.analysis.launches import find_launches
from tracer.analysis.places import Places
from tracer.analysis.stalls import find_stalls
from tracer.readers import load
from tracer.trace import NONE, Ledger, Lines, Samples, Trace

_KINDS = ("sync.", "copy.", "alloc.", "launch.queue")
_EMPTY = {"ledger": Ledger, "lines": Lines, "samples": Samples}
ALONE = ("ledger", "lines", "samples", "together")


def record(script: Path, folder: Path) -> Path | None:
    """Record a script; the folder of its rank."""
    text = re.sub(r"\s*# EXPECT:.*", "", script.read_text())
    program = folder / script.name
    program.write_text(text)
    command = [sys.executable, "-m", "tracer", "run", f"output.folder={folder}", "output.formats=['json']"]
    command += ["window.step_from=time", "window.skip=0", "window.seconds=120"]  # the whole program
    try:
        done = subprocess.run(
            [*command, "--", sys.executable, str(program)], capture_output=True, text=True, timeout=150, cwd=folder
        )
    except subprocess.TimeoutExpired:
        print(f"{script.stem}: timed out", file=sys.stderr)
        return None
    found = sorted(folder.glob("*/rank*/manifest.json"))
    if not found:
        print(f"{script.stem}: {done.returncode} {done.stdout[-800:]} {done.stderr[-1500:]}", file=sys.stderr)
    return found[0].parent.parent if found else None


def only(trace: Trace, recorder: str) -> Trace:
    """The trace as if the other recorders had been off."""
    if recorder == "together":
        return trace
    others = {name: table.empty() for name, table in _EMPTY.items() if name != recorder}
    return dataclasses.replace(trace, **others)


def judge(script: Path, folder: Path) -> dict[str, object]:
    """For each recorder: stalls, those with an exact line in the script, and which expected lines were named."""
    expected = {
        number: match[1]
        for number, line in enumerate(script.read_text().splitlines(), 1)
        if (match := re.search(r"# EXPECT:.*?class=(\S+)", line)) and match[1].startswith(_KINDS)
    }
    trace = load(folder)
    stalls = find_stalls(trace, find_launches(trace))
    rows = stalls.call.astype(np.int64)
    said = {key: value for key, value in trace.meta.items() if key.startswith("recorder.") or key == "clock_error_ns"}
    result: dict[str, object] = {"expected": expected, "stalls": len(rows), "recorders": said}
    for name in ALONE:
        places = Places(only(trace, name))
        stacks = places.frames_of(rows)
        found = [places.place(int(stack)) if stack != NONE else None for stack in stacks]
        exact = [place for place in found if place is not None and place.exact]
        lines = {place.line for place in exact if place.file.endswith(script.name)}
        missing = sorted(
            (trace.names[trace.spans.name[row]], round(float(trace.spans.dur_ns[row]) / 1e3, 1))
            for row, place in zip(rows, found, strict=True)
            if place is None or not place.exact
        )
        result[name] = {
            "exact": len(exact),
            "sources": {source: sum(p.source == source for p in exact) for source in {p.source for p in exact}},
            "columns": sum(p.columns is not None for p in exact),
            "expected_found": sorted(lines & set(expected)),
            "not": missing[-5:],
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    waiting = r"(IS|PC|AL|LB0[23]|BM1|CO|NC|TH)"
    scripts = [
        script
        for script in sorted((arguments.cases / "inputs").glob("*.py"))
        if (script.stem in arguments.names if arguments.names else re.match(waiting, script.stem))
    ]
    with tempfile.TemporaryDirectory() as scratch:

        def one(script: Path) -> tuple[str, dict[str, object] | None]:
            folder = Path(scratch) / script.stem
            folder.mkdir()
            recorded = record(script, folder)
            return script.stem, judge(script, recorded) if recorded else None

        with ThreadPoolExecutor(arguments.jobs) as pool:
            results = dict(pool.map(one, scripts))
    print(summary(results))
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1, default=str))


def summary(results: dict[str, dict[str, object] | None]) -> str:
    good = {name: result for name, result in results.items() if result}
    total = sum(int(result["stalls"]) for result in good.values())  # type: ignore[call-overload]
    lines = ["| recorder | stalls | exact line | share | expected lines named |", "|---|---|---|---|---|"]
    wanted = sum(len(result["expected"]) for result in good.values())  # type: ignore[arg-type]
    for name in ALONE:
        parts = [result[name] for result in good.values()]
        exact = sum(part["exact"] for part in parts)  # type: ignore[index]
        named = sum(len(part["expected_found"]) for part in parts)  # type: ignore[index]
        lines.append(f"| {name} | {total} | {exact} | {exact / max(total, 1):.1%} | {named} of {wanted} |")
    for name, result in results.items():
        if result is None:
            lines.append(f"{name}: not recorded")
            continue
        together = result["together"]
        lost = sorted(set(result["expected"]) - set(together["expected_found"]))  # type: ignore[call-overload,index]
        lines.append(f"{name}: {together['exact']} of {result['stalls']}, missed lines {lost} {together['not']}")  # type: ignore[index]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
