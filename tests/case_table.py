"""What the audit finds in the handed cases, against what their EXPECT comments say.

    python tests/case_table.py [--recordings DIR] [--cases DIR] [--json FILE] [--only IS,PC]
    python tests/case_table.py --record DIR [--jobs 3]      # on a CUDA machine

Without --recordings the traces recorded on an H200 are read (with the synchronisations
and stacks noted beside them); with it, the folders that --record made of the scripts,
each run under `tracer run` with its EXPECT comments stripped. Lines that a recording
cannot show are listed as such, and count neither for nor against. The imported traces
(TR, CF) follow, each with what is expected of it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.shared import CASES, H200
from tracer.auditor import audit
from tracer.results import Audit, Finding

FAMILIES = ("IS", "PC", "AL", "LB", "CG", "CO", "NC", "TH", "BM")
OURS = ("sync.", "copy.", "alloc.", "launch.", "input.", "host.", "capture.", "race.", "collective.")
HIGH_NS = 500_000  # a wait of half a millisecond is high: what the oracle of the cases says too
_EXPECT = re.compile(r"# EXPECT: (.*)$")
_FIELD = re.compile(r"(\w+)(>=|<=|=|>|<)(\S+)")
_FREE = 0.03  # of the step: a gain below this is none


@dataclass(frozen=True)
class Expected:
    """One EXPECT comment."""

    case: str
    line: int
    fields: dict[str, tuple[str, str]]  # key -> (operator, value)

    @property
    def kind(self) -> str:
        return self.fields["class"][1]

    def value(self, key: str) -> str:
        return self.fields.get(key, ("", ""))[1]


@dataclass
class Row:
    """One row of the table."""

    case: str
    line: int
    expected: str
    found: str
    verdict: str  # "ok", "class only", "missed", "false alarm", "wrong: ...", "not visible"


def expectations(script: Path) -> list[Expected]:
    """All EXPECT comments of a script."""
    found = []
    for number, line in enumerate(script.read_text(encoding="utf-8").splitlines(), 1):
        match = _EXPECT.search(line)
        if match:
            fields = {key: (sign, value) for key, sign, value in _FIELD.findall(match[1])}
            found.append(Expected(script.stem, number, fields))
    return found


def lines_of(script: Path, line: int) -> range:
    """The lines of the statement that begins or lies at a line: a call may be reported at any of them."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    spans = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.Expr | ast.AugAssign | ast.Return)
    ]
    around = [one for one in spans if one[0] <= line <= one[1]]
    low, high = min(around, key=lambda one: one[1] - one[0]) if around else (line, line)
    return range(low, high + 1)


def judge(expected: Expected, script: Path, found: Audit, visits: dict[tuple[str, int], int]) -> Row:
    """Compare one expectation with an audit."""
    text = " ".join(f"{key}{sign}{value}" for key, (sign, value) in expected.fields.items())
    at = [f for f in found.findings if f.place and Path(f.place.file).name == script.name]
    here = [f for f in at if f.place and f.place.line in lines_of(script, expected.line) and f.kind.startswith(OURS)]
    thread = expected.value("thread")
    if thread:
        here = [f for f in here if thread == "main" or thread in f.thread or f.place is not None]
    if expected.kind == "none":
        if thread == "main":
            here = [f for f in here if f.thread not in ("", "exporter")]
        return Row(script.stem, expected.line, text, _show(here), "false alarm" if here else "ok")
    right = [f for f in here if f.kind == expected.kind]
    if not right:
        elsewhere = [f for f in found.findings if f.kind == expected.kind and f.place is None]
        if elsewhere:
            return Row(script.stem, expected.line, text, _show(elsewhere), "class only")
        lined = any(f.place for f in found.findings)
        shown = _show(here) or "-"
        return Row(script.stem, expected.line, text, shown, "missed" if lined or here else "missed (no lines)")
    wrong = list(_wrong(expected, script, right, found, visits))
    return Row(script.stem, expected.line, text, _show(right), "wrong: " + ", ".join(wrong) if wrong else "ok")


