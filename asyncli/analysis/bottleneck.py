"""The bottleneck when a count was not held: the server, this host, or the network. Pure.

Each mechanism yields the bottlenecks that it has evidence of; the first is the answer. Order:
shortages of this host, limits of the server that were reached (asyncli's lateness does not matter
for them), asyncli's lateness, the network, the causes of losses (:mod:`asyncli.analysis.losses`),
slow answers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence, Set
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from asyncli.analysis.constants import FEWEST, NEARLY_ALL, PART, REACHED
from asyncli.analysis.forecast import RESERVE
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.losses.own_sockets import overflows
from asyncli.analysis.losses.table import ENDED
from asyncli.analysis.losses.unanswered import answered_within_us
from asyncli.analysis.refusals import refusals
from asyncli.analysis.saturation import MOST_CPU_SHARE, has_late_ramp, is_saturated
from asyncli.analysis.server_ceilings import new_connections
from asyncli.analysis.shared_host import MOST_OF_OTHERS
from asyncli.analysis.totals import Totals, errors
from asyncli.core.histogram import bucket
from asyncli.findings import bottleneck
from asyncli.findings.forecast import gave_way
from asyncli.findings.losses import connects_failed, remedy_of_statuses
from asyncli.findings.protocol_codes import remedy_of_refusals
from asyncli.findings.reconcile import counts_ahead
from asyncli.findings.tls import TLS_REMEDY, by_reason, kind_of, remedy_of_reasons
from asyncli.model import metrics
from asyncli.model.records import Finding, Tick
from asyncli.model.run import Run, Ticks
from asyncli.model.units import format_count, format_many

Side = Literal["server", "host", "network", "unknown"]


class _ReadLimit(NamedTuple):
    """A limit of the server that samples have. ``exact``: it can be seen that none is left.
    ``may_be_full``: it may be full at all times, by a pool or another program, so only a rise in
    step with the connections shows that these filled it.
    """

    code: str
    form: str
    used: str
    limit: str
    exact: bool = True
    may_be_full: bool = False


_READ_LIMITS = (
    _ReadLimit(
        "memory_limit", "", metrics.SERVER_GROUP_BYTES,
        metrics.SERVER_GROUP_LIMIT_BYTES, exact=False,
    ),
    _ReadLimit("slots", "sessions", metrics.STATUS_ACTIVE, metrics.STATUS_LIMIT),
    _ReadLimit("slots", "sessions_in_all", metrics.STATUS_ACTIVE, metrics.STATUS_LIMIT_IN_ALL),
    _ReadLimit("descriptors", "", metrics.SERVER_DESCRIPTORS, metrics.SERVER_DESCRIPTORS_LIMIT),
    _ReadLimit(
        "tasks", "group_tasks", metrics.SERVER_GROUP_TASKS,
        metrics.SERVER_GROUP_TASKS_LIMIT, may_be_full=True,
    ),
    # Other processes of the user were counted once: if they had changed, the rise would have ended
    # at another number.
    _ReadLimit(
        "tasks", "user_tasks", metrics.SERVER_USER_TASKS,
        metrics.SERVER_USER_TASKS_LIMIT, may_be_full=True,
    ),
    # Numbers of processes and of threads are not all free for use.
    _ReadLimit(
        "tasks", "host_tasks", metrics.HOST_TASKS,
        metrics.HOST_TASKS_LIMIT, exact=False, may_be_full=True,
    ),
    _ReadLimit(
        "address_space", "", metrics.SERVER_ADDRESS_SPACE_BYTES,
        metrics.SERVER_ADDRESS_SPACE_LIMIT_BYTES, may_be_full=True,
    ),
    _ReadLimit(
        "mappings", "", metrics.SERVER_MAPPINGS, metrics.SERVER_MAPPINGS_LIMIT, may_be_full=True
    ),
)  # fmt: skip

#: Diagnoses of time limits, which do not depend on the number of connections.
TIMERS = frozenset({
    "keepalive_timeout", "keepalive_requests", "keepalive_time", "keepalive_off", "client_header_timeout", "idle_timeout",
    "lifetime", "silent_drop", "not_http", "broken_protocol", "answer_unread", "http_error", "unheard",
})  # fmt: skip
#: Limits of this host that pass, such as another program's load.
LATE = frozenset({"both_busy", "ramp_late", "beats", "turn", "cpu"})
#: Interventions of an operator, which are independent of the count.
RELOADED = frozenset({"reload", "server_restarted"})
_ON_THE_PATH = frozenset({"path_cut", "silent_drop", "box_reset", "packets_lost"})
_ENDED = frozenset(
    {"server_ended", "server_restarted", "worker_crash", "worker_ended", "reload", "backend_ended"}
)
#: Incidents and time limits, which show no number of connections that the server can serve.
_NO_NUMBER = TIMERS | _ENDED | _ON_THE_PATH | {"server_stalled", "address_dead"}
_UNEXPLAINED = frozenset({"too_few", "unexplained", "burst"})
_UNKNOWN = "unknown"
# Limits of the server that were read and reached.
_LIMITS = frozenset({read.code for read in _READ_LIMITS})
#: Bottlenecks of a server that serves a number of connections, and the others not at all.
UNSERVED = frozenset({"never_accepted", "never_answered", "closed_at_once"})
#: Bottlenecks by which a server refuses connections beyond a number.
REFUSING = (_LIMITS - {"memory_limit"}) | {
    "handshake_refused", "closed_at_once", "http_error", "own_limit",
}  # fmt: skip
_SILENT = ("heartbeat_timeout", "closed_awaiting", "protocol_error")
_UNANSWERED = ("connect_timeout", "tls_timeout", "handshake_timeout")
# Causes of connects that failed for lack of a resource of this host, and the resource.
_SHORTAGES = {"no_descriptors": "descriptors", "no_ports": "local_ports"}
# Codes of findings on failures of asyncli itself.
_FAILED = frozenset(
    {"worker_lost", "generator_failed", "generator_silent", "asyncli_failed", "drain_unfinished"}
)


class Bottleneck(msgspec.Struct, frozen=True):
    """A bottleneck on one ``side``. ``certain``: limits, counts or processes confirm it."""

    side: Side
    code: str
    evidence: str
    remedy: str
    certain: bool = True

    @property
    def is_incident(self) -> bool:
        """Whether processes of the server ended or were replaced, which may not repeat."""
        return self.code in _ENDED

    @property
    def reached(self) -> bool:
        """A limit of the server that was read and reached."""
        return self.certain and self.side == "server" and self.code in _LIMITS


class AnalysedRun(msgspec.Struct, frozen=True):
    """A run and its analyses. ``slow``: the latency limit that was crossed, in words, or ""."""

    run: Run
    totals: Totals
    diagnoses: Sequence[Diagnosis]
    saturation: Sequence[Finding]
    slow: str = ""

    @property
    def server(self) -> str:
        """The server's name for sentences."""
        name = self.run.place.server_label.partition("/")[0]
        return "the built-in server" if name == "asyncli" else name or "the server"

    def rise(self, name: str, *, to_end: bool = False) -> float:
        """The rise of a counter from the first connect to the hold's end, or to the run's end; 0
        where it was not read.
        """
        counter, start_s = self.run.series(name), self.run.first_connect_s
        before, after = (
            counter.last(until_s=start_s),
            counter.last(until_s=math.inf if to_end else self.run.stop_s + 1.0),
        )
        before = counter.first() if before is None else before
        return max(0.0, after - before) if before is not None and after is not None else 0.0

    def cores(self, name: str) -> float | None:
        """The mean cores in use in the last ten seconds before the drain, by a counter of CPU
        seconds; None where unknown.
        """
        since_s = max(self.run.first_connect_s, self.run.stop_s - 10.0)
        return self.run.series(name).per_second(since_s, self.run.stop_s + 0.5, least_s=2.0)

    def least_available(self) -> float | None:
        """The least available memory (bytes) of this host from the first connect on; None where
        unknown.
        """
        available = self.run.series(self.run.of_ours(metrics.HOST_AVAILABLE_BYTES))
        return min(
            available.between(self.run.first_connect_s, self.run.stop_s).values, default=None
        )

    def failures(self, cause: str) -> int:
        return self.totals.whole.failures.get(cause, 0)

    def deaths(self, *causes: str) -> int:
        return sum(
            self.totals.whole.deaths[cause].count
            for cause in causes
            if cause in self.totals.whole.deaths
        )

    def silent(self) -> int:
        """How many connections and connects got no answer in time."""
        return self.deaths(*_SILENT) + sum(map(self.failures, _UNANSWERED))

    @property
    def spared_others(self) -> bool:
        """Whether nearly all that was lost was never answered, and what was answered took less than
        half of the timeout. A host that is busy is late for all, and the longer the wait the fewer:
        a number that is served ends at once. It refuses no connect either.
        """
        whole, limit_us = self.totals.whole, 0.5e6 * self.run.plan.timeout_s
        ended = whole.lost + sum(whole.failures.values())
        if ended and self.failures("refused") >= NEARLY_ALL * ended:
            return True
        never = sum(
            dead.requests.counts.get(bucket(0), 0)
            for cause in _SILENT
            if (dead := whole.deaths.get(cause))
        )
        if never < max(FEWEST, NEARLY_ALL * ended):
            return False
        return bool(whole.answered) and all(
            answered_within_us(tick, 0.99) < limit_us for _, tick in self.run.ticks
        )

    def overflowed(self) -> int:
        """How many of our connects met a full listen queue."""
        return (
            overflows(self.run).connects
            if self.run.plan.has_ports
            else self.totals.whole.queue_full
        )

    def unanswered_by_queue(self) -> int:
        """How many connects and first heartbeats a full listen queue left without an answer."""
        return (
            overflows(self.run).unanswered
            if self.run.plan.has_ports
            else self.totals.whole.queue_full
        )


