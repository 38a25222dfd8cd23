"""What gave way when a count was not held: the server, this host, or the network between. Pure.

Each mechanism is asked in turn and says what it has evidence of; the first that has is the answer, the others stand beside it.
What this host had none left of comes first, then the server's own limits where they are seen to be reached: they are reached
whether asyncli was late or not. Then asyncli's lateness, since slowness and silence say nothing of a server beside it; then the
way between, then by what connections were lost, and what was merely slow last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from asyncli.analysis.diagnosis import Diagnosis
from asyncli.analysis.forecast import RESERVE
from asyncli.analysis.saturation import is_saturated
from asyncli.analysis.shared_host import MOST_OF_OTHERS, others_cores
from asyncli.analysis.totals import Totals, errors, never_answered
from asyncli.findings.forecast import gave_way
from asyncli.findings.losses import listed
from asyncli.metrics import (
    GENERATOR_CPU_S,
    GENERATOR_USS_BYTES,
    HOST_AVAILABLE_BYTES,
    HOST_CPU_BUSY_S,
    KERNEL_SOCKET_BYTES,
    SERVER_CPU_S,
    SERVER_DESCRIPTORS,
    SERVER_DESCRIPTORS_LIMIT,
    SERVER_GROUP_BYTES,
    SERVER_GROUP_KILLED,
    SERVER_GROUP_LIMIT_BYTES,
    SERVER_PSS_BYTES,
    SERVER_THREADS,
    STATUS_ACCEPTS,
    STATUS_ACTIVE,
    STATUS_BUSY,
    STATUS_CONNECTS,
    STATUS_HANDLED,
    STATUS_IDLE,
    STATUS_LIMIT,
    TCP,
    TCP_RETRANS_SEGS,
)
from asyncli.records import Finding
from asyncli.run import Run, Ticks
from asyncli.samples import Series
from asyncli.units import format_bytes, format_count, format_many

Side = Literal["server", "host", "network", "unknown"]

# Above this a CPU has no slack, and what is due waits for its turn (as saturation.py has it).
_BUSY = 0.90
# Of a busy host asyncli must have this share for the limit to be its own as well.
_OUR_SHARE = 0.15
# What others use that is worth a word, cores.
_OTHERS_CORES = 0.3
# Latency counts from the instant that a heartbeat was due: with this share of it ours, it speaks of us.
_OUR_LATENESS = 0.5
# CPU shares are of the last seconds before it gave way, or of as many as there are.
_STRETCH_S, _SHORTEST_STRETCH_S = 10.0, 2.0
# A group or a process is full from this share of its limit on: a reading comes once a second, and is too low by then.
_FULL_GROUP, _FULL_DESCRIPTORS = 0.97, 0.95
# The connections of those who read the page may be among a server's sessions.
_POLLERS = 4.0
# So many segments sent again, and this share of what was sent, are more than chance.
_RETRANSMITTED, _RETRANSMITTED_SHARE = 20, 0.01
# A server that counts so much less than we sent, by share and by number, never saw the rest.
_UNSEEN, _UNSEEN_SHARE = 5, 0.02
# Each SYN that a full listen queue drops is sent again, and dropped again: it explains as many as half of its count, or more.
_DROPPED = 0.5
# What is longer is no name that one would know the server by.
_LONGEST_NAME = 32

#: Diagnoses (analysis/diagnosis.py) that speak of a time and not of a number: they may come however few connections there are.
TIMERS = frozenset({
    "keepalive_timeout", "keepalive_requests", "keepalive_time", "keepalive_limit", "keepalive_off", "client_header_timeout",
    "idle_timeout", "lifetime", "box_idle_timeout", "silent_drop", "not_http", "http_error",
})  # fmt: skip
#: What of this host passes: another program's load makes asyncli late.
LATE = frozenset({"both_busy", "ramp", "beats", "turn", "cpu"})
#: What somebody does to a server, however many it holds.
RELOADED = frozenset({"reload", "server_restarted"})
_OF_THE_WAY = frozenset({"path_cut", "silent_drop", "box_reset", "box_idle_timeout"})
_ENDED = frozenset({"server_ended", "server_restarted", "worker_crash", "reload"})
_SAY_NOTHING = frozenset({"too_few", "unexplained", "burst"})
_UNKNOWN = "unknown"
# Findings that the server counts fewer than are open at our end (analysis/reconcile.py).
_COUNTS_APART = frozenset({"parted_held", "parted_accepts", "reconcile_held", "reconcile_accepts"})
_SILENT = ("heartbeat_timeout", "closed_awaiting", "protocol_error")


class GaveWay(msgspec.Struct, frozen=True):
    """One thing that gave way. ``certain``: limits, counts or processes bear it out; else it is a likelihood."""

    side: Side
    code: str
    evidence: str
    remedy: str
    certain: bool = True


class Seen(msgspec.Struct, frozen=True):
    """A step's records and what was found in them. ``slow``: a limit on latency that was crossed, in words; "" for none.

    ``saturation``: the findings of saturation.py; ``ended``: how the generator failed, in words.
    """

    run: Run
    totals: Totals
    diagnoses: Sequence[Diagnosis]
    saturation: Sequence[Finding]
    slow: str = ""

    @property
    def server(self) -> str:
        """The server's name in sentences."""
        name = self.run.place.server_label.partition("/")[0]
        # asyncli's own server, of the lab.
        return "the built-in server" if name == "asyncli" else name if 0 < len(name) <= _LONGEST_NAME else "the server"

    def metric(self, name: str) -> Series:
        return self.run.series(name)

    def rise(self, name: str, *, to_end: bool = False) -> float:
        """By how much a counter rose from the first connect to the hold's end, or to the end of all; 0 where it was not read."""
        start, stop = self.run.first_connect_s, math.inf if to_end else self.run.stop_s + 1.0
        counter = self.metric(name)
        before, after = counter.last(until_s=start), counter.last(until_s=stop)
        before = counter.first() if before is None else before
        return max(0.0, after - before) if before is not None and after is not None else 0.0

    def cores(self, name: str) -> float | None:
        """Cores in use in the last seconds before the drain, by a counter of CPU seconds; None where too little was read."""
        stop = self.run.stop_s
        return self.metric(name).per_second(max(self.run.first_connect_s, stop - _STRETCH_S), stop + 0.5, _SHORTEST_STRETCH_S)

    def silent(self) -> int:
        """Connections that were not answered, or not in time."""
        deaths = self.totals.whole.deaths
        late = sum(deaths[cause].count for cause in _SILENT if cause in deaths)
        return late + self.totals.whole.failures.get("connect_timeout", 0)


