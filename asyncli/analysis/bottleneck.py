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

from asyncli.analysis.constants import FEWEST, HALF, NEARLY_ALL, PART, REACHED
from asyncli.analysis.forecast import RESERVE
from asyncli.analysis.holders import holders_of
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.losses.own_sockets import overflows
from asyncli.analysis.losses.server_evidence import killed_as_ended
from asyncli.analysis.losses.table import ENDED
from asyncli.analysis.losses.unanswered import answered_within_us
from asyncli.analysis.refusals import dropped_by_listeners, refusals
from asyncli.analysis.saturation import MOST_CPU_SHARE, has_late_ramp, is_saturated
from asyncli.analysis.server_ceilings import new_connections
from asyncli.analysis.shared_host import MOST_OF_OTHERS, throttled_share
from asyncli.analysis.totals import Totals, errors
from asyncli.core.histogram import bucket
from asyncli.findings import bottleneck
from asyncli.findings.forecast import gave_way
from asyncli.findings.losses import connects_failed, remedy_of_statuses
from asyncli.findings.protocol_codes import remedy_of_refusals
from asyncli.findings.reconcile import counts_ahead
from asyncli.findings.tls import TLS_REMEDY, by_reason, kind_of, remedy_of_reasons
from asyncli.model import metrics
from asyncli.model.products import product_of
from asyncli.model.records import Finding, Tick
from asyncli.model.run import Run, Ticks
from asyncli.model.samples import Series
from asyncli.model.server_limits import MEMORY_LIMITS, TASK_LIMITS
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
    # Other processes of the user were counted once: if they had changed, the rise would have ended
    # at another number. Of the host's numbers of processes and threads not all are free for use.
    *(
        _ReadLimit(
            "tasks", tasks.name, tasks.used, tasks.limit,
            exact=tasks.name != "host_tasks", may_be_full=True,
        )
        for tasks in TASK_LIMITS
    ),
    *(
        _ReadLimit(memory.name, "", memory.used, memory.limit, may_be_full=True)
        for memory in MEMORY_LIMITS
    ),
    _ReadLimit(
        "committed", "", metrics.HOST_COMMITTED_BYTES, metrics.HOST_COMMIT_LIMIT_BYTES,
        exact=False, may_be_full=True,
    ),
    _ReadLimit(
        "mappings", "", metrics.SERVER_MAPPINGS, metrics.SERVER_MAPPINGS_LIMIT, may_be_full=True
    ),
)  # fmt: skip

