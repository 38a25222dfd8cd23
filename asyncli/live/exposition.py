"""A run's numbers for Prometheus, by its own client library. Names follow its conventions: base
units, ``_total`` for what only rises, one prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from asyncli import __version__
from asyncli.analysis.verdict import Verdict
from asyncli.core.histogram import Histogram, bounds
from asyncli.core.life import DEATHS, FAILURES
from asyncli.live.feed import RunFeed, shown_costs
from asyncli.model.records import PHASES
from asyncli.model.text import printable
from asyncli.report.livestate import LiveState
from asyncli.web.exposition import page_of

#: (Name, meaning, value) of what goes up and down; None: unknown, and left out.
_Gauge = tuple[str, str, float | None]


# From what a loopback takes to what ends a heartbeat.
_BOUNDS_S = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)

_LATENCY = (
    "heartbeat, answered minus due; answers that came before a client was back from an event are "
    "in the event's own numbers"
)

_HOUR_S = 3600.0


def exposition(feed: RunFeed, accept: str) -> tuple[bytes, str]:
    """The page of metrics in the format that ``accept`` asks for, and its content type."""
    return page_of(families_of(feed), accept)


def families_of(feed: RunFeed) -> Iterator[Metric]:
    """All metrics of a run, which :mod:`asyncli.live.otlp` sends too."""
    state = feed.state
    plan = feed.plan
    yield _labelled(
        "asyncli_run_info",
        "the run, and the version of asyncli that measured it",
        {
            "file": printable(feed.path.name),
            "protocol": plan.protocol,
            "version": str(feed.environment.get("asyncli") or __version__),
        },
    )
    phases = GaugeMetricFamily("asyncli_phase", "1 for the phase of the run", labels=["phase"])
    for phase in PHASES:
        is_phase = phase == state.phase and not state.over
        phases.add_metric([phase], float(is_phase))
    yield phases
    if feed.ending is not None:
        verdicts = GaugeMetricFamily(
            "asyncli_run_verdict", "1 for the verdict of a run that has ended", labels=["verdict"]
        )
        for verdict in get_args(Verdict):
            verdicts.add_metric([verdict], float(verdict == feed.ending.verdict))
        yield verdicts
    for name, about, value in _gauges(feed, state):
        if value is not None:
            yield GaugeMetricFamily(f"asyncli_{name}", about, value)
    yield from _counters(feed, state)
    yield _times("latency", _LATENCY, feed.sums.latency_us)
    yield _times("lateness", "heartbeat, sent minus due", feed.sums.lateness_us)
    yield from _explained_losses(feed)
    yield from _costs(state)
    yield from _growth(feed)
    yield from _limits(state)


def _labelled(name: str, about: str, labels: dict[str, str]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=list(labels))
    family.add_metric(list(labels.values()), 1.0)
    return family


def _gauges(feed: RunFeed, state: LiveState) -> tuple[_Gauge, ...]:
    def seconds(value_ms: float | None) -> float | None:
        return None if value_ms is None else value_ms / 1000

    return (
        ("connections_asked", "connections that the plan asks for", state.asked),
        ("connections_held", "connections held", state.held),
        ("connections_away", "ended by events, and not to be back yet by the plan", state.away),
        ("connections_silent", "of these, silent by events", feed.silent),
        (
            "connections_not_back",
            "ended by events, and not back though their turn has come",
            state.not_back,
        ),
        ("connections_pending", "connects without an answer so far", state.connecting),
        ("connections_unanswered", "connections that wait for an answer", state.unanswered),
        ("server_connections", "open connections by the server's own count", state.active),
        ("run_elapsed_seconds", "time since the run's start", state.elapsed_s),
        ("run_over", "1 after the run has ended", float(state.over)),
        ("phase_progress_ratio", "how far the phase is", state.progress),
        ("phase_left_seconds", "time left of the phase", state.eta_s),
        ("latency_p50_seconds", "heartbeat, of 10 s: the median", seconds(state.latency_p50_ms)),
        ("latency_p99_seconds", "heartbeat, of 10 s: 99 of 100", seconds(state.latency_p99_ms)),
        ("lateness_p99_seconds", "asyncli's own, of 10 s", seconds(state.lateness_p99_ms)),
        ("longest_turn_seconds", "a worker was stopped, of 10 s", state.longest_turn_s),
        ("server_memory_bytes", "the server's memory", state.server_bytes),
        ("kernel_memory_bytes", "the kernel's memory of sockets", state.kernel_bytes),
        ("generator_memory_bytes", "asyncli's own memory", state.generator_bytes),
        ("server_cpu_cores", "cores that the server uses", state.server_cpu_share),
        ("generator_cpu_cores", "cores that asyncli uses", state.generator_cpu_share),
        ("server_processes", "processes of the server", state.server_processes),
        ("workers", "worker processes of asyncli", state.workers),
        ("hold_left_seconds", "until the hold ends; +Inf: it has no known end", state.hold_left_s),
        ("record_age_seconds", "since a record last came into the run file", feed.record_age_s),
        ("began_timestamp_seconds", "when the run began", feed.began_s or None),
    )


def _counters(feed: RunFeed, state: LiveState) -> Iterator[Metric]:
    sums = feed.sums
    counts = (
        ("connections_opened", "connections established, replacements included", state.opened),
        ("connections_reopened", "connections that replaced a lost one", state.reopened),
        ("heartbeats_sent", "heartbeats sent", sums.sent),
        ("heartbeats_failed", "heartbeats without an answer", sums.beats_failed),
        ("sent_bytes", "bytes sent", sums.bytes_sent),
        ("received_bytes", "bytes received", sums.bytes_received),
    )
    for name, about, value in counts:
        yield CounterMetricFamily(f"asyncli_{name}", about, value)
    statuses = {str(number): count for number, count in sums.by_status.items()}
    # A counter that begins with its first losses has not risen, so each begins with 0.
    deaths = dict.fromkeys(DEATHS, 0) | state.deaths
    failures = dict.fromkeys(FAILURES, 0) | state.failures
    by_name = (
        ("connections_lost", "connections that ended before the drain", "cause", deaths),
        ("connects_failed", "connects that never established one", "cause", failures),
        ("heartbeats_answered", "answers by status", "status", statuses),
    )
    for name, about, label, counted in by_name:
        family = CounterMetricFamily(f"asyncli_{name}", about, labels=[label])
        for value_of_label, count in sorted(counted.items()):
            family.add_metric([value_of_label], count)
        yield family


def _explained_losses(feed: RunFeed) -> Iterator[Metric]:
    """No counter: later records may explain a loss otherwise."""
    if feed.so_far is None or not feed.so_far.explained:
        return
    family = GaugeMetricFamily(
        "asyncli_connections_lost_explained",
        "lost connections by the report's diagnosis of them, by the run so far",
        labels=["diagnosis"],
    )
    for code, count in sorted(feed.so_far.explained.items()):
        family.add_metric([code], float(count))
    yield family


def _times(name: str, about: str, times_us: Histogram) -> Metric:
    """A histogram of a run's times. Its sum is of the middles of fine buckets: within 1 %."""
    below = dict.fromkeys(_BOUNDS_S, 0)
    sum_us = 0.0
    for key, count in times_us.counts.items():
        low_us, high_us = bounds(key)
        sum_us += count * (low_us + high_us) / 2
        for bound_s in _BOUNDS_S:
            if high_us <= bound_s * 1e6:
                below[bound_s] += count
    buckets = [(repr(bound_s), float(count)) for bound_s, count in below.items()]
    buckets.append(("+Inf", float(times_us.count)))
    family = HistogramMetricFamily(f"asyncli_heartbeat_{name}_seconds", about)
    family.add_metric([], buckets, sum_us / 1e6)
    return family