def memory_floor(total: float, available: float) -> float:
    """Bytes that must stay available on this host for a step to go on: the forecast's reserve, and no more than half of what was
    there before."""
    return min(RESERVE * total, available / 2)


def what_gave_way(seen: Seen) -> list[GaveWay]:
    """What there is evidence of, the answer first; one of side "unknown" where there is of nothing."""
    found: list[GaveWay] = []
    for mechanism in _MECHANISMS:
        for one in mechanism(seen):
            if all(one.code != other.code for other in found):
                found.append(one)
    return found or [_unknown(seen)]


# Limits of the server that were read, and reached.
_LIMITS = frozenset({"slots", "descriptors", "memory_limit"})


def instead_of_forecast(seen: Seen) -> Finding | None:
    """What gave way, and where, in a run that lost connections or could not hold all; None for one that gives a forecast.

    What asyncli lost with processes of its own says nothing of the server. An error where a limit of the server was read and
    reached: :func:`laid_to_limit`.
    """
    whole = seen.totals.whole
    ours = whole.deaths.get("generator_lost")
    lost, failed = whole.lost - (ours.count if ours is not None else 0), sum(whole.failures.values())
    # What failed to connect and did so at a later attempt gave way to nothing.
    if not lost and (not failed or seen.totals.held >= seen.run.plan.connections):
        return None
    served, asked, first = served_most(seen.run.ticks), seen.run.plan.connections, what_gave_way(seen)[0]
    remedy = "see the findings on what was lost, or failed to open" if first.code == _UNKNOWN else first.remedy
    limit = first.certain and first.side == "server" and first.code in _LIMITS
    return gave_way(
        lost, failed, seen.server, served if 0 < served < asked else None, asked,
        first.side, first.code, first.certain, limit, first.evidence, remedy,
    )  # fmt: skip