def _wrong(
    expected: Expected, script: Path, right: list[Finding], found: Audit, visits: dict[tuple[str, int], int]
) -> Iterator[str]:
    op = expected.value("op")
    if op:
        right = [f for f in right if f.op == op] or right
        if right[0].op != op:
            yield f"op {right[0].op}"
    count = sum(f.count for f in right)
    sign, value = expected.fields.get("count", ("", ""))
    if sign and not _holds(count, sign, int(value)):
        yield f"count {count}"
    if expected.value("grouped") == "yes" and len(right) != 1:
        yield f"{len(right)} findings"
    if expected.value("where") == "library" and not any(f.library_place for f in right):
        yield "no library line"
    wait = expected.value("wait")
    if wait in ("high", "low") and not (expected.kind.startswith("alloc.") and wait == "low"):  # slow by itself
        # One visit of a line may make many calls: it is high if the visit is, low if the call is.
        visited = visits.get((script.name, expected.line)) if wait == "high" else None
        held = sum(f.stall_ns for f in right) / (visited or count or 1)
        if (held >= HIGH_NS) != (wait == "high"):
            yield f"wait {held / 1e6:.2f} ms"
    gain = expected.value("gain")
    shares = [f.gain_ns.share for f in right if f.gain_ns is not None]
    if gain == "none" and not all(f.harmless for f in right) and (not shares or sum(shares) >= _FREE):
        yield "gain is not none"
    if gain == "high" and (all(f.harmless for f in right) or (shares and sum(shares) < _FREE)):
        yield "gain is not high"
    busy = expected.fields.get("busy")
    if busy and not _holds(_busy(found), busy[0], float(busy[1])):
        yield f"busy {_busy(found):.0f} %"


def _busy(found: Audit) -> float:
    """GPU busy in percent between the first and the last work, set-up of libraries apart."""
    device = found.devices[0]
    apart = sum(
        ns for cause, ns in found.idle.items() if cause in ("head", "tail", "load.library", "load.lazy", "profiler")
    )
    return 100 * device.busy_ns / max(device.window_ns - apart, 1)


def _holds(value: float, sign: str, wanted: float) -> bool:
    tests: dict[str, Callable[[float, float], bool]] = {
        "=": lambda a, b: a == b,
        ">=": lambda a, b: a >= b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        "<": lambda a, b: a < b,
    }
    return tests[sign](value, wanted)


def _show(findings: list[Finding]) -> str:
    parts = []
    for f in findings:
        gain = f" gain={f.gain_ns.share:.1%}" if f.gain_ns else ""
        library = f" via {Path(f.library_place.file).name}:{f.library_place.line}" if f.library_place else ""
        harmless = " harmless" if f.harmless else ""
        parts.append(f"{f.rule} {f.kind} op={f.op} count={f.count} waits={f.waits}{library}{harmless}{gain}")
    return "; ".join(parts)


def visits_of(cases: Path) -> dict[tuple[str, int], int]:
    """How often each line was visited, where the oracle of the cases says it."""
    oracle = cases / "oracle_h200.jsonl"
    found = {}
    if oracle.is_file():
        for text in oracle.read_text(encoding="utf-8").splitlines():
            told = json.loads(text)
            for row in told["rows"]:
                if not told["blocking"]:
                    found[told["script"], row["line"]] = row["hits"]
    return found


def recording_of(case: str, folder: Path) -> Path | None:
    """The trace file of a case, or the newest folder that was recorded of it."""
    plain = folder / f"{case}.json.gz"
    if plain.is_file():
        return plain
    made = sorted(path for path in folder.glob(f"{case}*") if path.is_dir() and any(path.rglob("manifest.json")))
    return made[-1] if made else None