def memory_floor(total: float, available: float) -> float:
    """The least available memory (bytes) of this host at which a step continues."""
    return min(RESERVE * total, available / 2)


def find_bottlenecks(seen: AnalysedRun) -> list[Bottleneck]:
    """All bottlenecks with evidence, those that may explain half of the losses first; one of side
    "unknown" if there is none.
    """
    found: dict[str, Bottleneck] = {}
    for mechanism in _MECHANISMS:
        for one in mechanism(seen):
            found.setdefault(one.code, one)
    if found:
        return sorted(found.values(), key=lambda one: -min(0.5, _share(one.code, seen)))
    whole, asked = seen.totals.whole, seen.run.plan.connections
    losses = "; ".join(one.evidence for one in seen.diagnoses)
    losses = (
        losses
        or f"{format_count(seen.totals.held)} of {format_count(asked)} were held, {whole.lost} lost; cause unknown"
    )
    return [_bottleneck("unknown", _UNKNOWN, certain=False, losses=losses)]


def _share(code: str, seen: AnalysedRun) -> float:
    """The share of losses and failed connects that ``code`` explains at most; of a diagnosis, of
    the losses; 1 if unknown.
    """
    whole = seen.totals.whole
    counts = {
        **whole.failures,
        "listen_queue": seen.unanswered_by_queue(),
        "errors": sum(errors(whole).values()),
    }
    diagnosed = sum(one.count for one in seen.diagnoses if one.code == code)
    if not diagnosed:
        # What an incident ended was held until then, also near a limit; lack of memory is such an
        # incident's cause.
        ended = [one.count for one in seen.diagnoses if one.code in _ENDED and one.certain]
        diagnosed = whole.lost - (sum(ended) if code in _LIMITS - {"memory_limit"} else 0)
    count, of = (
        (counts[code], whole.lost + sum(whole.failures.values()))
        if code in counts
        else (diagnosed, whole.lost)
    )
    return count / of if of else 1.0