def laid_to_limit(findings: Sequence[Finding], diagnoses: Sequence[Diagnosis]) -> list[Finding]:
    """The ``findings``: where a limit was reached, those that only guess at a cause have its remedy."""
    reached = next((one for one in findings if one.code == gave_way.code and one.severity == "error"), None)
    if reached is None:
        return list(findings)
    known = {f"lost_{one.cause}" for one in diagnoses if one.certain}
    guess = {f"lost_{one.cause}" for one in diagnoses} - known | _COUNTS_APART
    return [msgspec.structs.replace(one, remedy=reached.remedy) if one.code in guess else one for one in findings]


# This host.


def _both_busy(seen: Seen) -> Iterator[GaveWay]:
    """All CPUs of a host that server and asyncli share, where that made either late."""
    cpus, busy = seen.run.place.cpus, seen.cores(HOST_CPU_BUSY_S)
    server, ours = seen.cores(SERVER_CPU_S), seen.cores(GENERATOR_CPU_S)
    if not seen.run.place.local or cpus is None or busy is None or ours is None or busy < _BUSY * cpus:
        return
    # A server that has nearly all of them to itself is its own limit, unless asyncli is late for it.
    late = is_saturated(seen.saturation)
    # What others used before the first connect too is no work of the server's.
    before = others_cores(seen.run, -math.inf, seen.run.first_connect_s)
    taken = min(before or 0.0, busy - (server or 0.0) - ours)
    # They make it slow; what is silent for as long as a timeout has another reason.
    by_others, by_us = taken >= MOST_OF_OTHERS * cpus and seen.slow, ours >= _OUR_SHARE * cpus and (seen.slow or seen.silent())
    if not late and not by_others and not by_us:
        return
    shares = f"{seen.server} used {server:.1f}, asyncli {ours:.1f}" if server is not None else f"asyncli used {ours:.1f}"
    others = busy - (server or 0.0) - ours
    shares += f", and other programs {others:.1f}" if server is not None and others >= _OTHERS_CORES else ""
    evidence = f"server and asyncli share the {cpus:.0f} CPUs of this host, and {busy:.1f} of them were busy: {shares}"
    yield GaveWay("host", "both_busy", evidence, "run asyncli on another host, ramp more slowly, or take a longer --keepalive")


def _late(seen: Seen) -> Iterator[GaveWay]:
    for one in seen.saturation:
        if is_saturated([one]):
            yield GaveWay("host", one.code.removeprefix("generator_saturated_"), one.evidence, one.remedy)
    late, whole = (one.quantile(0.99) or 0.0 for one in (seen.totals.whole.lateness_us, seen.totals.whole.latency_us))
    if seen.slow and late >= _OUR_LATENESS * whole > 0:
        evidence = f"{seen.slow}, and asyncli itself sent it late: p99 {late / 1e3:,.0f} of {whole / 1e3:,.0f} ms"
        yield GaveWay("host", "beats", evidence, "leave more CPU to asyncli, ramp more slowly, or take a longer --keepalive")


def _starved(seen: Seen) -> Iterator[GaveWay]:
    failures = seen.totals.whole.failures
    for cause, what, remedy in (
        ("no_descriptors", "descriptors", "raise the limit (ulimit -n), or leave --workers out"),
        ("no_ports", "local ports", "give more addresses of this host with --source, or more URLs"),
    ):
        if count := failures.get(cause):
            evidence = f"asyncli ran out of {what}: {format_count(count)} connects found none"
            yield GaveWay("host", what.replace(" ", "_"), evidence, remedy)
    for finding in seen.run.findings:
        if finding.code in ("worker_lost", "generator_failed", "generator_silent", "asyncli_failed", "drain_unfinished"):
            yield GaveWay("host", finding.code, finding.evidence, finding.remedy)


def _host_memory(seen: Seen) -> Iterator[GaveWay]:
    """A host that had less memory left than must stay: the server's elsewhere, or asyncli's own."""
    far, takers = seen.run.sides.far, {SERVER_PSS_BYTES: seen.server, KERNEL_SOCKET_BYTES: "the kernel's sockets"}
    if far is not None:
        total = far.memory_bytes
        if evidence := _short_of_memory(seen, "the server's host", total, HOST_AVAILABLE_BYTES, takers):
            yield GaveWay("server", "host_memory", evidence, "give it more memory, or make a connection cheaper")
    total = seen.run.place.memory_bytes
    # Of what took how much, what was sampled is of the server's host, where that is another one.
    takers = {} if far is not None else {**takers, GENERATOR_USS_BYTES: "asyncli"}
    if evidence := _short_of_memory(seen, "this host", total, seen.run.of_ours(HOST_AVAILABLE_BYTES), takers):
        yield GaveWay("host", "memory", evidence, "run asyncli on another host, or where there is more memory")


