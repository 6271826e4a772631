"""Predicted, proven and hand-fixed: what removing the waits of each workload gains, on a CUDA machine.

Every number is of fresh processes: the program as it is, with its reads given back
without waiting, and fixed by hand, in turn; then once recorded by `tracer run`, whose
trace is replayed. Many workloads start at once, but only one steps at a time, on cores
that are kept for it.

    python tests/bench/gain_table.py --cases ../shared/cases --out gains.json
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import msgspec

from tracer.auditor import audit
from tracer.config import Config, Output, Run, Window
from tracer.readers import load
from tracer.recording.prove import examine_values
from tracer.recording.prove_runner import Runner

HERE = Path(__file__).resolve().parents[1] / "workloads"
OWN = ("mask", "grad_scaler", "pageable_both", "list_index", "empty_cache", "decode")
OWN += ("queue_full", "launch_bound", "device_bound", "explicit_sync", "two_streams", "backward_hook")
PAIRS = ("p01_item_log", "p02_pageable_h2d", "p06_clip_check", "p09_new_tensor")
CASES = ("IS22", "IS23")
WINDOW = Window(skip=12, warmup=3, steps=20, step_from="tracer")
KEYS = ("run", "window", "output")
_QUIET = 4  # cores
MS = 1e6


def workloads(cases: Path | None) -> dict[str, tuple[str, list[str]]]:
    """Name -> script and arguments."""
    found: dict[str, tuple[str, list[str]]] = {}
    if cases is not None:
        found |= {name: ("handed_pair.py", [str((cases / "pairs").resolve()), name]) for name in PAIRS}
        found |= {name: ("handed_case.py", [str((cases / "inputs").resolve()), name]) for name in CASES}
    return found | {name: (f"{name}.py", []) for name in OWN}


def settings(name: str, script: str, args: list[str], variant: str, turn: str, folder: Path) -> Config:
    root = str(HERE.parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"VARIANT": variant, "TURN": turn, "TURN_CORES": os.environ.get("TURN_CORES", ""), "PYTHONPATH": path}
    run = Run(script=str(HERE / script), args=args, env=env, timeout=180.0)
    return Config(run=run, window=WINDOW, output=Output(folder=str(folder), name=name, formats=[]))


def measure(
    name: str, script: str, args: list[str], turn: str, folder: Path, rounds: int, ends: float = float("inf")
) -> dict[str, object]:
    """One row of the table; no round begins after `ends`."""
    row: dict[str, object] = {"name": name}
    if time.perf_counter() > ends:
        return row | {"failed": "not run: no time was left"}
    stall = settings(name, script, args, "stall", turn, folder)
    fixed = settings(name, script, args, "fixed", turn, folder)
    as_is = Runner(stall, folder / f"{name}.stall")
    by_hand = Runner(fixed, folder / f"{name}.fixed")
    first = as_is.run("plain", "first")
    plan = as_is.plan_after(first)
    if first.status or not first.reached or plan is None:
        return row | {"failed": f"status {first.status}: {first.why}"}
    why = examine_values(as_is, plan)[0]
    row["abstained"] = why
    times: dict[str, list[float]] = {"untraced": [], "proven": [], "fixed": []}
    for turn_number in range(rounds):
        if turn_number and time.perf_counter() > ends:
            break
        todo = [("untraced", as_is, "plain"), ("fixed", by_hand, "plain")]
        if not why:
            todo.insert(1, ("proven", as_is, "replay"))
        for column, runner, mode in todo if turn_number % 2 == 0 else reversed(todo):
            result = runner.run(mode, f"{column}-{turn_number}", plan)
            if result.steps and not result.status:
                times[column].append(result.total_ns / result.steps)
                if column == "proven":
                    row["reads"], row["read_cost_ns"] = result.calls / result.steps, result.cost_ns
            else:
                row["failed"] = f"{column}: {result.why}"
    row |= {column: statistics.median(values) / MS for column, values in times.items() if values}
    row["runs"] = {column: [round(v / MS, 4) for v in values] for column, values in times.items()}
    config = folder / f"{name}.json"  # JSON is YAML
    config.write_bytes(
        msgspec.json.encode({key: value for key, value in msgspec.to_builtins(stall).items() if key in KEYS})
    )
    done = subprocess.run(
        [sys.executable, "-m", "tracer", "run", str(config)], capture_output=True, text=True, check=False
    )
    recordings = sorted(folder.glob(f"{name}-2*"))
    if recordings:
        return row | predicted(str(recordings[0]))
    return row | {"failed": f"not recorded: {done.stderr.strip()[-300:]}"}


def predicted(folder: str) -> dict[str, object]:
    """What the recording says."""
    found = audit(load(folder))
    replay = found.replay
    if replay is None:
        return {"failed": "no replay"}
    row: dict[str, object] = {
        "traced": replay.recorded_ns / MS,
        "replayed": replay.replayed_ns / MS,
        "untraced_in_run": (found.pace.untraced_ns or 0) / MS,
        "ratio": found.pace.ratio,
        "verdicts": [verdict.id for verdict in found.verdicts],
        "why": replay.abstained,
    }
    if replay.together is not None:
        row |= {
            "gain": replay.together.likely_ns / MS,
            "gain_low": replay.together.low_ns / MS,
            "share": replay.together.share,
            "clock": replay.together.clock,
        }
    row["findings"] = [
        (one.rule, one.kind, one.op, one.gain_ns.likely_ns / MS if one.gain_ns else None) for one in found.findings[:8]
    ]
    return row


def spread_of(runs: object, column: str) -> str:
    """From the fastest to the slowest run."""
    values = runs.get(column) if isinstance(runs, dict) else None
    return f" ({min(values):.2f}-{max(values):.2f})" if values else ""


def table(rows: list[dict[str, object]]) -> str:
    """Markdown, with the errors against the hand fix in percent of the untraced step."""
    head = ["workload", "untraced", "traced", "replayed", "predicted", "proven", "fixed by hand"]
    head += ["replay off", "prediction off", "proof off"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    offs: dict[str, list[float]] = {"replay": [], "prediction": [], "proof": []}
    for row in rows:
        get = lambda key, row=row: row[key] if isinstance(row.get(key), float) else None
        untraced, fixed = get("untraced"), get("fixed")
        forecast = untraced * (1 - float(row["share"])) if untraced and isinstance(row.get("share"), float) else None
        cells = [untraced, get("traced"), get("replayed"), forecast, get("proven"), fixed]
        off: dict[str, float | None] = {"replay": None, "prediction": None, "proof": None}
        if cells[1] and cells[2]:
            off["replay"] = abs(cells[2] - cells[1]) / cells[1]
        if untraced and fixed:
            off["prediction"] = abs(forecast - fixed) / untraced if forecast is not None else None
            off["proof"] = abs(cells[4] - fixed) / untraced if cells[4] else None
        for name, value in off.items():
            if value is not None:
                offs[name].append(value)
        runs = row.get("runs")
        spread = [spread_of(runs, "untraced"), "", "", "", spread_of(runs, "proven"), spread_of(runs, "fixed")]
        texts = [f"{c:.2f}{s}" if c is not None else "-" for c, s in zip(cells, spread, strict=True)]
        texts += [f"{100 * v:.1f} %" if v is not None else "-" for v in off.values()]
        lines.append(f"| {row['name']} | " + " | ".join(texts) + " |")
    for name, values in offs.items():
        if values:
            lines.append(
                f"\n{name}: median {100 * statistics.median(values):.1f} %, "
                f"mean {100 * statistics.fmean(values):.1f} %, worst {100 * max(values):.1f} % "
                f"of {len(values)} workloads"
            )
    for row in rows:
        notes = [str(row[key]) for key in ("failed", "abstained", "why") if row.get(key)]
        if notes:
            lines.append(f"\n{row['name']}: {'; '.join(notes)}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=Path, help="folder of the handed cases, with pairs/ and inputs/")
    parser.add_argument("--out", type=Path, help="all figures as JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=8, help="workloads that start at once; one steps at a time")
    parser.add_argument("--seconds", type=float, default=1e6, help="begin no round later")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--keep", type=Path, help="keep recordings and outputs there")
    parser.add_argument(
        "--again",
        type=Path,
        nargs="+",
        help="join these earlier --out, and predict again from the recordings in --keep",
    )
    arguments = parser.parse_args()
    if arguments.again is not None:
        return again(arguments)
    started = time.perf_counter()
    todo = {k: v for k, v in workloads(arguments.cases).items() if not arguments.only or k in arguments.only}
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= 2 * _QUIET:
        os.environ["TURN_CORES"] = ",".join(map(str, cores[:_QUIET]))
        os.sched_setaffinity(0, cores[_QUIET:])  # whatever is started inherits it
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        turn = str(folder / "turn")
        with ThreadPoolExecutor(arguments.jobs) as pool:
            ends = started + arguments.seconds
            futures = {pool.submit(measure, k, *v, turn, folder, arguments.rounds, ends): k for k, v in todo.items()}
            rows = []
            for future in as_completed(futures):
                try:
                    rows.append(future.result())
                except Exception as error:  # one workload's failure is a row, not the end of the table
                    rows.append({"name": futures[future], "failed": repr(error)})
                print(f"{time.perf_counter() - started:.0f} s: {rows[-1]}", file=sys.stderr, flush=True)
                text = write(sorted(rows, key=lambda row: list(todo).index(str(row["name"]))), arguments)
    print(text)
    return int(any("failed" in row for row in rows))


def again(arguments: argparse.Namespace) -> int:
    """The table with the runs of earlier ones, and predictions of today's code from their recordings.

    Of several recordings of a workload the middle one counts; of two the one that predicts less.
    """
    parts = [msgspec.json.decode(path.read_bytes()) for path in arguments.again]
    rows: dict[str, dict[str, Any]] = {}
    for part in parts:
        for new in part["rows"]:
            row = rows.setdefault(new["name"], dict.fromkeys(("name", "abstained", "failed"), "") | {"runs": {}})
            row |= {key: new.get(key) or row[key] for key in ("name", "abstained", "failed")}
            for column, values in new.get("runs", {}).items():
                row["runs"].setdefault(column, []).extend(values)
    for row in rows.values():
        row |= {column: statistics.median(values) for column, values in row["runs"].items() if values}
        recordings = [predicted(str(path)) for path in sorted(arguments.keep.glob(f"{row['name']}-2*"))]
        recordings.sort(key=lambda one: float(str(one.get("share", 0.0))))
        if recordings:
            row |= recordings[(len(recordings) - 1) // 2] | {"recordings": len(recordings)}
    print(write(list(rows.values()), arguments, parts[0]["about"]))
    return 0


def write(rows: list[dict[str, object]], arguments: argparse.Namespace, about: str = "") -> str:
    """The table as it stands, to the files asked for."""
    import torch

    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    now = f"{machine}, torch {torch.__version__}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"
    about = about or now
    text = f"{about}; ms a step, medians of runs (least to greatest)\n\n{table(rows)}\n"
    if arguments.out:
        arguments.out.write_bytes(msgspec.json.encode({"about": about, "rows": rows}))
        arguments.out.with_suffix(".md").write_text(text)
    return text


if __name__ == "__main__":
    sys.exit(main())
