"""Compares runs number by number: the difference, its interval, and whether it is significant.

Each number of a run has a 95 % interval and degrees of freedom (:mod:`asyncli.analysis.measured`);
:mod:`asyncli.analysis.estimates` has the difference of two. :data:`REPEAT` is the measured scatter
between repeats of one run; every interval includes it. Significance is at 5 % after Holm's
correction over all numbers of two runs (Holm 1979, Scand. J. Stat. 6).

Other programs use the host's memory, and share pages of the server, which changes its PSS: a
difference counts only if at least half of it is in parts that they do not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import msgspec

from asyncli.analysis.constants import WORTH_TELLING
from asyncli.analysis.estimates import (
    ALPHA,
    NO_SCATTER,
    Estimate,
    Rate,
    Repeat,
    contrast,
    holm,
    rates_differ,
)
from asyncli.analysis.measured import HOLD_TOO_SHORT, HOST, OURS, MeasuredRun
from asyncli.analysis.slope import unmeasured
from asyncli.analysis.totals import fold, tested
from asyncli.findings import compare as comparison
from asyncli.findings.compare import DIRECTIVE
from asyncli.findings.host import host_shared
from asyncli.findings.server import other_clients
from asyncli.model.private_values import without_secrets
from asyncli.model.protocol_table import OWN_KEYS
from asyncli.model.records import Finding
from asyncli.model.run import Run
from asyncli.model.units import format_bytes, format_count

Called = Literal["higher", "lower", "no_difference", "cannot_say"]
Group = Literal["cost", "memory", "cpu", "latency", "losses", "drift", "asyncli"]

# Measured by bench/repeats.py over ten soaks of 10,000 connections, each on its own nginx, on a
# host with other work: 0.22 MB of the server's memory (PSS depends on other processes), 9.9 % and
# 7.2 % of its CPU time, 2.9 % of p50, 4 % of slow quantiles. Rows without an entry scattered no
# more than their own intervals.
REPEAT: dict[str, Repeat] = {
    "fixed.server_user": Repeat(absolute=0.23e6),
    "memory.server_hold_end": Repeat(absolute=0.23e6),
    "cpu.per_request": Repeat(0.142),
    "cpu.per_connection": Repeat(0.082),
    "latency.p50": Repeat(0.035),
    "latency.p99": Repeat(0.05),
    "latency.p999": Repeat(0.05),
    "lateness.p99": Repeat(0.05),
}
# At such a ratio, a wide interval does not show that there is no difference.
_APART = 2
METHOD = (
    "the intervals of both runs, combined after Welch and Satterthwaite, with the scatter measured between repeats of one run; "
    "rates by Garwood's intervals and the exact conditional test; quantiles by Woodruff's intervals over stretches of the hold "
    "(a report's are of ramp and hold); the level at the hold's end is the last reading, with the scatter of the last minute's"
)
RULE = (
    "a difference is real if significant at 5 % after Holm's correction over all numbers of both runs: without any difference, 1 "
    "comparison in 20 finds one. For the whole host at least half of it must be in known parts, not in what is left over; for "
    "PSS at the hold's end, not in pages of files (or, if they were not read, in the fixed part). "
    "'No difference' is reported only for values within a factor of two"
)


class Number(msgspec.Struct, frozen=True):
    """A number to compare: key in the JSON, unit, label in its group, name in a sentence."""

    key: str
    unit: str
    label: str
    group: Group
    name: str


ROWS: tuple[Number, ...] = (
    Number("cost.server_user", "bytes", "server", "cost", "memory per connection in the server"),
    Number("cost.kernel", "bytes", "kernel, each end", "cost", "kernel memory per socket end"),
    Number(
        "cost.residual", "bytes", "left over", "cost", "memory per connection that is left over"
    ),
    Number(
        "cost.host_total",
        "bytes",
        "host in all",
        "cost",
        "memory per connection on the host in all",
    ),
    Number("fixed.server_user", "bytes", "fixed", "memory", "the server's fixed memory"),
    Number(
        "memory.server_hold_end",
        "bytes",
        "at the hold's end",
        "memory",
        "the server's memory at the hold's end",
    ),
    Number("cpu.per_request", "us", "a request", "cpu", "the server's CPU per request in the hold"),
    Number(
        "cpu.per_connection",
        "us",
        "a connection",
        "cpu",
        "the server's CPU per connection in the ramp",
    ),
    Number("latency.p50", "ms", "p50", "latency", "latency p50"),
    Number("latency.p99", "ms", "p99", "latency", "latency p99"),
    Number("latency.p999", "ms", "p99.9", "latency", "latency p99.9"),
    Number(
        "lost",
        "per 1,000 connection-hours",
        "lost",
        "losses",
        "connections lost per 1,000 connection-hours",
    ),
    Number(
        "reopened",
        "per 1,000 connection-hours",
        "reopened",
        "losses",
        "connections reopened per 1,000 connection-hours",
    ),
    Number(
        "failed",
        "per 1,000 attempts",
        "failed to open",
        "losses",
        "failures per 1,000 attempts to connect",
    ),
    Number(
        "drift.server_user",
        "bytes/h",
        "server",
        "drift",
        "growth of the server's memory in the hold",
    ),
    Number("drift.kernel", "bytes/h", "kernel", "drift", "growth of kernel memory in the hold"),
    Number(
        "drift.host_total",
        "bytes/h",
        "host in all",
        "drift",
        "growth of the host's memory in the hold",
    ),
    Number(
        "cost.generator_user", "bytes", "memory", "asyncli", "asyncli's own memory per connection"
    ),
    Number(
        "lateness.p99",
        "ms",
        "beats late, p99",
        "asyncli",
        "p99 of how late asyncli sent heartbeats",
    ),
)
#: Rows by key.
ROW_OF = {row.key: row for row in ROWS}
GROUPS: dict[Group, str] = {
    "cost": "Memory of a connection",
    "memory": "Server's memory",
    "cpu": "Server's CPU",
    "latency": "Latency in the hold",
    "losses": "Losses (rates)",
    "drift": "Growth in the hold",
    "asyncli": "asyncli itself",
}


class Difference(msgspec.Struct):
    """One row of two runs: ``values`` of the first and the second, ``difference`` second less
    first.

    ``relative``: share of the first value (None if not positive). ``p_value`` is uncorrected,
    ``verdict`` is after Holm's correction. ``why``: the reason for "cannot_say".
    """

    key: str
    unit: str
    between: tuple[str, str]
    values: tuple[float | None, float | None]
    difference: float | None
    ci95: tuple[float, float] | None
    relative: float | None
    p_value: float | None
    verdict: Called
    why: str = ""
    #: For each value that is not measured: "hidden" if its interval reaches zero, else "unknown".
    hidden: tuple[str, str] = ("", "")

    @property
    def ratio(self) -> float:
        """The greater of two measured values by the smaller; 1 if one is not known, hidden or not
        above zero, and of growth.
        """
        low, high = sorted(value or 0.0 for value in self.values)
        return high / low if self.relative is not None and not any(self.hidden) and low > 0 else 1.0


class Differing(msgspec.Struct):
    """A fact of plan, server or host that differs between runs."""

    key: str
    values: list[Any]


class Comparison(msgspec.Struct):
    """``runs``: each of the others is compared with the first."""

    runs: list[MeasuredRun]
    differences: list[Difference]
    differs: list[Differing]
    findings: list[Finding]


def hindrance(path: str, run: Run) -> str | None:
    """Why ``run`` cannot be compared, in one line, or None."""
    if not run.ticks:
        where = f"in its {run.phases[-1].name}" if run.phases else "at its start"
        return f"{path}: has no second of asyncli (the run ended {where}); compare runs that reached their ramp"
    if not tested(
        run.plan, *(tick for _, tick in run.ticks), accepted=fold(run).acceptance.accepted
    ):
        event = "answered" if any(tick.opened for _, tick in run.ticks) else "connected"
        return f"{path}: nothing ever {event} in this run; 'asyncli report {path}' says why"
    return None


def compare(runs: Sequence[MeasuredRun]) -> Comparison:
    """Compare the first of ``runs`` with each other one. Pure."""
    first, *others = runs
    differences = list(chain.from_iterable(_pair(first, other) for other in others))
    differs = differing(runs)
    return Comparison(list(runs), differences, differs, _findings(runs, differs))


def _pair(first: MeasuredRun, second: MeasuredRun) -> list[Difference]:
    """The rows of two runs."""
    rows = [_row(row, first, second) for row in ROWS]
    tested = sorted(
        (one for one in rows if one.p_value is not None), key=lambda one: one.p_value or 0.0
    )
    adjusted = holm([one.p_value or 0.0 for one in tested])
    for one, p in zip(tested, adjusted, strict=True):
        assert one.difference is not None
        assert one.p_value is not None
        if p <= ALPHA:
            one.verdict = "higher" if one.difference > 0 else "lower"
        elif any(one.hidden) and ROW_OF[one.key].group != "drift":
            names = " and ".join(
                name for name, word in zip(one.between, one.hidden, strict=True) if word
            )
            one.why = f"the interval of {names} is not above zero, so how much it is cannot be told"
        elif one.p_value > ALPHA and one.ci95 is not None and one.ratio < _APART:
            one.verdict = "no_difference"
        else:
            one.why = f"one pair of runs does not show that it repeats (p = {one.p_value:.2g}, among {len(tested)} numbers)"
    by_key = {one.key: one for one in rows}
    left_over = by_key["cost.residual"].difference
    _withdraw(
        by_key["cost.host_total"],
        left_over,
        "a connection are left over, which may be other programs",
    )
    level = by_key["memory.server_hold_end"]
    if first.kinds.get(level.key) == second.kinds.get(level.key) == "PSS":
        if first.files is None or second.files is None:
            _withdraw(
                level, by_key["fixed.server_user"].difference, f"are in the fixed part: {_SHARED}"
            )
        else:
            _withdraw(level, second.files - first.files, f"are pages of files: {_SHARED}")
    return rows


def _withdraw(one: Difference, part: float | None, why: str) -> None:
    """Withdraw the difference if more than half of it is in ``part``, which may be other programs'
    doing.
    """
    if (
        one.verdict in ("higher", "lower")
        and one.difference is not None
        and part is not None
        and 2 * part / one.difference > 1
    ):
        one.verdict = "cannot_say"
        whole = format_bytes(abs(one.difference))
        one.why = f"{format_bytes(abs(part))} of the difference of {whole} {why}"


# Proc(5): PSS divides each page by the processes that map it, those of another server included.
_SHARED = "PSS depends on which other processes share its pages"


def _row(row: Number, first: MeasuredRun, second: MeasuredRun) -> Difference:
    a, b = (one.numbers.get(row.key, "unknown") for one in (first, second))
    if row.group == "drift" and row.key in first.hidden & second.hidden:
        a = b = HOLD_TOO_SHORT
    values = tuple(None if isinstance(one, str) else one.value for one in (a, b))
    between = (first.name, second.name)
    hidden = _hidden(row.key, first), _hidden(row.key, second)
    result = Difference(
        row.key,
        row.unit,
        between,
        (values[0], values[1]),
        None,
        None,
        None,
        None,
        "cannot_say",
        hidden=hidden,
    )
    reasons = [
        f"{one.name}: {why}" for one, why in ((first, a), (second, b)) if isinstance(why, str)
    ]
    if isinstance(a, str) or isinstance(b, str):
        same = isinstance(a, str) and a == b
        result.why = f"in both, {a}" if same else "; ".join(reasons)
        return result
    result.difference = b.value - a.value
    # Growth near zero is no base for a share, and no more a hidden cost.
    result.relative = (
        result.difference / a.value
        if a.value > 0 and row.group != "drift" and not any(hidden)
        else None
    )
    if isinstance(a, Rate) and isinstance(b, Rate):
        low, high, _ = contrast(a.estimate(), b.estimate())
        result.ci95, p = (low, high), rates_differ(a, b)
    elif isinstance(a, Estimate) and isinstance(b, Estimate):
        low, high, p = contrast(a, b, REPEAT.get(row.key, NO_SCATTER))
        # Without an upper end (a stall) the difference has no interval, but a p-value.
        result.ci95 = (low, high) if math.isfinite(low) and math.isfinite(high) else None
    else:
        return result
    result.why = _why_incomparable(row, first, second) or _why_late(
        row, result.difference, first, second
    )
    if not result.why:
        result.p_value = p
    return result


def _hidden(key: str, run: MeasuredRun) -> str:
    one = run.numbers.get(key)
    if key not in run.hidden or not isinstance(one, Estimate):
        return ""
    return unmeasured(one.low, one.high)


# What an invalid run cannot say: its latencies and losses may be asyncli's. Memory and CPU are the
# server's all the same.
_OF_AN_INVALID_RUN: tuple[Group, ...] = ("latency", "losses")


def _why_incomparable(row: Number, first: MeasuredRun, second: MeasuredRun) -> str:
    """Why a number means different things in the two runs, or ""."""
    if row.group in _OF_AN_INVALID_RUN:
        for run in (first, second):
            if run.spoiled:
                return f"{run.name} is invalid: {run.spoiled}"
    a, b = first.facts.get("local"), second.facts.get("local")
    if (
        row.key in ("cost.host_total", "cost.residual", "drift.host_total", "drift.kernel")
        and a != b
    ):
        here, there = (first, second) if a else (second, first)
        return f"both ends are on one host in {here.name}, but not in {there.name}"
    kinds = first.kinds.get(row.key), second.kinds.get(row.key)
    if kinds[0] != kinds[1]:
        return f"the server's memory was read as {kinds[0]} in {first.name}, as {kinds[1]} in {second.name}"
    if row.key == "fixed.server_user" and kinds[0] == "PSS":
        return _SHARED
    if of := [one.name for one in (first, second) if row.key in one.levels]:
        # Reuse of freed memory changes it beyond any interval: the second run looks better.
        return f"a difference of two levels in {' and '.join(of)}, first use included; a slower ramp gives a slope"
    if row.key == "memory.server_hold_end" and abs(first.held - second.held) > WORTH_TELLING * max(
        first.held, second.held
    ):
        return f"{format_count(first.held)} connections were held in {first.name}, {format_count(second.held)} in {second.name}"
    return ""


def _why_late(row: Number, difference: float, first: MeasuredRun, second: MeasuredRun) -> str:
    """Why a difference of latencies may be asyncli's lateness, or ""."""
    if row.group != "latency":
        return ""
    a, b = (one.late_ms.get(row.key.removeprefix("latency.")) for one in (first, second))
    if a is None or b is None or 2 * abs(b - a) < abs(difference) or (b - a) * difference <= 0:
        return ""
    later = first if b < a else second
    return f"in {later.name} asyncli itself sent {abs(b - a):.2g} ms later, which latency includes"


