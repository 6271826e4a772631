"""Measure what removing the waits would save: the program as it is, and with its reads given back without waiting.

Runs the config's program in fresh processes, in turn, several times. Values that reads
(`.item()`, `if tensor`, masks as indices) returned in one run are returned without
waiting in another; where the two runs do not do the same work, nothing is claimed.

    python -m tracer prove config.yaml
    python -m tracer prove config.yaml window.steps=50 --rounds 9
    python -m tracer prove config.yaml --fix patched.py     is the patched script really faster?

Outputs and checkpoints of the program are written by every run, replayed ones too.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracer.config import Config
    from tracer.recording.proof import Proof

_REPLACED = ("sync.item", "sync.shape", "sync.check")  # kinds of findings whose waits a replayed run does not have


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to run, how often, and against what."""
    parser.usage = (
        "%(prog)s CONFIG [key.path=value ...] [--fix PATCHED_SCRIPT] [--rounds N] [--no-predict] [--format NAME]"
    )
    parser.add_argument("config", help="a YAML file with a `run` section")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="overrides one key of the config")
    parser.add_argument("--fix", metavar="PATCHED_SCRIPT", help="compare with this script instead")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="pairs of runs (default: %(default)s)")
    parser.add_argument("--no-predict", action="store_true", help="do not record a trace to predict the gain from")
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal")


def run(arguments: argparse.Namespace) -> int:
    """Print the proof; the program's own status if it is not zero."""
    from pathlib import Path

    from tracer.commands._output import status_first
    from tracer.config import load_config
    from tracer.errors import UsageError
    from tracer.recording.prove import prove, prove_fix

    if arguments.rounds < 2:
        raise UsageError("--rounds must be at least 2", why="one pair says nothing about noise", fix="--rounds 5")
    settings = load_config(arguments.config, arguments.overrides)
    if arguments.fix:
        proof = prove_fix(settings, Path(arguments.fix), rounds=arguments.rounds, say=_say)
    else:
        proof = prove(settings, rounds=arguments.rounds, say=_say)
        if proof.gain_ns is not None and not arguments.no_predict:
            proof = with_prediction(proof, settings)
    with status_first():
        print(as_json(proof) if arguments.format == "json" else as_text(proof))
    return proof.status


def _say(text: str) -> None:
    print(f"tracer: {text}", file=sys.stderr, flush=True)


def with_prediction(proof: Proof, settings: Config) -> Proof:
    """The proof beside what a recording of the same program predicts for the same reads."""
    import dataclasses

    from tracer.recording.launch import launch

    _say("recording the program, to predict the same gain")
    outcome = launch(settings, lambda event: None, None)
    folders = [str(folder) for folder in outcome.folders]
    if outcome.status or not folders:
        note = "the program could not be recorded, so there is no prediction beside the measured gain"
        return dataclasses.replace(proof, notes=(*proof.notes, note))
    gain, why = predict_reads(folders[0])
    if gain is None:
        return dataclasses.replace(proof, notes=(*proof.notes, f"no prediction: {why}"))
    return dataclasses.replace(
        proof, predicted_ns=gain.likely_ns, predicted_low_ns=gain.low_ns, predicted_share=gain.share
    )


def predict_reads(path: str) -> tuple[Any, str]:
    """What removing all reads of values would gain, as predicted from a trace; or why that is not known."""
    from tracer.analysis.replay import Removal, predict
    from tracer.analysis.steps import find_steps
    from tracer.auditor import examine
    from tracer.readers import load

    found = examine(load(path))
    evidence = found.evidence
    removals = []
    for number, finding in enumerate(found.findings):
        rows = evidence.rows.get(finding.id)
        if finding.kind in _REPLACED and rows is not None and len(rows):
            removals.append(Removal(number, evidence.stalls.call[rows], evidence.stalls.op[rows], "no_wait"))
    prediction = predict(found.trace, evidence.launches, evidence.stalls, find_steps(found.trace), removals)
    if prediction.replay.together is None:
        return None, prediction.replay.abstained or "the recorded window holds no such read"
    return prediction.replay.together, ""


def as_json(proof: Proof) -> str:
    """The proof with the names of its fields."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(proof), indent=2).decode()


def as_text(proof: Proof) -> str:
    """The proof for people."""
    from tracer.units import show_ns

    lines = []
    if proof.step_ns is None or proof.other_ns is None or proof.gain_ns is None:
        lines.append(f"Nothing is proven: {proof.abstained}.")
    else:
        low, high, share = proof.low_ns or 0.0, proof.high_ns or 0.0, proof.share or 0.0
        lines.append(
            f"A step takes {show_ns(proof.step_ns)} as it is, {show_ns(proof.other_ns)} with {proof.compared}: "
            f"{show_ns(proof.gain_ns)} ({share:.1%}) less."
        )
        lines.append(
            f"95 % confidence: {show_ns(low)} to {show_ns(high)}, from {proof.rounds} pairs of {proof.steps} steps."
        )
        if proof.abstained:
            lines.append(f"That is no proof: {proof.abstained}.")
        if proof.predicted_ns is not None:
            lines.append(
                f"Predicted from a recording: {show_ns(proof.predicted_ns)} ({proof.predicted_share or 0:.1%}), "
                f"at least {show_ns(proof.predicted_low_ns or 0)}."
            )
        if proof.reads:
            lines.append(
                f"A step reads {proof.reads:.1f} values; giving one back takes {show_ns(proof.read_cost_ns)} of host "
                f"time, {show_ns(proof.reads * proof.read_cost_ns)} a step, which a fix would save as well."
            )
    lines.extend(f"Note: {note}." for note in proof.notes)
    lines.extend(f"Hazard: {hazard}." for hazard in proof.hazards)
    if proof.folder:
        lines.append(f"What the runs printed is in {proof.folder}.")
    return "\n".join(lines)
