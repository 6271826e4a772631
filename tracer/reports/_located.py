"""The answer to "where did the CUDA error come from", for people."""

from __future__ import annotations

from tracer.results import Located, Place, Sighting


def render(located: Located) -> str:
    """Plain text: the cause first, then what it rests on."""
    if not located.kind:
        return "\n".join(
            [f"No CUDA error came up (status {located.status}).", *(f"Note: {text}" for text in located.notes)]
        )
    lines = ["", f"{located.kind}: {located.what}", f"    {located.first.error}", ""]
    lines += _cause(located)
    lines += _first(located.first)
    lines += _second(located.second)
    for title, texts in (("Note", located.notes), ("Do", located.advice)):
        lines += [f"{title}: {text}" for text in texts]
    return "\n".join(lines)


def _cause(located: Located) -> list[str]:
    if located.cause is None:
        return ["Cause: not found", ""]
    how = {
        "both": "by the marks of the first run, and again with launches blocking",
        "marks": "by the marks of the first run",
        "blocking run": "with launches blocking",
        "traceback": "by the traceback alone",
    }[located.cause_from]
    lines = [f"Cause ({located.confidence} confidence, {how}):", *_place(located.cause)]
    if located.iteration:
        lines.append(f"    this line had run {located.iteration} times before")
    lines += [f"    op: {located.op}"] if located.op else []
    lines += [f"    {text}" for text in located.offending]
    lines += [f"    called from {_where(place)}" for place in located.callers]
    if located.forward is not None:
        lines += ["    in the gradient of:", *_place(located.forward)]
    return [*lines, ""]


def _first(first: Sighting) -> list[str]:
    lines = []
    if first.process:
        lines.append(f"Where: {first.process}")
    if first.reported is not None:
        below = f" (in {_where(first.reported_library)})" if first.reported_library else ""
        lines += [f"Blamed by the traceback{below}:", *_place(first.reported)]
    lines += [f"On the device: {text}" for text in first.assertions]
    if len(first.bracket) > 1:
        lines += [
            "Between the last mark that landed and the next:",
            *(f"    {_where(place)}" for place in first.bracket),
        ]
    if first.in_flight:
        lines.append(f"Launches in flight, newest first (marks that had not landed: {first.marks}):")
        for flying in first.in_flight:
            where = _where(flying.place) if flying.place else f"thread {flying.thread}"
            lines.append(f"    {where}  {flying.op or (flying.place.excerpt.strip() if flying.place else '')}".rstrip())
    return [*lines, ""] if lines else []


def _second(second: Sighting | None) -> list[str]:
    if second is None:
        return []
    if second.reproduced:
        return [f"With launches blocking ({second.seconds:.0f} s): the same error, reported by its own line.", ""]
    how = "stopped at the time limit" if second.status is None else "not reproduced"
    return [f"With launches blocking ({second.seconds:.0f} s): {how}.", ""]


def _where(place: Place) -> str:
    return f"{place.file}:{place.line}" + (f" in {place.function}" if place.function else "")


def _place(place: Place) -> list[str]:
    lines = [f"    {_where(place)}"]
    if place.excerpt.strip():
        lines.append(f"        {place.excerpt.strip()}")
    return lines
