"""Extracts the commands from code blocks of the README and the documentation."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
# Made from the code: usages of commands, and sentences with fields.
_MADE = re.compile(r"<!-- made: (.+?) -->\n.*?<!-- end: \1 -->", re.DOTALL)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:sudo )?asyncli [^`\n]+)`")
_INDENTED = re.compile(r"(?:\A|\n)\n((?:(?: {4}.*)?\n)+)")
#: What may precede a program in a command.
_BEFORE = re.compile(r"sudo|nohup|exec|time|env|systemd-inhibit|\w+=.*|-[in]")
_PROGRAM = re.compile(r"(?:.*/)?asyncli|\$\((?:which|command) (?:-v )?asyncli\)")


class Block(NamedTuple):
    """``language``: of a fence; "" of an indented block, "inline" of a command within a line."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The page's blocks of code and commands in first cells, in order."""
    text = _MADE.sub("", page.read_text(encoding="utf-8"))
    found = [(one.start(), Block(one[1], one[2])) for one in _FENCE.finditer(text)]
    bare = _FENCE.sub(lambda one: re.sub(r"[^\n]", "x", one[0]), text)
    found += [(one.start(), Block("", re.sub(r"^ {4}", "", one[1], flags=re.MULTILINE))) for one in _INDENTED.finditer(bare)]
    bare = _INDENTED.sub(lambda one: re.sub(r"[^\n]", "x", one[0]), bare)
    found += [(one.start(), Block("inline", one[1])) for one in _INLINE.finditer(bare)]
    return [block for _, block in sorted(found)]


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of each call of asyncli in a block of shell commands."""
    text = re.sub(r"\\\n\s*", " ", text)
    for name, value in re.findall(r'^(\w+)="(.*)"$', text, re.MULTILINE):
        text = re.sub(rf"\${name}\b", lambda _, value=value: value, text)
    for line in text.splitlines():
        words = shlex.shlex(re.sub(r"\$\((which|command -v) asyncli\)", "asyncli", line), posix=True, punctuation_chars=True)
        words.whitespace_split = True
        try:
            yield from _calls(list(words))
        except ValueError:  # not a shell command: an unpaired quote
            continue


def _calls(words: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in [*words, ";"]:
        if not re.fullmatch(r"[;|&()<>]+", word):
            part.append(word)
            continue
        while part and _BEFORE.fullmatch(part[0]):
            part = part[1:]
        if part and _PROGRAM.fullmatch(part[0]):
            yield part[1:]
        # After a redirection comes a file.
        part = [":"] if "<" in word or ">" in word else []