#: Diagnoses of time limits, which do not depend on the number of connections.
TIMERS = frozenset(
    {
        "keepalive_timeout",
        "keepalive_requests",
        "keepalive_time",
        "keepalive_off",
        "client_header_timeout",
        "idle_timeout",
        "lifetime",
        "silent_drop",
        "not_http",
        "broken_protocol",
        "answer_unread",
        "http_error",
        "unheard",
    }
)
#: Limits of this host that pass, such as another program's load.
LATE = frozenset({"both_busy", "ramp_late", "beats", "turn", "cpu"})
#: Interventions of an operator, which are independent of the count.
RELOADED = frozenset({"reload", "server_restarted"})
_ON_THE_PATH = frozenset({"path_cut", "silent_drop", "box_reset", "packets_lost"})
_ENDED = frozenset(
    {"server_ended", "server_restarted", "worker_crash", "worker_ended", "reload", "backend_ended"}
)
# How a process that the kernel killed shows in what was lost.
_KILLED = frozenset({"server_ended", "server_restarted", "worker_crash", "worker_ended"})
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
    "handshake_refused", "closed_at_once", "reset", "http_error", "own_limit",
}  # fmt: skip
_SILENT = ("heartbeat_timeout", "closed_awaiting", "protocol_error")
_UNANSWERED = ("connect_timeout", "tls_timeout", "handshake_timeout")
# Causes of connects that something refused, or that no route led to: whoever is busy is only late.
_REFUSED = ("refused", "reset", "unreachable")
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
    def refuses(self) -> bool:
        """Whether something refuses connections beyond a number. Connects may be refused because
        nothing listens, unless it can be seen that the server does.
        """
        if self.code == "refused":
            return self.side == "network"
        return self.code in REFUSING

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
        if name == "asyncli":
            return "the built-in server"
        return name or "the server"

    def rise(self, name: str, *, to_end: bool = False) -> float:
        """The rise of a counter from the first connect to the hold's end, or to the run's end; 0
        where it was not read.
        """
        counter = self.run.series(name)
        before = counter.last(until_s=self.run.first_connect_s)
        if before is None:
            before = counter.first()
        until_s = self.run.stop_s + 1.0
        if to_end:
            until_s = math.inf
        after = counter.last(until_s=until_s)
        if before is None or after is None:
            return 0.0
        return max(0.0, after - before)

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
        held = available.between(self.run.first_connect_s, self.run.stop_s)
        return min(held.values, default=None)

    def failures(self, cause: str) -> int:
        return self.totals.whole.failures.get(cause, 0)

    def deaths(self, *causes: str) -> int:
        by_cause = self.totals.whole.deaths
        return sum(by_cause[cause].count for cause in causes if cause in by_cause)

    def silent(self) -> int:
        """How many connections and connects got no answer in time."""
        return self.deaths(*_SILENT) + sum(map(self.failures, _UNANSWERED))

    @property
    def share_late(self) -> float:
        """The share of lost connections and failed connects that lateness may explain: all but
        connects that were refused, reset or unreachable.
        """
        whole = self.totals.whole
        ended = whole.lost + whole.failed
        if not ended:
            return 1.0
        return 1.0 - sum(map(self.failures, _REFUSED)) / ended

    @property
    def spared_others(self) -> bool:
        """Whether lateness explains less than half of what ended; or nearly all that was lost was
        never answered, and what was answered took less than half of the timeout. A host that is
        busy is late for all, and the longer the wait the fewer: a number that is served ends at
        once.
        """
        if 2 * self.share_late < 1:
            return True
        whole = self.totals.whole
        ended = whole.lost + whole.failed
        if _never_answered(whole, _SILENT) < max(FEWEST, NEARLY_ALL * ended):
            return False
        if not whole.answered:
            return False
        limit_us = 0.5e6 * self.run.plan.timeout_s
        return all(answered_within_us(tick, 0.99) < limit_us for _, tick in self.run.ticks)

    def overflowed(self) -> int:
        """How many of our connects met a full listen queue."""
        if self.run.plan.has_ports:
            return overflows(self.run).connects
        return self.totals.whole.queue_full

    def unanswered_by_queue(self) -> int:
        """How many connects and first heartbeats a full listen queue left without an answer."""
        if self.run.plan.has_ports:
            return overflows(self.run).unanswered
        return self.totals.whole.queue_full


def memory_floor(total: float, available: float) -> float:
    """The least available memory (bytes) of this host at which a step continues."""
    return min(RESERVE * total, available / 2)


def find_bottlenecks(seen: AnalysedRun) -> list[Bottleneck]:
    """All bottlenecks with evidence, those that may explain half of the losses first; one of side
    "unknown" if there is none.
    """
    by_code: dict[str, Bottleneck] = {}
    for mechanism in _MECHANISMS:
        for limit in mechanism(seen):
            by_code.setdefault(limit.code, limit)
    if by_code:
        return sorted(by_code.values(), key=lambda limit: -min(0.5, _share(limit.code, seen)))
    losses = "; ".join(diagnosis.evidence for diagnosis in seen.diagnoses)
    if not losses:
        held = format_count(seen.totals.held)
        asked = format_count(seen.run.plan.connections)
        lost = seen.totals.whole.lost
        losses = f"{held} of {asked} were held, {lost} lost; cause unknown"
    return [_bottleneck("unknown", _UNKNOWN, certain=False, losses=losses)]


