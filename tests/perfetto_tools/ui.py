"""The real Perfetto UI in headless Chromium, as `tracer open --offline` opens it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parent


class UiError(Exception):
    """The browser could not do what it was told."""


@contextmanager
def serve(*arguments: str) -> Iterator[str]:
    """`tracer open` with these arguments; its address, until the end of the block."""
    command = [sys.executable, "-u", "-m", "tracer", "open", "--no-browser", *arguments]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stderr is not None
        for line in server.stdout:
            if line.startswith("address: "):
                break
        else:
            raise UiError(server.stderr.read())
        yield line.removeprefix("address: ").strip()
    finally:
        server.terminate()
        server.wait(10)
        for pipe in (server.stdout, server.stderr):
            assert pipe is not None
            pipe.close()


class Ui:
    """A trace on the screen. `evaluate` runs JavaScript with `app` and `trace` at hand; `return` gives its value."""

    def __init__(self, address: str, width: int = 1500, height: int = 1100, *, window_on: str = "") -> None:
        self.address = address
        self._window_on = window_on  # the address only opens a window on this origin, and that is what is looked at
        self._size = (width, height)

    def __enter__(self) -> Self:
        command = ["node", str(HERE / "browser.mjs"), self.address, *map(str, self._size)]
        command += [self._window_on] if self._window_on else []
        self._node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self._answer()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.close()
        self._node.stdout.read()
        self._node.stdout.close()
        self._node.wait(30)

    def evaluate(self, script: str) -> Any:
        """The value that a script returns."""
        return self._do("evaluate", script=script)

    def click(self, x: float, y: float) -> None:
        """Click at a place of the window."""
        self._do("click", x=x, y=y)

    def press(self, text: str) -> None:
        """Click on what bears this text."""
        self._do("press", text=text)

    def texts(self, selector: str) -> list[str]:
        """What is written in these elements."""
        found: list[str] = self._do("text", selector=selector)
        return found

    def screenshot(self, path: Path, clip: dict[str, float] | None = None) -> Path:
        """A picture of the window, or of a part."""
        self._do("screenshot", path=str(path), **({"clip": clip} if clip else {}))
        return path

    def problems(self) -> list[str]:
        """Errors of the page, and dialogs that are open."""
        found: list[str] = self._do("problems")
        return found

    def _do(self, order: str, **arguments: Any) -> Any:
        assert self._node.stdin is not None
        self._node.stdin.write(json.dumps({"do": order, **arguments}) + "\n")
        self._node.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._node.stdout is not None
        line = self._node.stdout.readline()
        answer = json.loads(line) if line else {"error": "the browser ended"}
        if "error" in answer:
            raise UiError(answer["error"])
        return answer["value"]