def instead_of_forecast(seen: AnalysedRun) -> Finding | None:
    """The bottleneck of a run that lost connections, not by asyncli, or did not hold all; None if
    it has a forecast.
    """
    whole, asked = seen.totals.whole, seen.run.plan.connections
    lost, failed = whole.lost - seen.deaths("generator_lost"), sum(whole.failures.values())
    reset = whole.protocol.streams_lost if whole.protocol is not None else {}
    streams = sum(reset.values())
    # Connects that failed and succeeded later are no bottleneck.
    if not lost and not streams and (not failed or seen.totals.held >= asked):
        return None
    served, first = served_most(seen.run.ticks), find_bottlenecks(seen)[0]
    # Refused, closed and silent connections show how many the server serves; failures of this host
    # and timers do not.
    reasons = whole.tls.failed if whole.tls is not None and first.code == "tls_failed" else {}
    # A certificate is refused at any number.
    refused = sum(count for reason, count in reasons.items() if kind_of(reason))
    timed = first.code in _NO_NUMBER or 2 * refused > sum(reasons.values())
    # Nor does the end of a connection that was served, if its cause is unknown.
    of_served = seen.deaths("protocol_error") + (
        _served(whole, *ENDED) if first.code == _UNKNOWN else 0
    )
    theirs = not timed and lost - of_served + failed - sum(map(seen.failures, _SHORTAGES))
    remedy = first.remedy
    if first.code == _UNKNOWN:
        remedy = "; ".join(dict.fromkeys(one.remedy for one in seen.diagnoses))
        if reset and not remedy:
            remedy = remedy_of_refusals("http2", reset)
    return gave_way(
        lost, failed, seen.server, served if theirs and 0 < served < asked else None, asked,
        first.side, first.code, first.certain, first.reached, first.evidence, remedy, streams,
    )  # fmt: skip