def _share(code: str, seen: AnalysedRun) -> float:
    """The share of losses and failed connects that ``code`` explains at most; of a diagnosis, of
    the losses; 1 if unknown.
    """
    if code == "both_busy":
        return seen.share_late
    whole = seen.totals.whole
    counts = {
        **whole.failures,
        "listen_queue": seen.unanswered_by_queue(),
        "errors": sum(errors(whole).values()),
    }
    if code in counts:
        explained_count = counts[code]
        ended = whole.lost + whole.failed
    else:
        explained_count = _lost_at_most_by(code, seen)
        ended = whole.lost
    if not ended:
        return 1.0
    return explained_count / ended


def _lost_at_most_by(code: str, seen: AnalysedRun) -> int:
    """How many losses ``code`` explains at most: those diagnosed so, else all."""
    diagnosed = sum(diagnosis.count for diagnosis in seen.diagnoses if diagnosis.code == code)
    if diagnosed:
        return diagnosed
    lost = seen.totals.whole.lost
    if code not in _LIMITS - {"memory_limit"}:
        return lost
    # What an incident ended was held until then, also near a limit; lack of memory is such an
    # incident's cause.
    incidents = [
        diagnosis for diagnosis in seen.diagnoses if diagnosis.code in _ENDED and diagnosis.certain
    ]
    return lost - sum(diagnosis.count for diagnosis in incidents)


def _not_by_asyncli(limits: Sequence[Bottleneck]) -> Bottleneck:
    """The first of ``limits`` other than that asyncli lost connections itself, which the verdict
    says; that one if there is no other.
    """
    for limit in limits:
        if limit.code != "generator_lost":
            return limit
    return limits[0]


def instead_of_forecast(seen: AnalysedRun) -> Finding | None:
    """The bottleneck of a run that lost connections, not by asyncli, or did not hold all; None if
    it has a forecast.
    """
    whole = seen.totals.whole
    asked = seen.run.plan.connections
    lost = whole.lost_by_server
    failed = whole.failed
    reset = whole.protocol.streams_lost if whole.protocol is not None else {}
    streams = sum(reset.values())
    # Connects that failed and succeeded later are no bottleneck.
    failed_for_good = failed > 0 and seen.totals.held < asked
    if not lost and not streams and not failed_for_good:
        return None
    limit = _not_by_asyncli(find_bottlenecks(seen))
    at_most_served = served_most(seen.run.ticks)
    served = None
    if _shows_number_served(seen, limit, lost, failed) and 0 < at_most_served < asked:
        served = at_most_served
    remedy = limit.remedy
    if limit.code == _UNKNOWN:
        remedy = "; ".join(dict.fromkeys(diagnosis.remedy for diagnosis in seen.diagnoses))
        if reset and not remedy:
            remedy = remedy_of_refusals("http2", reset)
    return gave_way(
        lost,
        failed,
        seen.server,
        served,
        asked,
        limit.side,
        limit.code,
        limit.certain,
        limit.reached,
        limit.evidence,
        remedy,
        streams,
    )


def _shows_number_served(seen: AnalysedRun, limit: Bottleneck, lost: int, failed: int) -> bool:
    """Whether the losses and failures show how many connections the server serves.

    Refused, closed and silent connections show it; failures of this host and timers do not.
    """
    if limit.code in _NO_NUMBER:
        return False
    whole = seen.totals.whole
    if limit.code == "tls_failed" and whole.tls is not None:
        # A certificate is refused at any number.
        reasons = whole.tls.failed
        certificates = sum(count for reason, count in reasons.items() if kind_of(reason))
        if 2 * certificates > sum(reasons.values()):
            return False
    # Nor does the end of a connection that was served, if its cause is unknown: that CPUs were busy
    # or asyncli was late ends none.
    of_served = seen.deaths("protocol_error")
    if limit.code == _UNKNOWN or limit.code in LATE:
        of_served += _served(whole, *ENDED)
    of_this_host = sum(map(seen.failures, _SHORTAGES))
    return lost - of_served + failed - of_this_host != 0


