"""Pictures for the HTML report: a step's timeline, the steps side by side, a stacked bar.

Only geometry is computed here. A picture is made of plain shapes with classes;
the page's style gives the colours, so that light, dark and paper each get their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from tracer.reports import _words as words
from tracer.results import Curve, Picture, Step
from tracer.units import show_ns

_WIDTH = 1000.0
_LEFT = 96.0
_RIGHT = 12.0
_ROW = 30.0


def timeline(picture: Picture, known: Iterable[str] = ()) -> Markup:
    """The host's lead, when the GPU was busy and the host held, over one step; a stall of a `known` finding links."""
    linked = set(known)
    span = max(picture.wall_ns, 1)
    parts: list[Markup] = []
    lead = next((curve for curve in picture.curves if curve.name == "lead"), None)
    top = 8.0
    if lead is not None and lead.time_ns:
        parts += [_label(top + 40, "host lead"), _area(lead, picture.start_ns, span, top, 70.0)]
        parts.append(_text(_LEFT - 8, top + 56, f"up to {show_ns(max(lead.value))}", "note", "end"))
        top += 84
    parts.append(_label(top + 19, "GPU busy"))
    parts.append(_rect(_LEFT, top, _x(span, span) - _LEFT, _ROW, "lane"))
    parts += [_block(start, dur, picture, span, top, "busy", "GPU busy") for start, dur in picture.busy]
    top += 44
    parts.append(_label(top + 19, "host held"))
    parts.append(_rect(_LEFT, top, _x(span, span) - _LEFT, _ROW, "lane"))
    for start, dur, found, harmless in picture.stalls:
        what = f"host held, {found}" + (", costs no throughput" if harmless else "")
        block = _block(start, dur, picture, span, top, "harmless" if harmless else "stall", what)
        if found in linked:
            block = Markup('<a href="#{}" aria-label="{}">{}</a>').format(found, f"{what}, {show_ns(dur)}", block)
        parts.append(block)
    top += 40
    parts.append(_axis(span, top))
    title = f"{picture.title}, step {picture.step}: {show_ns(picture.wall_ns)}"
    return _svg(parts, top + 26, title, "timeline")


def steps(rows: Sequence[Step], gpu: bool = True) -> Markup:
    """One column a step: the busy part below, the idle part above, a line as high as the time the host was held."""
    longest = max((step.wall_ns for step in rows), default=0) or 1
    height, room = 150.0, _WIDTH - _LEFT - _RIGHT
    wide = min(room / max(len(rows), 1), 60.0)
    bar = max(wide * 0.72, 0.5)
    parts = [_label(16, show_ns(longest)), _label(height + 10, "0")]
    ranks = len({step.rank for step in rows}) > 1
    for at, step in enumerate(rows):
        left = _LEFT + at * wide + (wide - bar) / 2
        whole, busy = height * step.wall_ns / longest, height * min(step.busy_ns, step.wall_ns) / longest
        held = height * min(step.stalled_ns, step.wall_ns) / longest
        rank = f", rank {step.rank}" if ranks else ""
        title = (
            f"step {step.number}{rank}: {show_ns(step.wall_ns)}"
            + (f", GPU busy {show_ns(step.busy_ns)}, idle {show_ns(step.idle_ns)}" if gpu else "")
            + f", host held {show_ns(step.stalled_ns)}"
        )
        column = [
            _rect(left, height + 10 - whole, bar, whole, "idle" if gpu else "harmless"),
            _rect(left, height + 10 - busy, bar, busy, "busy") if gpu else Markup(),
            _rect(left, height + 9 - held, bar, 2.5, "held"),
        ]
        parts.append(Markup("<g><title>{}</title>{}</g>").format(title, _joined(column)))
        every = max(1, len(rows) // 16)
        if at % every == 0:
            parts.append(_text(left + bar / 2, height + 26, f"{step.number}", "tick", "middle"))
    return _svg(parts, height + 34, f"{words.times(len(rows), 'step')}: busy, idle and held time of each", "steps")


def stacked(parts_ns: Sequence[tuple[str, float]]) -> Markup:
    """One bar cut into parts; the key beside it is the table below the picture."""
    whole = sum(ns for _, ns in parts_ns) or 1
    at, made = 0.0, []
    for number, (name, ns) in enumerate(parts_ns):
        wide = _WIDTH * ns / whole
        title = f"{words.one_line(name)}: {show_ns(ns)}"
        piece = Markup('<rect class="part part-{}" x="{}" y="0" width="{}" height="28"><title>{}</title></rect>')
        made.append(piece.format(number % 8, _number(at), _number(wide), title))
        at += wide
    return _svg(made, 28, "idle time by cause", "stacked")


def _x(ns: float, span: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(max(ns / span, 0.0), 1.0)


def _block(start: int, dur: int, picture: Picture, span: int, top: float, kind: str, what: str) -> Markup:
    left, right = _x(start - picture.start_ns, span), _x(start + dur - picture.start_ns, span)
    title = Markup("<title>{}</title>").format(f"{words.one_line(what)}, {show_ns(dur)}")
    return _rect(left, top, max(right - left, 0.6), _ROW, kind, title)


def _area(curve: Curve, start: int, span: int, top: float, height: float) -> Markup:
    highest = max(curve.value) or 1.0
    points = [f"{_number(_x(curve.time_ns[0] - start, span))},{_number(top + height)}"]
    for time, value in zip(curve.time_ns, curve.value, strict=False):
        points.append(f"{_number(_x(time - start, span))},{_number(top + height - height * value / highest)}")
    points.append(f"{_number(_x(curve.time_ns[-1] - start, span))},{_number(top + height)}")
    return Markup('<polygon class="lead" points="{}"/>').format(" ".join(points))


def _axis(span: int, top: float) -> Markup:
    step = 10 ** (len(str(span)) - 1)
    step = next(size for size in (step // 5, step // 2, step, step * 2) if size and span / size <= 8)
    parts = [_rect(_LEFT, top, _WIDTH - _LEFT - _RIGHT, 1, "axis")]
    for ns in range(0, span + 1, step):
        parts.append(_rect(_x(ns, span), top, 1, 5, "axis"))
        anchor = "start" if not ns else "end" if ns > 0.96 * span else "middle"
        parts.append(_text(_x(ns, span), top + 18, show_ns(ns) if ns else "0", "tick", anchor))
    return _joined(parts)


def _label(y: float, text: str) -> Markup:
    return _text(_LEFT - 8, y, text, "label", "end")


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> Markup:
    made = Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>')
    return made.format(kind, _number(x), _number(y), anchor, words.one_line(text))


def _rect(x: float, y: float, wide: float, high: float, kind: str, inside: Markup | None = None) -> Markup:
    made = Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}">{}</rect>')
    return made.format(kind, _number(x), _number(y), _number(max(wide, 0)), _number(max(high, 0)), inside or "")


def _svg(parts: Iterable[Markup], height: float, title: str, kind: str) -> Markup:
    made = Markup('<svg class="{}" viewBox="0 0 {} {}" role="{}" aria-label="{}">{}</svg>')
    role = "group" if kind == "timeline" else "img"  # a timeline holds links, which an image may not
    return made.format(kind, _number(_WIDTH), _number(height), role, words.one_line(title), _joined(parts))


def _joined(parts: Iterable[Markup]) -> Markup:
    return Markup("\n").join(parts)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