def _short_of_memory(seen: Seen, who: str, total: float | None, available: str, takers: Mapping[str, str]) -> str:
    """What was left of a host's memory, and what took it; "" where enough was, or it is not known."""
    free = seen.metric(available)
    start = seen.run.first_connect_s
    before, least = free.last(until_s=start), min(free.between(start, math.inf).values, default=None)
    if total is None or before is None or least is None or least >= memory_floor(total, before):
        return ""
    evidence = f"{who} had {format_bytes(least)} of memory left, of {format_bytes(before)} before the first connect"
    shares = [f"{taker} took {format_bytes(rise)}" for name, taker in takers.items() if (rise := seen.rise(name)) > 0]
    return f"{evidence}: {', '.join(shares)}" if shares else evidence


# The server, by its own limits, counts and processes.


def _server_memory(seen: Seen) -> Iterator[GaveWay]:
    killed = seen.rise(SERVER_GROUP_KILLED, to_end=True)
    limit, most = seen.metric(SERVER_GROUP_LIMIT_BYTES).last(), max(seen.metric(SERVER_GROUP_BYTES).values, default=0.0)
    if limit is None or (not killed and most < _FULL_GROUP * limit):
        return
    room = f"its control group may use {format_bytes(limit)}, and used {format_bytes(most)}"
    times = "one process" if killed == 1 else f"{format_count(killed)} processes"
    what = f"the kernel killed {times} of {seen.server} for want of memory" if killed else f"{seen.server} had no memory left"
    remedy = "raise its limit (systemd MemoryMax=, docker --memory), or make a connection cheaper"
    yield GaveWay("server", "memory_limit", f"{what}: {room}", remedy)


def _slots(seen: Seen) -> Iterator[GaveWay]:
    for one in seen.diagnoses:
        if one.code == "idle_reuse" and one.certain:
            yield GaveWay("server", "slots", one.evidence, one.remedy)
    refused = seen.rise(STATUS_ACCEPTS) - seen.rise(STATUS_HANDLED)
    if seen.metric(STATUS_HANDLED).values and refused >= 1:
        evidence = f"{seen.server} accepted {format_count(refused)} connections and closed them at once: it had no slot left"
        yield GaveWay("server", "slots", evidence, "raise its limit on connections (nginx: worker_connections)")


def _places(seen: Seen) -> Iterator[GaveWay]:
    """What a status page tells of a server's own limit: HAProxy's sessions, Apache's processes or threads."""
    stop = seen.run.stop_s
    limit, most = seen.metric(STATUS_LIMIT).last(), max(seen.metric(STATUS_ACTIVE).values, default=0.0)
    if limit is not None and most >= _FULL_GROUP * limit - _POLLERS:
        evidence = f"{seen.server} had {format_count(most)} sessions open, and its status page (slim) says that it may have "
        evidence += format_count(limit)
        yield GaveWay("server", "slots", evidence, "raise maxconn in haproxy.cfg, of the frontend and global")
    busy, idle = seen.metric(STATUS_BUSY).last(until_s=stop), seen.metric(STATUS_IDLE).last(until_s=stop)
    if busy and idle == 0:
        evidence = f"all {format_count(busy)} workers of {seen.server} were busy to the end, and none was idle"
        remedy = "raise MaxRequestWorkers and ServerLimit (of processes or threads), or take the event MPM"
        yield GaveWay("server", "slots", evidence, remedy)


def _server_descriptors(seen: Seen) -> Iterator[GaveWay]:
    """A process that has none left: its accept() fails, and who connects waits in the listen queue."""
    used, limit = seen.metric(SERVER_DESCRIPTORS), seen.metric(SERVER_DESCRIPTORS_LIMIT)
    shares = [(a / b, a, b) for a, b in zip(used.values, limit.values, strict=False) if b]
    share, most, of = max(shares, default=(0.0, 0.0, 0.0))
    if share < _FULL_DESCRIPTORS:
        return
    evidence = f"a process of {seen.server} had {format_count(most)} descriptors open, and may have {format_count(of)}"
    remedy = "raise its limit (systemd LimitNOFILE=, ulimit -n, nginx: worker_rlimit_nofile)"
    yield GaveWay("server", "descriptors", evidence, remedy)


