"""Bottlenecks of synthetic steps: each mechanism alone, and their order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from synthetic_run import a_run, spread

from asyncli.analysis.bottleneck import AnalysedRun, Bottleneck, find_bottlenecks, instead_of_forecast, served_most
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.totals import fold
from asyncli.core.histogram import Histogram
from asyncli.findings import generator
from asyncli.model.records import Deaths, Finding, TcpCounts, Tick, TlsCounts
from asyncli.model.run import Run

Change = Callable[[Run], None]
SLOW = "a heartbeat in a hundred took 3.00 s or longer"


def seen(*changes: Change, slow: str = "", late: bool = False, late_ramp: bool = False, codes: tuple[str, ...] = (), certain: bool = True, **of_run: Any) -> AnalysedRun:
    run = a_run(2000, hold_s=20, **of_run)
    for _, tick in run.ticks if slow else ():
        tick.latency_us = spread(1_000_000, tick.sent)
    for change in changes:
        change(run)
    saturation = [Finding("generator_saturated_beats", "error", "heartbeats were late", "more --workers")] if late else []
    saturation += [generator.ramp_late(0.4, 0.05, 900.0, 1000.0)] if late_ramp else []
    diagnoses = [Diagnosis("closed_idle", code, 9, f"9 died of {code}", "mend it", certain, 5.0, 6.0) for code in codes]
    return AnalysedRun(run, fold(run), diagnoses, saturation, slow)


def rising(name: str, per_s: float, since_s: float | None = None) -> Change:
    """A counter that rises from the first connect on, or from ``since_s``."""

    def change(run: Run) -> None:
        begin = run.first_connect_s if since_s is None else since_s
        for sample in run.samples:
            sample.values[name] = 100.0 + per_s * max(0.0, sample.t_s - begin)

    return change


def level(**metrics: float) -> Change:
    """Metrics (with a double underscore for the dot) from the first connect on."""

    def change(run: Run) -> None:
        begin = run.first_connect_s
        for sample in run.samples:
            if sample.t_s > begin:
                sample.values |= {name.replace("__", "."): value for name, value in metrics.items()}

    return change


def throttled(share: float) -> tuple[Change, ...]:
    """A quota of CPU of a tenth of a core that is used up in such a share of its periods."""
    return (
        rising("server.group_periods", 10.0), rising("server.group_throttled", 10.0 * share), level(server__group_cpus=0.1),
        rising("server.cpu_s", 0.1),
    )  # fmt: skip


def lost(cause: str, count: int = 50, requests: int = 3) -> Change:
    def change(run: Run) -> None:
        dead = Deaths(count)
        for _ in range(count):
            dead.requests.add(requests)
        run.ticks[5][1].deaths[cause] = dead

    return change


def failed(cause: str, count: int = 50) -> Change:
    return lambda run: run.ticks[3][1].failures.update({cause: count})


def closes_its_sockets(run: Run) -> None:
    """The server listens until the first connection is open."""
    for sample in run.samples:
        listens = float(sample.t_s <= run.first_connect_s)
        sample.values |= {"server.listeners": listens, "server.listeners_opened": 0.0}


def sent_connects_again(count: int, unanswered: int = 0) -> Change:
    """Connects that their own sockets sent again."""

    def change(run: Run) -> None:
        run.ticks[5][1].tcp = TcpCounts(segments=count, connects=count - unanswered, unanswered=unanswered)

    return change


def answered(status: int, count: int) -> Change:
    return lambda run: run.ticks[4][1].by_status.update({status: count})


def waits(run: Run) -> None:
    """Answers came after six seconds of the timeout of ten."""
    for _, tick in run.ticks:
        tick.latency_us = spread(6_000_000, tick.answered)


STOLEN = (rising("host.cpu_busy_s", 1.96, 0.0), rising("server.cpu_s", 0.1), rising("generator.cpu_s", 0.05))
CPUS = (rising("host.cpu_busy_s", 1.96), rising("server.cpu_s", 1.2), rising("generator.cpu_s", 0.6))
IDLE_SERVER = (rising("host.cpu_busy_s", 1.96), rising("server.cpu_s", 0.01), rising("generator.cpu_s", 0.6))
SERVER_CPU = (rising("host.cpu_busy_s", 1.1), rising("server.cpu_s", 0.99), level(server__threads=1.0))
ALL_CPUS = (rising("host.cpu_busy_s", 1.98), rising("server.cpu_s", 1.9), rising("generator.cpu_s", 0.05), level(server__threads=3.0))
LISTENS = level(server__listeners=2.0, server__listeners_opened=0.0)
GROUP = (level(server__group_limit_bytes=50e6, server__group_bytes=46e6), rising("server.group_killed", 0.0))


def filled(name: str, most: float, limit: float = 300.0, each: float = 0.25) -> Callable[[Run], None]:
    """A resource that each connection takes ``each`` of, up to ``most`` of ``limit``."""
    limited = name.replace("_bytes", "_limit_bytes") if name.endswith("_bytes") else f"{name}_limit"

    def change(run: Run) -> None:
        peak = max(run.held.values)
        for sample in run.samples:
            connections = run.held.at(sample.t_s) or 0.0
            sample.values |= {name: most - each * (peak - connections), limited: limit}

    return change


def found(one: AnalysedRun) -> Bottleneck:
    return find_bottlenecks(one)[0]


@pytest.mark.parametrize(
    ("one", "side", "code", "certain"),
    [
        (seen(*CPUS, slow=SLOW), "host", "both_busy", True),
        (seen(*CPUS, lost("heartbeat_timeout")), "host", "both_busy", True),
        # Other programs used the CPUs before the first connect too.
        (seen(*STOLEN, slow=SLOW), "host", "both_busy", True),
        # They explain slow answers, not silence.
        (seen(*STOLEN, lost("heartbeat_timeout", 9), slow=SLOW, codes=("never_accepted",)), "server", "never_accepted", True),
        # Who was never answered, while others were in time, met no busy host; who waits as long as others do may have.
        (seen(*CPUS, lost("heartbeat_timeout", requests=0), codes=("never_accepted",), certain=False), "server", "never_accepted", False),
        (seen(*CPUS, lost("heartbeat_timeout", requests=0), waits, codes=("never_accepted",), certain=False), "host", "both_busy", True),
        (seen(*CPUS, lost("heartbeat_timeout", requests=0), lost("reset", 100), codes=("never_accepted",)), "host", "both_busy", True),
        (seen(lost("heartbeat_timeout", requests=0), late_ramp=True, codes=("never_accepted",), certain=False), "server", "never_accepted", False),
        (seen(lost("heartbeat_timeout", requests=2), late_ramp=True, codes=("never_accepted",), certain=False), "host", "ramp_late", True),
        (seen(late=True), "host", "beats", True),
        # Lateness for lack of CPU is reported as busy CPUs.
        (seen(rising("host.cpu_busy_s", 1.96), rising("generator.cpu_s", 0.1), late=True), "host", "both_busy", True),
        (seen(failed("no_descriptors")), "host", "descriptors", True),
        (seen(failed("no_ports")), "host", "local_ports", True),
        (seen(level(host__available_bytes=1e9)), "host", "memory", True),
        (seen(level(server__group_limit_bytes=50e6, server__group_bytes=49e6)), "server", "memory_limit", False),
        (seen(codes=("idle_reuse",)), "server", "slots", True),
        (seen(codes=("idle_reuse",), certain=False), "server", "slots", False),
        (seen(rising("status.accepts", 100), rising("status.handled", 80)), "server", "slots", True),
        (seen(level(server__descriptors=1024.0, server__descriptors_limit=1024.0)), "server", "descriptors", True),
        (seen(filled("server.group_tasks", 300.0)), "server", "tasks", True),
        (seen(filled("server.group_tasks", 290.0)), "server", "tasks", False),
        (seen(filled("server.user_tasks", 300.0)), "server", "tasks", True),
        (seen(filled("host.tasks", 300.0)), "server", "tasks", False),
        (seen(filled("server.mappings", 300.0)), "server", "mappings", True),
        # What is left is less than one more connection takes.
        (seen(filled("server.address_space_bytes", 300e9 - 1e6, 300e9, each=8e6)), "server", "address_space", True),
        (seen(filled("server.address_space_bytes", 300e9 - 9e6, 300e9, each=8e6)), "server", "address_space", False),
        (seen(filled("server.data_bytes", 300e9 - 1e6, 300e9, each=8e6)), "server", "data", True),
        # Some were left: a limit of its own fits too, and what it did to the lost connections comes first.
        (seen(level(server__descriptors=987.0, server__descriptors_limit=1024.0)), "server", "descriptors", False),
        (
            seen(level(server__descriptors=987.0, server__descriptors_limit=1024.0), lost("reset", 15), codes=("closed_at_once",), certain=False),
            "server", "closed_at_once", False,
        ),
        (seen(codes=("worker_crash",)), "server", "worker_crash", True),
        (seen(*SERVER_CPU, slow=SLOW), "server", "cpu", True),
        # Also if it uses all CPUs of the host, and asyncli hardly any.
        (seen(*ALL_CPUS, slow=SLOW), "server", "cpu", True),
        # Nine of ten periods of its quota ended without a core for it; of one in ten its answers do not wait long.
        (seen(*throttled(0.9), slow=SLOW), "server", "cpu", True),
        (seen(*throttled(0.1), slow=SLOW), "server", "slow", False),
        (seen(rising("tcp.ListenOverflows", 3), sent_connects_again(50, 50), lost("heartbeat_timeout")), "server", "listen_queue", False),
        # A reset does not say who sent it; the server's listening sockets do.
        (seen(failed("refused")), "unknown", "refused", False),
        (seen(failed("refused"), LISTENS), "network", "refused", False),
        (seen(failed("refused"), LISTENS, rising("server.listeners_opened", 1.0)), "unknown", "refused", False),
        # What the server's sockets did not drop was dropped on the way.
        (seen(failed("connect_timeout"), LISTENS, level(server__listeners_dropped=3.0)), "network", "connect_timeout", False),
        (seen(failed("connect_timeout"), LISTENS, rising("server.listeners_dropped", 9.0)), "unknown", "connect_timeout", False),
        (seen(failed("refused"), closes_its_sockets), "server", "refused", True),
        # A busy host refuses no connect.
        (seen(*CPUS, failed("refused"), closes_its_sockets, late_ramp=True), "server", "refused", True),
        (seen(failed("unreachable")), "network", "unreachable", True),
        # Nor is it why no route led there: it is why others waited at most.
        (seen(*CPUS, failed("unreachable"), lost("heartbeat_timeout", 40)), "network", "unreachable", True),
        (seen(*CPUS, failed("unreachable", 20), lost("heartbeat_timeout")), "host", "both_busy", False),
        # A server that used hardly any CPU waited for something else.
        (seen(*IDLE_SERVER, lost("heartbeat_timeout"), codes=("path_cut",), certain=False), "network", "path_cut", False),
        (seen(answered(503, 20)), "server", "errors", True),
        (seen(codes=("never_accepted",), certain=False), "server", "never_accepted", False),
        (seen(codes=("keepalive_requests",)), "server", "keepalive_requests", True),
        (seen(codes=("path_cut",), certain=False), "network", "path_cut", False),
        (seen(failed("connect_timeout", 500), rising("status.accepts", 30)), "network", "never_arrived", True),
        # Drops of a listen queue are only visible on this host.
        (seen(failed("connect_timeout", 500), rising("status.accepts", 30), local=False), "network", "never_arrived", False),
        (
            seen(failed("connect_timeout", 500), rising("status.accepts", 30), rising("tcp.ListenOverflows", 30), sent_connects_again(500, 500)),
            "server", "listen_queue", False,
        ),
        (seen(codes=("packets_lost",), certain=False), "network", "packets_lost", False),
        (seen(failed("connect_timeout"), status=False), "unknown", "connect_timeout", False),
        (seen(slow=SLOW), "server", "slow", False),
        (seen(slow=SLOW, local=False), "unknown", "slow", False),
        (seen(), "unknown", "unknown", False),
        (seen(codes=("too_few",)), "unknown", "unknown", False),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_each_bottleneck_by_its_evidence(one: AnalysedRun, side: str, code: str, certain: bool) -> None:
    first = found(one)
    assert (first.side, first.code, first.certain) == (side, code, certain)
    assert first.evidence
    assert first.remedy
    assert "\n" not in first.evidence


@pytest.mark.parametrize(
    ("one", "codes"),
    [
        # A reached limit counts even if asyncli was late; slowness with lateness is no evidence.
        (seen(codes=("idle_reuse",), late=True), ["slots", "beats"]),
        (seen(codes=("idle_reuse",), late=True, certain=False), ["beats", "slots"]),
        (seen(*SERVER_CPU, slow=SLOW, late=True), ["beats", "cpu", "slow"]),
        # Overflows of a busy server are not the queue's fault; refused connects after its end are no bottleneck.
        (seen(*SERVER_CPU, rising("tcp.ListenOverflows", 3), sent_connects_again(9)), ["cpu", "listen_queue"]),
        (seen(failed("refused"), codes=("server_ended",)), ["server_ended", "refused"]),
        (seen(failed("no_descriptors"), codes=("idle_reuse",)), ["descriptors", "slots"]),
        # What an incident ended was held until then, near a limit or not.
        (seen(lost("closed_idle", 9), level(server__descriptors=1020.0, server__descriptors_limit=1024.0), codes=("server_ended",)), ["server_ended", "descriptors"]),
        # What explains less than half comes last: connects that a full queue delayed, and that succeeded, are no losses.
        (
            seen(lost("closed_announced", 9), rising("tcp.ListenOverflows", 1), sent_connects_again(9), codes=("keepalive_off",)),
            ["keepalive_off", "listen_queue"],
        ),
        (
            seen(lost("heartbeat_timeout", 9), rising("tcp.ListenOverflows", 1), sent_connects_again(9, 9), codes=("never_accepted",)),
            ["listen_queue", "never_accepted"],
        ),
        (seen(lost("closed_idle", 900), answered(503, 20), level(status__limit=1000.0, status__active=1001.0)), ["slots", "errors"]),
    ],
)
def test_order_of_bottlenecks(one: AnalysedRun, codes: list[str]) -> None:
    assert [way.code for way in find_bottlenecks(one)] == codes


@pytest.mark.parametrize(
    "one",
    [
        # Busy CPUs explain neither closes nor refusals; a busy server that answers is no limit.
        seen(*CPUS),
        seen(*SERVER_CPU),
        # A server with the CPUs to itself, and one with idle threads.
        seen(rising("host.cpu_busy_s", 1.0), rising("server.cpu_s", 0.99), level(server__threads=8.0), lost("reset")),
        seen(level(server__group_limit_bytes=50e6, server__group_bytes=40e6, server__descriptors=10.0, server__descriptors_limit=1024.0)),
        # A pool that was full before the first connect.
        seen(level(server__group_tasks=300.0, server__group_tasks_limit=300.0)),
        seen(level(server__address_space_bytes=300e9, server__address_space_limit_bytes=300e9)),
        # Silent connections that were answered before had been accepted.
        seen(lost("heartbeat_timeout", requests=3)),
        # Counters of listen queues on this host say nothing about another host.
        seen(rising("tcp.ListenOverflows", 3), sent_connects_again(50, 50), local=False),
        # Nor do those of another program on this host: none of our connects was sent again, or none at that time.
        seen(rising("tcp.ListenOverflows", 900), lost("heartbeat_timeout")),
        seen(rising("tcp.ListenOverflows", 900, since_s=100.0), sent_connects_again(50)),
    ],
)
def test_no_evidence(one: AnalysedRun) -> None:
    assert [way.code for way in find_bottlenecks(one)] == ["unknown"]


def test_latency_caused_by_lateness_is_asynclis() -> None:
    def late(run: Run) -> None:
        for _, tick in run.ticks:
            tick.lateness_us = tick.latency_us

    first = found(seen(late, slow=SLOW))
    assert (first.side, first.code) == ("host", "beats")
    assert found(seen(late)).code == "unknown"


def test_what_haproxy_rejects_by_a_rule_is_no_lack_of_slots() -> None:
    rejected = seen(rising("status.accepts", 2.0), rising("status.handled", 1.0))
    assert (found(rejected).code, "slot" in found(rejected).evidence) == ("slots", True)
    of_haproxy = seen(rising("status.accepts", 2.0), rising("status.handled", 1.0))
    of_haproxy.run.environment["server"] = {"label": "haproxy/2.6"}
    first = found(of_haproxy)
    assert (first.code, "slot" in first.evidence, "session" in first.evidence) == ("handshake_refused", False, True)


def test_other_programs_with_the_cpus_are_named() -> None:
    busy = (rising("host.cpu_busy_s", 1.96), rising("server.cpu_s", 0.2), rising("generator.cpu_s", 0.3))
    assert "1.5" in found(seen(*busy, late=True)).evidence
    assert "programs" not in found(seen(*CPUS, late=True)).evidence


def test_an_out_of_memory_kill_names_the_limit() -> None:
    def killed(run: Run, name: str = "server.group_killed", ended: float = 1.0) -> None:
        # As the losses of the diagnosis.
        for sample in run.samples:
            is_after = float(sample.t_s > 5.5)
            sample.values |= {name: 100.0 + is_after, "server.ended": is_after * ended}

    by_log = partial(killed, name="server.killed")
    first = found(seen(*GROUP, by_log, codes=("worker_crash",)))
    assert (first.code, first.certain) == ("memory_limit", True)
    assert all(text in first.evidence for text in ("1 process", "50.0 MB", "46.0 MB"))
    # The count of the group may be of another program.
    assert found(seen(*GROUP, killed, codes=("worker_crash",))).code == "worker_crash"
    perhaps = next(limit for limit in find_bottlenecks(seen(*GROUP, killed, codes=("worker_crash",))) if limit.code == "memory_limit")
    assert (perhaps.certain, "perhaps" in perhaps.evidence) == (False, True)
    # A group that was not full when it was read is not told as full.
    roomy = level(server__group_limit_bytes=50e6, server__group_bytes=6e6)
    assert "at most" in found(seen(*GROUP, roomy, by_log, codes=("worker_crash",))).evidence
    # No process of the server ended: another program of its group was killed.
    assert found(seen(*GROUP, roomy, partial(killed, ended=0.0), codes=("worker_crash",))).code == "worker_crash"
    assert found(seen(*GROUP, roomy, killed)).code == "unknown"
    assert found(seen(*GROUP, killed, codes=("age_limit",))).code == "age_limit"
    # Kills from before the first connect do not count.
    assert found(seen(*GROUP)).code == "unknown"


def test_a_slow_server_with_idle_cpus_waits() -> None:
    one = seen(rising("host.cpu_busy_s", 0.6), rising("server.cpu_s", 0.5), level(server__threads=1.0), slow=SLOW)
    assert [way.code for way in find_bottlenecks(one)] == ["slow"]
    assert "0.50 cores" in found(one).evidence


def test_served_connections() -> None:
    ticks = [(1.0, Tick(held=100, awaiting=40)), (2.0, Tick(held=90, awaiting=0)), (3.0, Tick(held_at_drain=95))]
    assert served_most(ticks) == 100
    # If some were never answered, waiting connections do not count as served; at the drain their number is unknown.
    for requests, served in ((3, 100), (0, 90)):
        ticks.append((4.0, Tick(deaths={"heartbeat_timeout": Deaths(1, Histogram(), Histogram(), Histogram())})))
        ticks[-1][1].deaths["heartbeat_timeout"].requests.add(requests)
        assert served_most(ticks) == served
    assert served_most([]) == 0


def of_ours(run: Run) -> None:
    run.ticks[5][1].deaths["generator_lost"] = Deaths(50)


def fewer(most: int) -> Change:
    """At most ``most`` connections were served."""

    def change(run: Run) -> None:
        for _, tick in run.ticks:
            tick.held, tick.held_at_drain = min(tick.held, most), min(tick.held_at_drain, most)

    return change


def handshakes(reason: str) -> Change:
    def change(run: Run) -> None:
        run.ticks[5][1].tls = TlsCounts(failed={reason: 900})

    return change


@pytest.mark.parametrize(
    ("one", "lost", "failed", "served", "what"),
    [
        (seen(failed("refused", 909), fewer(1091)), 0, 909, 1091, "refused"),
        (seen(lost("closed_idle", 1), codes=("keepalive_time",)), 1, 0, None, "keepalive_time"),
        # The server held all: a wrong answer ended each, or none could be opened.
        (seen(lost("protocol_error", 60), fewer(100), codes=("protocol_error",)), 60, 0, None, "protocol_error"),
        (seen(failed("no_descriptors", 900), fewer(1100)), 0, 900, None, "descriptors"),
        (seen(lost("protocol_error", 60), lost("closed_awaiting", 1), fewer(100), codes=("protocol_error",)), 61, 0, 100, "protocol_error"),
        (seen(lost("closed_idle", 7), failed("refused", 1), codes=("unheard_of",), certain=False), 7, 1, None, "unheard_of"),
        (seen(lost("closed_idle", 7), failed("refused", 9), codes=("unheard_of",), certain=False), 7, 9, None, "refused"),
        # A timer ended them, however many were held at once.
        (seen(lost("closed_idle", 9), fewer(1), codes=("lifetime",)), 9, 0, None, "lifetime"),
        (seen(lost("closed_idle", 7), codes=("unheard_of",), certain=False), 7, 0, None, "unheard_of"),
        # A certificate is refused at any number, other handshakes may fail by it.
        (seen(failed("tls_failed", 900), handshakes("certificate has expired"), fewer(1100)), 0, 900, None, "tls_failed"),
        (seen(failed("tls_failed", 900), handshakes("alert internal error"), fewer(1100)), 0, 900, 1100, "tls_failed"),
        # The number of those that were served and then closed is no capacity; of those that never were, it is.
        (seen(lost("closed_idle", 60, requests=1), fewer(47), codes=("unexplained",), certain=False), 60, 0, None, "unknown"),
        (seen(lost("closed_awaiting", 60, requests=0), fewer(47), codes=("unexplained",), certain=False), 60, 0, 47, "unknown"),
        # Nor do busy CPUs end one that was served.
        (seen(*CPUS, lost("closed_idle", 60, requests=1), fewer(47), slow=SLOW, codes=("unexplained",), certain=False), 60, 0, None, "both_busy"),
        (seen(*CPUS, lost("closed_awaiting", 60, requests=0), fewer(47), slow=SLOW, codes=("unexplained",), certain=False), 60, 0, 47, "both_busy"),
        # A stop is no capacity.
        (seen(lost("heartbeat_timeout", 30), fewer(170), codes=("server_stalled",)), 30, 0, None, "server_stalled"),
    ],
)
def test_losses_give_a_bottleneck_in_place_of_a_forecast(
    one: AnalysedRun, lost: int, failed: int, served: int | None, what: str
) -> None:
    finding = instead_of_forecast(one)
    fields = finding.fields
    assert (finding.code, fields["lost"], fields["failed"], fields["served"], fields["what"]) == ("gave_way", lost, failed, served, what)
    # Only capacity has steps.
    assert finding.remedy
    assert "step" not in finding.remedy


def test_what_asyncli_lost_itself_hides_no_crash_of_the_server() -> None:
    """However many those are, the verdict says it."""
    both = seen(lost("closed_idle", 208), lost("generator_lost", 400))
    counts = (("closed_idle", "worker_crash", 208), ("generator_lost", "generator_lost", 400))
    both.diagnoses.extend(Diagnosis(cause, code, count, "ended", "mend it", True, 5.0, 6.0) for cause, code, count in counts)
    fields = instead_of_forecast(both).fields
    assert (fields["lost"], fields["what"]) == (208, "worker_crash")


@pytest.mark.parametrize("changes", [(), (of_ours,), (failed("other", 1),)], ids=["all held", "lost by us", "held at a later attempt"])
def test_runs_that_held_all_have_a_forecast(changes: tuple[Change, ...]) -> None:
    assert instead_of_forecast(seen(*changes)) is None


def test_a_reached_limit_is_an_error() -> None:
    full = seen(lost("heartbeat_timeout", requests=0), level(status__limit=1000.0, status__active=1001.0), codes=("never_accepted",), certain=False)
    reached = instead_of_forecast(full)
    assert (reached.severity, "maxconn" in reached.remedy) == ("error", True)