def _served(whole: Tick, *causes: str) -> int:
    """How many of the connections lost by these causes had been answered."""
    lost = [whole.deaths[cause] for cause in causes if cause in whole.deaths]
    return sum(dead.count - dead.requests.counts.get(bucket(0), 0) for dead in lost)


#: Findings of a server that takes no more connections, beside those of lost ones.
_OF_A_FULL_SERVER = frozenset({
    "failed_connect_timeout", "failed_refused", "failed_tls_timeout", "failed_handshake_timeout", "listen_overflows",
    "listen_drops", "listen_full", "parted_held", "parted_accepts", "parted_handled", "reconcile_held", "reconcile_accepts",
    "reconcile_handled",
})  # fmt: skip
# Diagnoses of connections that a full server never served, or closed for others.
_OF_OTHERS = UNSERVED | {"idle_reuse", "server_slow"}


def explained(findings: Sequence[Finding], diagnoses: Sequence[Diagnosis]) -> list[Finding]:
    """``findings`` with one remedy for one cause: where a limit of the server was reached, what it
    explains has its remedy.
    """
    limit = next(
        (
            finding
            for finding in findings
            if finding.code == gave_way.code and finding.severity == "error"
        ),
        None,
    )
    if limit is None:
        return list(findings)
    full = {*_OF_A_FULL_SERVER}
    for cause in {diagnosis.cause for diagnosis in diagnoses}:
        if all(diagnosis.code in _OF_OTHERS for diagnosis in diagnoses if diagnosis.cause == cause):
            full.add(f"lost_{cause}")
    return [
        msgspec.structs.replace(finding, remedy=limit.remedy)
        if finding.code in full and not counts_ahead(finding)
        else finding
        for finding in findings
    ]


def _bottleneck(
    side: Side, code: str, form: str = "", *, certain: bool = True, **fields: Any
) -> Bottleneck:
    words = bottleneck.words_of(form or code, **fields)
    return Bottleneck(side, code, words.evidence, words.remedy, certain)


def _diagnoses(side: Side, codes: Set[str], seen: AnalysedRun) -> Iterator[Bottleneck]:
    for one in seen.diagnoses:
        if one.code in codes:
            yield Bottleneck(side, one.code, one.evidence, one.remedy, one.certain)


def _findings(side: Side, codes: Set[str], seen: AnalysedRun) -> Iterator[Bottleneck]:
    for one in seen.run.findings:
        if one.code in codes:
            yield Bottleneck(side, one.code, one.evidence, one.remedy)


# This host.