def _served(whole: Tick, *causes: str) -> int:
    """How many of the connections lost by these causes had been answered."""
    lost = sum(whole.deaths[cause].count for cause in causes if cause in whole.deaths)
    return lost - _never_answered(whole, causes)


def _never_answered(whole: Tick, causes: Collection[str]) -> int:
    """How many of the connections lost by these causes had never been answered."""
    lost = [whole.deaths[cause] for cause in causes if cause in whole.deaths]
    return sum(dead.requests.counts.get(bucket(0), 0) for dead in lost)


def was_never_served(whole: Tick, *, listens: bool) -> bool:
    """Whether nearly all that ended or did not connect had never been answered. Of connections that
    only listen (``listens``) those that did not connect are known.
    """
    failed = whole.failed
    unserved = failed
    if not listens:
        unserved += _never_answered(whole, whole.deaths)
    return unserved > 0 and unserved >= NEARLY_ALL * (whole.lost + failed)


#: Findings of a server that takes no more connections, beside those of lost ones.
_OF_A_FULL_SERVER = frozenset(
    {
        "failed_connect_timeout",
        "failed_refused",
        "failed_tls_timeout",
        "failed_handshake_timeout",
        "listen_overflows",
        "listen_drops",
        "listen_full",
        "parted_held",
        "parted_accepts",
        "parted_handled",
        "reconcile_held",
        "reconcile_accepts",
        "reconcile_handled",
    }
)
# Diagnoses of connections that a full server never served, or closed for others.
_OF_OTHERS = UNSERVED | {"idle_reuse", "server_slow"}


def explained(findings: Sequence[Finding], diagnoses: Sequence[Diagnosis]) -> list[Finding]:
    """``findings`` with one remedy for one cause: where a limit of the server was reached, what it
    explains has its remedy.
    """
    limits = [finding for finding in findings if finding.code == gave_way.code]
    errors_of_server = [finding for finding in limits if finding.severity == "error"]
    if not errors_of_server:
        return list(findings)
    remedy = errors_of_server[0].remedy
    by_limit = {*_OF_A_FULL_SERVER}
    for cause in {diagnosis.cause for diagnosis in diagnoses}:
        codes = {diagnosis.code for diagnosis in diagnoses if diagnosis.cause == cause}
        if codes <= _OF_OTHERS:
            by_limit.add(f"lost_{cause}")
    with_one_remedy = []
    for finding in findings:
        if finding.code in by_limit and not counts_ahead(finding):
            with_one_remedy.append(msgspec.structs.replace(finding, remedy=remedy))
        else:
            with_one_remedy.append(finding)
    return with_one_remedy


def _bottleneck(
    side: Side, code: str, form: str = "", *, certain: bool = True, **fields: Any
) -> Bottleneck:
    words = bottleneck.words_of(form or code, **fields)
    return Bottleneck(side, code, words.evidence, words.remedy, certain)


def _diagnoses(side: Side, codes: Set[str], seen: AnalysedRun) -> Iterator[Bottleneck]:
    for diagnosis in seen.diagnoses:
        if diagnosis.code in codes:
            yield Bottleneck(
                side, diagnosis.code, diagnosis.evidence, diagnosis.remedy, diagnosis.certain
            )


def _findings(side: Side, codes: Set[str], seen: AnalysedRun) -> Iterator[Bottleneck]:
    for finding in seen.run.findings:
        if finding.code in codes:
            yield Bottleneck(side, finding.code, finding.evidence, finding.remedy)


# This host.