def _costs(state: LiveState) -> Iterator[Metric]:
    if state.cost is None:
        return
    family = GaugeMetricFamily(
        "asyncli_connection_cost_bytes",
        "what one more connection costs, by the run so far",
        labels=["part", "bound"],
    )
    for name, cost in shown_costs(state.cost).items():
        if cost is None:
            continue
        family.add_metric([name, "estimate"], cost.bytes_per_connection)
        family.add_metric([name, "low"], cost.ci95[0])
        family.add_metric([name, "high"], cost.ci95[1])
    yield family


def _growth(feed: RunFeed) -> Iterator[Metric]:
    if feed.so_far is None or not feed.so_far.growth:
        return
    family = GaugeMetricFamily(
        "asyncli_memory_growth_bytes_per_second",
        "how fast a memory grows in the hold, by the run so far, with its interval; no estimate "
        "while that is too wide to tell",
        labels=["part", "bound"],
    )
    for name, (rate, low, high) in feed.so_far.growth.items():
        if rate is not None:
            family.add_metric([name, "estimate"], rate / _HOUR_S)
        family.add_metric([name, "low"], low / _HOUR_S)
        family.add_metric([name, "high"], high / _HOUR_S)
    yield family


def _limits(state: LiveState) -> Iterator[Metric]:
    if not state.limits:
        return
    values = GaugeMetricFamily(
        "asyncli_limit_value", "the number that a limit is of", labels=["limit"]
    )
    bounds = GaugeMetricFamily("asyncli_limit_bound", "the bound of a limit", labels=["limit"])
    crossed = GaugeMetricFamily(
        "asyncli_limit_crossed",
        "1: it is crossed; side: whether it bounds the number from above or below",
        labels=["limit", "side"],
    )
    ages = GaugeMetricFamily(
        "asyncli_limit_age_seconds",
        "how long the records go on that a limit does not take into account yet",
        labels=["limit"],
    )
    for limit in state.limits:
        bounds.add_metric([limit.text], limit.bound)
        if limit.value is not None:
            values.add_metric([limit.text], limit.value)
        if limit.is_crossed is not None:
            side = "above" if limit.is_from_above else "below"
            crossed.add_metric([limit.text, side], float(limit.is_crossed))
            age_s = 0.0 if limit.at_s is None else state.elapsed_s - limit.at_s
            ages.add_metric([limit.text], age_s)
    yield values
    yield bounds
    yield crossed
    yield ages
