"""Proves a gain: runs the program as it is, and again with its reads given back without waiting, in turn.

- Fresh processes, interleaved, the order changing from round to round; all seeded alike.
- Two runs record the values; a fourth looks whether the same kernels ran and the counts
  were right. Only then are pairs timed.
- The measured gain is the mean difference of a pair with its 95 % confidence interval
  (Student's t). What cannot be told is not told: `abstained` says why.
- The streams of all these runs go to files, and those of replayed runs say so.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tracer import config
from tracer.errors import UsageError
from tracer.recording.launch import command_line
from tracer.recording.prove_child import VARIABLE, Result, Task
from tracer.recording.values import Store, differences

ROUNDS = 5
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_MEMORY = 1.1  # a replayed run that needs more than this factor of memory runs far ahead


@dataclass(frozen=True, slots=True)
class Proof:
    """What removing the waits of reads (or a patch) was measured to gain."""

    schema: int
    program: str
    compared: str  # "values replayed" or the patched script
    abstained: str = ""  # why nothing is proven
    step_ns: float | None = None  # as it is, mean
    other_ns: float | None = None  # replayed or patched, mean
    gain_ns: float | None = None  # mean of the pairs' differences
    low_ns: float | None = None  # 95 % confidence interval of that
    high_ns: float | None = None
    share: float | None = None  # of the step
    rounds: int = 0
    steps: int = 0  # measured in each run
    step_times_ns: tuple[float, ...] = ()  # each round as it is
    other_times_ns: tuple[float, ...] = ()
    reads: float = 0.0  # values given back in a step
    read_cost_ns: float = 0.0  # host time that a given-back read still takes
    seeded_by_us: bool = False
    hazards: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    status: int = 0  # of the user's program
    folder: str = ""  # where the outputs of the runs are
    predicted_ns: float | None = None  # from a recording of the same program
    predicted_low_ns: float | None = None
    predicted_share: float | None = None


def prove(
    settings: config.Config,
    *,
    rounds: int = ROUNDS,
    key: str = "CUDA",
    folder: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Proof:
    """Measure what the reads of values cost."""
    runner = Runner(settings, folder, key, say)
    first = runner.run("plain", "first")
    plan = runner.plan_after(first)
    base = Proof(1, runner.name, "values replayed", status=first.status, folder=str(runner.folder))
    if first.status:
        return replace(base, abstained=f"the program itself failed: {first.why}")
    if key == "CUDA" and not first.gpu:
        return replace(base, abstained="the program used no GPU: no value came from one, there is nothing to prove")
    if plan is None:
        return replace(base, abstained=_too_few(first))
    base = replace(base, seeded_by_us=not first.seeded, notes=_notes(first, plan, runner.asked))
    why, hazards = examine_values(runner, plan)
    base = replace(base, hazards=hazards)
    if why:
        return replace(base, abstained=why)
    pairs = runner.pairs(
        rounds, lambda name: runner.run("plain", name, plan), lambda name: runner.run("replay", name, plan)
    )
    if isinstance(pairs, str):
        return replace(base, abstained=pairs)
    plain, replayed = pairs
    hazards = base.hazards + _run_hazards(plain, replayed)
    reads = statistics.fmean(one.calls / one.steps for one in replayed)
    cost = statistics.median(one.cost_ns for one in replayed)
    found = with_interval(
        replace(base, hazards=hazards, reads=reads, read_cost_ns=cost), _steps(plain), _steps(replayed)
    )
    return replace(found, steps=plan.steps)


def examine_values(runner: Runner, plan: Plan) -> tuple[str, tuple[str, ...]]:
    """Record values, twice, and replay them once with all checks on: why that proves nothing, and hazards."""
    runner.say("recording the values that reads return, twice")
    recorded = runner.run("record", "record", plan)
    again = runner.run("record", "record-again", plan, check=True)
    failed = next((one for one in (recorded, again) if one.status or not one.steps), None)
    if failed is not None:
        return f"the program failed while values were recorded: {failed.why}", ()
    if not recorded.calls:
        return "no read of a GPU value was seen in the measured steps: nothing to give back", ()
    why = differences(Store.load(runner.values("record")), Store.load(runner.values("record-again")))
    if why:
        return why, ()
    runner.say("looking whether a replayed run does the same work")
    checked = runner.run("replay", "check", plan, check=True)
    return _not_the_same(again, checked), _hazards(checked)


def prove_fix(
    settings: config.Config,
    patched: Path,
    *,
    rounds: int = ROUNDS,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Proof:
    """Measure whether a patched version of the program is really faster."""
    if not patched.is_file():
        raise UsageError(f"there is no script {patched}", fix="prove CONFIG --fix PATCHED_SCRIPT")
    if settings.run.script is None:
        raise UsageError("--fix compares two scripts", why="the config runs no script", fix="run:\n  script: train.py")
    runner = Runner(settings, folder, "CUDA", say)
    other = config.Config(
        run=msgspec.structs.replace(settings.run, script=str(patched.resolve())),
        window=settings.window,
        output=settings.output,
        base=settings.base,
    )
    second = Runner(other, runner.folder, "CUDA", say)
    first = runner.run("plain", "first")
    plan = runner.plan_after(first)
    base = Proof(1, runner.name, str(patched), status=first.status, folder=str(runner.folder))
    if first.status:
        return replace(base, abstained=f"the program itself failed: {first.why}")
    if plan is None:
        return replace(base, abstained=_too_few(first))
    base = replace(base, seeded_by_us=not first.seeded, notes=_notes(first, plan, runner.asked))
    pairs = runner.pairs(
        rounds, lambda name: runner.run("plain", name, plan), lambda name: second.run("plain", name, plan)
    )
    if isinstance(pairs, str):
        return replace(base, abstained=pairs)
    return replace(with_interval(base, _steps(pairs[0]), _steps(pairs[1])), steps=plan.steps)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which steps of each run are measured."""

    skip: int
    steps: int
    whole: bool  # the program has none: all of it is one


