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
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import msgspec

from asyncli.analysis.constants import PART, WORTH_TELLING
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
from asyncli.analysis.measured import HOLD_TOO_SHORT, HOST, OF_HEAP, OURS, MeasuredRun
from asyncli.analysis.slope import is_wide, unmeasured
from asyncli.analysis.totals import fold, tested
from asyncli.findings import compare as comparison
from asyncli.findings.compare import DIRECTIVE
from asyncli.findings.host import host_shared
from asyncli.findings.server import other_clients
from asyncli.model.private_values import without_secrets
from asyncli.model.protocol_table import OWN_KEYS
from asyncli.model.records import Finding
from asyncli.model.run import Run
from asyncli.model.units import format_bytes, format_count, format_duration

Called = Literal["higher", "lower", "no_difference", "cannot_say"]
Group = Literal["cost", "memory", "cpu", "latency", "losses", "drift", "asyncli"]

# Measured by bench/repeats.py over ten soaks of 10,000 connections, each on its own nginx, on a
# host with other work: 0.22 MB of the server's memory (PSS depends on other processes), 9.9 % and
# 7.2 % of its CPU time, 2.9 % of p50, 4 % of slow quantiles. Rows without an entry scattered no
# more than their own intervals.
REPEAT: dict[str, Repeat] = {
    "fixed.server_user": Repeat(absolute=0.23e6),
    "memory.server_hold_end": Repeat(absolute=0.23e6),
    "residue.live": Repeat(0.011, absolute=7e3),
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
    "the intervals of both runs, combined after Welch and Satterthwaite, with the scatter "
    "measured between repeats of one run; rates by Garwood's intervals and the exact conditional "
    "test; quantiles by Woodruff's intervals over stretches of the hold (a report's are of ramp "
    "and hold); the level at the hold's end is the last reading, with the scatter of the last "
    "minute's"
)
RULE = (
    "a difference is real if significant at 5 % after Holm's correction over all numbers of both "
    "runs: without any difference, 1 comparison in 20 finds one. For the whole host at least half "
    "of it must be in known parts, not in what is left over; for PSS at the hold's end, not in "
    "pages of files (or, if they were not read, in the fixed part). 'No difference' is reported "
    "only for values within a factor of two"
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
    Number("cost.live", "bytes", "live heap", "cost", "memory that a connection keeps alive"),
    Number("cost.stacks", "bytes", "stacks", "cost", "memory per connection in stacks"),
    Number("cost.at_goal", "bytes", "at its goal", "cost", "memory per connection at its goal"),
    Number("fixed.server_user", "bytes", "fixed", "memory", "the server's fixed memory"),
    Number(
        "memory.server_hold_end",
        "bytes",
        "at the hold's end",
        "memory",
        "the server's memory at the hold's end",
    ),
    Number(
        "residue.live",
        "bytes",
        "alive after the drain",
        "memory",
        "memory that stayed alive in the heap after the drain",
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
    ``verdict`` is after Holm's correction. ``why``: the reason for "cannot_say". ``at_most``: the
    upper ends of both values' own intervals, where neither of these reaches below zero.
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
    #: For each cost whether its interval says more than its middle.
    wide: tuple[bool, bool] = (False, False)
    at_most: tuple[float, float] | None = None

    @property
    def is_told(self) -> bool:
        """Whether both values are shown as numbers, and so what they differ by."""
        return not any(self.hidden) and not any(self.wide)

    @property
    def larger_than_seen(self) -> tuple[bool, bool]:
        """Whether the interval of the difference reaches below minus the first value, or above the
        second, though neither is below zero: that value itself may be so much larger.
        """
        first, second = self.values
        if self.at_most is None or self.ci95 is None or first is None or second is None:
            return (False, False)
        return (self.ci95[0] < -first, self.ci95[1] > second)

    @property
    def ratio(self) -> float:
        """The greater of two measured values by the smaller; 1 if one is not known, hidden or not
        above zero, and of growth.
        """
        low, high = sorted(value or 0.0 for value in self.values)
        if self.relative is None or any(self.hidden) or low <= 0:
            return 1.0
        return high / low


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
        return (
            f"{path}: has no second of asyncli (the run ended {where}); "
            "compare runs that reached their ramp"
        )
    ticks = [tick for _, tick in run.ticks]
    if tested(run.plan, *ticks, accepted=fold(run).acceptance.accepted):
        return None
    event = "answered" if any(tick.opened for tick in ticks) else "connected"
    return f"{path}: nothing ever {event} in this run; 'asyncli report {path}' says why"


def compare(runs: Sequence[MeasuredRun]) -> Comparison:
    """Compare the first of ``runs`` with each other one. Pure."""
    first, *others = runs
    differences = list(chain.from_iterable(_pair(first, other) for other in others))
    differs = differing(runs)
    return Comparison(list(runs), differences, differs, _findings(runs, differs))


def _pair(first: MeasuredRun, second: MeasuredRun) -> list[Difference]:
    """The rows of two runs."""
    rows = []
    for row in ROWS:
        if row.key not in OF_HEAP or row.key in first.numbers or row.key in second.numbers:
            rows.append(_row(row, first, second))
    _judge(rows)
    by_key = {row.key: row for row in rows}
    _withdraw(
        by_key["cost.host_total"],
        by_key["cost.residual"].difference,
        "a connection are left over, which may be other programs",
    )
    level = by_key["memory.server_hold_end"]
    if first.kinds.get(level.key) == second.kinds.get(level.key) == "PSS":
        if first.files is None or second.files is None:
            fixed = by_key["fixed.server_user"].difference
            _withdraw(level, fixed, f"are in the fixed part: {_SHARED}")
        else:
            _withdraw(level, second.files - first.files, f"are pages of files: {_SHARED}")
    return rows


def _judge(rows: Sequence[Difference]) -> None:
    """Set the verdict of each row that has a p-value, or why it has none."""
    with_p = [(row.p_value, row) for row in rows if row.p_value is not None]
    with_p.sort(key=lambda pair: pair[0])
    corrected = holm([p_value for p_value, _ in with_p])
    for (p_value, row), p in zip(with_p, corrected, strict=True):
        assert row.difference is not None
        if p <= ALPHA:
            row.verdict = "higher" if row.difference > 0 else "lower"
        elif any(row.hidden) and ROW_OF[row.key].group != "drift":
            hidden = [name for name, how in zip(row.between, row.hidden, strict=True) if how]
            names = " and ".join(hidden)
            row.why = f"the interval of {names} is not above zero, so how much it is cannot be told"
        elif p_value > ALPHA and row.ci95 is not None and row.ratio < _APART:
            row.verdict = "no_difference"
        else:
            row.why = (
                f"one pair of runs does not show that it repeats "
                f"(p = {p_value:.2g}, among {len(with_p)} numbers)"
            )
            if p_value <= ALPHA:
                row.why += f"; {_SECOND_PAIR}"


# Of a number that is named before, no correction for the others is needed.
_SECOND_PAIR = (
    f"repeat both runs once: a difference of the same sign with p below {ALPHA:g} there shows it"
)


def _withdraw(row: Difference, part: float | None, why: str) -> None:
    """Withdraw the difference if more than half of it is in ``part``, which may be other programs'
    doing.
    """
    if row.verdict not in ("higher", "lower") or row.difference is None or part is None:
        return
    if 2 * part / row.difference > 1:
        row.verdict = "cannot_say"
        whole = format_bytes(abs(row.difference))
        row.why = f"{format_bytes(abs(part))} of the difference of {whole} {why}"


# Proc(5): PSS divides each page by the processes that map it, those of another server included.
_SHARED = "PSS depends on which other processes share its pages"


def _row(row: Number, first: MeasuredRun, second: MeasuredRun) -> Difference:
    before = first.number(row.key)
    after = second.number(row.key)
    if row.group == "drift" and row.key in first.hidden & second.hidden:
        before = HOLD_TOO_SHORT
        after = HOLD_TOO_SHORT
    hidden = (_hidden(row.key, first), _hidden(row.key, second))
    difference = Difference(
        row.key,
        row.unit,
        between=(first.name, second.name),
        values=(_value(before), _value(after)),
        difference=None,
        ci95=None,
        relative=None,
        p_value=None,
        verdict="cannot_say",
        hidden=hidden,
        wide=(_is_wide(row, first), _is_wide(row, second)),
    )
    if isinstance(before, str) or isinstance(after, str):
        difference.why = _why_unknown(before, after, first.name, second.name)
        return difference
    difference.difference = after.value - before.value
    # Growth near zero is no base for a share, and no more a hidden cost.
    if before.value > 0 and row.group != "drift" and difference.is_told:
        difference.relative = difference.difference / before.value
    low, high, p_value = _contrast(row.key, before, after)
    # Without an upper end (a stall) the difference has no interval, but a p-value.
    if math.isfinite(low) and math.isfinite(high):
        difference.ci95 = (low, high)
    difference.at_most = _at_most(_own_interval(before), _own_interval(after))
    difference.why = why_incomparable(row, first, second)
    if not difference.why:
        difference.why = why_late(row, difference.difference, first, second)
    if not difference.why:
        difference.p_value = p_value
    return difference


def _contrast(
    key: str, before: Estimate | Rate, after: Estimate | Rate
) -> tuple[float, float, float | None]:
    """The interval of the difference and its p-value; infinite and None for a rate and no rate."""
    if isinstance(before, Rate) and isinstance(after, Rate):
        low, high, _ = contrast(_own_interval(before), _own_interval(after))
        return low, high, rates_differ(before, after)
    if isinstance(before, Estimate) and isinstance(after, Estimate):
        return contrast(before, after, REPEAT.get(key, NO_SCATTER))
    return -math.inf, math.inf, None


def _own_interval(number: Estimate | Rate) -> Estimate:
    if isinstance(number, Rate):
        return number.estimate()
    return number


def _at_most(before: Estimate, after: Estimate) -> tuple[float, float] | None:
    """As of :class:`Difference`."""
    if before.low < 0 or after.low < 0:
        return None
    return (before.high, after.high)


def _value(number: Estimate | Rate | str) -> float | None:
    """The value of a number; None where it is the reason for which there is none."""
    if isinstance(number, str):
        return None
    return number.value


def _why_unknown(
    before: Estimate | Rate | str, after: Estimate | Rate | str, first: str, second: str
) -> str:
    """Why a row has no difference: the reason of both runs, or of each that has one."""
    if isinstance(before, str) and before == after:
        return f"in both, {before}"
    reasons = []
    for name, number in ((first, before), (second, after)):
        if isinstance(number, str):
            reasons.append(f"{name}: {number}")
    return "; ".join(reasons)


def _is_wide(row: Number, run: MeasuredRun) -> bool:
    """Whether the cost has an interval in place of its middle, as in the run's report. Of what is
    left over, the middle is what the parts leave.
    """
    number = run.numbers.get(row.key)
    is_cost = row.key.startswith("cost.") and row.key != "cost.residual"
    if not is_cost or not isinstance(number, Estimate):
        return False
    return is_wide(number.value, number.low, number.high)


def _hidden(key: str, run: MeasuredRun) -> str:
    number = run.numbers.get(key)
    if key not in run.hidden or not isinstance(number, Estimate):
        return ""
    return unmeasured(number.low, number.high)


# What an invalid run cannot say: its latencies and losses may be asyncli's. Memory and CPU are the
# server's all the same.
_OF_AN_INVALID_RUN: tuple[Group, ...] = ("latency", "losses")
# What is of both ends where both are on one host, and of one end else.
_OF_BOTH_ENDS = ("cost.host_total", "cost.residual", "drift.host_total", "drift.kernel")


def why_incomparable(row: Number, first: MeasuredRun, second: MeasuredRun) -> str:
    """Why a number means different things in the two runs, or ""."""
    return (
        _why_invalid(row, first, second)
        or _why_of_other_hosts(row, first, second)
        or _why_of_other_kinds(row, first, second)
        or _why_levels(row, first, second)
        or _why_not_as_many(row, first, second)
        or _why_not_as_many_beats(row, first, second)
    )


def _why_invalid(row: Number, first: MeasuredRun, second: MeasuredRun) -> str:
    if row.group in _OF_AN_INVALID_RUN:
        for run in (first, second):
            if run.spoiled:
                return f"{run.name} is invalid: {run.spoiled}"
    return ""


def _why_of_other_hosts(row: Number, first: MeasuredRun, second: MeasuredRun) -> str:
    if row.key not in _OF_BOTH_ENDS:
        return ""
    local = first.facts.get("local")
    if local == second.facts.get("local"):
        return ""
    here, there = (first, second) if local else (second, first)
    return f"both ends are on one host in {here.name}, but not in {there.name}"


def _why_of_other_kinds(row: Number, first: MeasuredRun, second: MeasuredRun) -> str:
    kind = first.kinds.get(row.key)
    other_kind = second.kinds.get(row.key)
    if kind != other_kind:
        return (
            f"the server's memory was read as {kind} in {first.name}, "
            f"as {other_kind} in {second.name}"
        )
    if row.key == "fixed.server_user" and kind == "PSS":
        return _SHARED
    return ""


def _why_levels(row: Number, first: MeasuredRun, second: MeasuredRun) -> str:
    names = [run.name for run in (first, second) if row.key in run.levels]
    if not names:
        return ""
    # Reuse of freed memory changes it beyond any interval: the second run looks better.
    return (
        f"a difference of two levels in {' and '.join(names)}, first use included; "
        "a slower ramp gives a slope"
    )


def _why_not_as_many(row: Number, first: MeasuredRun, second: MeasuredRun) -> str:
    if row.key != "memory.server_hold_end":
        return ""
    if abs(first.held - second.held) <= WORTH_TELLING * max(first.held, second.held):
        return ""
    return (
        f"{format_count(first.held)} connections were held in {first.name}, "
        f"{format_count(second.held)} in {second.name}"
    )


def _why_not_as_many_beats(row: Number, first: MeasuredRun, second: MeasuredRun) -> str:
    if row.key != "cpu.per_connection":
        return ""
    before = first.beats_in_ramp
    after = second.beats_in_ramp
    if before is None or after is None or abs(before - after) <= PART * max(before, after):
        return ""
    return (
        f"it includes heartbeats: {before:.2g} for each connection in the ramp of {first.name}, "
        f"{after:.2g} in that of {second.name}"
    )


def why_late(row: Number, difference: float, first: MeasuredRun, second: MeasuredRun) -> str:
    """Why a difference of latencies may be asyncli's lateness, or ""."""
    if row.group != "latency":
        return ""
    quantile = row.key.removeprefix("latency.")
    before_ms = first.late_ms.get(quantile)
    after_ms = second.late_ms.get(quantile)
    if before_ms is None or after_ms is None:
        return ""
    later_ms = after_ms - before_ms
    if 2 * abs(later_ms) < abs(difference) or later_ms * difference <= 0:
        return ""
    later = second if later_ms >= 0 else first
    return (
        f"in {later.name} asyncli itself sent {format_duration(abs(later_ms) / 1000)} later, which "
        "latency includes"
    )


# Plan keys that only locate the server or its processes.
_WHERE = (
    "urls",
    "status_url",
    "server_metrics",
    "metrics_map",
    "server_pid",
    "server_pidfile",
    "server_name",
    "agent",
    "agent_token_file",
    "agent_ca",
    "force",
    "seed",
    "workers",
    "sources",
    "ca",
    "client_cert",
    "client_key",
)
# These may differ between runs of one server and plan; the address too if the configuration is
# known to be the same.
_NO_DIFFERENCE = {
    "plan.seed",
    "plan.server_pid",
    "plan.server_pidfile",
    "plan.server_name",
    "plan.force",
}
_ADDRESS = {"plan.urls", "plan.status_url", "plan.server_metrics"}
# The order of findings.
_BY_SEVERITY = ("error", "warning", "info")


def differing(runs: Sequence[MeasuredRun]) -> list[Differing]:
    """The facts that differ between the runs, the server's first."""
    keys = dict.fromkeys(chain.from_iterable(run.facts for run in runs))
    facts = []
    for key in keys:
        values = [run.facts.get(key) for run in runs]
        if any(value != values[0] for value in values[1:]):
            option = key.removeprefix("plan.")
            facts.append(Differing(key, [without_secrets(option, value) for value in values]))
    if any(fact.key == "protocol" for fact in facts):
        # Keys of one protocol differ because the protocol does.
        facts = [fact for fact in facts if fact.key.removeprefix("plan.") not in OWN_KEYS]
    if any(fact.key.startswith(DIRECTIVE) for fact in facts):
        # The hash of the file adds nothing to its directives.
        facts = [fact for fact in facts if fact.key != "server.config_hash"]
    return facts


def _findings(runs: Sequence[MeasuredRun], differs: Sequence[Differing]) -> list[Finding]:
    by_key = {fact.key: fact.values for fact in differs}

    def of(keys: Iterable[str]) -> dict[str, list[Any]]:
        return {key: by_key[key] for key in keys if key in by_key}

    findings: list[Finding] = []
    for run in runs:
        findings += _caveats(run)
    sysctls = [key for key in by_key if key.startswith("sysctls.")]
    for entry, differences in (
        (comparison.compare_plan, _of_plans(of(filter(is_of_plan, by_key)), of(_SERVERS))),
        (comparison.compare_host, of([*HOST, "local"])),
        (comparison.compare_asyncli, of(OURS)),
        (comparison.compare_sysctls, of(sysctls)),
    ):
        if differences:
            findings.append(entry(differences))
    is_config_known = runs[0].facts.get("server.config_hash") is not None
    may_differ = _NO_DIFFERENCE | _ADDRESS if is_config_known else _NO_DIFFERENCE
    if by_key.keys() <= may_differ:
        label = runs[0].facts.get("server.label") or "the server"
        findings.append(comparison.compare_same(label, is_config_known))
    return sorted(findings, key=lambda finding: _BY_SEVERITY.index(finding.severity))


# Facts by which two servers are different programs.
_SERVERS = ("server.label", "server.exe")


def _of_plans(
    plans: Mapping[str, list[Any]], servers: Mapping[str, list[Any]]
) -> dict[str, list[Any]]:
    """What differs between the plans, but for how different programs are asked for collections:
    each runtime has a way of its own, and none can be repeated with that of the other.
    """
    differs = dict(plans)
    if servers and None not in differs.get("plan.collect", [None]):
        del differs["plan.collect"]
    return differs


def is_of_plan(key: str) -> bool:
    """Whether a fact is of the plan, and says more than where the server is."""
    if key == "protocol":
        return True
    return key.startswith("plan.") and key.removeprefix("plan.") not in _WHERE


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
    findings = [_of_run(run.name, finding) for finding in run.findings]
    if run.spoiled:
        findings.append(comparison.compare_invalid(run.name, run.spoiled))
    if not run.complete:
        findings.append(comparison.compare_incomplete(run.name, not run.spoiled))
    return findings
