"""Makes a trace of any size out of a real one, by repeating its events later and with ids of their own.

python tests/bench/scale.py traces/samples/x/rank0.../kineto.json.gz big.json --size 1GB --layout kineto
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

IDS = ("correlation", "External id", "Ev Idx", "Sequence number", "Python id", "Python parent id")
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
_STEP = re.compile(r"(ProfilerStep#)(\d+)")


def parse_size(text: str) -> int:
    """Bytes from `500MB`."""
    found = re.fullmatch(r"(\d+)(KB|MB|GB)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"not a size: {text}")
    return int(found[1]) * UNITS[found[2]]


class Repetition:
    """A real trace's events, to be written again and again."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        # Stamps as decimals: a double would lose their last digits.
        self.keys: dict[str, Any] = json.loads(data, parse_float=Decimal)
        events = self.keys.pop("traceEvents")
        self.once = [found for found in events if "ts" in found and _is_once(found)]
        self.events = [found for found in events if "ts" in found and not _is_once(found)]
        starts = [Decimal(found["ts"]) for found in self.events]
        ends = [start + Decimal(found.get("dur", 0)) for start, found in zip(starts, self.events, strict=True)]
        self.period = int(max(ends) - min(starts)) + 1_000
        self.strides = {key: 1 + max((_id(found, key) for found in self.events), default=0) for key in IDS}
        steps = [int(found[2]) for event in self.events if (found := _STEP.match(str(event.get("name"))))]
        self.steps = max(steps) - min(steps) + 1 if steps else 0

    def copy(self, number: int) -> Iterator[dict[str, Any]]:
        """The events of one repetition."""
        for found in self.events:
            moved = found | {"ts": Decimal(found["ts"]) + number * self.period}
            if isinstance(found.get("id"), int):
                moved["id"] = found["id"] + number * self.strides["correlation"]
            if self.steps and (step := _STEP.match(str(found.get("name")))):
                moved["name"] = step[1] + str(int(step[2]) + number * self.steps)
            args = found.get("args")
            if isinstance(args, dict):
                ids = {key: args[key] + number * self.strides[key] for key in IDS if _id(found, key) > 0}
                moved["args"] = args | ids
            yield moved


def _is_once(event: dict[str, Any]) -> bool:
    """Whether this belongs to the whole trace."""
    return event["ph"] == "M" or event.get("cat") == "Trace"


def _id(event: dict[str, Any], key: str) -> int:
    value = event["args"].get(key) if isinstance(event.get("args"), dict) else None
    return value if isinstance(value, int) else 0


def as_text(event: dict[str, Any], layout: str) -> str:
    """One event as torch.profiler lays it out, or as densely as possible."""
    dense = layout == "compact"
    head = {key: value for key, value in event.items() if key not in ("ts", "dur", "args")}
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":") if dense else None)[:-1]
    stamps = [f'"{key}":{"" if dense else " "}{event[key]}' for key in ("ts", "dur") if key in event]
    text += ("," if dense else ",\n    ") + ("," if dense else ", ").join(stamps)
    if "args" in event:
        args = json.dumps(event["args"], ensure_ascii=False, default=float, separators=(",", ":") if dense else None)
        text += f',"args":{args}' if dense else f',\n    "args": {{\n      {args[1:-1]}\n    }}'
    return text + "}" if dense else "  {\n    " + text[1:] + "\n  }"


def scale(source: Path, target: Path, size: int, layout: str) -> int:
    """Write at least `size` bytes; the number of events."""
    repetition = Repetition(source)
    between = ",\n" if layout == "kineto" else ","
    written = events = number = 0
    with target.open("w", encoding="utf-8") as file:
        head = json.dumps(repetition.keys, default=float)[:-1]
        file.write((head + ", " if repetition.keys else "{") + '"traceEvents": [\n')
        file.write(between.join(as_text(found, layout) for found in repetition.once))
        while written < size:
            texts = [as_text(found, layout) for found in repetition.copy(number)]
            block = between + between.join(texts)
            file.write(block)
            written += len(block)
            events += len(texts)
            number += 1
        file.write("\n]}\n")
    return events


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--size", type=parse_size, required=True)
    parser.add_argument("--layout", choices=("kineto", "compact"), default="kineto")
    arguments = parser.parse_args()
    events = scale(arguments.source, arguments.target, arguments.size, arguments.layout)
    print(f"{arguments.target}: {arguments.target.stat().st_size / 1e6:.1f} MB, {events} events")
    return 0


if __name__ == "__main__":
    sys.exit(main())