# Plan keys that only locate the server or its processes.
_WHERE = (
    "urls", "status_url", "server_pid", "server_pidfile", "server_name", "force", "seed", "workers", "sources", "ca",
    "client_cert", "client_key",
)  # fmt: skip
# These may differ between runs of one server and plan; the address too if the configuration is
# known to be the same.
_NO_DIFFERENCE = {
    "plan.seed",
    "plan.server_pid",
    "plan.server_pidfile",
    "plan.server_name",
    "plan.force",
}
_ADDRESS = {"plan.urls", "plan.status_url"}


def differing(runs: Sequence[MeasuredRun]) -> list[Differing]:
    """The facts that differ between the runs, the server's first."""
    keys = dict.fromkeys(chain.from_iterable(one.facts for one in runs))
    found = []
    for key in keys:
        values = [one.facts.get(key) for one in runs]
        if any(value != values[0] for value in values[1:]):
            found.append(
                Differing(
                    key, [without_secrets(key.removeprefix("plan."), value) for value in values]
                )
            )
    if any(one.key == "protocol" for one in found):
        # Keys of one protocol differ because the protocol does.
        found = [one for one in found if one.key.removeprefix("plan.") not in OWN_KEYS]
    if any(one.key.startswith(DIRECTIVE) for one in found):
        # The hash of the file adds nothing to its directives.
        found = [one for one in found if one.key != "server.config_hash"]
    return found