def _both_busy(seen: AnalysedRun) -> Iterator[Bottleneck]:
    """All CPUs of a shared host were busy, and asyncli or the server was late because of it:
    answers came late, or connects and first heartbeats waited as others did.
    """
    cpus = seen.run.place.cpus
    busy = seen.cores(metrics.HOST_CPU_BUSY_S)
    used_here = seen.cores(metrics.GENERATOR_CPU_S)
    if not seen.run.place.local or cpus is None or busy is None or used_here is None:
        return
    if busy < MOST_CPU_SHARE * cpus or seen.spared_others:
        return
    server = seen.cores(metrics.SERVER_CPU_S)
    if _was_late_by_cpu(seen, cpus, busy, server, used_here):
        shares = _shares_of_cpu(seen.server, cpus, busy, server, used_here)
        certain = seen.share_late >= NEARLY_ALL
        yield _bottleneck("host", "both_busy", certain=certain, cpus=cpus, busy=busy, shares=shares)


def _was_late_by_cpu(
    seen: AnalysedRun, cpus: float, busy: float, server: float | None, used_here: float
) -> bool:
    """Whether asyncli was late, or others than the server took enough CPU to make it late.

    A server that uses nearly all CPUs is its own limit, unless asyncli is late. Other programs
    explain slowness, not timeouts; nor does asyncli those of a server that used hardly any CPU: it
    waited for something else.
    """
    if is_saturated(seen.saturation) or has_late_ramp(seen.saturation):
        return True
    enough = (1.0 - MOST_CPU_SHARE) * cpus
    # A heartbeat without an answer counts as slow.
    if seen.silent():
        return used_here >= enough and (server is None or server >= enough)
    if not seen.slow:
        return False
    beside_server = used_here if server is None else busy - server
    return beside_server >= enough


def _shares_of_cpu(
    name: str, cpus: float, busy: float, server: float | None, used_here: float
) -> str:
    """Who used how many cores, in words."""
    if server is None:
        return f"asyncli used {used_here:.1f}"
    shares = f"{name} used {server:.1f}, asyncli {used_here:.1f}"
    others = busy - server - used_here
    if others >= MOST_OF_OTHERS * cpus:
        shares += f", and other programs {others:.1f}"
    return shares


def _late(seen: AnalysedRun) -> Iterator[Bottleneck]:
    for finding in seen.saturation:
        if is_saturated([finding]) or (has_late_ramp([finding]) and not seen.spared_others):
            code = finding.code.removeprefix("generator_saturated_")
            yield Bottleneck("host", code, finding.evidence, finding.remedy)
    # Latency counts from the intended instant: asyncli's lateness is the cause if it is at least
    # half of the latency.
    late_us = seen.totals.whole.lateness_us.quantile(0.99) or 0.0
    whole_us = seen.totals.whole.latency_us.quantile(0.99) or 0.0
    if seen.slow and 2 * late_us >= whole_us > 0:
        yield _bottleneck(
            "host", "beats", slow=seen.slow, late_s=late_us / 1e6, whole_s=whole_us / 1e6
        )


def _host_memory(seen: AnalysedRun) -> Iterator[Bottleneck]:
    """Too little memory was left on the server's host or on asyncli's."""
    run = seen.run
    far = run.sides.far
    if far is not None:
        available = run.series(metrics.HOST_AVAILABLE_BYTES)
        fields = _memory_short(available, run.first_connect_s, far.memory_bytes)
        if fields is not None:
            yield _bottleneck("server", "host_memory", host="the server's host", **fields)
    available = run.series(run.of_ours(metrics.HOST_AVAILABLE_BYTES))
    fields = _memory_short(available, run.first_connect_s, run.place.memory_bytes)
    if fields is not None:
        yield _bottleneck("host", "memory", host="this host", **fields)


def _memory_short(available: Series, start_s: float, total: float | None) -> dict[str, Any] | None:
    """The memory available before the first connect and the least afterwards, if that was too
    little; else None.
    """
    before = available.last(until_s=start_s)
    least = min(available.between(start_s, math.inf).values, default=None)
    if total is None or before is None or least is None:
        return None
    if least >= memory_floor(total, before):
        return None
    return {"least": least, "before": before}


# The server, by its own limits, counts and processes.