def record(cases: Path, folder: Path, only: tuple[str, ...] = FAMILIES, jobs: int = 1) -> dict[str, int]:
    """Run every script that has something for us under `tracer run`; the status of each run."""
    scripts = folder / "scripts"
    scripts.mkdir(parents=True, exist_ok=True)
    wanted = []
    for script in sorted((cases / "inputs").glob("*.py")):
        ours = [e for e in expectations(script) if e.kind.startswith(OURS)]
        if ours and script.name.startswith(only):
            lines = script.read_text(encoding="utf-8").splitlines()
            plain = "\n".join(_EXPECT.sub("", line).rstrip() for line in lines)
            (scripts / script.name).write_text(plain + "\n", encoding="utf-8")
            wanted.append(scripts / script.name)

    def run(script: Path) -> int:
        settings = ["window.step_from=time", "window.skip=0", "window.seconds=120", "output.formats=[json]"]
        command = [sys.executable, "-m", "tracer", "run", *settings, f"output.folder={folder}"]
        command += [f"output.name={script.stem}", "--", sys.executable, str(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        (folder / f"{script.stem}.log").write_text(done.stdout[-4000:] + done.stderr[-4000:], encoding="utf-8")
        return done.returncode

    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip((script.stem for script in wanted), pool.map(run, wanted), strict=True))


def visible(expected: Expected, found: Audit, raw: bool) -> bool:
    """Whether a raw trace can show the line: its ledger knows only synchronisations that torch warns about."""
    if not raw or expected.kind == "none":
        return True
    unseen = ("copy.", "alloc.", "launch.", "input.", "host.", "race.", "sync.event", "sync.explicit", "capture.")
    return not expected.kind.startswith(unseen)


def table(cases: Path, folder: Path, only: tuple[str, ...] = FAMILIES) -> list[Row]:
    """All rows, by case and line."""
    visits = visits_of(cases)
    rows = []
    for script in sorted((cases / "inputs").glob("*.py")):
        wanted = [e for e in expectations(script) if e.kind == "none" or e.kind.startswith(OURS)]
        if not script.name.startswith(only) or not any(e.kind.startswith(OURS) for e in wanted):
            continue
        recording = recording_of(script.stem, folder)
        if recording is None:
            rows.extend(Row(script.stem, e.line, e.kind, "-", "not recorded") for e in wanted)
            continue
        raw = recording.is_file()
        found = audit(recording, source_root=script.parent)
        for expected in wanted:
            row = judge(expected, script, found, visits)
            if not visible(expected, found, raw) and row.verdict != "ok":
                row.verdict = f"not visible in this recording ({row.verdict})"
            rows.append(row)
    return rows


def imported(cases: Path) -> list[Row]:
    """The traces made after public reports: what must be said of each."""
    rows = []
    for name, (text, check) in IMPORTED.items():
        trace = cases / "inputs" / name
        if not trace.exists():
            continue
        samples = cases / "inputs" / "CF02_samples.json" if name.startswith("CF02") else None
        found = audit(trace, samples=samples, source_root=trace.parent if name.startswith("TR13") else None)
        said, right = check(found)
        rows.append(Row(trace.stem[:4], 0, text, said, "ok" if right else "wrong"))
    return rows


def _tr04(found: Audit) -> tuple[str, bool]:
    busy = found.devices[0].busy_ns
    return f"busy {busy / 1e3} us; {_limits(found)}", busy == 5_002_000 and "2" in _limits(found)


def _tr05(found: Audit) -> tuple[str, bool]:
    delays = found.launching.from_call_start
    right = "20 of 20" in _limits(found) and "392 us" in _limits(found) and delays is not None and delays.min_ns >= 0
    return f"{_limits(found)}; least delay {delays and delays.min_ns} ns", right


def _tr07(found: Audit) -> tuple[str, bool]:
    held = sorted(f.stall_ns for f in found.findings if f.kind.startswith("sync."))
    kernels = sum(k.total_ns for k in found.kernels), sum(k.count for k in found.kernels)
    return f"held {held}, kernels {kernels}", held == [302_000, 502_000, 5_010_000] and kernels == (5_798_000, 4)


def _tr08(found: Audit) -> tuple[str, bool]:
    right = "6 of 10 launches" in _limits(found) and not found.complete and found.devices[0].busy_ns == 3_600_000
    return f"{_limits(found)}; window {found.devices[0].window_ns / 1e3} us", right


def _tr10(found: Audit) -> tuple[str, bool]:
    held = [(f.count, f.stall_ns) for f in found.findings if f.kind == "sync.item"]
    return f"items {held}", held == [(1, 5_010_000)]


def _tr13(found: Audit) -> tuple[str, bool]:
    items = [f for f in found.findings if f.kind == "sync.item" and f.place]
    said = [(f.place.file, f.place.line, f.place.exact, f.count) for f in items if f.place]
    return f"{said}", [row[1:] for row in said] == [(15, True, 2)]


def _tr15(found: Audit) -> tuple[str, bool]:
    items = [(f.rule, f.count, f.stall_ns) for f in found.findings if f.kind == "sync.item"]
    launching = (found.launching.launches, found.launching.works)
    inner = found.devices[0].idle_ns - found.idle.get("head", 0) - found.idle.get("tail", 0)
    right = launching == (3, 30) and sum(i[2] for i in items) == 3_000_000 and inner == 2_000_000
    return f"{launching} {items} idle between {inner / 1e3} us", right


def _tr17(found: Audit) -> tuple[str, bool]:
    right = not found.devices and not found.idle and "no GPU activity was captured" in _limits(found)
    return _limits(found), right


def _cf02(found: Audit) -> tuple[str, bool]:
    offset = {key: value for key, value in found.meta.items() if "sample" in key}
    return f"{offset}; {_limits(found)}", bool(offset) or "samples" in _limits(found)


def _cf03(found: Audit) -> tuple[str, bool]:
    device = found.devices[0]
    return f"busy {device.busy_ns} ns, {device.kernels} kernels", (device.busy_ns, device.kernels) == (1_200, 3)


def _readable(found: Audit) -> tuple[str, bool]:
    items = [f.count for f in found.findings if f.kind == "sync.item"]
    return f"items {items}; {_limits(found)}", items == [1]


def _limits(found: Audit) -> str:
    return "; ".join(found.limits)


IMPORTED: dict[str, tuple[str, Callable[[Audit], tuple[str, bool]]]] = {
    "TR01.json": ("a raw quote in a name: read all the same, with the offset", _readable),
    "TR02.json": ("control characters in names: read, and counted", _readable),
    "TR04.json": ("two kernels without time left out; busy 5002 us", _tr04),
    "TR05.json": ("20 of 20 before their launch, shift of 392 us, no negative delay", _tr05),
    "TR07.json": ("4 kernels 5798 us; waits of 5010, 302 and 502 us", _tr07),
    "TR08.json": ("6 of 10 launches without kernel; busy only for the last 4", _tr08),
    "TR10.json": ("one stall of 5010 us", _tr10),
    "TR13.json": ("train.py:15, twice, exact from the source", _tr13),
    "TR15.json": ("30 kernels on 3 launches, 1000 us idle between, 3 waits of 1000 us", _tr15),
    "TR17.json": ("no GPU activity captured, no word of idle", _tr17),
    "CF02_trace.json": ("samples with another zero: an offset found, or refused", _cf02),
    "CF03.json": ("3 kernels back to back, busy 1.2 us", _cf03),
}


def totals(rows: list[Row]) -> dict[str, float | int]:
    """Recall, exact lines, right details and false alarms, over what the recordings can show."""
    clean = [r for r in rows if "class=none" in r.expected]
    seen = [r for r in rows if r not in clean and not r.verdict.startswith("not ")]
    named = [r for r in seen if r.verdict == "ok" or r.verdict.startswith("wrong")]
    classed = [*named, *(r for r in seen if r.verdict == "class only")]
    return {
        "expected": len(rows) - len(clean),
        "visible": len(seen),
        "recall": len(classed) / len(seen) if seen else 0.0,
        "exact_line": len(named) / len(seen) if seen else 0.0,
        "all_right": sum(r.verdict == "ok" for r in seen) / len(seen) if seen else 0.0,
        "clean_lines": len(clean),
        "false_alarms": sum(r.verdict == "false alarm" for r in clean),
        "not_visible": sum(r.verdict.startswith("not ") for r in rows),
    }


def main() -> int:
    """Print the table and its totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, default=H200)
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--only", default=",".join(FAMILIES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--record", type=Path, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.record:
        statuses = record(arguments.cases, arguments.record, tuple(arguments.only.split(",")), arguments.jobs)
        print("status of the runs:", statuses)
        arguments.recordings = arguments.record
    rows = table(arguments.cases, arguments.recordings, tuple(arguments.only.split(",")))
    rows += imported(arguments.cases)
    for row in rows:
        print(f"{row.case:5} {row.line:3}  {row.verdict:12}  {row.expected}\n{'':12}found: {row.found or '-'}")
    for name, value in totals(rows).items():
        print(f"{name:14} {value:.1%}" if isinstance(value, float) else f"{name:14} {value}")
    if arguments.json:
        told = {"rows": [asdict(row) for row in rows], "totals": totals(rows)}
        arguments.json.write_text(json.dumps(told, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
