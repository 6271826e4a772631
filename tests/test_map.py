"""The tree in tracer/README.md names every module. `python tests/test_map.py` writes it anew."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "tracer"
README = PACKAGE / "README.md"
BEGIN, END = "from each module's first line -->\n", "<!-- end -->"


def tree() -> str:
    """One line a module: its path and what it says it is for."""
    lines = []
    for path in sorted(PACKAGE.rglob("*.py"), key=lambda p: (len(p.relative_to(PACKAGE).parts) > 1, p)):
        name = path.relative_to(PACKAGE).as_posix()
        doc = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        lines.append(f"- `{name}`: {doc}")
    return "\n".join(lines) + "\n"


def test_the_tree_is_true():
    text = README.read_text()

    shown = text[text.index(BEGIN) + len(BEGIN) : text.rindex(END)]
    assert shown.strip() == tree().strip(), "renew it: python tests/test_map.py"


if __name__ == "__main__":
    old = README.read_text()
    README.write_text(old[: old.index(BEGIN) + len(BEGIN)] + "\n" + tree() + "\n" + old[old.rindex(END) :])