def _full(seen: AnalysedRun, *, certain: bool = True) -> Iterator[Bottleneck]:
    """Limits of the server that were read and reached: memory of its control group, sessions,
    descriptors, also of programs that hold its connections or are behind it.

    Certain if none was left. Where some were left, the server may refuse for another reason.
    """
    yield from _killed_for_memory(seen, certain=certain)
    for read in _READ_LIMITS:
        limit = seen.run.series(read.limit).last()
        if limit is None:
            continue
        highest = max(seen.run.series(read.used).values, default=0.0)
        fields: dict[str, Any] = {"server": seen.server, "limit": limit, "most": highest}
        of_connection = _of_a_connection(seen, read.used, highest)
        if read.may_be_full and of_connection < PART:
            continue
        none_left = read.exact and highest >= limit - max(1.0, of_connection)
        if highest >= REACHED * limit and none_left is certain:
            yield _bottleneck("server", read.code, read.form, certain=certain, **fields)
    yield from _full_beside(seen.run, certain=certain)
    if certain:
        yield from _full_behind(seen)


def _full_behind(seen: AnalysedRun) -> Iterator[Bottleneck]:
    """The servers behind HAProxy, with no session left. Requests in HTTP wait for a slow server in
    its sessions too, so only those of upgraded connections that were served show a limit.
    """
    run = seen.run
    limit = run.series(metrics.STATUS_BEHIND_LIMIT).last()
    highest = max(run.series(metrics.STATUS_BEHIND).values, default=0.0)
    if limit is None or not run.plan.upgrades or highest < limit - 1.0:
        return
    if max(run.held.values, default=0.0) >= NEARLY_ALL * highest:
        yield _bottleneck(
            "server", "slots", "sessions_behind", server=seen.server, limit=limit, most=highest
        )


def _killed_for_memory(seen: AnalysedRun, *, certain: bool) -> Iterator[Bottleneck]:
    """The kernel killed processes for lack of memory as processes of the server ended with their
    connections, in a control group that has a limit. Certain if its log says that they were the
    server's; by its count of the group likely, which may have others.
    """
    run = seen.run
    limit = run.series(metrics.SERVER_GROUP_LIMIT_BYTES).last()
    if limit is None:
        return
    killed = {"server": 0, "group": 0, "host": 0}
    for diagnosis in seen.diagnoses:
        if diagnosis.code in _KILLED:
            victims = killed_as_ended(run, diagnosis.from_s, diagnosis.to_s)
            killed[victims.among] = max(killed[victims.among], victims.number)
    if certain:
        count = killed["server"]
        form = "memory_killed"
    else:
        count = killed["group"]
        form = "memory_killed_in_group"
    if not count:
        return
    highest = max(run.series(metrics.SERVER_GROUP_BYTES).values, default=0.0)
    yield _bottleneck(
        "server",
        "memory_limit",
        form,
        certain=certain,
        server=seen.server,
        killed=format_many(count, "process"),
        limit=limit,
        used=bottleneck.used_of_limit(highest, is_full=highest >= REACHED * limit),
    )


def _full_beside(run: Run, *, certain: bool) -> Iterator[Bottleneck]:
    """Programs that hold the server's connections or are behind it, with no descriptor left, or
    hardly one.
    """
    holders = holders_of(run)
    for program in holders.beside:
        limit = run.series(f"{metrics.BESIDE_DESCRIPTORS_LIMIT}{program}").last()
        opened = run.series(f"{metrics.BESIDE_DESCRIPTORS_OPEN}{program}").values
        if limit is None or not opened:
            continue
        highest = max(opened)
        none_left = highest >= limit - 1.0
        if highest >= REACHED * limit and none_left is certain:
            yield _bottleneck(
                "server", "descriptors", certain=certain, server=program, limit=limit, most=highest
            )


def _of_a_connection(seen: AnalysedRun, used: str, highest: float) -> float:
    """How much of a resource a connection took, by the mean of all: of address space a stack, of a
    proxy's descriptors two; 0 if it is unknown.
    """
    connections = new_connections(seen.run)
    before = seen.run.series(used).last(until_s=seen.run.first_connect_s)
    if before is None or not connections:
        return 0.0
    return (highest - before) / connections