def _findings(runs: Sequence[MeasuredRun], differs: Sequence[Differing]) -> list[Finding]:
    by_key = {one.key: one.values for one in differs}

    def of(*keys: str) -> dict[str, list[Any]]:
        return {key: by_key[key] for key in keys if key in by_key}

    found = [*chain.from_iterable(map(_caveats, runs))]
    done = [
        key
        for key in by_key
        if key == "protocol"
        or (key.startswith("plan.") and key.removeprefix("plan.") not in _WHERE)
    ]
    for entry, differences in (
        (comparison.compare_plan, of(*done)),
        (comparison.compare_host, of(*HOST, "local")),
        (comparison.compare_asyncli, of(*OURS)),
        (comparison.compare_sysctls, of(*(key for key in by_key if key.startswith("sysctls.")))),
    ):
        if differences:
            found.append(entry(differences))
    known = runs[0].facts.get("server.config_hash") is not None
    if not set(by_key) - _NO_DIFFERENCE - (_ADDRESS if known else set()):
        found.append(
            comparison.compare_same(runs[0].facts.get("server.label") or "the server", known)
        )
    return sorted(found, key=lambda one: {"error": 0, "warning": 1, "info": 2}[one.severity])


def _of_run(name: str, finding: Finding) -> Finding:
    """``finding`` with the run's name."""
    match finding.code:
        case host_shared.code:
            return comparison.compare_company(name, **finding.fields)
        case other_clients.code:
            return comparison.compare_clients(name, **finding.fields)
        case _:
            return finding


def _caveats(run: MeasuredRun) -> list[Finding]:
    """Findings that make the numbers of a run doubtful."""
    found = [_of_run(run.name, one) for one in run.findings]
    if run.spoiled:
        found.append(comparison.compare_invalid(run.name, run.spoiled))
    if not run.complete:
        found.append(comparison.compare_incomplete(run.name, not run.spoiled))
    return found
