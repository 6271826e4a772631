"""Serves one trace to one viewer, on this machine alone.

- ui.perfetto.dev may fetch from 127.0.0.1:9001 and from no other port (its content
  security policy), so that is where the file is.
- The file goes to that one origin: a request from another site, or under another
  host name (DNS rebinding), is refused.
- A browser that asks the user before a public site may reach the local network sends
  a preflight with `Access-Control-Request-Private-Network`; it is answered.
"""

from __future__ import annotations

import json
import re
import shutil
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

UI = "https://ui.perfetto.dev"
PORT = 9001

_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".wasm": "application/wasm",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>tracer: hand over to Perfetto</title>
<style>body{font:16px sans-serif;max-width:40em;margin:4em auto}button{font:inherit;padding:.5em 1em}</style>
<p id="say">This page hands the trace to the Perfetto UI in a new tab; the trace stays on this machine.</p>
<p><button id="go">Open in Perfetto</button></p>
<script>
const say = (text) => { document.getElementById('say').textContent = text; };
async function handOver() {
  const viewer = window.open(ADDRESS);
  if (!viewer) { say('The browser did not allow a new tab: press the button.'); return; }
  const buffer = await (await fetch(FILE)).arrayBuffer();
  const timer = setInterval(() => viewer.postMessage('PING', ORIGIN), 100);
  window.addEventListener('message', (event) => {
    if (event.source !== viewer || event.data !== 'PONG') return;
    clearInterval(timer);
    viewer.postMessage({perfetto: {buffer, title: NAME, keepApiOpen: true}}, ORIGIN);
    say('Handed over. This page can be closed.');
  });
}
document.getElementById('go').onclick = handOver;
handOver();
</script>
"""


class TraceServer(ThreadingHTTPServer):
    """Answers for one trace: its bytes, the page that hands it over, and for offline use the viewer's own files."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, trace: Path, port: int, *, viewer: Path | None = None, ui: str = UI) -> None:
        self.trace = trace
        self.ui = ui  # the origin that may have the trace
        self.viewer = viewer
        self.address = ui  # of the viewer with all that it is to show, for the page
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def origin(self) -> str:
        """Where this server is."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def file_path(self) -> str:
        """The path of the trace on this server."""
        return f"/trace/{urllib.parse.quote(self.trace.name)}"

    def allowed(self, host: str, origin: str | None) -> bool:
        """Whether a request comes from the viewer (or from our own page)."""
        names = {f"127.0.0.1:{self.server_port}", f"localhost:{self.server_port}"}
        own = {f"http://{name}" for name in names}
        return host in names and (origin is None or origin in own or (origin == self.ui and self.viewer is None))


class _Handler(BaseHTTPRequestHandler):
    server: TraceServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(self._send_body)

    def do_HEAD(self) -> None:
        self._answer(lambda path: None)

    def do_OPTIONS(self) -> None:
        if not self._is_allowed(reading=True):
            return
        self.send_response(HTTPStatus.NO_CONTENT)
        self._allow()
        self.send_header("Access-Control-Allow-Methods", "GET, HEAD")
        if self.headers.get("Access-Control-Request-Private-Network") == "true":
            self.send_header("Access-Control-Allow-Private-Network", "true")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Silent: the terminal is the user's."""

    def _answer(self, send: Callable[[Path], None]) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        server = self.server
        reading = path == urllib.parse.unquote(server.file_path)
        if not self._is_allowed(reading=reading):
            return
        if reading:
            self._send_file(server.trace, "application/octet-stream", send)
        elif server.viewer is not None:
            self._send_viewer(server.viewer, path, send)
        elif path == "/":
            self._send_page()
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def _is_allowed(self, *, reading: bool) -> bool:
        origin = self.headers.get("Origin")
        same_site = self.headers.get("Sec-Fetch-Site") in (None, "same-origin", "none")
        allowed = self.server.allowed(self.headers.get("Host", ""), origin)
        if not allowed or (reading and origin is None and not same_site):
            self._refuse(HTTPStatus.FORBIDDEN)
            return False
        return True

    def _allow(self) -> None:
        if self.headers.get("Origin"):
            self.send_header(
                "Access-Control-Allow-Origin", self.server.ui if self.server.viewer is None else self.server.origin
            )
            self.send_header("Vary", "Origin")

    def _send_viewer(self, folder: Path, path: str, send: Callable[[Path], None]) -> None:
        file = (folder / ("index.html" if path == "/" else path.lstrip("/"))).resolve()
        if folder.resolve() not in file.parents or not file.is_file():
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        self._send_file(file, _TYPES.get(file.suffix, "application/octet-stream"), send)

    def _send_file(self, file: Path, kind: str, send: Callable[[Path], None]) -> None:
        self.send_response(HTTPStatus.OK)
        self._allow()
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(file.stat().st_size))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        send(file)

    def _send_body(self, file: Path) -> None:
        try:
            with file.open("rb") as source:
                shutil.copyfileobj(source, self.wfile, 1 << 20)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the browser went away

    def _send_page(self) -> None:
        server = self.server
        words = {"ADDRESS": server.address, "FILE": server.file_path, "ORIGIN": server.ui, "NAME": server.trace.name}
        body = re.sub("|".join(words), lambda found: _quoted(words[found[0]]), _PAGE).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _quoted(text: str) -> str:
    """A string of JavaScript that cannot end the script that it stands in."""
    return json.dumps(text).replace("<", "\\u003c")
