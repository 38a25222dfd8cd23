"""What gave way when a count was not held: the server, this host, or the network between. Pure.

Each mechanism is asked in turn and says what it has evidence of; the first that has is the answer, the others stand beside it.
What this host had none left of comes first, then the server's own limits where they are seen to be reached: they are reached
whether asyncli was late or not. Then asyncli's lateness, since slowness and silence say nothing of a server beside it; then the
way between, then by what connections were lost (:mod:`asyncli.analysis.losses`), and what was merely slow last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from functools import partial
from typing import Any, Literal

import msgspec

from asyncli import metrics
from asyncli.analysis.forecast import RESERVE
from asyncli.analysis.levels import FEWEST
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.saturation import MOST_CPU_SHARE, is_saturated
from asyncli.analysis.shared_host import MOST_OF_OTHERS
from asyncli.analysis.totals import Totals, errors
from asyncli.findings import bottleneck
from asyncli.findings.forecast import gave_way
from asyncli.findings.losses import listed
from asyncli.records import Finding
from asyncli.run import Run, Ticks
from asyncli.units import format_count, format_many

Side = Literal["server", "host", "network", "unknown"]

# A limit is reached from this share of it on: a reading comes once a second, and is too low by then.
_FULL = 0.95
# Code, form of its words, what is used, and of how much.
_READ_LIMITS = (
    ("memory_limit", "", metrics.SERVER_GROUP_BYTES, metrics.SERVER_GROUP_LIMIT_BYTES),
    ("slots", "sessions", metrics.STATUS_ACTIVE, metrics.STATUS_LIMIT),
    ("descriptors", "", metrics.SERVER_DESCRIPTORS, metrics.SERVER_DESCRIPTORS_LIMIT),
)

#: Diagnoses that speak of a time and not of a number: they may come however few connections there are.
TIMERS = frozenset({
    "keepalive_timeout", "keepalive_requests", "keepalive_time", "keepalive_off", "client_header_timeout", "idle_timeout",
    "lifetime", "box_idle_timeout", "silent_drop", "not_http", "http_error",
})  # fmt: skip
#: What of this host passes: another program's load makes asyncli late.
LATE = frozenset({"both_busy", "ramp", "beats", "turn", "cpu"})
#: What somebody does to a server, however many it holds.
RELOADED = frozenset({"reload", "server_restarted"})
_OF_THE_WAY = frozenset({"path_cut", "silent_drop", "box_reset", "box_idle_timeout", "packets_lost"})
_ENDED = frozenset({"server_ended", "server_restarted", "worker_crash", "worker_ended", "reload"})
_SAY_NOTHING = frozenset({"too_few", "unexplained", "burst"})
_UNKNOWN = "unknown"
# Limits of the server that were read, and reached.
_LIMITS = frozenset({"slots", "descriptors", "memory_limit"})
_SILENT = ("heartbeat_timeout", "closed_awaiting", "protocol_error")
# How asyncli itself failed, by the findings of the run.
_FAILED = frozenset({"worker_lost", "generator_failed", "generator_silent", "asyncli_failed", "drain_unfinished"})


class GaveWay(msgspec.Struct, frozen=True):
    """One thing that gave way. ``certain``: limits, counts or processes bear it out; else it is a likelihood."""

    side: Side
    code: str
    evidence: str
    remedy: str
    certain: bool = True


class Seen(msgspec.Struct, frozen=True):
    """A step's run and what was found in it. ``slow``: a limit on latency that was crossed, in words; "" for none.

    ``saturation``: the findings of saturation.py.
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
        return "the built-in server" if name == "asyncli" else name or "the server"

    def most(self, name: str) -> float:
        return max(self.run.series(name).values, default=0.0)

    def rise(self, name: str, *, to_end: bool = False) -> float:
        """By how much a counter rose from the first connect to the hold's end, or to the end of all; 0 where it was not read."""
        counter, start_s = self.run.series(name), self.run.first_connect_s
        before, after = counter.last(until_s=start_s), counter.last(until_s=math.inf if to_end else self.run.stop_s + 1.0)
        before = counter.first() if before is None else before
        return max(0.0, after - before) if before is not None and after is not None else 0.0

    def cores(self, name: str) -> float | None:
        """Cores in use in the last seconds before the drain, by a counter of CPU seconds; None where too little was read."""
        since_s = max(self.run.first_connect_s, self.run.stop_s - 10.0)
        return self.run.series(name).per_second(since_s, self.run.stop_s + 0.5, least_s=2.0)

    def failures(self, cause: str) -> int:
        return self.totals.whole.failures.get(cause, 0)

    def deaths(self, *causes: str) -> int:
        return sum(self.totals.whole.deaths[cause].count for cause in causes if cause in self.totals.whole.deaths)

    def silent(self) -> int:
        """Connections that were not answered, or not in time."""
        return self.deaths(*_SILENT) + self.failures("connect_timeout")

    def overflowed(self) -> float:
        """How often a listen queue of the server's host was full."""
        return self.rise(f"{metrics.TCP}ListenOverflows") if self.run.sides.server else 0.0