def _slots(seen: AnalysedRun, *, certain: bool = True) -> Iterator[Bottleneck]:
    """Connection slots: idle reuse; or by the status page, nginx's accepts that were not handled,
    or Apache's busy workers.
    """
    for diagnosis in seen.diagnoses:
        if diagnosis.code == "idle_reuse" and diagnosis.certain is certain:
            yield Bottleneck("server", "slots", diagnosis.evidence, diagnosis.remedy, certain)
    if not certain:
        return
    refused = seen.rise(metrics.STATUS_ACCEPTS) - seen.rise(metrics.STATUS_HANDLED)
    if seen.run.series(metrics.STATUS_HANDLED).values and refused >= 1:
        if product_of(seen.server) == "HAProxy":
            # Above its maxconn HAProxy accepts nothing: what it accepted, it denied.
            yield _bottleneck(
                "server", "handshake_refused", "no_session", server=seen.server, refused=refused
            )
        else:
            yield _bottleneck("server", "slots", "not_handled", server=seen.server, refused=refused)
    busy = seen.run.series(metrics.STATUS_BUSY).last(until_s=seen.run.stop_s)
    idle = seen.run.series(metrics.STATUS_IDLE).last(until_s=seen.run.stop_s)
    if busy and idle == 0:
        yield _bottleneck("server", "slots", "busy_workers", server=seen.server, busy=busy)


def _server_cpu(seen: AnalysedRun) -> Iterator[Bottleneck]:
    """The server used all cores that its threads can use, or those of its quota, and was slow or
    silent.
    """
    yield from _throttled(seen)
    cpus = (seen.run.sides.far or seen.run.place).cpus
    used = seen.cores(metrics.SERVER_CPU_S)
    threads = seen.run.series(metrics.SERVER_THREADS).last()
    if used is None or cpus is None or threads is None:
        return
    if not (seen.slow or seen.silent() or seen.overflowed()):
        return
    may_use = min(threads, cpus)
    if used < MOST_CPU_SHARE * may_use:
        return
    usable = f"the {may_use:.0f} that it can use"
    if threads == 1:
        usable = "the one that its single thread can use"
    also = f"; {seen.slow}" if seen.slow else ""
    yield _bottleneck("server", "cpu", server=seen.server, used=used, of=usable, also=also)


def _throttled(seen: AnalysedRun) -> Iterator[Bottleneck]:
    cpus = seen.run.series(metrics.SERVER_GROUP_CPUS).last()
    share = throttled_share(seen.run)
    if cpus is None or share < HALF:
        return
    if not (seen.slow or seen.silent() or seen.overflowed()):
        return
    also = f"; {seen.slow}" if seen.slow else ""
    yield _bottleneck(
        "server", "cpu", "throttled", server=seen.server, cpus=cpus, share=share, also=also
    )


def _listen_queue(seen: AnalysedRun) -> Iterator[Bottleneck]:
    # A full queue explains connects that waited, but not refused handshakes: these had been
    # accepted.
    refused = seen.failures("tls_failed") + seen.failures("handshake_refused")
    count = seen.overflowed()
    if not count or (refused and not seen.silent()):
        return
    has_ports = seen.run.plan.has_ports
    form = "listen_queue_full"
    if has_ports:
        form = "listen_queue"
    times = f"{format_count(count)} times"
    if count == 1:
        times = "once"
    yield _bottleneck(
        "server",
        "listen_queue",
        form,
        certain=not has_ports,
        host=seen.run.sides.host,
        times=times,
        connects=format_many(count, "connect"),
    )


# Lost, refused or late connections without other evidence.


def _never_arrived(seen: AnalysedRun) -> Iterator[Bottleneck]:
    """Unanswered connects that the server never accepted by its own count."""
    timeouts = seen.failures("connect_timeout")
    started = seen.totals.whole.started
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
        count = seen.failures(cause)
        if not count:
            continue
        words = connects_failed(cause, count)
        code = _SHORTAGES.get(cause, cause)
        yield Bottleneck(side, code, words.evidence, words.remedy, certain=side != "unknown")


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


