"""Parsers of pages of metrics: Prometheus text format 0.0.4, OpenMetrics, and JSON (expvar, NATS).
Pure.

A page is what a peer sent: it may be anything of a bounded size. Lines that cannot be read are
skipped, and a page without any metric is an error. The time is linear in the size: the patterns
have possessive quantifiers, and no line is read twice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from asyncli.model.prometheus_labels import parse_labels

#: "topics": a broker's (broker_topics.py).
Format = Literal["text", "json", "topics"]

# A name of Prometheus. Names with other letters are in quotes (OpenTelemetry); no rule wants one.
_NAME = rb"[A-Za-z_:][A-Za-z0-9_:]*+"
# What follows a name: labels in braces, whose values are in quotes and may have any letter but a
# bare newline, and a number. A timestamp may follow, and an exemplar, which begins with "#".
_LABELS_AND_VALUE = (
    rb"(?:[ \t]*+\{(?P<labels>(?:[^\"}\n]++|\"(?:[^\"\\\n]++|\\[^\n])*+\")*+)\})?"
    rb"[ \t]*+(?P<value>[-+.0-9A-Za-z]{1,40}+)(?=[ \t\r\n]|\Z)(?P<stamp>[ \t]++[-.0-9])?"
)
# Each line begins with its newline: a pattern that begins with a letter of its own is found five
# times faster than one that begins with "^".
_ROW = re.compile(rb"\n[ \t]*+(?P<name>" + _NAME + rb")" + _LABELS_AND_VALUE)
_TYPE = re.compile(rb"\n# TYPE (?P<name>" + _NAME + rb") (?P<kind>[a-z]{1,20}+)")
# OpenMetrics names the family in its type, and these parts of it in its rows.
_SUFFIXES = ("_total", "_created", "_count", "_sum", "_bucket", "_info")
#: The kind of a metric whose type the page does not tell.
UNTYPED = "untyped"

# A page of a server with a thousand routes has some 20,000 rows.
_MOST_ROWS = 50_000
# NATS nests three objects, expvar two.
_MOST_NESTED = 8
_LONGEST_KEY = 100


class Row(NamedTuple):
    """A value, and the labels that tell it from the others of its name."""

    labels: dict[str, str]
    value: float


class Family(NamedTuple):
    """The rows of one name, in the order of the page. ``kind``: gauge, counter, histogram..., or
    :data:`UNTYPED`.
    """

    kind: str
    rows: list[Row]


class MetricsPage(NamedTuple):
    """The metrics of a page, by name. Values may be NaN or infinite: see metric_rules.py.

    ``stamped``: the names of rows with a timestamp, which are left out: their values are of another
    instant than the page. Servers write none; what collects others' metrics does.
    """

    format: Format
    families: dict[str, Family]
    stamped: frozenset[str] = frozenset()


class NotMetricsPage(ValueError):  # noqa: N818 - it names what the text is
    """The page has no metrics. Its text says what it is instead."""


class WantedNames:
    """Finds the rows of some names: many times faster than reading a whole page, of which rules
    want some twenty rows among hundreds.
    """

    def __init__(self, names: Collection[str]) -> None:
        #: The names, also of JSON (dotted).
        self.names = frozenset(names)
        self._rows = re.compile(
            rb"\n(?P<name>"
            + _any_of(sorted(self.names))
            + rb")(?![A-Za-z0-9_:])"
            + _LABELS_AND_VALUE
        )

    def parse(self, body: bytes) -> MetricsPage:
        """The wanted metrics of a page, without kinds. Raises :class:`NotMetricsPage`."""
        if _is_json(body):
            families = {}
            for name, family in _json_families(body).items():
                if name in self.names:
                    families[name] = family
            return MetricsPage("json", families)
        page = _text_page(self._rows, body, {})
        if not page.families and not _has_row(body):
            raise NotMetricsPage(_why_no_metrics(body))
        return page


def parse_metrics(body: bytes) -> MetricsPage:
    """All metrics of a page. Raises :class:`NotMetricsPage`.

    It takes some ms for a page of 50 kB: use :class:`WantedNames` for what is read each second.
    """
    if _is_json(body):
        return MetricsPage("json", _json_families(body))
    page = _text_page(_ROW, body, _kinds(body))
    if not page.families and not page.stamped:
        raise NotMetricsPage(_why_no_metrics(body))
    return page


def _why_no_metrics(body: bytes) -> str:
    beginning = body[:200].strip().lower()
    if not beginning:
        return "is empty"
    if beginning.startswith((b"<!doctype", b"<html", b"<")):
        return "is a page of HTML or XML"
    return "has no line with a metric and its value"


# Text.


def _any_of(names: Collection[str]) -> bytes:
    """A pattern that matches each of ``names``. Names with the same first letters share these, so
    that a line of another name is left after a few letters.
    """
    tails_by_letter: dict[str, list[str]] = {}
    for name in names:
        tails_by_letter.setdefault(name[:1], []).append(name[1:])
    branches = []
    for letter, tails in tails_by_letter.items():
        if not letter:
            branches.append(b"")
        elif len(tails) == 1:
            branches.append(re.escape((letter + tails[0]).encode()))
        else:
            branches.append(re.escape(letter.encode()) + _any_of(tails))
    # The empty branch is last: the longest name that matches is taken.
    branches.sort(key=len, reverse=True)
    if len(branches) == 1:
        return branches[0]
    return b"(?:" + b"|".join(branches) + b")"


def _text_page(rows: re.Pattern[bytes], body: bytes, kinds: dict[str, str]) -> MetricsPage:
    families: dict[str, Family] = {}
    stamped: set[str] = set()
    count = 0
    for match in rows.finditer(b"\n" + body):
        raw_name, raw_labels, raw_value, stamp = match.group("name", "labels", "value", "stamp")
        try:
            value = float(raw_value)
        except ValueError:
            continue
        labels = {} if raw_labels is None else _labels(raw_labels)
        if labels is None:
            continue
        name = raw_name.decode("ascii")
        if stamp is not None:
            stamped.add(name)
            continue
        family = families.get(name)
        if family is None:
            family = families[name] = Family(_kind_of(name, kinds), [])
        family.rows.append(Row(labels, value))
        count += 1
        if count == _MOST_ROWS:
            break
    return MetricsPage("text", families, frozenset(stamped))


def _has_row(body: bytes) -> bool:
    """Whether a page has any metric: it is read up to the first one."""
    for match in _ROW.finditer(b"\n" + body):
        raw_labels = match["labels"]
        if raw_labels is not None and _labels(raw_labels) is None:
            continue
        try:
            float(match["value"])
        except ValueError:
            continue
        return True
    return False


def _labels(raw: bytes) -> dict[str, str] | None:
    """The labels between the braces; None if something else stands there."""
    return parse_labels(raw.decode("utf-8", "replace"))


def _kinds(body: bytes) -> dict[str, str]:
    kinds = {}
    for match in _TYPE.finditer(b"\n" + body):
        kinds[match["name"].decode("ascii")] = match["kind"].decode("ascii")
    return kinds


def _kind_of(name: str, kinds: dict[str, str]) -> str:
    """The type of ``name``, or of the family that it is a part of."""
    if name in kinds:
        return kinds[name]
    for suffix in _SUFFIXES:
        family = name.removesuffix(suffix)
        if family != name and family in kinds:
            return kinds[family]
    return UNTYPED


# JSON.


def _is_json(body: bytes) -> bool:
    return body[:100].lstrip()[:1] == b"{"


def _json_families(body: bytes) -> dict[str, Family]:
    """Numbers by their dotted names: ``memstats.HeapAlloc``. Raises :class:`NotMetricsPage`."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise NotMetricsPage(f"is no valid JSON ({error})") from None
    families = {}
    for name, value in _numbers(document, "", _MOST_NESTED):
        families[name] = Family(UNTYPED, [Row({}, value)])
        if len(families) == _MOST_ROWS:
            break
    if not families:
        raise NotMetricsPage("is JSON without a number by name")
    return families


def _numbers(document: dict[Any, Any], prefix: str, levels: int) -> Iterator[tuple[str, float]]:
    """The numbers of an object and of those in it. Lists have no names, so they are left out."""
    for key, value in document.items():
        if len(key) > _LONGEST_KEY:
            continue
        if isinstance(value, dict):
            if levels:
                yield from _numbers(value, f"{prefix}{key}.", levels - 1)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            try:
                yield f"{prefix}{key}", float(value)
            except OverflowError:
                continue
