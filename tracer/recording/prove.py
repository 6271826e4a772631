"""Proves a gain: runs the program as it is, and again with its reads given back without waiting, in turn.

- Fresh processes, interleaved, the order changing from round to round; all seeded alike.
- Two runs record the values; a fourth looks whether the same kernels ran and the counts
  were right. Only then are pairs timed.
- The measured gain is the mean difference of a pair with its 95 % confidence interval
  (Student's t). What cannot be told is not told: `abstained` says why.
- The streams of all these runs go to files, and those of replayed runs say so.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from tracer import config
from tracer.errors import UsageError
from tracer.recording.begin import may_have_gpu
from tracer.recording.commandline import command_line
from tracer.recording.proof import Proof, with_interval
from tracer.recording.prove_child import Result
from tracer.recording.prove_runner import Plan, Runner, other_reads
from tracer.recording.value_store import Store, differences

ROUNDS = 5
_MEMORY = 1.1  # a replayed run that needs more than this factor of memory runs far ahead


def prove(
    settings: config.Config,
    *,
    rounds: int = ROUNDS,
    key: str = "CUDA",
    folder: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Proof:
    """Measure what the reads of values cost."""
    if key == "CUDA" and not may_have_gpu():
        why = "this machine has no GPU: no value can come from one, there is nothing to prove"
        return Proof(1, command_line(settings.run, settings.base)[1], "values replayed", abstained=why)
    runner = Runner(settings, folder, key, say)
    first = runner.run("plain", "first")
    plan = runner.plan_after(first)
    base = Proof(1, runner.name, "values replayed", status=first.status, folder=str(runner.folder))
    if first.status:
        return replace(base, abstained=f"the program itself failed: {first.why}")
    if not first.reached:
        return replace(base, abstained=first.why)
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
    if not first.reached:
        return replace(base, abstained=first.why)
    if plan is None:
        return replace(base, abstained=_too_few(first))
    base = replace(base, seeded_by_us=not first.seeded, notes=_notes(first, plan, runner.asked))
    pairs = runner.pairs(
        rounds, lambda name: runner.run("plain", name, plan), lambda name: second.run("plain", name, plan)
    )
    if isinstance(pairs, str):
        return replace(base, abstained=pairs)
    return replace(with_interval(base, _steps(pairs[0]), _steps(pairs[1])), steps=plan.steps)


def _steps(results: list[Result]) -> list[float]:
    return [one.total_ns / one.steps for one in results]


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


def _not_the_same(recorded: Result, replayed: Result) -> str:
    """Why the replayed run is not the recorded one without waits; empty if it is."""
    if replayed.status or not replayed.steps:
        return f"the replayed run failed: {replayed.why}; the program may rely on the wait"
    if replayed.missed or replayed.unused:
        return other_reads(replayed)
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