def _both_busy(seen: AnalysedRun) -> Iterator[Bottleneck]:
    """All CPUs of a shared host were busy, and asyncli or the server was late because of it:
    answers came late, or connects and first heartbeats waited as others did.
    """
    cpus, busy = seen.run.place.cpus, seen.cores(metrics.HOST_CPU_BUSY_S)
    server, ours = seen.cores(metrics.SERVER_CPU_S), seen.cores(metrics.GENERATOR_CPU_S)
    if (
        not seen.run.place.local
        or cpus is None
        or busy is None
        or ours is None
        or busy < MOST_CPU_SHARE * cpus
    ):
        return
    # A server that uses nearly all CPUs is its own limit, unless asyncli is late. Other programs
    # explain slowness, not timeouts.
    beside, share = ours if server is None else busy - server, (1.0 - MOST_CPU_SHARE) * cpus
    was_late = is_saturated(seen.saturation) or has_late_ramp(seen.saturation)
    # A heartbeat without an answer counts as slow.
    slow = seen.slow and not seen.silent()
    if seen.spared_others:
        return
    if was_late or (slow and beside >= share) or (seen.silent() and ours >= share):
        shares = (
            f"asyncli used {ours:.1f}"
            if server is None
            else f"{seen.server} used {server:.1f}, asyncli {ours:.1f}"
        )
        others = 0.0 if server is None else busy - server - ours
        shares += f", and other programs {others:.1f}" if others >= MOST_OF_OTHERS * cpus else ""
        yield _bottleneck("host", "both_busy", cpus=cpus, busy=busy, shares=shares)


def _late(seen: AnalysedRun) -> Iterator[Bottleneck]:
    for one in seen.saturation:
        if is_saturated([one]) or (has_late_ramp([one]) and not seen.spared_others):
            yield Bottleneck(
                "host", one.code.removeprefix("generator_saturated_"), one.evidence, one.remedy
            )
    # Latency counts from the intended instant: asyncli's lateness is the cause if it is at least
    # half of the latency.
    late, whole = (
        one.quantile(0.99) or 0.0
        for one in (seen.totals.whole.lateness_us, seen.totals.whole.latency_us)
    )
    if seen.slow and 2 * late >= whole > 0:
        yield _bottleneck("host", "beats", slow=seen.slow, late_s=late / 1e6, whole_s=whole / 1e6)


def _host_memory(seen: AnalysedRun) -> Iterator[Bottleneck]:
    """Too little memory was left on the server's host or on asyncli's."""
    run, far = seen.run, seen.run.sides.far
    hosts: list[tuple[Side, str, float | None, str]] = [
        ("host", "this host", run.place.memory_bytes, run.of_ours(metrics.HOST_AVAILABLE_BYTES))
    ]
    if far is not None:
        hosts.insert(
            0, ("server", "the server's host", far.memory_bytes, metrics.HOST_AVAILABLE_BYTES)
        )
    for side, name, total, available in hosts:
        free, start_s = run.series(available), run.first_connect_s
        before, least = (
            free.last(until_s=start_s),
            min(free.between(start_s, math.inf).values, default=None),
        )
        if (
            total is not None
            and before is not None
            and least is not None
            and least < memory_floor(total, before)
        ):
            yield _bottleneck(
                side,
                "memory" if side == "host" else "host_memory",
                host=name,
                least=least,
                before=before,
            )


# The server, by its own limits, counts and processes.


def _full(seen: AnalysedRun, *, certain: bool = True) -> Iterator[Bottleneck]:
    """Limits of the server that were read and reached: memory of its control group, sessions,
    descriptors.

    Certain if none was left, or if the kernel killed for lack of memory. Where some were left, the
    server may refuse for another reason.
    """
    killed = seen.rise(metrics.SERVER_GROUP_KILLED, to_end=True)
    for code, form, used, limited, exact, may_be_full in _READ_LIMITS:
        limit, most = (
            seen.run.series(limited).last(),
            max(seen.run.series(used).values, default=0.0),
        )
        if limit is None:
            continue
        if code == "memory_limit" and killed:
            if certain:
                processes = format_many(killed, "process")
                yield _bottleneck(
                    "server",
                    code,
                    "memory_killed",
                    server=seen.server,
                    killed=processes,
                    limit=limit,
                    most=most,
                )
            continue
        of_connection = _of_a_connection(seen, used, most)
        if may_be_full and of_connection < PART:
            continue
        none_left = exact and most >= limit - max(1.0, of_connection)
        if most >= REACHED * limit and none_left is certain:
            yield _bottleneck(
                "server", code, form, certain=certain, server=seen.server, limit=limit, most=most
            )


