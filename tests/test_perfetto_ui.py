"""What people see: the real Perfetto UI in headless Chromium, on a recording of an H200.

With TRACER_PICTURES=FOLDER the pictures for the README are written there.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import CPU, GPU, make_timeline
from tests.perfetto_tools.processor import ui_folder
from tests.perfetto_tools.ui import Ui, serve
from tests.shared import H200
from tracer.auditor import audit_of, examine
from tracer.commands._serving import TraceServer
from tracer.exports.perfetto import write
from tracer.readers import load
from tracer.trace import Frames, Kind, Samples

PINNED = {"x": 250, "y": 120, "width": 1200, "height": 140}  # where the pinned rows are
FIX = "keep"
SAMPLES = Path(__file__).parents[1] / "traces" / "samples"
BELOW = {"x": 250, "y": 700, "width": 1200, "height": 180}  # where the rows of findings and timers are
ROWS_OF_GPU = [
    "GPU busy",
    "Queue depth",
    "Host's lead",
    "Async gap",
    "Stream 7 (default)",
    "Copies",
    "GPU idle, by cause",
]
ROWS_OF_HOST = ["Steps", "Host stalls", "Findings"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    wanted = os.environ.get("TRACER_PICTURES")
    folder = Path(wanted) if wanted else tmp_path_factory.mktemp("pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def ui(tmp_path_factory):
    """IS01: twenty steps of 20 matrix products and an .item()."""
    trace = load(H200 / "IS01.json.gz")
    found = examine(trace)
    path = tmp_path_factory.mktemp("ui") / "IS01.pftrace"
    write(trace, audit_of(found), path, examination=found)
    with serve("--offline", str(path)) as address, Ui(address) as opened:
        yield opened


def _names(ui, of="trace.workspace.flatTracks"):
    return ui.evaluate(f"return {of}.map((t) => t.name)")


def _pixels(path: Path) -> list[list[tuple[int, int, int]]]:
    """The rows of a PNG of 8 bits without interlacing, which is what Chromium writes."""
    data, at, packed = path.read_bytes(), 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height, _, colours = struct.unpack(">IIBB", body[:10])
        elif kind == b"IDAT":
            packed += body
        at += 12 + size
    depth = {2: 3, 6: 4}[colours]
    raw, line, rows = zlib.decompress(packed), bytearray(width * depth), []
    for row in range(height):
        start = row * (width * depth + 1)
        line = _unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + width * depth]), line, depth)
        rows.append([tuple(line[x : x + 3]) for x in range(0, width * depth, depth)])
    return rows


def _unfiltered(kind: int, line: bytearray, above: bytearray, depth: int) -> bytearray:
    for at in range(len(line)):
        left = line[at - depth] if at >= depth else 0
        corner = above[at - depth] if at >= depth else 0
        guess = left + above[at] - corner
        nearest = min(
            (abs(guess - left), 0, left), (abs(guess - above[at]), 1, above[at]), (abs(guess - corner), 2, corner)
        )
        line[at] = (line[at] + (0, left, above[at], (left + above[at]) // 2, nearest[2])[kind]) & 255
    return line


def _is_red(pixel) -> bool:
    red, green, blue = pixel
    return red > 180 and green < 110 and blue < 120


def test_the_rows_are_there_in_order(ui):
    names = _names(ui)

    assert [name for name in names if name in ROWS_OF_GPU] == ROWS_OF_GPU
    assert [name for name in names if name in ROWS_OF_HOST] == [row for row in ROWS_OF_HOST if row in names]
    assert {"Host stalls", "Findings"} <= set(names)
    tops = ui.evaluate("return trace.workspace.children.map((t) => t.name)")
    shown = [name for name in tops if name != "System"]
    assert [name.split()[0].rstrip("3:") for name in shown] == ["GPU", "Host", "python"]


def test_it_opens_with_the_right_rows_pinned_and_the_worst_stall_selected(ui):
    pinned = _names(ui, "trace.workspace.pinnedTracks")

    assert pinned == ["Host stalls", "Host's lead", "GPU idle, by cause"]  # it has no steps
    name, category = ui.evaluate(
        "const id = trace.selection.selection.eventId;"
        "const row = (await trace.engine.query(`select name, category from slice where id = ${id}`)).iter({});"
        "return [row.get('name'), row.get('category')]"
    )
    assert category == "stall"
    assert "IS01.py:21" in name


def test_there_is_no_error_and_no_dialog(ui):
    assert ui.problems() == []
    assert ui.evaluate("return trace.traceInfo.importErrors") == 0


def test_stalls_are_red(ui, pictures):
    ui.screenshot(pictures / "opened.png")
    rows = _pixels(ui.screenshot(pictures / "pinned.png", PINNED))

    # A stall's bar, not an icon or a letter: a long run of red, and below it more of the same.
    long = [y for y, row in enumerate(rows) if _run_of_red(row)[1] > 100]
    assert len(long) > 10


def _run_of_red(row) -> tuple[int, int]:
    """Where the longest unbroken run of red starts, and its length."""
    best = (0, 0)
    run = 0
    for x, pixel in enumerate(row):
        run = run + 1 if _is_red(pixel) else 0
        best = max(best, (run, x - run + 1))
    return best[1], best[0]


def test_a_click_on_a_stall_says_cause_line_and_fix(ui, pictures):
    rows = _pixels(ui.screenshot(pictures / "pinned.png", PINNED))
    y, (x, length) = max(enumerate(map(_run_of_red, rows)), key=lambda found: found[1][1])
    ui.evaluate("trace.selection.clearSelection()")

    ui.click(PINNED["x"] + x + length / 2, PINNED["y"] + y)
    ui.press("Current Selection")  # the panel is a drawer

    text = "\n".join(ui.texts(".pf-details-shell"))
    ui.evaluate(
        "[...document.querySelectorAll('.pf-details-shell *')]"
        ".find((e) => e.children.length === 0 && e.textContent === 'Arguments')?.scrollIntoView();"
    )
    ui.screenshot(pictures / "stall.png")
    assert "IS01.py:21" in text
    assert "SYNC001" in text
    assert FIX in text


def test_a_recording_opens_on_its_worst_step(pictures):
    """The committed sample: steps, stalls, findings, lines of the program, samples."""
    with serve("--offline", str(SAMPLES / "quickstart-h200")) as address, Ui(address) as opened:
        names = _names(opened)
        pinned = _names(opened, "trace.workspace.pinnedTracks")
        low, high = opened.evaluate(
            "const shown = trace.timeline.visibleWindow; const low = Number(shown.start.integral);"
            "return [low, low + shown.duration]"
        )
        start, dur = opened.evaluate(
            "const sql = \"select ts, dur from slice where category = 'step' order by dur desc\";"
            "const row = (await trace.engine.query(sql)).iter({});"
            "return [Number(row.get('ts')), Number(row.get('dur'))]"
        )
        category = opened.evaluate("return trace.selection.selection.category")
        opened.evaluate(
            "[...document.querySelectorAll('.pf-details-shell *')]"
            ".find((e) => e.children.length === 0 && e.textContent === 'Arguments')?.scrollIntoView();"
        )
        opened.screenshot(pictures / "trace.png")
        opened.evaluate(
            "const uris = trace.workspace.flatTracks.map((t) => t.uri).filter((u) => u !== undefined);"
            "trace.selection.selectArea({start: trace.traceInfo.start, end: trace.traceInfo.end, trackUris: uris});"
        )
        opened.press("Perf Sample Flamegraph")
        opened.screenshot(pictures / "flame.png")
        problems = opened.problems()

    assert problems == []
    assert pinned == ["Steps", "Host stalls", "Host's lead", "GPU idle, by cause"]
    assert category == "stall"
    assert any(name.startswith("main thread: lines") for name in names)
    # The whole worst step is in view, and not much more than twice its length.
    assert low <= start + dur * 0.05
    assert high >= start + dur * 0.95
    assert high - low < 2.2 * dur


def test_a_lying_timer_is_red(pictures):
    """A benchmark that times 53 ms of GPU work as 0.7 ms, because it does not wait."""
    with serve("--offline", str(SAMPLES / "lying-benchmark-h200")) as address, Ui(address) as opened:
        start, name = opened.evaluate(
            "const sql = \"select ts, name from slice where category = 'timer' order by ts limit 1 offset 1\";"
            "const row = (await trace.engine.query(sql)).iter({});"
            "return [Number(row.get('ts')), row.get('name')]"
        )
        opened.evaluate(f"trace.timeline.setViewportTime({start - 300_000}n, {start + 3_000_000}n)")
        names = _names(opened)
        opened.screenshot(pictures / "timers.png")
        rows = _pixels(opened.screenshot(pictures / "pinned.png", BELOW))

    assert {"Timers", "Clock reads"} <= set(names)
    assert "claims 749 us, true 53.4 ms" in name
    assert max(_run_of_red(row)[1] for row in rows) > 100


def test_an_area_shows_a_flame_graph(tmp_path, pictures):
    """Samples of two functions: the area over them gives the tree of callers."""
    names = ("aten::mm", "main", "train.py", "forward", "backward")
    trace = replace(make_timeline((Kind.OP, "aten::mm", CPU, 0, 1_000)), names=names)
    frames = Frames.of(
        function=[1, 3, 4], file=[2] * 3, line=[40, 31, 35], column=[-1] * 3, end_column=[-1] * 3, parent=[-1, 0, 0]
    )
    samples = Samples.of(
        time_ns=[i * 10_000 for i in range(100)],
        track=[0] * 100,
        frame=[1 if i % 3 else 2 for i in range(100)],
        weight_ns=[10_000] * 100,
    )
    written = write(replace(trace, frames=frames, samples=samples), None, tmp_path / "samples.pftrace")

    with serve("--offline", str(written.path)) as address, Ui(address) as opened:
        opened.evaluate(
            "const uris = trace.workspace.flatTracks.map((t) => t.uri).filter((u) => u !== undefined);"
            "trace.selection.selectArea({start: 0n, end: 1000000n, trackUris: uris});"
        )
        opened.press("Perf Sample Flamegraph")
        opened.press("Current Selection")
        (box,) = opened.evaluate(
            "return [...document.querySelectorAll('.pf-flamegraph')].map((e) => e.getBoundingClientRect().toJSON())"
        )
        place = {"x": box["x"] + 2, "y": box["y"], "width": box["width"] - 4, "height": min(box["height"], 120)}
        rows = _pixels(opened.screenshot(tmp_path / "graph.png", place))

    # Two callees of one caller, two thirds and one third of the width.
    left = {row[len(row) // 3] for row in rows}
    right = {row[len(row) - 5] for row in rows}
    assert len(left - right) >= 1
    assert len(right - left) >= 1
    assert len(left & right) >= 2


def test_the_page_hands_the_trace_over_to_the_viewer(tmp_path):
    """Where port 9001 is taken: a page of our own opens the UI and gives it the trace by postMessage."""
    trace = make_timeline((Kind.CALL, "cudaLaunchKernel", CPU, 0, 10, 1), (Kind.KERNEL, "gemm", GPU, 20, 30, 1))
    file = write(trace, None, tmp_path / "t.pftrace").path

    with (
        _running(TraceServer(file, 0, viewer=ui_folder().parent)) as viewer,
        _running(TraceServer(file, 0, ui=viewer.origin)) as server,
    ):
        server.address = f"{viewer.origin}/#!/viewer?hideSidebar=true"
        with Ui(server.origin + "/", window_on=viewer.origin) as opened:
            names = _names(opened)
            title = opened.evaluate("return trace.traceInfo.traceTitle")
            problems = opened.problems()

    assert problems == []
    assert {"GPU 0", "Stream 7 (default)"} <= set(names)
    assert "t.pftrace" in title


@contextmanager
def _running(server: TraceServer) -> Iterator[TraceServer]:
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