def memory_floor(total: float, available: float) -> float:
    """Bytes that must stay available on this host for a step to go on: the forecast's reserve, and no more than half of what was
    there before."""
    return min(RESERVE * total, available / 2)


def what_gave_way(seen: Seen) -> list[GaveWay]:
    """What there is evidence of, the answer first; one of side "unknown" where there is of nothing."""
    found: dict[str, GaveWay] = {}
    for mechanism in _MECHANISMS:
        for one in mechanism(seen):
            found.setdefault(one.code, one)
    if found:
        return list(found.values())
    whole, asked = seen.totals.whole, seen.run.plan.connections
    said = "; ".join(one.evidence for one in seen.diagnoses)
    said = said or f"{format_count(seen.totals.held)} of {format_count(asked)} were held, {whole.lost} lost"
    return [_way("unknown", _UNKNOWN, certain=False, said=said)]


def instead_of_forecast(seen: Seen) -> Finding | None:
    """What gave way, and where, in a run that lost connections or could not hold all; None for one that gives a forecast.

    What asyncli lost with processes of its own says nothing of the server. An error where a limit of the server was read and
    reached.
    """
    whole, asked = seen.totals.whole, seen.run.plan.connections
    lost, failed = whole.lost - seen.deaths("generator_lost"), sum(whole.failures.values())
    # What failed to connect and did so at a later attempt gave way to nothing.
    if not lost and (not failed or seen.totals.held >= asked):
        return None
    served, first = served_most(seen.run.ticks), what_gave_way(seen)[0]
    remedy = "see the findings on what was lost, or failed to open" if first.code == _UNKNOWN else first.remedy
    limit = first.certain and first.side == "server" and first.code in _LIMITS
    return gave_way(
        lost, failed, seen.server, served if 0 < served < asked else None, asked,
        first.side, first.code, first.certain, limit, first.evidence, remedy,
    )  # fmt: skip


def _way(side: Side, code: str, form: str = "", *, certain: bool = True, **fields: Any) -> GaveWay:
    words = bottleneck.words_of(form or code, **fields)
    return GaveWay(side, code, words.evidence, words.remedy, certain)


def _diagnosed(side: Side, codes: Set[str], seen: Seen) -> Iterator[GaveWay]:
    """What the diagnoses of these codes say."""
    for one in seen.diagnoses:
        if one.code in codes:
            yield GaveWay(side, one.code, one.evidence, one.remedy, one.certain)


def _noted(side: Side, codes: Set[str], seen: Seen) -> Iterator[GaveWay]:
    """What the run's own findings of these codes say."""
    for one in seen.run.findings:
        if one.code in codes:
            yield GaveWay(side, one.code, one.evidence, one.remedy)


# This host.


def _both_busy(seen: Seen) -> Iterator[GaveWay]:
    """All CPUs of a host that server and asyncli share, where that made either late."""
    cpus, busy = seen.run.place.cpus, seen.cores(metrics.HOST_CPU_BUSY_S)
    server, ours = seen.cores(metrics.SERVER_CPU_S), seen.cores(metrics.GENERATOR_CPU_S)
    if not seen.run.place.local or cpus is None or busy is None or ours is None or busy < MOST_CPU_SHARE * cpus:
        return
    # A server that has nearly all of them to itself is its own limit, unless asyncli is late for it. Other programs make answers
    # slow; silence for as long as a timeout has another reason.
    beside, share = ours if server is None else busy - server, (1.0 - MOST_CPU_SHARE) * cpus
    if is_saturated(seen.saturation) or (seen.slow and beside >= share) or (seen.silent() and ours >= share):
        shares = f"asyncli used {ours:.1f}" if server is None else f"{seen.server} used {server:.1f}, asyncli {ours:.1f}"
        others = 0.0 if server is None else busy - server - ours
        shares += f", and other programs {others:.1f}" if others >= MOST_OF_OTHERS * cpus else ""
        yield _way("host", "both_busy", cpus=cpus, busy=busy, shares=shares)


