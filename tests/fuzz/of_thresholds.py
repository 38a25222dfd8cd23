"""Mutated limits of ``--fail-if``. Checks: read or refused in one line; a bound is finite; a limit prints back to itself."""

from __future__ import annotations

import math
from random import Random

from chance import ODD_TEXTS, maybe, mutated

from asyncli.model.plan import Plan
from asyncli.model.records import Tick
from asyncli.report.limits_so_far import LimitsSoFar
from asyncli.report.summary import Summary
from asyncli.report.thresholds import Threshold, judge, keys, parse

_KEYS = keys(Summary)
_SHORT = (
    "lost", "held", "lost", "failed", "p99", "latency_ms.p99", "heartbeats.latency_ms", "cost.server_user", "drift.kernel", "server_user", "by_status.502",
    "connections.deaths.reset", "connections.failures.refused", "deaths.reset", "duration_s", "reopened", "requested", "max", "sent", "schema", "plan.connections",
    "environment.cpus", "lots", "heartbeats.by_status.é", "connections.deaths.", "connections..lost", "connections.deaths.*",
)  # fmt: skip
_SIGNS = (">", ">", "<", ">=", "<=", "==", "!=", "=", "=>", "<>", "")
_NUMBERS = ("0", "1", "4", "0.1", ".5", "5.", "1_000", "-1", "+2", "1e3", "1e-9", "1E+400", "1e308", "9" * 400, "0x10", "nan", "inf", "٣", "", "1__0", "1_", "1h30m", "1 2")
_UNITS = ("", "", "", "%", "%", "k", "M", "KB", "MiB", "MB/h", "B", "/h", "ms", "s", "us", "min", "h", "d", " %", " kB", "parsecs", "%%", "Tb/h")
_PIECES = (" ", "1", "1_", "a", "a.", "9", ".", "\n", "%", "h", "1h", "_", "\t", "é", "*", "e", "+")
_DOCUMENT = {
    "connections": {"requested": 1000, "held": 995, "lost": 5, "deaths": {"reset": 5}},
    "heartbeats": {"sent": 20_000, "failed": 7, "by_status": {"200": 19_990}, "latency_ms": {"p99": 251.0, "max": None}},
    "cost": {"server_user": {"bytes_per_connection": 2100.0}, "kernel": None},
}
_TICK = Tick(sent=10, beats_failed=1)


def generate(chance: Random) -> str:
    """A limit, perhaps mutated."""
    key = chance.choice(_SHORT) if maybe(chance, 8) else chance.choice(_KEYS).replace("by_status.*", "by_status.200").replace("*", "other")
    space = " " * chance.randrange(3)
    sign = chance.choice(_SIGNS) if maybe(chance, 4) else ">"
    number = chance.choice(_NUMBERS) if maybe(chance, 4) else str(chance.randrange(10_000) / 8)
    unit = chance.choice(_UNITS) if maybe(chance, 2) else ""
    text = f"{key}{space}{sign}{space}{number}{unit}"
    # An unknown key is compared with all keys, which takes a hundred times as long.
    if maybe(chance, 12):
        text = mutated(chance, text, ODD_TEXTS)
    elif maybe(chance, 6):
        text = key + mutated(chance, text.removeprefix(key), ODD_TEXTS)
    if maybe(chance, 500):
        at = chance.randrange(len(text) + 1)
        piece = chance.choice(_PIECES)
        text = text[:at] + piece * (chance.choice((1_000, 20_000)) // len(piece)) + text[at:]
    return text


def check(text: str) -> str:
    """The kind of the outcome. Raises AssertionError if a check fails."""
    try:
        one = parse(text, Summary)
    except ValueError as error:
        words = str(error)
        assert len(words.splitlines()) == 1
        assert len(words) < 600, f"{len(words)} characters of complaint"
        assert ";" in words, f"says not how to mend it: {words}"
        return "refused"
    assert math.isfinite(float(one.bound)), one
    assert parse(one.text, Summary) == one
    again = parse(printed(one), Summary)
    assert (again.key, again.comparison, again.whole) == (one.key, one.comparison, one.whole)
    assert math.isclose(float(again.bound), float(one.bound), rel_tol=1e-12), (again, one)
    (outcome,) = judge([one], _DOCUMENT)
    assert len(outcome.words.splitlines()) == 1
    assert (outcome.value is None) <= (outcome.crossed is None)
    limits = LimitsSoFar(Plan(urls=("http://a/",), connections=1000, fail_if=(text,)))
    limits.tick(_TICK)
    assert [limit.text for limit in limits.state()] == [one.text]
    return "accepted, a share" if one.whole else "accepted"


def printed(one: Threshold) -> str:
    """The limit in the unit of its key."""
    return f"{one.key} {one.comparison} {float(one.bound * 100)!r}%" if one.whole else f"{one.key} {one.comparison} {float(one.bound)!r}"
