"""The Audit as JSON: its keys are the fields of `tracer.results.Audit`, times are nanoseconds.

The schema is published as `audit.schema.json` beside this file; its version is the
Audit's `schema`. `parse` reads such a file back, for `tracer diff` and baselines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tracer.errors import TraceError
from tracer.reports._words import escape
from tracer.results import SCHEMA, Audit, Benchmark, Diff

SUFFIX = ".json"


def render(audit: Audit) -> str:
    """The whole Audit, indented; None is null."""
    return _dump(audit)


def render_diff(diff: Diff) -> str:
    """The whole Diff, indented."""
    return _dump(diff)


def render_benchmark(result: Benchmark) -> str:
    """The whole Benchmark, indented, for `tracer diff`."""
    return _dump(result)


def _dump(result: Audit | Diff | Benchmark) -> str:
    plain = msgspec.to_builtins(result, enc_hook=_plain, str_keys=True)
    encoded = msgspec.json.encode(_printable(plain))
    return escape(msgspec.json.format(encoded, indent=2).decode() + "\n")


def parse(data: bytes | str, source: str = "the file") -> Audit:
    """The Audit in a file that `render` wrote.

    Raises TraceError if it is no audit, or one of another schema version.
    """
    found: Audit = _parse(data, source, Audit, "an audit")
    return found


def parse_benchmark(data: bytes | str, source: str = "the file") -> Benchmark:
    """The Benchmark in a file that `tracer bench --format json` wrote.

    Raises TraceError if it is none, or one of another schema version.
    """
    found: Benchmark = _parse(data, source, Benchmark, "a benchmark")
    return found


def schema() -> dict[str, Any]:
    """The JSON schema of what `render` writes."""
    body = msgspec.json.schema(Audit)
    body["$defs"]["Audit"]["properties"]["schema"] = {"const": SCHEMA}
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"tracer audit, version {SCHEMA}",
    }
    return head | body


def _parse(data: bytes | str, source: str, kind: type[Any], noun: str) -> Any:
    try:
        found = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TraceError(
            f"{source} is not {noun} of tracer", why=str(error), fix="write one with `--format json -o FILE`"
        ) from error
    if found.schema != SCHEMA:
        raise TraceError(
            f"{source} has schema version {found.schema}, this tracer reads {SCHEMA}",
            fix="write it again with this version from the recording",
        )
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"no JSON for {type(value).__name__}")


def _printable(value: Any) -> Any:
    """The same value with lone surrogates (names of files that are not UTF-8) escaped, since JSON has none."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(item) for item in value]
    return value