def _late(seen: Seen) -> Iterator[GaveWay]:
    for one in seen.saturation:
        if is_saturated([one]):
            yield GaveWay("host", one.code.removeprefix("generator_saturated_"), one.evidence, one.remedy)
    # Latency counts from the instant that a heartbeat was due: with half of it ours, it speaks of us.
    late, whole = (one.quantile(0.99) or 0.0 for one in (seen.totals.whole.lateness_us, seen.totals.whole.latency_us))
    if seen.slow and 2 * late >= whole > 0:
        yield _way("host", "beats", slow=seen.slow, late_ms=late / 1e3, whole_ms=whole / 1e3)


def _starved(seen: Seen) -> Iterator[GaveWay]:
    for cause, code in (("no_descriptors", "descriptors"), ("no_ports", "local_ports")):
        if count := seen.failures(cause):
            yield _way("host", code, cause, connects=count)


def _host_memory(seen: Seen) -> Iterator[GaveWay]:
    """A host that had less memory left than must stay: the server's elsewhere, or asyncli's own."""
    run, far = seen.run, seen.run.sides.far
    hosts: list[tuple[Side, str, float | None, str]] = [
        ("host", "this host", run.place.memory_bytes, run.of_ours(metrics.HOST_AVAILABLE_BYTES))
    ]
    if far is not None:
        hosts.insert(0, ("server", "the server's host", far.memory_bytes, metrics.HOST_AVAILABLE_BYTES))
    for side, who, total, available in hosts:
        free, start_s = run.series(available), run.first_connect_s
        before, least = free.last(until_s=start_s), min(free.between(start_s, math.inf).values, default=None)
        if total is not None and before is not None and least is not None and least < memory_floor(total, before):
            yield _way(side, "memory" if side == "host" else "host_memory", who=who, least=least, before=before)


# The server, by its own limits, counts and processes.


def _full(seen: Seen) -> Iterator[GaveWay]:
    """A limit of the server's that was read, and reached: of its control group, its sessions, its fullest process."""
    killed = seen.rise(metrics.SERVER_GROUP_KILLED, to_end=True)
    for code, form, used, limited in _READ_LIMITS:
        limit, most = seen.run.series(limited).last(), seen.most(used)
        if limit is not None and code == "memory_limit" and killed:
            who = "one process" if killed == 1 else f"{format_count(killed)} processes"
            yield _way("server", code, "memory_killed", server=seen.server, killed=who, limit=limit, most=most)
        elif limit is not None and most >= _FULL * limit:
            yield _way("server", code, form, server=seen.server, limit=limit, most=most)


def _slots(seen: Seen, *, certain: bool = True) -> Iterator[GaveWay]:
    """What closes connections for want of room; and by its status page nginx's count, Apache's processes or threads."""
    for one in seen.diagnoses:
        if one.code == "idle_reuse" and one.certain is certain:
            yield GaveWay("server", "slots", one.evidence, one.remedy, certain)
    if not certain:
        return
    refused = seen.rise(metrics.STATUS_ACCEPTS) - seen.rise(metrics.STATUS_HANDLED)
    if seen.run.series(metrics.STATUS_HANDLED).values and refused >= 1:
        yield _way("server", "slots", "not_handled", server=seen.server, refused=refused)
    busy, idle = (seen.run.series(name).last(until_s=seen.run.stop_s) for name in (metrics.STATUS_BUSY, metrics.STATUS_IDLE))
    if busy and idle == 0:
        yield _way("server", "slots", "busy_workers", server=seen.server, busy=busy)