class Runner:
    """Starts the program's processes."""

    def __init__(
        self,
        settings: config.Config,
        folder: Path | None = None,
        key: str = "CUDA",
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._settings = settings
        self._key = key
        self.say = say
        self._argv, self.name = command_line(settings.run, settings.base)
        if Path(self._argv[0]).name.startswith(("torchrun", "accelerate", "deepspeed")):
            raise UsageError(
                "prove runs programs of one process",
                why=f"{Path(self._argv[0]).name} starts others",
                fix="name the script itself: run.script",
            )
        self.folder = folder or Path(tempfile.mkdtemp(prefix=f"prove-{self.name}-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        window = settings.window
        self.asked = Plan(window.skip, window.steps or 20, whole=False)

    def values(self, name: str) -> Path:
        """Where a recording run leaves its values."""
        return self.folder / f"{name}.values"

    def plan_after(self, first: Result) -> Plan | None:
        """What to measure, now that it is known how often the program steps; None if too seldom."""
        asked = self.asked
        if first.steps == asked.steps:
            return asked
        if first.steps_seen == 0:
            return Plan(0, 1, whole=True)
        skip = min(asked.skip, first.steps_seen // 3)
        steps = first.steps_seen - skip - 1
        return Plan(skip, steps, whole=False) if steps >= 2 else None

    def run(self, mode: str, name: str, plan: Plan | None = None, *, check: bool = False) -> Result:
        """One process to its end, and what it found."""
        plan = plan or self.asked
        task = Task(
            mode=mode,
            folder=str(self.folder),
            name=name,
            parent=os.getpid(),
            skip=plan.skip,
            steps=plan.steps,
            step_from=self._settings.window.step_from,
            whole=plan.whole,
            check=check,
            key=self._key,
            values=str(self.values(name if mode == "record" else "record")),
        )
        file = self.folder / f"{name}.task.json"
        file.write_bytes(msgspec.json.encode(task))
        output = self.folder / f"{name}.out"
        with output.open("wb") as stream:
            if mode == "replay":
                stream.write(b"# tracer prove: in this run reads gave back the values of an earlier run\n")
                stream.flush()
            status = self._execute(stream, file, output)
        found = self.folder / f"{name}.json"
        result = msgspec.json.decode(found.read_bytes(), type=Result) if found.is_file() else Result()
        result.status = 128 - status if status < 0 else status
        result.output = str(output)
        result.why = _last_line(output)
        if not found.is_file() and not result.status:
            result.why = "it never imported torch" if mode == "plain" else "it ended without a result"
        return result

    def _execute(self, stream: object, task: Path, output: Path) -> int:
        run = self._settings.run
        environment = {**os.environ, **run.env}
        inject = str(Path(__file__).parent / "inject")
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = inject + os.pathsep + path if path else inject
        environment[VARIABLE] = str(task)
        environment.setdefault("PYTHONHASHSEED", "0")
        environment.setdefault("KINETO_LOG_LEVEL", "6")  # or else it writes into the program's output
        environment.pop("TRACER_RUN", None)
        try:
            done = subprocess.run(
                self._argv,
                cwd=run.cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,  # type: ignore[call-overload]
                timeout=run.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            with output.open("ab") as end:
                end.write(f"\nended after run.timeout = {run.timeout:g} s\n".encode())
            return 124
        except OSError as error:
            raise UsageError(f"{self._argv[0]} cannot be run", why=error.strerror or str(error)) from error
        return int(done.returncode)

    def pairs(
        self, rounds: int, one: Callable[[str], Result], other: Callable[[str], Result]
    ) -> tuple[list[Result], list[Result]] | str:
        """Both variants in turn, the order changing; or why that failed."""
        first: list[Result] = []
        second: list[Result] = []
        for number in range(rounds):
            self.say(f"round {number + 1} of {rounds}")
            todo = [(first, one, f"plain-{number}"), (second, other, f"other-{number}")]
            for found, call, name in todo if number % 2 == 0 else reversed(todo):
                result = call(name)
                if result.status or not result.steps:
                    return (
                        f"run {name} failed: {result.why}; if only replayed runs fail, the program relies on the wait"
                    )
                if result.missed or result.unused:
                    return _other_reads(result)
                found.append(result)
        return first, second


def _steps(results: list[Result]) -> list[float]:
    return [one.total_ns / one.steps for one in results]


def with_interval(proof: Proof, plain: list[float], other: list[float]) -> Proof:
    """The proof with the mean difference of the pairs and its 95 % interval by Student's t."""
    gains = [a - b for a, b in zip(plain, other, strict=True)]
    mean, step = statistics.fmean(gains), statistics.fmean(plain)
    freedom = len(gains) - 1
    quantile = _T_975[min(freedom, len(_T_975)) - 1] if freedom else math.inf
    half = quantile * statistics.stdev(gains) / math.sqrt(len(gains)) if freedom else math.inf
    low, high = mean - half, mean + half
    unsure = ""
    if low <= 0 <= high:
        unsure = "noise exceeds the gain: the interval of the difference holds zero; more rounds may tell"
    return replace(
        proof,
        abstained=unsure,
        step_ns=step,
        other_ns=statistics.fmean(other),
        gain_ns=mean,
        low_ns=low,
        high_ns=high,
        share=mean / step,
        rounds=len(gains),
        step_times_ns=tuple(plain),
        other_times_ns=tuple(other),
    )


def _too_few(first: Result) -> str:
    return f"the program steps only {first.steps_seen} times: too few to measure; set window.skip and window.steps"


def _notes(first: Result, plan: Plan, asked: Plan) -> tuple[str, ...]:
    notes = []
    if plan.whole:
        notes.append("the program has no steps that we know: all of it was taken as one, its set-up included")
    elif plan != asked:
        notes.append(f"the program steps {first.steps_seen} times: {plan.steps} were measured after {plan.skip}")
    if not first.seeded:
        notes.append("the program does not seed itself: each run was seeded with 0 by us")
    if first.compiled:
        notes.append("torch.compile regions stay as they are: reads inside them are not given back")
    notes.append("waits that return no value (synchronize, pageable uploads, large downloads) stay as they are")
    notes.append("every run writes what the program writes, replayed ones too: keep their checkpoints apart")
    return tuple(notes)


def _other_reads(result: Result) -> str:
    if result.missed:
        return f"the replayed run asked for values that the recorded one did not read, first at {result.missed[0]}"
    return f"the replayed run left {result.unused} recorded values unread: its control flow is another"


def _not_the_same(recorded: Result, replayed: Result) -> str:
    """Why the replayed run is not the recorded one without waits; empty if it is."""
    if replayed.status or not replayed.steps:
        return f"the replayed run failed: {replayed.why}; the program may rely on the wait"
    if replayed.missed or replayed.unused:
        return _other_reads(replayed)
    if replayed.wrong_counts:
        return f"{replayed.wrong_counts} sizes of nonzero were not the recorded ones: they depend on what changed"
    if recorded.kernels != replayed.kernels:
        at = next(
            (i for i, (a, b) in enumerate(zip(recorded.kernels, replayed.kernels)) if a != b),
            min(len(recorded.kernels), len(replayed.kernels)),
        )
        names = [one.kernels[at] if at < len(one.kernels) else "nothing" for one in (recorded, replayed)]
        return f"the replayed run does other work: as number {at + 1} {names[1]} instead of {names[0]}"
    return ""


def _hazards(checked: Result) -> tuple[str, ...]:
    found = ["a loop that ends by time, or reads event times at once, behaves otherwise without waits"]
    if checked.graphs:
        found.append(f"{checked.graphs} CUDA graph launches: reads inside graphs stay as they are")
    if checked.pinned_uploads:
        found.append("uploads from pinned memory: a buffer that is filled again after the wait may be sent half new")
    return tuple(found)


def _run_hazards(plain: list[Result], replayed: list[Result]) -> tuple[str, ...]:
    found = []
    before, after = max(r.peak_bytes for r in plain), max(r.peak_bytes for r in replayed)
    if before and after > _MEMORY * before:
        found.append(f"the host ran ahead: peak memory {after / before:.2f} times that of the program as it is")
    step = statistics.fmean(one.total_ns / one.steps for one in replayed)
    spent = statistics.fmean(one.calls / one.steps * one.cost_ns for one in replayed)
    if spent > 0.05 * step:
        found.append(f"many small reads: giving them back takes {spent / step:.0%} of the replayed step under the GIL")
    return tuple(found)


def _last_line(output: Path) -> str:
    lines = output.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no output"
