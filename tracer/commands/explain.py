"""Explain a rule by its id: what it means, bad and good code, what to do; or a class word, as reports use them.

`--table` prints all rules as a Markdown table.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which rule."""
    parser.add_argument("rule", nargs="?", metavar="RULE", help="id of a rule (SYNC001), or a class (sync.item)")
    parser.add_argument("--table", action="store_true", help="all rules as a Markdown table")


def run(arguments: argparse.Namespace) -> int:
    """Print the rule's page, or the table."""
    from tracer.errors import UsageError

    if arguments.table:
        print(rule_table())
        return 0
    if not arguments.rule:
        raise UsageError("there is no rule to explain", fix="name one, for example SYNC001, or use --table")
    print(class_page(arguments.rule) or rule_page(arguments.rule))
    return 0


def class_page(wanted: str) -> str:
    """A class word: what it means, and the rules that find it; empty if it is none."""
    from tracer.analysis.idle import CAUSES
    from tracer.analysis.summary import cause_words
    from tracer.rules import rule_modules

    word = wanted.lower()
    rules = [module.RULE for module in rule_modules() if module.RULE.kind == word]
    if not rules and word not in CAUSES:
        return ""
    lines = [f"{word}  {_WITHOUT_RULE.get(word) or cause_words(word)}"]
    if rules:
        lines += ["", *(f"{rule.id}  {rule.title}\n    fix: {rule.fix}" for rule in rules)]
        lines += ["", f"`tracer explain {rules[0].id}` shows bad and good code."]
    return "\n".join(lines)


_WITHOUT_RULE = {
    "unknown": "idle time that the trace does not explain; record with samples or lines to learn more",
    "head": "idle time before the first GPU work of the recording: nobody's fault",
    "tail": "idle time after the last GPU work of the recording: nobody's fault",
    "profiler": "idle time in which the profiler itself was at work; the program alone does not have it",
    "stall": "idle time while the host waited for the GPU; reports name the class of the wait instead",
    "gpu.gap": "the device's own short gaps between kernels that were already queued: no change of the program's "
    "Python removes them one by one; fewer and larger kernels (fusion, torch.compile, CUDA graphs) do",
}


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
        kinds = {module.RULE.kind for module in known.values()}
        near = difflib.get_close_matches(wanted.upper(), known, n=3)
        near = near or difflib.get_close_matches(wanted.lower(), kinds, n=3)
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
