"""Findings that the user's own source accepts: `# tracer: ok SYNC001 reason`, on the line or alone above it.

A comment holds for the whole statement it stands in. It needs a reason, which the
reports show; one that accepts nothing is reported, so that it does not outlive its cause.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tracer.results import Acceptance, Audit, Finding, Place

_COMMENT = re.compile(r"#\s*tracer:\s*ok\s+([A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)\s*(.*)")
_BLANK = (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER)


@dataclass(frozen=True, slots=True)
class Comment:
    """An accepting comment and the lines that it holds for."""

    line: int
    first: int
    last: int
    rules: tuple[str, ...]
    reason: str


def accept(audit: Audit) -> Audit:
    """The Audit with accepted findings marked, and every accepting comment listed."""
    comments = {file: list(find_comments(text)) for file, text in audit.sources.items()}
    findings = tuple(_accepted(found, comments) for found in audit.findings)
    acceptances = tuple(
        Acceptance(rule, comment.reason, _place(file, comment, audit), _is_used(file, comment, rule, findings))
        for file, found in comments.items()
        for comment in found
        for rule in comment.rules
    )
    return replace(audit, findings=findings, acceptances=acceptances)


def find_comments(text: str) -> Iterator[Comment]:
    """The accepting comments of a source text, also of one that breaks off."""
    if "tracer:" not in text:
        return
    waiting: list[tuple[int, re.Match[str]]] = []
    inside: list[tuple[int, re.Match[str]]] = []
    first = 0  # line where the statement begins; 0 between statements
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            line = token.start[0]
            if token.type == tokenize.COMMENT and (found := _COMMENT.match(token.string)):
                (inside if first else waiting).append((line, found))
            elif token.type == tokenize.NEWLINE:
                yield from (_comment(at, found, first, line) for at, found in waiting + inside)
                waiting, inside, first = [], [], 0
            elif token.type not in _BLANK and not first:
                first = line
    except (tokenize.TokenError, SyntaxError):
        pass
    yield from (_comment(at, found, at, at) for at, found in waiting + inside)


def _comment(line: int, found: re.Match[str], first: int, last: int) -> Comment:
    rules = tuple(rule.strip() for rule in found[1].split(","))
    return Comment(line, first, last, rules, found[2].strip().lstrip(":-").strip())


def _accepted(found: Finding, comments: dict[str, list[Comment]]) -> Finding:
    if found.place is None:
        return found
    for comment in comments.get(found.place.file, ()):
        if comment.reason and found.rule in comment.rules and comment.first <= found.place.line <= comment.last:
            return replace(found, accepted=comment.reason)
    return found


def _is_used(file: str, comment: Comment, rule: str, findings: tuple[Finding, ...]) -> bool:
    return any(
        found.accepted
        and found.rule == rule
        and found.place is not None
        and found.place.file == file
        and comment.first <= found.place.line <= comment.last
        for found in findings
    )


def _place(file: str, comment: Comment, audit: Audit) -> Place:
    excerpt = audit.sources[file].splitlines()[comment.line - 1]
    return Place(file, comment.line, source="source", excerpt=excerpt)
