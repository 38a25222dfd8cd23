"""The catalogue of findings: code, severity, fields, evidence, remedy and meaning of each. No other
module words them.

Call an entry with its fields: ``probe_back("status", 12.0, 2.0)``. Its parameters are the finding's
fields in JSON; its docstring is what ``asyncli explain CODE`` prints, without its clauses on fields
("``name``: ..."). Fields named in
:data:`INSTANTS` are times on the run's clock.
No code parses a sentence.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, ParamSpec, get_type_hints

import msgspec

from asyncli.model.records import Finding, Severity
from asyncli.model.units import (
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    format_share,
)

P = ParamSpec("P")
_CLAUSE_END = re.compile(r"(?<=[.;])\s+(?=[A-Z`])")
#: Fields (s) that are times on the run's clock; other names that end in ``_s`` are durations.
INSTANTS = frozenset({"at_s", "from_s", "to_s", "until_s"})


class Words(NamedTuple):
    """``remedy`` and ``severity``: where they differ from the entry's."""

    evidence: str
    remedy: str = ""
    severity: Severity | None = None


class _Formatter(string.Formatter):
    """str.format with ``{x!n}`` for a count, ``{x!b}`` bytes, ``{x!d}`` a duration, ``{x!c}`` an
    instant, ``{x!p}`` a share.
    """

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if not conversion:
            return value
        return _CONVERSIONS[conversion](value)


_CONVERSIONS: dict[str, Callable[[float], str]] = {
    "n": format_count,
    "b": format_bytes,
    "d": format_duration,
    "c": format_clock,
    "p": format_share,
}
_FORMATTER = _Formatter()


def fill(template: tuple[str, str], fields: dict[str, Any]) -> Words:
    """``template`` filled with ``fields``."""
    evidence, remedy = template
    return Words(_FORMATTER.vformat(evidence, (), fields), _FORMATTER.vformat(remedy, (), fields))


class Entry(Generic[P]):
    """A kind of finding. ``code`` may contain a field: ``"{probe}_lost"``; ``values``: what it may
    be, in words. ``about``: its meaning, and what its fields are.
    """

    def __init__(
        self,
        code: str,
        severity: Severity,
        remedy: str,
        words: Callable[P, Words | str],
        values: str = "",
    ) -> None:
        self.code = code
        self.values = values
        self.severity = severity
        self.remedy = remedy
        self.about = (words.__doc__ or "").strip()
        self._words = words
        parameters = words.__code__.co_argcount + words.__code__.co_kwonlyargcount
        self._names = words.__code__.co_varnames[:parameters]

    @property
    def meaning(self) -> str:
        """``about`` without its clauses on fields (``name``: ...)."""
        clauses = _CLAUSE_END.split(" ".join(self.about.split()))
        return " ".join(clause for clause in clauses if not clause.startswith("``"))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Finding:
        words = self._words(*args, **kwargs)
        if isinstance(words, str):
            words = Words(words)
        fields: dict[str, Any] = {**dict(zip(self._names, args, strict=False)), **kwargs}
        return Finding(
            self.code.format_map(fields),
            words.severity or self.severity,
            words.evidence,
            words.remedy or self.remedy,
            fields,
        )

    def read(self, fields: dict[str, Any]) -> Finding:
        """The finding with these fields. Raises :class:`msgspec.ValidationError` if their names or
        types are wrong.
        """
        hints = get_type_hints(self._words)
        # A run of an earlier version has not the fields that came later.
        defaults = self._words.__defaults__ or ()
        first_default = len(self._names) - len(defaults)
        types: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for place, name in enumerate(self._names):
            if place < first_default:
                types.append((name, hints[name]))
            else:
                types.append((name, hints[name], defaults[place - first_default]))
        struct = msgspec.defstruct("Fields", types, forbid_unknown_fields=True)
        converted = msgspec.structs.asdict(msgspec.convert(fields, struct, str_keys=True))
        make: Callable[..., Finding] = self
        return make(**converted)


#: Entries of all imported modules. A soak and a bench may share a code, with different fields.
CATALOGUE: list[Entry[...]] = []


def entries_of(code: str) -> list[Entry[...]]:
    """The entries of a code; of one with a word in its place that of the form whose values name
    that word, else the first form that it fits.
    """
    exact = [entry for entry in CATALOGUE if entry.code == code]
    if exact:
        return exact
    fitting = []
    for entry in CATALOGUE:
        pattern = re.sub(r"\{\w+\}", r"(\\w+)", entry.code)
        match = re.fullmatch(pattern, code)
        if match is None:
            continue
        if match[1] in re.findall(r"\w+", entry.values):
            return [entry]
        fitting.append(entry)
    return fitting[:1]


def finding(
    code: str, severity: Severity, remedy: str = "", *, values: str = ""
) -> Callable[[Callable[P, Words | str]], Entry[P]]:
    """Decorate a function from fields to the evidence or to :class:`Words` as an entry of the
    catalogue.
    """

    def entry(words: Callable[P, Words | str]) -> Entry[P]:
        made = Entry(code, severity, remedy, words, values)
        CATALOGUE.append(made)
        return made

    return entry


def rewritten(original: Finding, change: Callable[[str, Any], Any]) -> Finding:
    """``original`` with each field replaced by ``change(name, value)`` and new sentences; unchanged
    without a matching entry.
    """
    fields = {name: change(name, value) for name, value in original.fields.items()}
    for entry in CATALOGUE:
        if entry.code != original.code and "{" not in entry.code:
            continue
        try:
            if entry.code.format_map(original.fields) == original.code:
                return entry.read(fields)
        except (KeyError, ValueError, OverflowError, msgspec.ValidationError):
            continue
    return original
