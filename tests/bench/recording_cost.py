"""What recording costs: one launch-bound and one GPU-bound loop, in fresh processes, paired and interleaved.

    python tests/bench/recording_cost.py [--rounds 7] [--out table.json] [--each]

Every round runs each variant once, in an order that turns; a ratio is taken within its
round. `--each` adds our recorders one by one. A process counts with the median of its
steps, and in a second table with their fastest tenth, on which a busy machine weighs least.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LOOP = Path(__file__).with_name("recording_loop.py")
ROOT = LOOP.parents[2]
# The window opens where the program's own profiler would: after 4 + 20 + 5 + 2 steps of the loops.
OURS = [
    "window.skip=29",
    "window.warmup=2",
    "window.steps=138",
    "window.step_from=optimizer",
    'output.formats=["json"]',
]
OFF = {name: f"record.{name}=false" for name in ("ledger", "lines", "clocks", "samples", "sync_events")}
PLAIN = "torch.profiler CPU+CUDA"
VARIANTS = {
    "nothing": None,
    PLAIN: None,
    "tracer, everything on": [],
    "torch.profiler with_stack": None,
    "viztracer --log_torch": None,
}
EACH = {
    "tracer, profiler only": list(OFF.values()),
    **{f"tracer, {name} alone": [off for key, off in OFF.items() if key != name] for name in OFF},
}


def command(name: str, gate: Path, out: Path, folder: Path) -> list[str]:
    kind = {PLAIN: "profiler", "torch.profiler with_stack": "with_stack"}.get(name, "bare")
    program = [str(LOOP), kind, str(gate), str(out)]
    if name.startswith("viztracer"):
        quiet = ["--quiet", "--ignore_frozen", "-o", str(folder / "viz.json")]
        return [sys.executable, "-m", "viztracer", "--log_torch", *quiet, "--", *program]
    if name.startswith("tracer"):
        keys = [*OURS, *({**VARIANTS, **EACH}[name] or []), f"output.folder={folder}"]
        return [sys.executable, "-m", "tracer", "run", *keys, "--", sys.executable, *program]
    return [sys.executable, *program]


class Running:
    """A variant's process, importing and warming up, and held at a gate until its turn comes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self._gate, self._out, self._log = folder / "gate", folder / "times.json", folder / "log"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command(name, self._gate, self._out, folder), stdout=log, stderr=log, env=environment, cwd=folder
            )

    def wait_ready(self) -> None:
        """Until it is warm."""
        until = time.monotonic() + 60
        ready = Path(f"{self._gate}.ready")
        while not ready.exists() and self._process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)

    def measure(self) -> None:
        """Let it run its loops."""
        self._gate.touch()
        until = time.monotonic() + 90
        while not self._out.exists() and self._process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)

    def result(self) -> dict[str, float] | None:
        """The median step of each loop in ms, once it has ended."""
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        try:
            times = json.loads(self._out.read_text())
        except (OSError, ValueError):
            print(f"{self.name} failed:\n{self._log.read_text()[-3000:]}", file=sys.stderr)
            return None
        if self.name.startswith("tracer") and not self._recorded():
            return None
        found = {loop: 1e3 * statistics.median(steps) for loop, steps in times.items()}
        return found | {f"{loop}, fastest": 1e3 * statistics.quantiles(steps, n=10)[0] for loop, steps in times.items()}

    def _recorded(self) -> bool:
        """Whether ours really recorded the window: a figure without a recording is worth nothing."""
        found = list(Path(self._folder.name).glob("*/rank*/manifest.json"))
        if found and json.loads(found[0].read_text()).get("kineto"):
            self.manifest = json.loads(found[0].read_text())
            return True
        print(f"{self.name} recorded nothing:\n{self._log.read_text()[-3000:]}", file=sys.stderr)
        return False


Round = dict[str, dict[str, float]]  # variant -> loop -> ms


def measure(names: list[str], rounds: int, limit_s: float) -> Iterator[tuple[Round, dict[str, object]]]:
    """For each round, variant -> loop -> ms; and what our recorders said.

    A round's processes warm up together and wait; then one after the other is let go, in an order that is another in
    each round. Winding up (saving, auditing) overlaps with the next one, on other cores and not on the GPU.
    """
    end = time.monotonic() + limit_s
    order = random.Random(7)

    def start() -> list[Running]:
        return [Running(name) for name in order.sample(names, len(names))]

    running = start()
    for number in range(rounds):
        for one in running:
            one.wait_ready()
        for one in running:
            one.measure()
        last = number == rounds - 1 or time.monotonic() > end
        following = [] if last else start()  # warms up while this round winds up: nothing is measured meanwhile
        found, said = {}, {}
        for one in running:
            result = one.result()
            if result is not None:
                found[one.name] = result
                said = getattr(one, "manifest", {}).get("recorders", said)
        yield found, said
        if last:
            break
        running = following


def table(rounds: list[Round], names: list[str], of: str = "") -> str:
    """Markdown; `of` is ", fastest" for the fastest tenth of each process."""
    head = ["variant", "launch-bound ms a step", "over nothing", "over torch.profiler", "GPU-bound ms", "over nothing"]
    lines = ["| " + " | ".join([*head, "rounds"]) + " |"]
    lines.append("|---|---|---|---|---|---|---|")

    def ratio(name: str, base: str, loop: str) -> str:
        pairs = [r[name][loop] / r[base][loop] for r in rounds if name in r and base in r]
        return f"{statistics.median(pairs):.2f} ({min(pairs):.2f}-{max(pairs):.2f})" if pairs else "-"

    def middle(name: str, loop: str) -> str:
        values = [r[name][loop] for r in rounds if name in r]
        return f"{statistics.median(values):.2f}" if values else "-"

    for name in names:
        launch, gpu = f"launch-bound{of}", f"gpu-bound{of}"
        cells = [name, middle(name, launch), ratio(name, "nothing", launch)]
        cells += [ratio(name, PLAIN, launch), middle(name, gpu), ratio(name, "nothing", gpu)]
        lines.append("| " + " | ".join([*cells, str(sum(name in r for r in rounds))]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit", type=float, default=260.0, help="seconds after which no new process is measured")
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--only", default="", help="part of the names to be measured")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    names = [*VARIANTS, *(EACH if arguments.each else {})]
    names = [name for name in names if arguments.only in name or name in ("nothing", PLAIN)]

    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    where = f"{device}, torch {torch.__version__}, Python {sys.version.split()[0]}, {time.strftime('%Y-%m-%d')}"
    rounds: list[Round] = []
    said: dict[str, object] = {}
    for one, told in measure(names, arguments.rounds, arguments.limit):
        rounds.append(one)
        said = told or said
        if arguments.out:
            arguments.out.write_text(json.dumps({"where": where, "rounds": rounds, "recorders": said}))
    print(f"{where}; {len(rounds)} of {arguments.rounds} rounds\n\n{table(rounds, names)}")
    print(f"\nfastest tenth of the steps of each process:\n\n{table(rounds, names, ', fastest')}")
    print(f"\nour recorders: {json.dumps(said)}")


if __name__ == "__main__":
    main()
