"""Explain a rule by its id: what it means, bad and good code, what to do.

`--table` prints all rules as a Markdown table.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which rule."""
    parser.add_argument("rule", nargs="?", metavar="RULE", help="id of a rule, for example SYNC001")
    parser.add_argument("--table", action="store_true", help="all rules as a Markdown table")


def run(arguments: argparse.Namespace) -> int:
    """Print the rule's page, or the table."""
    from tracer.errors import UsageError

    if arguments.table:
        print(rule_table())
        return 0
    if not arguments.rule:
        raise UsageError("there is no rule to explain", fix="name one, for example SYNC001, or use --table")
    print(rule_page(arguments.rule))
    return 0


def rule_page(wanted: str) -> str:
    """One rule: its title and its module's docstring."""
    import difflib
    import re

    from tracer.errors import UsageError
    from tracer.rules import rule_modules

    known = {module.RULE.id: module for module in rule_modules()}
    numbered = re.fullmatch(r"([A-Z]+)(\d+)", wanted.upper())
    module = known.get(f"{numbered[1]}{int(numbered[2]):03d}" if numbered else wanted.upper())
    if module is None:
        near = difflib.get_close_matches(wanted.upper(), known, n=3)
        raise UsageError(
            f"there is no rule {wanted!r}", fix=f"did you mean {', '.join(near)}?" if near else "see --table for all"
        )
    rule = module.RULE
    doc = (module.__doc__ or "").strip()
    return f"{rule.id}  {rule.title}\n{rule.kind}, {rule.severity}\n\n{doc}\n\nFix: {rule.fix}"


def rule_table() -> str:
    """All rules in Markdown."""
    from tracer.rules import rule_modules

    lines = ["| rule | class | severity | what | fix |", "|---|---|---|---|---|"]
    for module in rule_modules():
        rule = module.RULE
        cells = (rule.id, f"`{rule.kind}`", rule.severity, rule.title, rule.fix)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)