def _likely_slots(seen: Seen) -> Iterator[GaveWay]:
    for one in seen.diagnoses:
        if one.code == "idle_reuse":
            yield GaveWay("server", "slots", one.evidence, one.remedy, one.certain)


def _server_ended(seen: Seen) -> Iterator[GaveWay]:
    for one in seen.diagnoses:
        if one.code in _ENDED:
            yield GaveWay("server", one.code, one.evidence, one.remedy, one.certain)
    for finding in seen.run.findings:
        if finding.code == "server_ended":
            yield GaveWay("server", "server_ended", finding.evidence, finding.remedy)


def _server_cpu(seen: Seen) -> Iterator[GaveWay]:
    """As many cores as the server has threads to use, where it was slow or silent."""
    cpus, used = (seen.run.sides.far or seen.run.place).cpus, seen.cores(SERVER_CPU_S)
    threads = seen.metric(SERVER_THREADS).last()
    if used is None or cpus is None or threads is None or not (seen.slow or seen.silent() or _overflowed(seen)):
        return
    may_use = min(threads, cpus)
    if used < _BUSY * may_use:
        return
    of = "the one that its single thread can use" if threads == 1 else f"the {may_use:.0f} that it can use"
    evidence = f"{seen.server} used {used:.2f} cores of {of}" + (f"; {seen.slow}" if seen.slow else "")
    yield GaveWay("server", "cpu", evidence, "give it more processes or threads, or more cores; or beat less often (--keepalive)")


def _overflowed(seen: Seen) -> float:
    return seen.rise(f"{TCP}ListenOverflows") if seen.run.sides.server else 0.0


def _queue(seen: Seen) -> Iterator[GaveWay]:
    if count := _overflowed(seen):
        drops = "once" if count == 1 else f"{format_count(count)} times"
        evidence = (
            f"the listen queue of a program on {seen.run.sides.host} was full {drops} (ListenOverflows), "
            "so who connected had to wait"
        )
        remedy = "raise net.core.somaxconn and the server's backlog=, let it accept faster, or ramp more slowly (--ramp)"
        yield GaveWay("server", "listen_queue", evidence, remedy, certain=False)


# The network between.


def _network(seen: Seen) -> Iterator[GaveWay]:
    for one in seen.diagnoses:
        if one.code in _OF_THE_WAY:
            yield GaveWay("network", one.code, one.evidence, one.remedy, one.certain)
    whole = seen.totals.whole
    silent = seen.silent()
    # Of this host we know when it was the server's own queue that dropped them: nothing was lost on the way then.
    if (not silent and not seen.slow) or _overflowed(seen) >= max(1.0, _DROPPED * silent):
        return
    again = seen.rise(seen.run.of_ours(TCP_RETRANS_SEGS))
    sent = whole.started + whole.sent
    lossy = again >= _RETRANSMITTED and again >= _RETRANSMITTED_SHARE * sent
    resent = f"{format_count(again)} segments were sent again, {again / sent:.0%} of what we asked" if lossy else ""
    remedy = "see routes, firewalls and the load of what is between; ip -s link and nstat show drops"
    timeouts = whole.failures.get("connect_timeout", 0)
    if seen.metric(STATUS_ACCEPTS).values and timeouts:
        accepted = seen.rise(STATUS_ACCEPTS) - seen.rise(STATUS_CONNECTS)
        unseen = whole.started - accepted
        if unseen >= max(_UNSEEN, _UNSEEN_SHARE * whole.started):
            evidence = (
                f"{format_count(timeouts)} connects got no answer, and {seen.server} never saw them: by its status page it "
            )
            evidence += f"accepted {format_count(accepted)} of {format_count(whole.started)}"
            if not seen.run.place.local:
                evidence += "; lost on the way, or dropped by a full listen queue of its host, which is not seen from here"
                remedy += "; nstat -az TcpExtListenOverflows on its host tells of its queue"
            evidence = f"{evidence}; {resent}" if resent else evidence
            yield GaveWay("network", "never_arrived", evidence, remedy, certain=seen.run.place.local is True)
            return
    if lossy:
        yield GaveWay("network", "retransmissions", resent, remedy, certain=False)


# By what connections were lost, refused or late for, without more.