def _server_cpu(seen: Seen) -> Iterator[GaveWay]:
    """As many cores as the server has threads to use, where it was slow or silent."""
    cpus, used = (seen.run.sides.far or seen.run.place).cpus, seen.cores(metrics.SERVER_CPU_S)
    threads = seen.run.series(metrics.SERVER_THREADS).last()
    if used is None or cpus is None or threads is None or not (seen.slow or seen.silent() or seen.overflowed()):
        return
    may_use = min(threads, cpus)
    if used >= MOST_CPU_SHARE * may_use:
        of = "the one that its single thread can use" if threads == 1 else f"the {may_use:.0f} that it can use"
        yield _way("server", "cpu", server=seen.server, used=used, of=of, slow=seen.slow and f"; {seen.slow}")


def _listen_queue(seen: Seen) -> Iterator[GaveWay]:
    if count := seen.overflowed():
        times = "once" if count == 1 else f"{format_count(count)} times"
        yield _way("server", "listen_queue", certain=False, host=seen.run.sides.host, times=times)


# By what connections were lost, refused or late for, without more.


def _never_arrived(seen: Seen) -> Iterator[GaveWay]:
    """Connects without an answer that the server never accepted, by its own count."""
    timeouts, started = seen.failures("connect_timeout"), seen.totals.whole.started
    accepted = seen.rise(metrics.STATUS_ACCEPTS) - seen.rise(metrics.STATUS_CONNECTS)
    # A SYN that a full listen queue drops is sent again, and dropped again: then nothing was lost on the way.
    dropped = 2 * seen.overflowed() >= max(1, seen.silent())
    if not timeouts or dropped or not len(seen.run.series(metrics.STATUS_ACCEPTS)):
        return
    if started - accepted >= max(FEWEST, timeouts / 2):
        here = seen.run.place.local is True
        form = "" if here else "never_arrived_there"
        seen_of = {"server": seen.server, "timeouts": timeouts, "accepted": accepted, "started": started}
        yield _way("network", "never_arrived", form, certain=here, **seen_of)


def _not_connected(side: Side, cause: str, seen: Seen) -> Iterator[GaveWay]:
    if count := seen.failures(cause):
        were = (" was" if count == 1 else " were") if cause == "refused" else ""
        yield _way(side, cause, certain=side != "unknown", connects=format_many(count, "connect") + were)


def _errors(seen: Seen) -> Iterator[GaveWay]:
    if bad := errors(seen.totals.whole, 500):
        yield _way("server", "errors", server=seen.server, errors=listed(bad))


def _lost(seen: Seen) -> Iterator[GaveWay]:
    known = _OF_THE_WAY | _ENDED | _SAY_NOTHING | {"idle_reuse", "generator_lost"}
    yield from _diagnosed("host", {"generator_lost"}, seen)
    yield from _diagnosed("server", {one.code for one in seen.diagnoses} - known, seen)


def _slow(seen: Seen) -> Iterator[GaveWay]:
    if seen.slow:
        cores = seen.cores(metrics.SERVER_CPU_S)
        used = f", though {seen.server} used {cores:.2f} cores: it waits for something, or the way to it does" if cores else ""
        yield _way("server" if seen.run.place.local else "unknown", "slow", certain=False, slow=seen.slow, cores=used)


_MECHANISMS = (
    _host_memory, _starved, partial(_noted, "host", _FAILED), partial(_slots, certain=True), _full, _both_busy, _late,
    partial(_slots, certain=False), partial(_diagnosed, "server", _ENDED), partial(_noted, "server", {"server_ended"}),
    _server_cpu, partial(_diagnosed, "network", _OF_THE_WAY), _never_arrived, _listen_queue,
    partial(_not_connected, "server", "refused"), partial(_not_connected, "network", "unreachable"), _errors, _lost,
    partial(_not_connected, "unknown", "connect_timeout"), _slow,
)  # fmt: skip


def served_most(ticks: Ticks) -> int:
    """The most connections that were held at the end of any second; where some were not answered, that did not wait then.

    One that waits in a listen queue is open at our end. How many waited when the drain began no tick says.
    """
    if any(cause in tick.deaths for _, tick in ticks for cause in _SILENT):
        return max((max(0, tick.held - tick.awaiting) for _, tick in ticks), default=0)
    return max((max(tick.held, tick.held_at_drain) for _, tick in ticks), default=0)


def least_available(run: Run) -> float | None:
    """The least memory (bytes) that was available on this host from the first connect on; None where it was not read."""
    available = run.series(run.of_ours(metrics.HOST_AVAILABLE_BYTES))
    return min(available.between(run.first_connect_s, run.stop_s).values, default=None)