def _of_a_connection(seen: AnalysedRun, used: str, most: float) -> float:
    """How much of a resource a connection took, by the mean of all: of address space a stack, of a
    proxy's descriptors two; 0 if it is unknown.
    """
    connections = new_connections(seen.run)
    before = seen.run.series(used).last(until_s=seen.run.first_connect_s)
    if before is None or not connections:
        return 0.0
    return (most - before) / connections


def _slots(seen: AnalysedRun, *, certain: bool = True) -> Iterator[Bottleneck]:
    """Connection slots: idle reuse; or by the status page, nginx's accepts that were not handled,
    or Apache's busy workers.
    """
    for one in seen.diagnoses:
        if one.code == "idle_reuse" and one.certain is certain:
            yield Bottleneck("server", "slots", one.evidence, one.remedy, certain)
    if not certain:
        return
    refused = seen.rise(metrics.STATUS_ACCEPTS) - seen.rise(metrics.STATUS_HANDLED)
    if seen.run.series(metrics.STATUS_HANDLED).values and refused >= 1:
        yield _bottleneck("server", "slots", "not_handled", server=seen.server, refused=refused)
    busy, idle = (
        seen.run.series(name).last(until_s=seen.run.stop_s)
        for name in (metrics.STATUS_BUSY, metrics.STATUS_IDLE)
    )
    if busy and idle == 0:
        yield _bottleneck("server", "slots", "busy_workers", server=seen.server, busy=busy)


def _server_cpu(seen: AnalysedRun) -> Iterator[Bottleneck]:
    """The server used all cores that its threads can use, and was slow or silent."""
    cpus, used = (seen.run.sides.far or seen.run.place).cpus, seen.cores(metrics.SERVER_CPU_S)
    threads = seen.run.series(metrics.SERVER_THREADS).last()
    if (
        used is None
        or cpus is None
        or threads is None
        or not (seen.slow or seen.silent() or seen.overflowed())
    ):
        return
    may_use = min(threads, cpus)
    if used >= MOST_CPU_SHARE * may_use:
        of = (
            "the one that its single thread can use"
            if threads == 1
            else f"the {may_use:.0f} that it can use"
        )
        yield _bottleneck(
            "server",
            "cpu",
            server=seen.server,
            used=used,
            of=of,
            also=seen.slow and f"; {seen.slow}",
        )


def _listen_queue(seen: AnalysedRun) -> Iterator[Bottleneck]:
    # A full queue explains connects that waited, but not refused handshakes: these had been
    # accepted.
    refused = seen.failures("tls_failed") + seen.failures("handshake_refused")
    if (count := seen.overflowed()) and (seen.silent() or not refused):
        times = "once" if count == 1 else f"{format_count(count)} times"
        form = "listen_queue" if seen.run.plan.has_ports else "listen_queue_full"
        counts = {"times": times, "connects": format_many(count, "connect")}
        yield _bottleneck(
            "server",
            "listen_queue",
            form,
            certain=form != "listen_queue",
            host=seen.run.sides.host,
            **counts,
        )


# Lost, refused or late connections without other evidence.


def _never_arrived(seen: AnalysedRun) -> Iterator[Bottleneck]:
    """Unanswered connects that the server never accepted by its own count."""
    timeouts, started = seen.failures("connect_timeout"), seen.totals.whole.started
    accepted = seen.rise(metrics.STATUS_ACCEPTS) - seen.rise(metrics.STATUS_CONNECTS)
    # A full listen queue also drops retransmitted SYNs: then the network lost nothing.
    dropped = 2 * seen.unanswered_by_queue() >= max(1, seen.silent())
    if not timeouts or dropped or not len(seen.run.series(metrics.STATUS_ACCEPTS)):
        return
    if started - accepted >= max(FEWEST, timeouts / 2):
        here = seen.run.place.local is True
        form = "" if here else "never_arrived_there"
        counts = {"timeouts": timeouts, "accepted": accepted, "started": started}
        yield _bottleneck(
            "network", "never_arrived", form, certain=here, server=seen.server, **counts
        )