def _refused(seen: Seen) -> Iterator[GaveWay]:
    failures = seen.totals.whole.failures
    for cause, of_one, what, remedy in (
        ("refused", "was refused", "were refused", "see that the server runs and listens there"),
        ("unreachable", *("found no route, or were forbidden",) * 2, "see routes and firewall between here and the server"),
    ):
        if count := failures.get(cause):
            side: Side = "server" if cause == "refused" else "network"
            yield GaveWay(side, cause, f"{format_many(count, 'connect')} {what if count > 1 else of_one}", remedy)


def _errors(seen: Seen) -> Iterator[GaveWay]:
    bad = errors(seen.totals.whole, 500)
    if bad:
        evidence = f"{seen.server} answered heartbeats with errors: {listed(bad)}"
        yield GaveWay("server", "errors", evidence, "see its error log; of a proxy, that of what stands behind it")


def _never_answered(seen: Seen) -> Iterator[GaveWay]:
    """Connections that were open at our end, and of which not even the first heartbeat was answered: nobody has accepted them."""
    dead = seen.totals.whole.deaths.get("heartbeat_timeout")
    served = served_most(seen.run.ticks)
    if dead is None or not dead.count:
        return
    first = never_answered(seen.totals.whole)
    if first < 0.9 * dead.count:
        return
    busy = "" if (used := seen.cores(SERVER_CPU_S)) is None else f", and it used {used:.2f} cores"
    were = "connection was" if first == 1 else "connections were"
    evidence = (
        f"{format_count(first)} {were} open at our end and never answered at all, as one that waits in the listen queue is, "
        f"while {seen.server} served {format_count(served)}{busy}"
    )
    remedy = "it serves no more at a time: give it more processes, threads or slots (Apache: MaxRequestWorkers; HAProxy: maxconn)"
    yield GaveWay("server", "never_accepted", evidence, remedy, certain=False)


def _lost(seen: Seen) -> Iterator[GaveWay]:
    for one in seen.diagnoses:
        if one.code not in _OF_THE_WAY | _ENDED | _SAY_NOTHING and one.code != "idle_reuse":
            side: Side = "host" if one.code == "generator_lost" else "server"
            yield GaveWay(side, one.code, one.evidence, one.remedy, one.certain)
    timeouts = seen.totals.whole.failures.get("connect_timeout")
    if timeouts:
        evidence = f"{format_many(timeouts, 'connect')} got no answer in time"
        remedy = "see whether the server accepts (its CPU, its backlog=), and the way to it"
        yield GaveWay("unknown", "connect_timeout", evidence, remedy, certain=False)


def _slow(seen: Seen) -> Iterator[GaveWay]:
    if seen.slow:
        used = seen.cores(SERVER_CPU_S)
        but = (
            "" if used is None else f", though {seen.server} used {used:.2f} cores: it waits for something, or the way to it does"
        )
        remedy = "see what its processes wait for: a lock, a disk, a backend, a limit on its rate"
        yield GaveWay("server" if seen.run.place.local else "unknown", "slow", f"{seen.slow}{but}", remedy, certain=False)


_MECHANISMS = (
    _host_memory, _starved, _server_memory, _slots, _places, _server_descriptors, _both_busy, _late, _likely_slots, _server_ended,
    _server_cpu, _network, _queue, _refused, _never_answered, _errors, _lost, _slow,
)  # fmt: skip


def _unknown(seen: Seen) -> GaveWay:
    said = "; ".join(one.evidence for one in seen.diagnoses)
    if not said:
        whole = seen.totals.whole
        said = f"{format_count(seen.totals.held)} of {format_count(seen.run.plan.connections)} were held, {whole.lost} lost"
    return GaveWay(
        "unknown", _UNKNOWN, f"{said}; nothing that was read says what gave way", "see the report of that step", certain=False
    )


def served_most(ticks: Ticks) -> int:
    """The most connections that were held at the end of any second; where some were not answered, that did not wait then.

    One that waits in a listen queue is open at our end. How many waited when the drain began no tick says.
    """
    if any(cause in tick.deaths for _, tick in ticks for cause in _SILENT):
        return max((max(0, tick.held - tick.awaiting) for _, tick in ticks), default=0)
    return max((max(tick.held, tick.held_at_drain) for _, tick in ticks), default=0)


def least_available(run: Run) -> float | None:
    """The least memory (bytes) that was available on this host from the first connect on; None where it was not read."""
    available = run.series(run.of_ours(HOST_AVAILABLE_BYTES))
    return min(available.between(run.first_connect_s, run.stop_s).values, default=None)