def _unanswered_on_the_way(seen: AnalysedRun) -> Iterator[Bottleneck]:
    """Connects without an answer that the server's listening sockets did not drop."""
    count = seen.failures("connect_timeout")
    dropped = dropped_by_listeners(seen.run)
    if not count or dropped is None or dropped.values[-1] > dropped.values[0]:
        return
    connects = connects_failed("connect_timeout", count).evidence
    yield _bottleneck(
        "network",
        "connect_timeout",
        "unanswered_on_the_way",
        certain=False,
        connects=connects,
        server=seen.server,
    )


def _refused(seen: AnalysedRun) -> Iterator[Bottleneck]:
    """Failed handshakes."""
    whole = seen.totals.whole
    if whole.tls is not None and whole.tls.failed:
        failed = whole.tls.failed
        remedy = remedy_of_reasons(failed, TLS_REMEDY)
        yield _bottleneck("server", "tls_failed", why=by_reason(failed), remedy=remedy)
    if whole.protocol is not None and whole.protocol.refused:
        refused = whole.protocol.refused
        remedy = remedy_of_refusals(seen.run.plan.protocol, refused)
        why = by_reason(refused)
        yield _bottleneck("server", "handshake_refused", server=seen.server, why=why, remedy=remedy)


def _errors(seen: AnalysedRun) -> Iterator[Bottleneck]:
    whole = seen.totals.whole
    by_status = errors(whole)
    if not by_status:
        return
    remedy = remedy_of_statuses(by_status, whole.answered, over_tls=whole.tls is not None)
    yield _bottleneck(
        "server", "errors", server=seen.server, errors=by_reason(by_status), remedy=remedy
    )


def _lost(seen: AnalysedRun) -> Iterator[Bottleneck]:
    known = _ON_THE_PATH | _ENDED | _UNEXPLAINED | {"idle_reuse", "generator_lost"}
    yield from _diagnoses("host", {"generator_lost"}, seen)
    codes = {diagnosis.code for diagnosis in seen.diagnoses}
    yield from _diagnoses("server", codes - known, seen)


def _slow(seen: AnalysedRun) -> Iterator[Bottleneck]:
    if not seen.slow:
        return
    cores = seen.cores(metrics.SERVER_CPU_S)
    used = ""
    if cores:
        used = (
            f", though {seen.server} used {cores:.2f} cores: it waits, or the network path is slow"
        )
    side: Side = "server" if seen.run.place.local else "unknown"
    yield _bottleneck(side, "slow", certain=False, slow=seen.slow, cores=used)


_MECHANISMS = (
    _host_memory,
    partial(_not_connected, "host", _SHORTAGES),
    partial(_findings, "host", _FAILED),
    partial(_slots, certain=True),
    _full,
    _both_busy,
    _late,
    partial(_slots, certain=False),
    partial(_diagnoses, "server", _ENDED),
    partial(_findings, "server", {"server_ended"}),
    _server_cpu,
    partial(_diagnoses, "network", _ON_THE_PATH),
    _never_arrived,
    _listen_queue,
    partial(_findings, "server", {"address_dead"}),
    _connects_refused,
    _unanswered_on_the_way,
    partial(_not_connected, "network", ["unreachable"]),
    _refused,
    _lost,
    _errors,
    partial(_not_connected, "unknown", ["reset", *_UNANSWERED]),
    partial(_full, certain=False),
    _slow,
)


def served_most(ticks: Ticks) -> int:
    """The most connections held at the end of any second, less those that waited for an answer if
    some were never answered.
    """
    if any(_never_answered(tick, _SILENT) for _, tick in ticks):
        return max((max(0, tick.held - tick.awaiting) for _, tick in ticks), default=0)
    return max((max(tick.held, tick.held_at_drain) for _, tick in ticks), default=0)
