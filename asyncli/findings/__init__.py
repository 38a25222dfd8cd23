"""The catalogue of findings: each with its code, severity and fields, and the only place where its words are written.

Whoever finds something calls its entry with what was seen, as ``probe_lost("status", 12.0, "no answer in 2 s")``. The entry's
parameters are the finding's fields, plain data for those who read JSON; its docstring says what the finding means. A field called
one of :data:`INSTANTS` is an instant on the run's clock. Nothing reads the words back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, ParamSpec, get_type_hints

import msgspec

from asyncli.records import Finding, Severity

P = ParamSpec("P")
#: Fields (s) that are instants on the clock of who found it; other names that end in ``_s`` are durations.
INSTANTS = frozenset({"at_s", "from_s", "to_s", "until_s"})


class Words(NamedTuple):
    """What was seen, and what to do about it ("" for nothing); the severity, where that is not the entry's."""

    evidence: str
    remedy: str = ""
    severity: Severity | None = None


class Entry(Generic[P]):
    """What can be found. ``code`` may name fields: ``"{probe}_lost"``. ``about``: what it means."""

    def __init__(self, code: str, severity: Severity, words: Callable[P, Words]) -> None:
        self.code, self.severity, self.about = code, severity, (words.__doc__ or "").strip()
        self._words = words
        self._names = words.__code__.co_varnames[: words.__code__.co_argcount + words.__code__.co_kwonlyargcount]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Finding:
        words = self._words(*args, **kwargs)
        fields: dict[str, Any] = {**dict(zip(self._names, args, strict=False)), **kwargs}
        code = self.code.format_map(fields)
        return Finding(code, words.severity or self.severity, words.evidence, words.remedy, fields)

    def read(self, fields: dict[str, Any]) -> Finding:
        """The finding of fields that came from outside. Raises :class:`msgspec.ValidationError` where they are not this one's."""
        hints = get_type_hints(self._words)
        types = msgspec.defstruct("Fields", [(name, hints[name]) for name in self._names], forbid_unknown_fields=True)
        known: Callable[..., Finding] = self
        return known(**msgspec.structs.asdict(msgspec.convert(fields, types, str_keys=True)))


#: Every entry of the modules of this package that were imported. A soak and a bench may find the same, each with its own fields.
CATALOGUE: list[Entry[...]] = []


def entries_of(code: str) -> list[Entry[...]]:
    """The entries of a finding's code; empty where none of the imported modules has one."""
    exact = [entry for entry in CATALOGUE if entry.code == code]
    return exact or [entry for entry in CATALOGUE if re.fullmatch(re.sub(r"\{\w+\}", r"\\w+", entry.code), code)][:1]


def finding(code: str, severity: Severity) -> Callable[[Callable[P, Words]], Entry[P]]:
    """Make a function from fields to :class:`Words` an entry of the catalogue."""

    def entry(words: Callable[P, Words]) -> Entry[P]:
        made = Entry(code, severity, words)
        CATALOGUE.append(made)
        return made

    return entry


def rewritten(found: Finding, change: Callable[[str, Any], Any]) -> Finding:
    """``found`` with each field as ``change`` makes it of its name and value, in words to match; as it is where it is no entry's.

    It may come from outside.
    """
    fields = {name: change(name, value) for name, value in found.fields.items()}
    for entry in CATALOGUE:
        if entry.code == found.code or "{" in entry.code:
            try:
                if entry.code.format_map(found.fields) == found.code:
                    return entry.read(fields)
            except (KeyError, ValueError, OverflowError, msgspec.ValidationError):
                continue
    return found
