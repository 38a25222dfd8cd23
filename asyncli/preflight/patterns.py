"""Regular expressions of a server's configuration, which may be another user's, or an agent's.

They run in RE2, whose time is bounded by the length of pattern and text
(https://github.com/google/re2/wiki/WhyRE2); a backtracking engine may take hours for 50 characters.
What RE2 does not have (references, look-around) is undecided, and so is every pattern on a platform
without a wheel of google-re2.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

# Of the compiled pattern; RE2's default is 8 MiB.
_MOST_BYTES = 1 << 20


class Undecided(msgspec.Struct, frozen=True):
    """A pattern of which asyncli cannot tell whether it matches."""

    pattern: str


def matches(pattern: str, text: str, *, fold: bool) -> bool | None:
    """Whether ``pattern`` (PCRE) matches somewhere in ``text``; ``fold``: in either case.

    None: undecided.
    """
    match = _search(pattern, text, fold=fold)
    if match is None:
        return None
    return match is not False


def _search(pattern: str, text: str, *, fold: bool) -> Any:
    """The match of ``pattern`` in ``text``; False: there is none, None: undecided."""
    engine = _re2()
    if engine is None:
        return None
    options = engine.Options()
    options.case_sensitive = not fold
    options.log_errors = False
    options.max_mem = _MOST_BYTES
    # PCRE and RE2 before 2023 write named groups differently.
    portable = re.sub(r"\(\?<(?![=!])", "(?P<", pattern)
    try:
        match = engine.compile(portable, options).search(text)
    except (engine.error, UnicodeError):
        return None
    return False if match is None else match


def substituted(pattern: str, text: str, replacement: str) -> str | Undecided | None:
    """``replacement`` with the groups of ``pattern`` in ``text`` (``$1``, ``$name``), without its
    query; None: it does not match.

    Undecided: the pattern is, or another variable stands there.
    """
    match = _search(pattern, text, fold=False)
    if match is None:
        return Undecided(pattern)
    if match is False:
        return None
    groups: dict[str, str] = {}
    for number, group in enumerate(match.groups(), 1):
        groups[str(number)] = group or ""
    for name, group in match.groupdict().items():
        groups[name] = group or ""

    def fill(variable: re.Match[str]) -> str:
        return groups.get(variable[1], variable[0])

    path = replacement.partition("?")[0]
    filled = re.sub(r"\$\{?(\w+)\}?", fill, path)
    if "$" in filled and not filled.startswith("$scheme"):
        return Undecided(replacement)
    return filled


def _re2() -> Any:
    """The module of google-re2; None without it.

    Other packages have a module of this name, which falls back to backtracking.
    """
    try:
        import re2
    except ImportError:
        return None
    return re2 if hasattr(re2, "Options") else None