def _not_connected(side: Side, causes: Collection[str], seen: AnalysedRun) -> Iterator[Bottleneck]:
    for cause in causes:
        if count := seen.failures(cause):
            words = connects_failed(cause, count)
            yield Bottleneck(
                side, _SHORTAGES.get(cause, cause), words.evidence, words.remedy, side != "unknown"
            )


def _connects_refused(seen: AnalysedRun) -> Iterator[Bottleneck]:
    """Refused connects: the server's only if nothing listened meanwhile.

    On the way to a Unix socket there is nothing else.
    """
    count = seen.failures("refused")
    if not count:
        return
    if not seen.run.plan.has_ports:
        yield from _not_connected("server", ["refused"], seen)
        return
    refused = refusals(seen.run)
    connects = connects_failed("refused", count).evidence
    fields: dict[str, Any] = {"connects": connects, "server": seen.server}
    if 2 * refused.unheard >= count:
        yield _bottleneck("server", "refused", "refused_unheard", **fields)
    elif 2 * refused.on_the_way >= count:
        yield _bottleneck("network", "refused", "refused_on_the_way", certain=False, **fields)
    else:
        yield _bottleneck("unknown", "refused", "refused_by_either", certain=False, **fields)


def _refused(seen: AnalysedRun) -> Iterator[Bottleneck]:
    """Failed handshakes."""
    whole, server = seen.totals.whole, seen.server
    if whole.tls is not None and (failed := whole.tls.failed):
        yield _bottleneck(
            "server",
            "tls_failed",
            why=by_reason(failed),
            remedy=remedy_of_reasons(failed, TLS_REMEDY),
        )
    if whole.protocol is not None and (refused := whole.protocol.refused):
        remedy = remedy_of_refusals(seen.run.plan.protocol, refused)
        yield _bottleneck(
            "server", "handshake_refused", server=server, why=by_reason(refused), remedy=remedy
        )


def _errors(seen: AnalysedRun) -> Iterator[Bottleneck]:
    whole = seen.totals.whole
    if bad := errors(whole):
        remedy = remedy_of_statuses(bad, whole.answered, over_tls=whole.tls is not None)
        yield _bottleneck(
            "server", "errors", server=seen.server, errors=by_reason(bad), remedy=remedy
        )


def _lost(seen: AnalysedRun) -> Iterator[Bottleneck]:
    known = _ON_THE_PATH | _ENDED | _UNEXPLAINED | {"idle_reuse", "generator_lost"}
    yield from _diagnoses("host", {"generator_lost"}, seen)
    yield from _diagnoses("server", {one.code for one in seen.diagnoses} - known, seen)


def _slow(seen: AnalysedRun) -> Iterator[Bottleneck]:
    if seen.slow:
        cores = seen.cores(metrics.SERVER_CPU_S)
        used = (
            f", though {seen.server} used {cores:.2f} cores: it waits, or the network path is slow"
            if cores
            else ""
        )
        yield _bottleneck(
            "server" if seen.run.place.local else "unknown",
            "slow",
            certain=False,
            slow=seen.slow,
            cores=used,
        )


_MECHANISMS = (
    _host_memory, partial(_not_connected, "host", _SHORTAGES), partial(_findings, "host", _FAILED),
    partial(_slots, certain=True), _full, _both_busy, _late,
    partial(_slots, certain=False), partial(_diagnoses, "server", _ENDED), partial(_findings, "server", {"server_ended"}),
    _server_cpu, partial(_diagnoses, "network", _ON_THE_PATH), _never_arrived, _listen_queue,
    partial(_findings, "server", {"address_dead"}), _connects_refused,
    partial(_not_connected, "network", ["unreachable"]), _refused,
    _lost, _errors, partial(_not_connected, "unknown", ["reset", *_UNANSWERED]), partial(_full, certain=False), _slow,
)  # fmt: skip


def served_most(ticks: Ticks) -> int:
    """The most connections held at the end of any second, less those that waited for an answer if
    some were never answered.
    """
    if any(
        tick.deaths[cause].requests.counts.get(bucket(0))
        for _, tick in ticks
        for cause in _SILENT
        if cause in tick.deaths
    ):
        return max((max(0, tick.held - tick.awaiting) for _, tick in ticks), default=0)
    return max((max(tick.held, tick.held_at_drain) for _, tick in ticks), default=0)
