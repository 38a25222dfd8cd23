"""Diagnoses of synthetic runs: each mechanism alone, several at once, too few losses, and unexplained ones."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from synthetic_run import bare_run

from asyncli.analysis.losses.attribution import Diagnosis, diagnose
from asyncli.analysis.losses.likelihood import chance_idle, has_spread_idle_times, idle_window
from asyncli.analysis.totals import fold
from asyncli.analysis.verdict import LOST_BY_ASYNCLI
from asyncli.core.histogram import Histogram
from asyncli.core.life import DEATHS
from asyncli.findings.probes import probe_lost
from asyncli.findings.tls import tls_handshakes_failed
from asyncli.model.plan import Plan
from asyncli.model.records import (
    Check,
    Deaths,
    Finding,
    Phase,
    ProtocolCounts,
    RunEvent,
    Sample,
    TcpCounts,
    Tick,
    TlsCounts,
    mark,
)

HELD = 1000
NGINX = {"server": {"label": "nginx/1.22.1"}}
Draw = Callable[[random.Random], float]


def at(value: float) -> Draw:
    return lambda _: value


def between(low: float, high: float) -> Draw:
    return lambda chance: chance.uniform(low, high)


ANY_AGE, ANY_IDLE, ANY_REQUESTS = between(1, 100), between(0, 29), between(1, 90)


class Scene:
    """A hold of ``seconds`` with 1000 connections and heartbeats every 1 to 30 s on an nginx with 2 workers, in which some are lost."""

    def __init__(self, seconds: int = 120, **options: Any) -> None:
        self.plan = Plan(
            **{"urls": ("http://127.0.0.1:1/",), "connections": HELD, "keepalive_s": 60.0, "timeout_s": 10.0, **options}
        )
        self.seconds = seconds
        self.phases = [Phase("baseline", 0.0, 1.0), Phase("ramp", 1.0, 2.0), Phase("hold", 2.0, 1.0 + seconds)]
        self.ticks = {second: Tick(second=second, workers=2, held=HELD, sent=60, answered=60) for second in range(1, seconds + 1)}
        self.samples = [
            Sample(
                float(t_s),
                {
                    "generator.processes": 3.0, "server.processes": 3.0, "server.workers": 2.0, "server.cpu_s": 0.1 * t_s, "status.active": (HELD if t_s > 1 else 0) + 1.0,
                    "status.accepts": 5000.0 + t_s, "status.connects": 1.0,
                },
            )
            for t_s in range(seconds + 1)
        ]  # fmt: skip
        self.checks: list[Check] = []
        self.findings: list[Finding] = []
        self.events: list[RunEvent] = []
        self.environment: dict[str, Any] = dict(NGINX)
        self._random = random.Random(3)

    def configured(self, **directives: float) -> Scene:
        """nginx.conf was read and has these directives."""
        self.checks += [Check(f"nginx_{name}", name, "ok", have=value) for name, value in directives.items()]
        return self

    def die(
        self, count: int, cause: str, seconds: range | list[int], age: Draw = ANY_AGE, idle: Draw = ANY_IDLE,
        requests: Draw = ANY_REQUESTS,
    ) -> Scene:  # fmt: skip
        """``count`` connections are lost, spread evenly over these seconds."""
        places = list(seconds)
        for number in range(count):
            dead = self.ticks[places[number * len(places) // count]].deaths.setdefault(cause, Deaths())
            dead.count += 1
            dead.age_s.add(age(self._random))
            dead.idle_s.add(idle(self._random))
            dead.requests.add(int(requests(self._random)))
        return self

    def sampled(self, seconds: range, **values: float | None) -> Scene:
        """Set values (None: remove) in the samples of these seconds; ``status_active`` for status.active."""
        for t_s in seconds:
            if t_s < len(self.samples):
                for name, value in values.items():
                    key = name.replace("_", ".", 1)
                    if value is None:
                        self.samples[t_s].values.pop(key, None)
                    else:
                        self.samples[t_s].values[key] = value
        return self

    def found(self) -> list[Diagnosis]:
        ticks = [(1.0 + second, tick) for second, tick in self.ticks.items()]
        run = bare_run(ticks, self.phases, self.samples, self.environment, plan=self.plan, checks=self.checks, findings=self.findings)
        run.events = self.events
        totals = fold(run)
        found = diagnose(run, totals)
        counts: dict[str, int] = {}
        for one in found:
            counts[one.cause] = counts.get(one.cause, 0) + one.count
            assert one.count > 0
            assert one.evidence
            assert one.remedy
            assert "nan" not in one.evidence.lower().replace("nginx", "")
            assert one.from_s < one.to_s
        assert counts == {cause: dead.count for cause, dead in totals.whole.deaths.items()}
        return found


def only(scene: Scene) -> Diagnosis:
    (one,) = scene.found()
    return one


def by_code(scene: Scene) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in scene.found():
        counts[one.code] = counts.get(one.code, 0) + one.count
    return counts


def codes_of(scene: Scene) -> list[tuple[str, bool]]:
    """The codes, and whether each is certain."""
    return list(dict.fromkeys((one.code, one.certain) for one in scene.found()))


EVER = range(10, 110)


# -- recorded by the run


def test_losses_by_a_suspension() -> None:
    """Awake at 40 s after ten minutes of suspension: it explains connections without an answer since, and no others."""
    scene = Scene().configured(keepalive_timeout=75)
    scene.samples.insert(41, Sample(40.3, {"clock.suspended_s": 600.0}))
    scene.die(300, "closed_idle", [40, 41], idle=between(2, 29))
    scene.die(20, "reset", range(42, 60), idle=at(25))
    scene.die(40, "heartbeat_timeout", range(50, 75), idle=at(45))
    scene.die(7, "reset", range(50, 60), idle=at(1))
    assert by_code(scene) == {"suspended": 360, "unexplained": 7}


def test_losses_of_a_silent_host_are_its_networks() -> None:
    """One of two hosts is cut off for 13.6 s and reports its losses afterwards; earlier losses are the other's."""
    scene = Scene()
    scene.samples.insert(52, Sample(51.4, {"silent.vm at 192.168.1.9": 13.6}))
    scene.die(77, "heartbeat_timeout", range(50, 60))
    for second in range(40, 90):
        scene.ticks[second].latency_us.add(9e6)
    assert codes_of(scene) == [("client_cut", False)]
    scene.die(50, "heartbeat_timeout", range(38, 48))
    scene.die(40, "heartbeat_timeout", range(90, 100))
    assert by_code(scene) == {"client_cut": 77, "server_slow": 90}


def test_hosts_that_were_silent_together_are_named_together() -> None:
    scene = Scene(timeout_s=2.0)
    scene.samples.insert(52, Sample(51.4, {"silent.a at 10.0.0.9": 6.0}))
    scene.samples.insert(54, Sample(53.2, {"silent.b at 10.0.0.10": 7.5}))
    scene.samples.insert(93, Sample(91.2, {"silent.b at 10.0.0.10": 5.5}))
    scene.die(100, "heartbeat_timeout", range(50, 57)).die(30, "heartbeat_timeout", [91, 92])
    found = scene.found()
    assert [(one.code, one.count) for one in found] == [("client_cut", 100), ("client_cut", 30)]
    assert all(name in found[0].evidence for name in ("10.0.0.9", "10.0.0.10"))
    assert "10.0.0.9" not in found[1].evidence


def test_a_goodbye_names_the_age() -> None:
    scene = Scene().die(40, "closed_announced", [5], age=at(30), idle=at(2))
    scene.ticks[5].protocol = ProtocolCounts(goodbyes={1001: 40})
    assert [(one.code, one.count, "30 s" in one.evidence) for one in scene.found()] == [("goodbye", 40, True)]
    # With their reasons, if these belong to one code; seconds with different reasons are one diagnosis.
    scene.die(9, "closed_announced", [6])
    scene.ticks[5].protocol.farewells = {"full": 30, "old": 10}
    scene.ticks[6].protocol = ProtocolCounts(goodbyes={1001: 9}, farewells={"full": 9})
    assert [(one.code, one.count, one.evidence.count(" × ")) for one in scene.found()] == [("goodbye", 49, 2)]


def test_causes_that_explain_themselves() -> None:
    scene = Scene().die(7, "generator_lost", [5]).die(3, "protocol_error", [5])
    lost, _ = scene.found()
    assert [one.code for one in scene.found()] == ["generator_lost", "not_http"]
    # A limit on all losses does not allow these: the remedy names the one that does.
    named = re.search(r"--fail-if '([\w.]+) ", lost.remedy)
    assert named is not None
    assert named[1] == LOST_BY_ASYNCLI
    # An HTTP answer before means a server.
    before = scene.found()[1].remedy
    for tick in scene.ticks.values():
        tick.answered = 0
    never = scene.found()[1].remedy
    scene.ticks[5].protocol = ProtocolCounts(broken={"it speaks TLS": 3})
    assert len({before, never, scene.found()[1].remedy}) == 3
    assert "TLS" in scene.found()[1].evidence


@pytest.mark.parametrize("reason", ["alert certificate_required", "alert unknown_ca", "alert bad_certificate"])
def test_remedies_of_refused_and_missing_certificates(reason: str) -> None:
    refused = Scene().die(100, "tls_failed", EVER)
    refused.ticks[5].tls = TlsCounts(full=HELD, ended={reason: 100})
    assert "--client-cert" in only(refused).remedy
    expired = tls_handshakes_failed({"certificate has expired": 9})
    assert "renew" in expired.remedy
    refused.ticks[5].tls = TlsCounts(full=HELD, ended={"alert internal_error": 100})
    assert "--client-cert" not in only(refused).remedy
    answered = Scene().die(100, "closed_announced", EVER, idle=at(0))
    for second in EVER:
        answered.ticks[second].by_status = {400: 1}
    assert "--client-cert" not in only(answered).remedy
    answered.ticks[5].tls = TlsCounts(full=HELD)
    assert "--client-cert" in only(answered).remedy


def test_errors_that_end_the_connection() -> None:
    scene = Scene().die(100, "closed_announced", EVER, idle=at(0))
    for second in EVER:
        scene.ticks[second].by_status = {200: 50, 502: 1}
    assert codes_of(scene) == [("http_error", True)]
    # Few errors beside many closes are no reason, unless nginx closes after them.
    few = Scene().die(1000, "closed_announced", EVER, idle=at(0))
    few.ticks[20].by_status = few.ticks[21].by_status = {502: 3}
    assert by_code(few) == {"unexplained": 1000}
    few.ticks[20].by_status = few.ticks[21].by_status = {500: 3}
    assert by_code(few) == {"http_error": 6, "unexplained": 994}
    # Errors on connections that stay open are no reason.
    for second in EVER:
        scene.ticks[second].by_status = {404: 50}
    assert codes_of(scene) == [("unexplained", False)]


# -- limits and timers


@pytest.mark.parametrize(
    ("seconds", "age", "found"),
    [(EVER, ANY_AGE, "idle_timeout"), ([50, 51], at(12.3), "idle_timeout"), ([50, 51], ANY_AGE, "burst")],
)
def test_listeners_that_receive_at_once_have_one_idle_time(seconds: Any, age: Draw, found: str) -> None:
    scene = labelled(Scene(http_protocol="sse"), "")
    assert codes_of(scene.die(400, "closed_idle", seconds, age=age, idle=between(12, 12.4))) == [(found, False)]


def of_requests(**directives: float) -> Scene:
    return Scene().configured(**directives).die(500, "closed_announced", EVER, age=between(700, 1100), idle=at(0), requests=at(1000))


def of_idle(count: int = 400, **directives: float) -> Scene:
    return Scene(keepalive_s=200.0).configured(**directives).die(count, "closed_idle", EVER, idle=between(74.995, 75.3))


def of_hours(**directives: float) -> Scene:
    dead = {"age": between(3600, 3629.9), "idle": at(0), "requests": between(200, 260)}
    return Scene().configured(**directives).die(5_000, "closed_announced", range(5, 35), **dead)


def regular(**directives: float) -> Scene:
    """Heartbeats so regular that requests and age look the same."""
    dead = {"age": between(100, 101), "idle": at(0), "requests": at(101)}
    return Scene(keepalive_s=2.0).configured(**directives).die(500, "closed_announced", EVER, **dead)


def at_once(**directives: float) -> Scene:
    return Scene().configured(**directives).die(1000, "closed_announced", [5], age=at(0), idle=at(0), requests=at(1))


def before_a_request(cause: str = "closed_idle", **directives: float) -> Scene:
    return Scene(keepalive_s=200.0).configured(**directives).die(60, cause, EVER, age=at(60), idle=at(60), requests=at(0))


def labelled(scene: Scene, label: str) -> Scene:
    scene.environment = {"server": {"label": label}}
    return scene


def idle_for(idle_s: float, label: str) -> Scene:
    return labelled(Scene(keepalive_s=1000.0).die(400, "closed_idle", EVER, idle=between(idle_s, idle_s + 0.5)), label)


def over_a_minute(cause: str, seconds: range) -> Scene:
    """Losses late in a hold, of connections opened over 100 s."""
    dead = {"age": between(28_800, 28_930), "idle": between(0, 29), "requests": between(1800, 2000)}
    return Scene(seconds=300).die(HELD, cause, seconds, **dead)


@pytest.mark.parametrize(
    ("scene", "found"),
    [
        (of_hours(keepalive_time=3600, keepalive_requests=1e7), ("keepalive_time", True)),
        (of_hours(), ("keepalive_time", False)),
        (of_requests(keepalive_requests=1000, keepalive_time=3600), ("keepalive_requests", True)),
        (of_requests(), ("keepalive_requests", False)),
        (of_requests(keepalive_requests=5000), ("keepalive_requests", False)),
        # Few losses exactly at a configured limit are at least likely.
        (Scene().configured(keepalive_requests=1000).die(2, "closed_announced", EVER, requests=at(1000), idle=at(0)), ("keepalive_requests", False)),
        # The configuration distinguishes them; different request numbers at one age mean an age limit.
        (regular(keepalive_requests=101), ("keepalive_requests", True)),
        (regular(keepalive_requests=1e7, keepalive_time=100), ("keepalive_time", True)),
        (
            Scene(seconds=200, keepalive_s=10.0).die(902, "closed_announced", range(10, 190), between(3600, 3604.9), at(0), between(1184, 1231)),
            ("keepalive_time", False),
        ),
        (of_idle(keepalive_timeout=75), ("keepalive_timeout", True)),
        (of_idle(), ("keepalive_timeout", False)),
        # The file may have changed since nginx read it.
        (of_idle(keepalive_timeout=3600), ("keepalive_timeout", False)),
        (Scene(keepalive_s=200.0).configured(keepalive_timeout=3600).die(400, "closed_idle", EVER, idle=at(50)), ("box_idle_timeout", False)),
        (before_a_request(), ("client_header_timeout", False)),
        # With an answer without a request: 408.
        (before_a_request("closed_announced"), ("client_header_timeout", False)),
        (before_a_request(client_header_timeout=60, keepalive_timeout=60), ("client_header_timeout", True)),
        (at_once(), ("keepalive_off", False)),
        (at_once(keepalive_timeout=0), ("keepalive_off", True)),
        (Scene().configured(keepalive_requests=0).die(60, "closed_announced", EVER, at(0), at(0), at(1)), ("keepalive_off", True)),
        (idle_for(5, "Apache/2.4"), ("idle_timeout", False)),
        (idle_for(60, ""), ("idle_timeout", False)),
        (idle_for(75, ""), ("keepalive_timeout", False)),
        (idle_for(44, ""), ("idle_timeout", False)),
        (idle_for(44, "nginx/1.25"), ("keepalive_timeout", False)),
        # An idle timeout that answers.
        (Scene().die(60, "closed_announced", EVER, idle=at(20)), ("idle_timeout", False)),
        (Scene().die(60, "closed_awaiting", EVER, at(0.01), at(0.01), at(0)), ("closed_at_once", False)),
        (Scene().die(60, "closed_idle", EVER, age=between(300, 300.9)), ("lifetime", False)),
        # One age at several moments: opened together, and again.
        (Scene().die(40, "closed_idle", [6], at(5), between(0, 2)).die(40, "closed_idle", [13], at(5), between(0, 2)), ("lifetime", False)),
        (Scene().die(120, "closed_awaiting", [50], between(3, 20), requests=at(3)), ("burst", False)),
        (Scene().die(120, "closed_awaiting", EVER, between(3, 20), requests=at(3)), ("request_limit", False)),
        # Losses over a minute late in a hold are no age limit.
        (over_a_minute("closed_idle", range(100, 160)), ("unexplained", False)),
        (over_a_minute("closed_announced", range(100, 130)), ("unexplained", False)),
        # Heartbeats once a second: at any event all were idle for 0 s.
        (Scene(keepalive_s=2.0).configured(keepalive_timeout=1).die(60, "closed_idle", EVER, idle=at(0)), ("unexplained", False)),
        # With gaps of 1 to 5 s half of all random moments show 1 or 2 s: a dozen may agree by chance.
        (Scene(keepalive_s=10.0).die(12, "reset", EVER, idle=between(1, 2.9)), ("unexplained", False)),
        (Scene(keepalive_s=10.0).die(120, "reset", EVER, idle=between(1, 2.9)), ("box_reset", False)),
        (Scene(keepalive_s=1000.0).die(200, "reset", EVER, idle=between(240, 240.5)), ("box_reset", False)),
        (Scene().die(3, "closed_idle", EVER, idle=between(1, 29)), ("too_few", False)),
    ],
)
def test_limits_by_what_their_losses_have_in_common(scene: Scene, found: tuple[str, bool]) -> None:
    assert codes_of(scene) == [found]


@pytest.mark.parametrize(("idle_s", "whose"), [(5, "Node.js"), (5, "uvicorn"), (60, "AWS"), (300, "Caddy"), (350, ""), (240, ""), (44, "")])
def test_known_idle_timeouts(idle_s: float, whose: str) -> None:
    evidence = only(idle_for(idle_s, "Apache/2.4")).evidence
    assert whose in evidence
    assert bool(whose) is any(name in evidence for name in ("Node.js", "uvicorn", "AWS", "Caddy", "Azure"))


@pytest.mark.parametrize(
    ("age", "idle", "code", "both"),
    [((4, 5), (0, 2.9), "lifetime", False), ((7, 11), (4, 5), "idle_timeout", False), ((4, 5), (4, 5), "idle_timeout", True)],
)
def test_an_age_limit_is_no_idle_timeout(age: tuple[float, float], idle: tuple[float, float], code: str, both: bool) -> None:
    scene = Scene().die(350, "closed_idle", EVER, age=between(4, 5), idle=between(4, 5))
    # Those with a second heartbeat have another idle time, or another age.
    one = only(labelled(scene.die(60, "closed_idle", EVER, age=between(*age), idle=between(*idle)), "python3"))
    assert (one.code, one.count, "limit fits" in one.evidence) == (code, 410, both)


def test_http_1_0_closes_after_each_answer() -> None:
    scene = Scene().die(60, "closed_announced", [5], at(0), at(0), at(1)).die(10, "closed_announced", EVER, requests=at(7))
    scene.ticks[5].protocol = ProtocolCounts(farewells={"HTTP/1.0": 80})
    assert {(one.code, one.certain, one.count) for one in scene.found()} == {("keepalive_off", True, 60), ("keepalive_requests", False, 10)}


def test_two_limits_of_requests_stay_apart() -> None:
    scene = Scene().configured(keepalive_requests=1000)
    scene.die(500, "closed_announced", EVER, age=between(9000, 9900), idle=at(0), requests=at(1000))
    scene.die(400, "closed_announced", EVER, age=between(900, 1900), idle=at(0), requests=at(100))
    assert [(one.code, one.count, one.certain) for one in scene.found()] == [
        ("keepalive_requests", 500, True), ("keepalive_requests", 400, False),
    ]  # fmt: skip


@pytest.mark.parametrize(("cause", "idle", "gap_s", "whose"), [
    # What servers close after 5 s, or a balancer after 60 s, no middle box drops or resets.
    ("heartbeat_timeout", between(5, 6), 6.0, ""), ("reset", between(5, 5.5), 30.0, ""), ("reset", between(60, 60.5), 300.0, ""),
    ("heartbeat_timeout", between(240, 300), 300.0, "Azure"), ("heartbeat_timeout", between(350, 400), 400.0, ""),
    ("reset", between(350, 350.5), 800.0, "AWS"),
])  # fmt: skip
def test_a_middle_box_is_one_that_ends_connections_so(cause: str, idle: Draw, gap_s: float, whose: str) -> None:
    scene = Scene(keepalive_s=2 * gap_s)
    waited_s = scene.plan.timeout_s + 0.05 if cause == "heartbeat_timeout" else 0.0
    one = only(scene.die(200, cause, EVER, age=between(400, 4000), idle=lambda chance: idle(chance) + waited_s))
    assert one.code == ("silent_drop" if waited_s else "box_reset")
    assert whose in one.evidence
    assert bool(whose) is any(name in one.evidence for name in ("Node.js", "AWS", "Azure", "GCP", "nginx"))


@pytest.mark.parametrize(("age", "words"), [(between(10.1, 10.9), "all at"), (between(5, 60), "whatever")])
@pytest.mark.parametrize("cause", ["closed_idle", "closed_awaiting", "reset"])
def test_a_limit_of_requests_at_one_age_may_be_an_age_limit(cause: str, age: Draw, words: str) -> None:
    one = only(Scene(keepalive_s=2.0).die(120, cause, EVER, age=age, idle=at(0.5), requests=at(11)))
    assert (one.code, [word for word in ("all at", "whatever") if word in one.evidence]) == ("request_limit", [words])


def test_an_announced_limit_of_requests_at_one_age_may_be_an_age_limit() -> None:
    at_one_age = Scene(keepalive_s=2.0).die(120, "closed_announced", EVER, age=between(10.1, 10.9), idle=at(0), requests=at(11))
    at_any_age = Scene(keepalive_s=20.0).die(120, "closed_announced", EVER, age=between(20, 100), idle=at(0), requests=at(11))
    for scene, fits in ((at_one_age, True), (at_any_age, False)):
        scene.ticks[1].opened = HELD
        for tick in scene.ticks.values():
            tick.answered = 1
        assert (only(scene).code, "age limit" in only(scene).evidence) == ("keepalive_requests", fits)


def test_ages_and_idle_times_below_a_second() -> None:
    one = only(Scene().die(60, "closed_idle", range(10, 100), age=at(0.95), idle=at(0.9), requests=at(1)))
    assert one.evidence.count("less than") == 2
    burst = only(Scene().die(200, "reset", [60], age=at(0.95), idle=at(0.9)))
    assert "less than" in burst.evidence
    aged = only(Scene(keepalive_s=4.0).die(120, "closed_idle", EVER, age=between(10.1, 10.9), idle=at(0.5), requests=between(6, 11)))
    assert (aged.code, "less than" in aged.evidence) == ("lifetime", True)


@pytest.mark.parametrize(("opened", "of_some"), [(1120, True), (5000, False)])
def test_a_limit_of_requests_that_others_outlived_is_of_some(opened: int, of_some: bool) -> None:
    scene = Scene().die(120, "closed_awaiting", EVER, between(3, 20), requests=at(3))
    scene.ticks[1].opened = opened
    assert ("others" in only(scene).evidence) is of_some


def test_heartbeats_that_crossed_with_the_close() -> None:
    scene = Scene(keepalive_s=200.0).configured(keepalive_timeout=75).die(400, "closed_idle", EVER, idle=at(75))
    found = scene.die(3, "closed_awaiting", EVER, idle=at(75)).die(2, "reset", EVER, idle=at(75)).found()
    assert {(one.cause, one.code, one.count) for one in found} == {
        ("closed_idle", "keepalive_timeout", 400), ("closed_awaiting", "keepalive_timeout", 3), ("reset", "keepalive_timeout", 2),
    }  # fmt: skip
    # One event did it all.
    assert len({one.incident for one in found}) == 1


def test_a_few_early_losses_are_no_keepalive_off() -> None:
    few = Scene().die(5, "closed_announced", EVER, idle=at(0), requests=at(1))
    few.ticks[1].opened = HELD
    assert "keepalive_off" not in by_code(few)


# -- slots, and bursts


@pytest.mark.parametrize(
    ("slots", "certain"),
    [
        (1060, True),
        # Listeners, channel and our status connection take slots too: 1,000 clients are already 15/16 of 1,070.
        (1070, True),
        # Enough slots for all, but perhaps not in the worker with the most.
        (1100, False),
        # With twice as many slots it is something else.
        (2200, None),
        (None, None),
    ],
)
def test_idle_reuse(slots: float | None, certain: bool | None) -> None:
    scene = Scene().die(300, "closed_idle", range(2, 12)).die(4, "reset", range(2, 12))
    for second in range(2, 12):
        scene.ticks[second].opened = 40
    found = scene.configured(worker_connections=slots).found() if slots else scene.found()
    reused = [(one.cause, one.certain) for one in found if one.code == "idle_reuse"]
    assert reused == ([] if certain is None else [("closed_idle", certain), ("reset", certain)])


@pytest.mark.parametrize("counted_by", ["status_active", "server_sockets"])
def test_slots_that_other_clients_filled(counted_by: str) -> None:
    """Other clients open 800 more, and ours, which open none, lose theirs. The configuration has another timer."""
    full = Scene().configured(worker_connections=1900, keepalive_timeout=36_000).die(300, "closed_idle", range(20, 60), idle=between(7, 9))
    full.sampled(range(121), status_active=None).sampled(range(121), **{counted_by: 1000.0}).sampled(range(15, 121), **{counted_by: 1800.0})
    assert codes_of(full) == [("idle_reuse", False)]
    assert "other clients" in only(full).evidence
    # Without them nginx has slots for all.
    alone = Scene().configured(worker_connections=1900, keepalive_timeout=36_000).die(300, "closed_idle", range(20, 60), idle=between(7, 9))
    assert "idle_reuse" not in by_code(alone)


def test_idle_times_that_no_timer_has_are_no_timer_that_the_configuration_denies() -> None:
    def scene(idle: Draw, **directives: float) -> Scene:
        made = Scene(keepalive_s=200.0).configured(**directives)
        return made.die(60, "closed_idle", EVER, idle=at(3)).die(340, "closed_idle", EVER, idle=idle)

    denied = {"keepalive_timeout": 36_000.0}
    assert by_code(scene(at(50), **denied)).keys() == {"unexplained"}
    # A configuration that is not known denies nothing, and one time is a timer's.
    assert "keepalive_timeout" in by_code(scene(at(50)))
    one_time = Scene(keepalive_s=200.0).configured(**denied).die(400, "closed_idle", EVER, idle=at(50))
    assert codes_of(one_time) == [("box_idle_timeout", False)]


def test_a_reload_of_a_nearly_full_server_is_no_idle_reuse() -> None:
    # Losses are replaced within the same second.
    for slots in (1040, 1100):
        scene = burst().configured(worker_connections=slots).sampled(range(61, 121), status_connects=2.0)
        for second in range(60, 121):
            scene.ticks[second].held = HELD
        scene.ticks[60].opened = HELD
        assert codes_of(scene) == [("reload", True)]


def test_a_lack_of_slots_may_close_more_than_it_holds() -> None:
    # Each new connection takes the slot of another; few close in a second without an open.
    scene = Scene(connections=2000).configured(worker_connections=1066).die(6000, "closed_idle", range(10, 20)).die(9, "closed_idle", [20])
    for second in range(10, 20):
        scene.ticks[second].opened = 600
    assert by_code(scene) == {"idle_reuse": 6009}
    # So do a few sudden seconds among others, unless the server's counts show another event.
    scene = Scene(connections=2000).configured(worker_connections=1066, keepalive_timeout=600).die(3000, "closed_idle", range(10, 40), idle=between(1, 2))
    for second in range(10, 40):
        scene.ticks[second].opened = 100
    scene.die(1500, "closed_idle", [12, 13], idle=between(1, 2))
    assert codes_of(scene) == [("idle_reuse", True)]
    scene.sampled(range(13, 121), status_accepts=0.0)
    assert {"idle_reuse", "server_restarted"} == by_code(scene).keys()


def test_a_server_that_closes_as_many_as_it_accepts() -> None:
    scene = Scene(connections=2000).die(300, "closed_idle", range(10, 40))
    assert codes_of(scene) == [("unexplained", False)]
    for second in range(10, 40):
        scene.ticks[second].opened = 12
    assert codes_of(scene) == [("idle_reuse", False)]
    # What reuses slots keeps those that it has: a short timer ends the last ones too.
    last = scene.ticks[120]
    last.held = last.held_at_drain = 0
    assert codes_of(scene) == [("unexplained", False)]
    last.held = last.held_at_drain = HELD
    # If all are held, losses have another reason.
    scene.plan = Scene().plan
    assert codes_of(scene) == [("unexplained", False)]


def burst(count: int = HELD, cause: str = "closed_idle", second: int = 60) -> Scene:
    # Its configuration was read, so it is the server that we connect to.
    scene = Scene().configured(keepalive_timeout=3600, keepalive_requests=1e7, keepalive_time=1e6).die(count, cause, [second])
    for later in range(second, 121):
        scene.ticks[later].held = HELD - count
    return scene


@pytest.mark.parametrize(("age_s", "earlier_age_s", "code"), [(0.5, 0.5, "unexplained"), (0.5, 50.0, "reload"), (50.0, 0.5, "reload")])
def test_many_that_came_together_and_were_short_lived_are_no_burst(age_s: float, earlier_age_s: float, code: str) -> None:
    """Many were opened at once, as after a standstill of asyncli, and ended at the age of most others: their moment is that of the opening."""
    scene = Scene().sampled(EVERY, **UNPOLLED)
    scene.die(40, "closed_idle", range(50, 54), age=at(earlier_age_s), idle=ANY_IDLE)
    scene.die(60, "closed_idle", [60, 61], age=at(age_s), idle=at(0.5))
    for second in scene.ticks:
        scene.ticks[second].held = 10
    assert code in {one.code for one in scene.found()}
    assert ("reload" in {one.code for one in scene.found()}) == (code == "reload")


def counted_anew(ended: float) -> Scene:
    """A server of three processes whose counters restarted."""
    scene = burst().sampled(EVERY, server_ended=0.0)
    return scene.sampled(AFTER, server_ended=ended, status_accepts=1.0, status_active=1.0)


def unread(scene: Scene) -> Scene:
    """Its configuration was not read: a middle box may be between."""
    scene.checks = []
    return scene


def test_the_count_of_a_server_alone_does_not_tell_a_crash_from_a_proxy() -> None:
    remote = burst(480).sampled(EVERY, server_processes=None, server_workers=None, server_cpu_s=None)
    (found,) = unread(remote).found()
    assert (found.code, found.certain, "proxy" in found.evidence, "proxy" in found.remedy) == ("worker_crash", False, True, True)


def refusing(scene: Scene) -> Scene:
    for second in range(60, 63):
        scene.ticks[second].failures = {"refused": 300}
    return scene


EVERY, AFTER = range(121), range(61, 121)
UNPOLLED = {"status_active": None, "status_accepts": None, "status_connects": None}


def passing_on(scene: Scene, ends: int) -> Scene:
    """Its one process has so many descriptors for each connection."""
    scene.sampled(EVERY, server_processes=1.0, server_workers=1.0, server_descriptors_open=20.0)
    return scene.sampled(range(3, 121), server_descriptors_open=20.0 + ends * HELD)


def awaiting(scene: Scene) -> Scene:
    """All that were lost waited for an answer."""
    for tick in scene.ticks.values():
        tick.beats_failed = tick.lost
    return scene


def deployed(ended: float, *, command_s: float = 15.0, count: int = HELD) -> Scene:
    """A command has two workers started beside the earlier two, of which ``ended`` end at 60 s with their connections."""
    scene = burst(count).sampled(EVERY, server_started=0.0, server_ended=0.0)
    scene.sampled(range(17, 121), server_started=2.0, server_processes=5.0, server_workers=4.0)
    scene.sampled(AFTER, server_ended=ended, server_processes=5.0 - ended, server_workers=4.0 - ended, status_active=HELD - count + 1.0)
    scene.events.append(RunEvent("run", command_s, command_s + 0.1, "deploy", {"number": 1}))
    return scene


@pytest.mark.parametrize(
    ("scene", "names_it", "certain"),
    [
        (deployed(2.0), True, True),
        # It may be a new one that crashed.
        (deployed(1.0, count=HELD // 2), True, False),
        # More than were there before the command.
        (deployed(3.0), False, False),
        # Others were started after its time, or before it.
        (deployed(2.0, command_s=-25.0), False, False),
        (deployed(2.0, command_s=18.0), False, False),
    ],
)
def test_workers_that_a_command_left_for_later_end_by_it(scene: Scene, names_it: bool, certain: bool) -> None:
    found = only(scene)
    assert ("event 1" in found.evidence) == names_it
    if names_it:
        assert (found.code, found.certain) == ("reload", certain)


def killed(scene: Scene, ended: float, **victims: float) -> Scene:
    """So many workers end with their connections, and the kernel kills these processes for lack of memory meanwhile."""
    scene.sampled(EVERY, server_ended=0.0, **dict.fromkeys(victims, 0.0))
    return scene.sampled(AFTER, server_ended=ended, **victims)


def one_of_eight(count: int, cause: str) -> Scene:
    """One of nine processes ends while ``count`` connections are lost."""
    scene = burst(count, cause).sampled(EVERY, server_processes=9.0, server_workers=8.0, server_ended=0.0)
    return scene.sampled(AFTER, server_ended=1.0, status_active=HELD - count + 1.0)


def read_seldom(every_s: int) -> Scene:
    scene = burst(100, cause="reset").sampled(AFTER, status_active=901.0)
    for t_s in range(121):
        if t_s % every_s:
            scene.sampled(range(t_s, t_s + 1), server_processes=None, server_workers=None, server_cpu_s=None)
    return scene


@pytest.mark.parametrize(
    ("scene", "found"),
    [
        # Without polls: only the share of the losses is evidence.
        (burst().sampled(EVERY, **UNPOLLED), ("reload", False)),
        # The status connection ended with them, and the server no longer counts them.
        (burst().sampled(AFTER, status_active=1.0, status_connects=2.0), ("reload", True)),
        (unread(burst().sampled(AFTER, status_active=1.0, status_connects=2.0)), ("reload", False)),
        # Its ended processes were counted.
        (burst().sampled(EVERY, server_ended=0.0).sampled(AFTER, server_ended=2.0, status_active=1.0), ("reload", True)),
        # Without a page that counts down, all its workers may have crashed.
        (burst().sampled(EVERY, **UNPOLLED, server_ended=0.0).sampled(AFTER, server_ended=2.0), ("reload", False)),
        # Announced closes belong to the reload; one late reading does not mean that the server ended.
        (
            burst(980).die(20, "closed_announced", [60], idle=at(0)).sampled(AFTER, status_active=1.0, status_connects=2.0),
            ("reload", True),
        ),
        (burst().sampled(AFTER, status_active=1.0, status_connects=2.0).sampled(range(61, 62), server_processes=None, server_workers=None), ("reload", True)),
        # nginx still counts the connections of a killed worker.
        (burst(480), ("worker_crash", False)),
        (burst(480).sampled(EVERY, server_ended=0.0).sampled(AFTER, server_ended=1.0), ("worker_crash", True)),
        (unread(burst(480)), ("worker_crash", False)),
        (burst(480).sampled(EVERY, status_active=None), ("worker_ended", False)),
        (burst(480).sampled(AFTER, status_active=HELD - 480 + 1.0), ("worker_ended", False)),
        (burst(480).sampled(EVERY, status_active=None, server_ended=0.0).sampled(AFTER, server_ended=1.0), ("worker_ended", True)),
        (burst().sampled(EVERY, server_ended=0.0).sampled(AFTER, server_ended=2.0), ("worker_crash", True)),
        # The master ended after them.
        (refusing(burst().sampled(EVERY, **UNPOLLED, server_ended=0.0).sampled(AFTER, server_ended=2.0)), ("server_ended", False)),
        # No process ended: the cause is unknown.
        (burst(480).sampled(EVERY, status_active=None, server_ended=0.0), ("burst", False)),
        (burst().sampled(EVERY, **UNPOLLED, server_ended=0.0), ("burst", False)),
        # A proxy has two descriptors for each connection: one of its backends is the likely cause.
        (passing_on(burst(480).sampled(EVERY, status_active=None, server_ended=0.0), ends=2), ("backend_ended", False)),
        (passing_on(burst().sampled(EVERY, **UNPOLLED, server_ended=0.0), ends=2), ("backend_ended", False)),
        (passing_on(burst(480).sampled(EVERY, status_active=None, server_ended=0.0), ends=1), ("burst", False)),
        # Its status page counts them still, but none of its processes ended.
        (passing_on(burst(480).sampled(EVERY, server_ended=0.0), ends=2), ("backend_ended", False)),
        # The end of the only worker may be a reload or a crash.
        (
            burst().sampled(EVERY, status_active=None, status_connects=None, server_processes=2.0, server_workers=1.0, server_ended=0.0).sampled(AFTER, server_ended=1.0),
            ("reload", False),
        ),
        # A worker that announced the end of most, and was replaced, did not crash.
        (
            burst(20).die(460, "closed_announced", [60], idle=at(0)).sampled(EVERY, status_active=None, server_ended=0.0, server_started=0.0)
            .sampled(AFTER, server_ended=1.0, server_started=1.0),
            ("reload", True),
        ),
        # A helper that ends at that time is unrelated.
        (one_of_eight(12, "reset"), ("burst", False)),
        (one_of_eight(125, "closed_idle"), ("worker_ended", True)),
        (burst(cause="reset").sampled(AFTER, server_processes=None, server_workers=None, server_cpu_s=None, status_active=None), ("server_ended", True)),
        (burst(cause="reset").sampled(range(61, 64), server_processes=None, server_workers=None, status_active=None), ("server_restarted", True)),
        (burst().sampled(AFTER, status_accepts=1.0, status_active=1.0), ("server_restarted", True)),
        # Counters also restart at a reload of HAProxy: its master stays.
        (counted_anew(3.0), ("server_restarted", True)),
        (counted_anew(2.0), ("reload", True)),
        (counted_anew(0.0).sampled(AFTER, server_processes=4.0, server_workers=3.0), ("reload", True)),
        # No process ended and none is new: the page is of a server behind it.
        (counted_anew(0.0), ("backend_ended", False)),
        (counted_anew(0.0).sampled(EVERY, server_processes=None, server_workers=None, status_limit=9000.0), ("reload", False)),
        (refusing(burst().sampled(EVERY, server_processes=None, server_workers=None, **UNPOLLED)), ("server_ended", False)),
        # A remote server that ends is not reloaded.
        (unread(burst().sampled(EVERY, server_processes=None, server_workers=None, server_cpu_s=None).sampled(AFTER, **UNPOLLED)), ("server_ended", False)),
        # Processes that are read seldom have not ended, nor one whose last reading is missing.
        (read_seldom(3), ("burst", False)),
        (read_seldom(4), ("burst", False)),
        (read_seldom(4).sampled(range(58, 90), server_processes=None, server_workers=None), ("server_restarted", True)),
        (burst(100, cause="reset", second=119).sampled(range(120, 121), server_processes=None, server_workers=None, status_active=901.0), ("burst", False)),
        # Reset connections of which the server still has the sockets were reset by a middle box.
        (burst(cause="reset").sampled(EVERY, server_sockets=HELD), ("box_reset", True)),
        # Also those that awaited an answer; but its own count may be wrong of these.
        (awaiting(burst(cause="reset").sampled(EVERY, server_sockets=HELD)), ("box_reset", True)),
        (awaiting(burst(cause="reset").sampled(EVERY, server_ended=0.0)), ("burst", False)),
        # A box on the server's host has the ends at our ports.
        (
            burst(cause="reset").sampled(EVERY, server_sockets=HELD, server_sockets_elsewhere=HELD).sampled(range(2), server_sockets_elsewhere=0.0)
            .sampled(AFTER, server_sockets=0.0),
            ("box_reset", True),
        ),
        # By its own count alone it may have reset them itself, and not counted down.
        (burst(cause="reset"), ("box_reset", False)),
        (burst(200, cause="reset").sampled(EVERY, server_sockets=HELD).sampled(AFTER, server_sockets=HELD - 200.0), ("worker_crash", False)),
        (burst(cause="reset").sampled(EVERY, server_sockets=HELD).sampled(AFTER, server_sockets=0.0), ("burst", False)),
        (burst(cause="reset").sampled(AFTER, status_active=1.0), ("box_reset", False)),
        (burst(100).sampled(AFTER, status_active=901.0), ("burst", False)),
        (Scene().die(400, "closed_idle", EVER), ("unexplained", False)),
    ],
)
def test_bursts_by_evidence_of_the_server(scene: Scene, found: tuple[str, bool]) -> None:
    assert codes_of(scene) == [found]


@pytest.mark.parametrize(("server", "timer"), [("nginx/1.22.1", "nginx.conf"), ("node", "headersTimeout"), ("Apache/2.4.71", "RequestReadTimeout"), ("mine/1", "")])
def test_a_timer_has_its_servers_name(server: str, timer: str) -> None:
    remedy = only(labelled(before_a_request(), server)).remedy
    assert (timer in remedy, "nginx" in remedy) == (True, timer == "nginx.conf")


def test_evidence_of_the_server_comes_before_a_likely_limit() -> None:
    scene = Scene(keepalive_s=200.0).die(HELD, "closed_idle", [6], age=at(4), idle=at(4), requests=at(0))
    assert codes_of(scene) == [("client_header_timeout", False)]
    assert codes_of(scene.sampled(range(7, 121), server_processes=None, server_workers=None, status_active=None)) == [("server_ended", True)]


def test_repeated_reloads_are_one_diagnosis() -> None:
    scene = Scene(seconds=600).configured(keepalive_timeout=3600)
    for place, second in enumerate(range(60, 600, 60)):
        scene.die(HELD, "closed_idle", [second]).sampled(range(second + 1, 601), status_connects=2.0 + place)
    one = only(scene)
    assert (one.code, one.certain, one.count, one.from_s, one.to_s) == ("reload", True, 9 * HELD, 60.0, 541.0)


def test_likely_and_certain_reloads_stay_apart() -> None:
    scene = Scene(seconds=300).configured(keepalive_timeout=3600)
    for place, second in enumerate((60, 120, 180)):
        scene.die(HELD, "closed_idle", [second]).sampled(range(second + 1, 301), status_connects=2.0 + place)
    scene.die(HELD - 50, "closed_idle", [240])
    assert [(one.code, one.count, one.certain) for one in scene.found()] == [
        ("reload", 3 * HELD, True), ("reload", HELD - 50, False),
    ]  # fmt: skip


def test_a_page_that_fails_in_tls_does_not_mean_that_the_server_ended() -> None:
    scene = burst().sampled(EVERY, server_processes=None, server_workers=None, server_cpu_s=None).sampled(AFTER, **UNPOLLED)
    assert codes_of(scene) == [("server_ended", False)]
    scene.findings = [probe_lost("status", 61.0, "its certificate has expired", True)]
    assert codes_of(scene) == [("reload", False)]


@pytest.mark.parametrize("second", [59, 61])
def test_a_loss_in_the_next_second_belongs_to_the_burst(second: int) -> None:
    assert by_code(Scene().die(1, "reset", [second]).die(HELD - 1, "reset", [60])) == {"box_reset": HELD}
    # An earlier loss does not.
    assert by_code(Scene().die(1, "reset", [second - 5]).die(HELD - 1, "reset", [60])) == {"box_reset": HELD - 1, "too_few": 1}


def test_the_first_losses_of_a_large_burst_belong_to_it() -> None:
    """nginx takes some seconds to close 100,000 in a reload: the first second may have less than a tenth of the largest."""
    scene = Scene(seconds=300, connections=100_000).configured(keepalive_timeout=3600)
    for second, dead in enumerate((3_840, 18_363, 14_635, 43_395, 19_767), 60):
        scene.die(dead, "closed_idle", [second])
    assert by_code(scene.sampled(range(65, 301), status_connects=2.0)) == {"reload": 100_000}


def test_frequent_losses_are_no_bursts() -> None:
    scene = Scene(seconds=1000).die(6000, "closed_idle", range(10, 990, 10))
    # The first and the last have neighbours on one side only.
    assert by_code(scene)["unexplained"] > 5800


# -- silences


def silent(count: int, seconds: range, gap: Draw, **options: Any) -> Scene:
    scene = Scene(**options)
    timeout = scene.plan.timeout_s
    return scene.die(count, "heartbeat_timeout", seconds, idle=lambda chance: gap(chance) + timeout + 0.1 * chance.random())


def test_a_box_that_drops_silently() -> None:
    scene = silent(200, EVER, between(240, 300), keepalive_s=600.0)
    assert codes_of(scene) == [("silent_drop", False)]
    assert "Azure" in only(scene).evidence
    # The server still counts them.
    for second, tick in scene.ticks.items():
        tick.held = HELD - min(200, max(0, (second - 10) * 2))
    assert codes_of(scene) == [("silent_drop", True)]
    # What is dropped on the way is not acknowledged.
    for tick in scene.ticks.values():
        tick.acknowledged = sum(dead.count for dead in tick.deaths.values())
    assert codes_of(scene) == [("silent_drop", False)]
    assert "forgets idle" in only(scene).evidence


def test_what_is_forgotten_when_idle_is_no_silence_of_all() -> None:
    """Where a box forgets what is idle, seconds come in which only such connections are asked: nothing stood still."""
    scene = unanswered(silent(400, EVER, between(240, 300), keepalive_s=600.0), 60, 100)
    for tick in scene.ticks.values():
        tick.acknowledged = sum(dead.count for dead in tick.deaths.values())
    assert codes_of(scene) == [("silent_drop", False)]
    # Of connections of any idle time a silence takes all.
    scene = unanswered(silent(400, range(70, 100), between(1, 300), keepalive_s=600.0), 60, 100)
    for tick in scene.ticks.values():
        tick.acknowledged = sum(dead.count for dead in tick.deaths.values())
    assert codes_of(scene) == [("server_stalled", False)]


@pytest.mark.parametrize(("directive", "code"), [("location proxy_pass", "backend_ended"), ("location return", "burst"), (None, "backend_ended")])
def test_an_nginx_that_passes_nothing_on_has_no_backend(directive: str | None, code: str) -> None:
    """Another program's connections come with ours, or this nginx is a proxy: its configuration tells, where it was read."""
    scene = passing_on(burst(480).sampled(EVERY, status_active=None, server_ended=0.0), ends=2).configured(keepalive_timeout=3600.0)
    directives = {} if directive is None else {directive: "#1"}
    scene.environment["server"] = {**scene.environment["server"], "directives": directives}
    assert codes_of(scene) == [(code, False)]


BY_MEMORY, PERHAPS = "which had 2, for lack of memory", "perhaps for lack of memory"
UNTOLD = {"status_active": None}


@pytest.mark.parametrize(
    ("scene", "found", "says", "not_said"),
    [
        # The kernel's log names what it killed.
        (killed(burst(), 2.0, server_killed=2.0), ("worker_crash", True), "killed 2 workers of nginx, " + BY_MEMORY, "perhaps"),
        (killed(burst(480), 1.0, server_killed=1.0), ("worker_crash", True), "killed 1 worker of nginx, " + BY_MEMORY, "perhaps"),
        (killed(burst(480), 1.0, server_killed=0.0, server_group_killed=1.0), ("worker_crash", True), "was killed, 1 of 2", "memory"),
        (killed(burst().sampled(EVERY, **UNTOLD), 2.0, server_killed=0.0, host_killed=9.0), ("reload", False), "looks like", "memory"),
        # Without it the victims of the group may be other programs, and nginx's own count tells a crash.
        (killed(burst(480), 1.0, server_group_killed=1.0), ("worker_crash", True), PERHAPS, "looks like"),
        (killed(burst(), 2.0, host_killed=1.0), ("worker_crash", True), "workers of it crashed or were killed, 2 of 2, " + PERHAPS, "looks like"),
        (killed(burst(480).sampled(EVERY, **UNTOLD), 1.0, server_group_killed=1.0), ("worker_crash", False), "which may be other programs", "perhaps"),
        # What ended in order was not killed.
        (killed(burst(), 2.0, server_group_killed=2.0).sampled(AFTER, status_active=1.0), ("reload", True), "in order", "memory"),
        # What the kernel killed some seconds before is no process of nginx.
        (killed(burst(480), 1.0, server_group_killed=1.0).sampled(range(55, 61), server_group_killed=1.0), ("worker_crash", True), "1 of 2", "memory"),
    ],
)  # fmt: skip
def test_what_the_kernel_killed_is_not_always_a_worker(scene: Scene, found: tuple[str, bool], says: str, not_said: str) -> None:
    assert codes_of(scene) == [found]
    assert says in only(scene).evidence
    assert not_said not in only(scene).evidence


def test_the_number_of_workers_is_not_said_where_titles_are_unread() -> None:
    scene = burst(480).sampled(EVERY, server_ended=0.0).sampled(AFTER, server_ended=1.0)
    assert only(scene).evidence.endswith("of 2")
    scene.sampled(EVERY, server_workers=None)
    assert codes_of(scene) == [("worker_crash", True)]
    assert only(scene).evidence.endswith("killed")


def test_a_helper_of_nginx_is_no_worker() -> None:
    """A cache manager that ends and is started again, while something else ends connections."""
    scene = burst(480, "reset").sampled(EVERY, server_processes=4.0, server_ended=0.0, server_workers_ended=0.0)
    scene.sampled(AFTER, server_ended=1.0, status_active=HELD - 480 + 1.0)
    assert codes_of(scene) == [("burst", False)]
    assert "processes went" in only(scene).evidence


def test_a_stopped_server() -> None:
    scene = unanswered(silent(HELD, range(60, 80), between(1, 30)))
    assert codes_of(scene) == [("path_cut", False)]
    scene.sampled(range(50, 121), status_active=None, status_accepts=None, server_cpu_s=5.0)
    assert codes_of(scene) == [("server_stalled", False)]
    assert "stopped, or" in only(scene).evidence
    # The state of its processes tells a stop from a wait.
    scene.sampled(EVERY, server_stopped=0.0, server_workers_stopped=0.0)
    assert "blocks all" in only(scene).evidence
    # A helper that has long been stopped holds no connections.
    scene.sampled(EVERY, server_stopped=1.0)
    assert "blocks all" in only(scene).evidence
    # One of two workers does not answer for the other.
    scene.sampled(EVERY, server_workers_stopped=1.0)
    assert codes_of(scene) == [("server_stalled", False)]
    assert "stopped, or" in only(scene).evidence
    scene.sampled(range(52, 80), server_stopped=3.0, server_workers_stopped=2.0)
    assert codes_of(scene) == [("server_stalled", True)]
    assert "a debugger" in only(scene).evidence
    scene.sampled(EVERY, server_processes=None, server_workers=None, server_cpu_s=None, status_active=None, status_accepts=None)
    assert codes_of(scene) == [("server_stalled", False)]


@pytest.mark.parametrize("no_answers", [True, False])
def test_a_finished_handshake_means_accepted(no_answers: bool) -> None:
    scene = Scene().die(HELD if no_answers else 200, "heartbeat_timeout", range(60, 80), idle=between(10, 30), requests=at(0))
    scene.environment["local"] = True
    if no_answers:
        unanswered(scene, 1).sampled(EVERY, status_active=None, status_accepts=None)
    assert codes_of(scene) == [("never_accepted", False)]
    scene.ticks[5].tls = TlsCounts(full=HELD)
    assert codes_of(scene) == [("never_answered", False)]


@pytest.mark.parametrize(
    ("accepted", "waiting", "found"),
    [
        (HELD, 0, ("never_answered", True)), (HELD - 200, 200, ("never_accepted", True)),
        # An end that the kernel dropped, another client's, some of both, or another network namespace.
        (HELD - 200, 0, ("never_accepted", False)), (HELD + 300, 0, ("never_accepted", False)), (HELD - 100, 100, ("never_accepted", False)),
        (0, 0, ("never_accepted", False)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("no_answers", [True, False])
def test_the_kernels_list_tells_accepted_from_waiting(accepted: int, waiting: int, found: tuple[str, bool], no_answers: bool) -> None:
    scene = Scene(150).die(200, "heartbeat_timeout", range(60, 63), idle=at(10), age=at(10), requests=at(0))
    scene.environment["local"] = True
    for second, tick in scene.ticks.items():
        tick.awaiting = 200 if 50 <= second < 60 else 0
        tick.answered = 0 if no_answers else tick.answered
    scene.sampled(range(50, 60), server_sockets=float(accepted), server_sockets_waiting=float(waiting))
    assert codes_of(scene) == [found]
    # Before they waited, or after, it tells nothing of them.
    scene.sampled(range(50, 60), server_sockets=None, server_sockets_waiting=None)
    scene.sampled(range(64, 70), server_sockets=float(HELD), server_sockets_waiting=0.0)
    assert codes_of(scene) == [("never_accepted", False)]


@pytest.mark.parametrize(("unacknowledged", "certain"), [(0, True), (60, True), (100, False)])
def test_answers_that_nobody_acknowledged_may_be_lost(unacknowledged: int, certain: bool) -> None:
    scene = Scene(150).die(200, "heartbeat_timeout", range(60, 63), idle=at(10), age=at(10), requests=at(0))
    scene.environment["local"] = True
    for second, tick in scene.ticks.items():
        tick.awaiting = 200 if 50 <= second < 60 else 0
    sockets = {"server_sockets": float(HELD), "server_sockets_waiting": 0.0, "server_sockets_unacknowledged": float(unacknowledged)}
    scene.sampled(range(50, 60), **sockets)
    assert codes_of(scene) == [("never_answered", certain)]


def test_a_silence_is_dated_by_its_first_heartbeat() -> None:
    # The first losses, at 0:01:00, had waited for the --timeout of 10 s.
    for died in (range(60, 80), range(60, 61)):
        assert "0:00:50" in only(unanswered(silent(500, died, between(1, 30)))).evidence


def test_a_server_that_answers_later_was_stopped() -> None:
    scene = unanswered(silent(500, range(60, 63), between(1, 30)), 50, 61)
    # It answers the waiting heartbeats.
    scene.ticks[62].answered = 900
    scene.sampled(range(50, 63), status_active=None, status_accepts=None, status_connects=None, server_cpu_s=5.0)
    scene.sampled(range(50, 63), server_stopped=3.0, server_workers_stopped=2.0)
    assert codes_of(scene) == [("server_stalled", True)]


@pytest.mark.parametrize(("last", "found"), [(61, "server_stalled"), (55, "server_slow")])
def test_a_stop_is_no_overload(last: int, found: str) -> None:
    # It stops twice for longer than the timeout, or not; then it answers what waited, as late as the timeout allows.
    scene = silent(40, [*range(60, 63), *range(90, 93)], between(1, 30))
    scene.sampled(EVERY, status_active=None, status_accepts=None).environment["local"] = True
    for stop in (0, 30):
        unanswered(scene, 50 + stop, last + stop)
        scene.ticks[last + stop + 1].latency_us.add(9.9e6)
        scene.ticks[last + stop + 1].answered = 600
    one = only(scene)
    assert (one.code, one.count, "2 times" in one.evidence, "9.9" in one.evidence) == (found, 40, found == "server_stalled", False)
    # One loss is enough, if several waited.
    (alone,) = unanswered(silent(1, [61], between(1, 30)), 50, 61).sampled(EVERY, status_active=None, status_accepts=None).found()
    assert alone.code == "server_stalled"


def test_a_silence_of_few_begins_in_the_second_of_the_last_answer() -> None:
    scene = unanswered(silent(7, range(60, 64), between(1, 30)), 51, 64)
    for second in range(50, 65):
        tick = scene.ticks[second]
        tick.sent, tick.answered, tick.awaiting = (4, 1, 3) if second == 50 else (second % 2 * (second < 56), 0, 5)
        # What was not answered waited for the timeout, and nobody else was late.
        if tick.deaths:
            tick.latency_us.add(10_000_000)
    assert only(scene).code == "path_cut"


def unanswered(scene: Scene, first: int = 50, last: int = 120) -> Scene:
    """No answers in these seconds, nor requests that the server counts, our polls of its page apart."""
    for second in range(first, last + 1):
        scene.ticks[second].answered = 0
    requests = 0.0
    for sample in scene.samples:
        requests += 1.0 if first <= sample.t_s <= last + 1 else 61.0
        sample.values |= {"status.requests": requests, "status.polls": sample.t_s}
    return scene


def counting(scene: Scene, name: str, before: float, meanwhile: float, since_s: int = 50) -> Scene:
    """A counter that rises by ``before`` a second until ``since_s``, then by ``meanwhile`` until 80 s."""
    value = 0.0
    for sample in scene.samples:
        value += meanwhile if since_s < sample.t_s <= 80 else before
        sample.values[name] = value
    return scene


def test_unacknowledged_segments_mean_a_cut_path() -> None:
    # Each of the lost 1000 was retransmitted three times; the kernel of a stopped server acknowledges.
    def scene(segments: int, *, acknowledged: bool = False) -> Scene:
        found = unanswered(silent(HELD, range(60, 80), between(1, 30)))
        found.sampled(range(50, 121), status_active=None, status_accepts=None, server_cpu_s=5.0)
        for tick in found.ticks.values():
            count = sum(one.count for one in tick.deaths.values())
            tick.tcp, tick.acknowledged = TcpCounts(segments=segments * count), count if acknowledged else 0
        return found

    assert codes_of(scene(3)) == [("path_cut", False)]
    assert only(scene(3, acknowledged=True)).code == "server_stalled"
    # Retransmissions of other programs say nothing, however many the host counts.
    assert only(counting(scene(0), "tcp.RetransSegs", 0.1, 180.0)).code == "server_stalled"
    # Nor does it if the file is of a version that did not ask its sockets.
    old = scene(3)
    for tick in old.ticks.values():
        tick.tcp = None
    assert only(old).code == "server_stalled"


@pytest.mark.parametrize("all_of_them", [True, False])
def test_other_data_is_no_silence(all_of_them: bool) -> None:
    scene = silent(200, range(60, 80), between(1, 30))
    for tick in (unanswered(scene) if all_of_them else scene).ticks.values():
        tick.spoke = sum(one.count for one in tick.deaths.values())
    assert codes_of(scene) == [("answered_otherwise", False)]


def test_a_missing_route_is_certain() -> None:
    scene = unanswered(silent(HELD, range(60, 80), between(1, 30)))
    scene.ticks[65].failures = {"unreachable": 7}
    assert codes_of(scene) == [("path_cut", True)]


@pytest.mark.parametrize(("counted", "code"), [(61.0, "answers_late"), (1.0, "path_cut")])
def test_requests_counted_by_the_server_arrived(counted: float, code: str) -> None:
    scene = counting(unanswered(silent(HELD, range(60, 80), between(1, 30))), "status.requests", 61.0, counted)
    assert codes_of(counting(scene, "status.polls", 1.0, 1.0)) == [(code, False)]


@pytest.mark.parametrize(("cause", "code"), [("heartbeat_timeout", "answers_in_part"), ("closed_awaiting", "cut_short")])
def test_incomplete_answers(cause: str, code: str) -> None:
    scene = unanswered(Scene(), 50, 80).die(600, cause, range(60, 80), idle=between(11, 40))
    for second, tick in scene.ticks.items():
        tick.bytes_received = 200 * tick.answered + (30 * 80 if 60 <= second < 80 else 0)
        for dead in tick.deaths.values():
            dead.in_message = dead.count
    assert codes_of(scene) == [(code, False)]
    assert "40 %" in only(scene).evidence
    # Bytes of others, such as longer error answers, are no part of one.
    for tick in scene.ticks.values():
        for dead in tick.deaths.values():
            dead.in_message = 0
    assert only(scene).code != code


def test_answers_after_the_path_recovered_do_not_count() -> None:
    # The last of the earlier heartbeats time out when others are already answered.
    assert only(unanswered(silent(HELD, range(60, 80), between(1, 30)), 50, 69)).code == "path_cut"


def test_a_quiet_fleet_is_not_silent_for_a_second_without_an_answer() -> None:
    # An answer every other second, and none in the two seconds of the lost heartbeats.
    scene = silent(6, range(60, 61), between(1, 30))
    for second, tick in scene.ticks.items():
        tick.sent = tick.answered = second % 2 if not 49 <= second <= 53 else 0
    assert only(scene).code == "unexplained"


def test_lost_packets() -> None:
    def scene(again_a_second: int) -> Scene:
        found = silent(50, range(60, 80), between(1, 30))
        for second in range(50, 80):
            found.ticks[second].tcp = TcpCounts(segments=2 * again_a_second, heartbeats=again_a_second)
        return found

    assert codes_of(scene(10)) == [("packets_lost", False)]
    # Fewer than were lost are no sign of it, nor are the retransmissions of other programs.
    assert only(scene(1)).code == "unexplained"
    assert only(counting(counting(scene(0), "tcp.OutSegs", 120.0, 120.0), "tcp.RetransSegs", 0.0, 40.0)).code == "unexplained"


def long_gap(chance: random.Random) -> float:
    """The gap of 1 to 30 s at a random moment: long ones are more frequent."""
    return (1 + chance.random() * (30**2 - 1)) ** 0.5


@pytest.mark.parametrize("count", [25, 500])
def test_random_moments_are_no_middle_box(count: int) -> None:
    for seed in range(20):
        scene = Scene()
        scene._random = random.Random(seed)
        scene.die(count, "heartbeat_timeout", range(70, 100), idle=lambda chance: long_gap(chance) + 10 + 0.1 * chance.random())
        assert by_code(scene) == {"worker_stalled" if count == 500 else "unexplained": count}, seed
        # A lost connection table shows at the next heartbeat of each connection.
        table = Scene()
        table._random = random.Random(seed)
        table.die(2 * count, "reset", range(60, 90), idle=long_gap)
        for tick in table.ticks.values():
            tick.beats_failed = tick.lost
        assert by_code(table) == {"unexplained": 2 * count}, seed


def test_a_slow_server_and_a_stopped_worker() -> None:
    slow = silent(50, range(60, 80), between(1, 30))
    for second in range(50, 90):
        slow.ticks[second].latency_us.add(9e6)
    assert only(slow).code == "server_slow"
    assert only(silent(500, range(60, 90), between(1, 30))).code == "worker_stalled"
    assert only(silent(50, EVER, between(1, 30))).code == "unexplained"


def with_a_command(scene: Scene, at_s: float) -> Scene:
    scene.events.append(RunEvent("run", at_s, at_s + 0.2, "deploy", {"number": 1, "status": 0, "took_s": 0.2, "output": ""}))
    return scene


@pytest.mark.parametrize(("stopped", "earlier", "code", "certain"), [(1.0, 0.0, "worker_stalled", True), (0.0, 0.0, "unexplained", False), (1.0, 1.0, "unexplained", False)])
def test_a_worker_that_was_seen_stopped_is_the_reason_whatever_its_share(stopped: float, earlier: float, code: str, certain: bool) -> None:
    """Of two workers one has most connections where the other was started later."""
    scene = silent(750, range(60, 80), between(1, 30))
    scene.sampled(range(49), server_workers_stopped=earlier).sampled(range(49, 121), server_workers_stopped=stopped)
    found = only(scene)
    assert (found.code, found.certain) == (code, certain)
    assert ("nginx's 2" in found.evidence) is certain
    # Of another server its processes are read.
    other = silent(750, range(60, 80), between(1, 30)).sampled(range(49), server_stopped=earlier, server_workers=None)
    other.sampled(range(49, 121), server_stopped=stopped, server_workers=None)
    assert (only(other).code, "3 processes" in only(other).evidence) == (code, certain)


@pytest.mark.parametrize("stopped", [0.0, 1.0])
@pytest.mark.parametrize(("at_s", "is_named"), [(50.5, True), (47.5, True), (30.5, False), (58.5, False)])
def test_heartbeats_without_an_answer_name_the_event_in_whose_time_the_first_was_sent(stopped: float, at_s: float, is_named: bool) -> None:
    """They are lost ten seconds later, whether their cause is known or not."""
    scene = with_a_command(silent(750, range(60, 80), between(1, 30)), at_s)
    found = only(scene.sampled(range(49, 121), server_workers_stopped=stopped))
    assert ("event 1" in found.evidence) is is_named
    assert ("event 1" in found.remedy.split("; ")[0]) is is_named


def test_a_silence_of_all_names_the_event_and_the_mark_before_it() -> None:
    scene = with_a_command(silent(750, range(60, 70), between(1, 30)), 49.5)
    scene.events.append(mark(49.2, "deploy {1.2}"))
    for second in range(50, 70):
        scene.ticks[second].answered = 0
        scene.ticks[second].awaiting = 9
    found = only(scene)
    assert "event 1" in found.evidence
    assert "{1.2}" in found.evidence
    # Where nothing was acknowledged, the path comes before the command.
    cut = only(with_a_command(unanswered(silent(800, range(60, 80), between(1, 30)), 50, 80), 49.5))
    assert cut.code == "path_cut"
    assert ["event 1" in clause for clause in cut.remedy.split("; ")] == [False, True]


def test_silences_far_apart_are_separate() -> None:
    scene = Scene(seconds=300).die(200, "heartbeat_timeout", range(20, 60), idle=between(250.1, 310), age=between(300, 400))
    scene.plan = Plan(urls=("http://127.0.0.1:1/",), connections=HELD, keepalive_s=60.0, timeout_s=10.0)
    scene.die(800, "heartbeat_timeout", range(200, 220), idle=between(11, 40))
    assert by_code(unanswered(scene, 190, 300)) == {"path_cut": 800, "silent_drop": 200}


def test_a_box_that_forgets_and_resets() -> None:
    scene = Scene(keepalive_s=1000.0).die(200, "reset", EVER, idle=between(350, 499))
    # While idle: unexplained; in answer to a heartbeat: connections with the longer pauses were forgotten.
    assert codes_of(scene) == [("unexplained", False)]
    for tick in scene.ticks.values():
        tick.beats_failed = tick.lost
    assert codes_of(scene) == [("box_reset", False)]
    assert "350 s" in only(scene).evidence


@pytest.mark.parametrize(("answered", "code"), [(0, ("box_reset", True)), (60, ("box_reset", False))])
def test_resets_after_a_silence_are_no_idle_times(answered: int, code: tuple[str, bool]) -> None:
    """A box that stands still, and then has lost its table: all had waited for their answers, whatever their idle times were before."""
    scene = Scene(keepalive_s=8.0).die(HELD, "reset", [60], idle=between(3, 4))
    scene.sampled(EVERY, server_sockets=float(HELD))
    scene.ticks[60].beats_failed = HELD
    for second in range(57, 60):
        scene.ticks[second].answered, scene.ticks[second].awaiting = answered, 60
    for second in range(60, 121):
        scene.ticks[second].held = 0
    assert codes_of(scene) == [code]
    assert ("forgets idle" in only(scene).evidence) == bool(answered)


# -- several at once


def test_a_limit_and_then_a_reload() -> None:
    scene = Scene().configured(keepalive_requests=100, keepalive_time=3600)
    scene.die(500, "closed_announced", range(10, 50), age=between(300, 500), idle=at(0), requests=at(100))
    scene.die(480, "closed_idle", [60]).die(20, "closed_announced", [60], idle=at(0), requests=between(1, 90))
    for second in range(60, 121):
        scene.ticks[second].held = 0
    for second in range(50, 60):
        scene.ticks[second].held = 500
    scene.sampled(range(50, 60), status_active=501.0).sampled(range(61, 121), status_active=1.0, status_connects=2.0)
    assert by_code(scene) == {"keepalive_requests": 500, "reload": 500}


def test_a_timer_among_others_takes_only_its_own() -> None:
    scene = Scene(keepalive_s=400.0).configured(keepalive_timeout=75).die(300, "closed_idle", EVER, idle=at(75))
    found = scene.die(40, "closed_idle", EVER, idle=between(1, 60)).found()
    assert [(one.code, one.count, one.certain) for one in found] == [("keepalive_timeout", 300, True), ("unexplained", 40, False)]


def test_two_timeouts_that_no_configuration_names() -> None:
    scene = Scene(keepalive_s=1000.0).die(300, "closed_idle", EVER, idle=at(60)).die(200, "closed_idle", EVER, idle=at(350))
    assert sorted((one.code, one.count) for one in scene.found()) == [("keepalive_timeout", 200), ("keepalive_timeout", 300)]


# -- too few, nothing known


@pytest.mark.parametrize("cause", ["closed_idle", "reset", "closed_announced", "heartbeat_timeout", "other"])
def test_unexplained_losses(cause: str) -> None:
    scene = Scene(seconds=2000).die(100, cause, range(10, 1990), age=between(1, 1900), idle=between(0, 29))
    assert (only(scene).code, only(scene).certain) == ("unexplained", False)


@pytest.mark.parametrize(("awaiting", "idle", "code"), [(0, 5, "refused_requests"), (HELD, 5, "unexplained"), (0, 400, "unexplained")])
def test_what_heartbeats_end_is_no_age_limit(awaiting: int, idle: int, code: str) -> None:
    # Most end at their first heartbeats, so that their ages are alike.
    scene = Scene(keepalive_s=10.0).die(80, "closed_awaiting", EVER, age=between(0, 1.9), idle=between(0, 1.9), requests=between(0, 2.9))
    scene.die(20, "closed_awaiting", EVER, age=between(2, 30), idle=between(0, 4.9), requests=between(1, 6))
    # Others that ended while idle, or that all wait for answers, show that heartbeats need not be the cause.
    scene.die(idle, "closed_idle", EVER, age=between(1, 100), idle=between(0, 4.9))
    for tick in scene.ticks.values():
        tick.awaiting = awaiting
    (one,) = [one for one in scene.found() if one.cause == "closed_awaiting"]
    assert (one.code, one.count) == (code, 100)
    assert "age limit" not in one.evidence


def test_an_age_limit_that_is_read_at_heartbeats() -> None:
    # None ends before 60 s, and then each at its next heartbeat.
    scene = Scene(keepalive_s=10.0).die(100, "closed_awaiting", EVER, age=between(60, 64.9), idle=between(0, 4.9), requests=between(15, 30))
    assert codes_of(scene) == [("lifetime", False)]


@pytest.mark.parametrize("cause", ["closed_idle", "closed_announced", "reset"])
def test_what_ends_in_its_first_second_has_no_age_limit(cause: str) -> None:
    scene = Scene().die(100, cause, EVER, age=between(0, 1.9), idle=between(0, 1.9), requests=at(1))
    assert {one.code for one in scene.found()} <= {"unexplained", "keepalive_off"}


def workers_ended(every_s: int, *, started: bool = True) -> Scene:
    """A worker that held four connections ends every so many seconds, and closes them."""
    ends = range(10, 110, every_s)
    scene = Scene().die(4 * len(ends), "closed_idle", list(ends), age=between(0, 9), idle=between(0, 9))
    for tick in scene.ticks.values():
        tick.held = 8
    for second in range(121):
        ended = float(sum(end <= second for end in ends))
        scene.sampled(range(second, second + 1), server_ended=ended, server_started=ended if started else 0.0)
    return scene


def test_workers_that_end_in_turn() -> None:
    assert codes_of(workers_ended(7)) == [("workers_in_turn", False)]
    # None took their place; or what ended held none of them.
    assert "workers_in_turn" not in by_code(workers_ended(7, started=False))
    helpers = workers_ended(7)
    for tick in helpers.ticks.values():
        tick.held = 80
    assert "workers_in_turn" not in by_code(helpers)


def test_workers_that_end_as_the_hold_ends() -> None:
    # The last tick ends in the drain; the last reading before it was made just before the hold's end.
    scene = workers_ended(7)
    last = max(second for second, tick in scene.ticks.items() if tick.deaths)
    scene.phases[-1:] = [Phase("hold", 2.0, last - 0.98), Phase("drain", last - 0.98, last + 0.1)]
    scene.ticks = {second: tick for second, tick in scene.ticks.items() if second <= last}
    assert codes_of(scene) == [("workers_in_turn", False)]


@pytest.mark.parametrize("generation", [1.0, None])
def test_a_graceful_restart_lasts_as_long_as_the_gap_between_heartbeats(generation: float | None) -> None:
    # Of 193 processes that hold one connection each or none, most end while idle, and each other as it answers its next heartbeat.
    scene = Scene().die(400, "closed_announced", list(range(50, 81)), age=between(48, 80), idle=between(0, 0.9))
    for second in range(121):
        ended = min(1930.0, max(0.0, 60.0 * (second - 48)))
        scene.sampled(range(second, second + 1), server_ended=ended, server_started=ended)
        scene.sampled(range(second, second + 1), status_generation=0.0 if second < 51 else generation)
    if generation is None:
        assert not by_code(scene).keys() & {"workers_in_turn", "reload"}
        return
    assert codes_of(scene) == [("reload", True)]


def slots_or_timer(held: Callable[[int], int], idle: Draw, answered: int, seconds: range = range(10, 100)) -> Scene:
    """Connections that end while idle as others open; ``held``: in each second."""
    scene = labelled(Scene(connections=200), "python3").die(20 * len(seconds), "closed_idle", seconds, age=idle, idle=idle, requests=at(1))
    for second, tick in scene.ticks.items():
        tick.held = held(second)
        tick.answered = answered
        tick.opened = 20 if second in seconds else 0
    return scene


def test_a_short_idle_timeout_is_no_lack_of_slots() -> None:
    timer = slots_or_timer(lambda second: 60 if second < 30 else 35, at(1.5), 30)
    assert codes_of(timer) == [("idle_timeout", False)]
    assert "slot" not in only(timer).evidence
    slots = slots_or_timer(lambda _: 50, between(0, 1.9), 30)
    assert codes_of(slots) == [("idle_reuse", False)]
    # A busy host sees some closes late: in such a second more were held than the server had.
    late = slots_or_timer(lambda second: 62 if second % 9 == 0 else 52, between(0, 1.9), 30)
    assert codes_of(late) == [("idle_reuse", False)]
    # At one number and after one idle time it may be either.
    either = slots_or_timer(lambda _: 50, at(1.5), 30)
    assert codes_of(either) == [("idle_timeout", False)]
    assert "slots" in only(either).evidence
    # The last ones outlive a timer.
    first = slots_or_timer(lambda _: 50, at(2.5), 30, seconds=range(10, 20))
    for second in range(20, 121):
        first.ticks[second].answered = 2
    assert codes_of(first) == [("idle_reuse", False)]
    # One closes sooner.
    sooner = slots_or_timer(lambda _: 50, at(2.5), 30).die(10, "closed_idle", range(30, 40), idle=at(0.2))
    assert codes_of(sooner) == [("idle_reuse", False)]


def test_no_losses_and_no_samples() -> None:
    assert Scene().found() == []
    ticks = [(2.0, Tick(second=1, deaths={"closed_idle": Deaths(count=4), "generator_lost": Deaths(count=2)}))]
    run = bare_run(ticks, plan=Scene().plan)
    found = diagnose(run, fold(run))
    assert [(one.code, one.count, one.from_s) for one in found] == [("too_few", 4, 1.0), ("generator_lost", 2, 1.0)]


@pytest.mark.parametrize("gap_s", [3.0, 30.0])
def test_the_chance_of_an_idle_time_matches_random_moments(gap_s: float) -> None:
    chance = random.Random(5)
    seen = 0
    for _ in range(20_000):
        # Renewals with gaps uniform in [1, gap], at a random moment.
        now, moment = 0.0, chance.uniform(200, 300)
        while (after := now + chance.uniform(1.0, gap_s)) <= moment:
            now = after
        seen += moment - now < 2.0
    assert chance_idle(gap_s, 0, 1) == pytest.approx(seen / 20_000, abs=0.012)


# -- any records


@pytest.mark.parametrize("seed", range(60))
def test_diagnoses_of_any_records_add_up(seed: int) -> None:
    chance = random.Random(seed)
    scene = Scene(seconds=chance.choice([3, 20, 120]), keepalive_s=chance.choice([2.0, 3.0, 60.0, 900.0]))
    for _ in range(chance.randint(1, 6)):
        first = chance.randint(1, scene.seconds)
        died = range(first, chance.randint(first, scene.seconds) + 1)
        low = chance.choice([0.0, 0.0, 1.0, 30.0, 3600.0])
        draws = [between(low, low + chance.choice([0.0, 0.5, 40.0, 4000.0])) for _ in range(3)]
        scene.die(chance.choice([1, 4, 30, 400]), chance.choice(DEATHS), died, *draws)
    for tick in scene.ticks.values():
        tick.opened, tick.answered, tick.held = (chance.choice([0, 0, 5, HELD]) for _ in range(3))
        tick.by_status = chance.choice([{}, {200: 5}, {200: 5, 500: 3}])
        tick.beats_failed = chance.choice([0, tick.lost])
    if chance.random() < 0.5:
        scene.configured(keepalive_timeout=chance.choice([0, 1, 75]), keepalive_requests=chance.choice([1, 30, 1000]))
        scene.configured(keepalive_time=3600, client_header_timeout=60, worker_connections=chance.choice([0, 100, 1e6]))
    for name in ("server.processes", "status.active", "status.accepts", "server.cpu_s", "generator.processes"):
        gone = chance.choice([range(0), range(0), range(9, 15), range(9, 999), range(999)])
        scene.sampled(gone, **{name.replace(".", "_", 1): None})
    if chance.random() < 0.2:
        scene.samples = scene.samples[: chance.choice([0, 1, 30])]
    if chance.random() < 0.2:
        scene.phases = chance.choice([[], scene.phases[:1], [*scene.phases, Phase("drain", 10.0, 11.0)]])
    if chance.random() < 0.3:
        scene.environment = chance.choice([{}, {"server": None}, {"server": {"label": None}}, {"server": {"label": "Apache"}}])
    scene.found()


def test_ages_that_agree_only_in_part_hide_no_idle_timeout() -> None:
    scene = Scene()
    scene.environment = {"server": {"label": "the server"}}
    scene.die(60, "closed_idle", EVER, at(20), at(20), at(1)).die(25, "closed_idle", EVER, at(20), between(0, 18), at(2))
    scene.die(70, "closed_idle", EVER, between(30, 100), at(27), at(3))
    assert [(one.code, one.count) for one in scene.found()] == [("idle_timeout", 70), ("idle_timeout", 60), ("unexplained", 25)]


def test_a_proxy_gives_up_on_its_backend_at_one_age() -> None:
    # They waited for the first answer all the time: none of them was idle.
    scene = Scene(keepalive_s=4.0).die(40, "closed_awaiting", range(20, 40), age=at(3), idle=at(3), requests=at(0))
    for tick in scene.ticks.values():
        tick.beats_failed = tick.lost
    assert codes_of(scene) == [("closed_at_once", False)]


def in_step(requests: Draw, *, answered: int) -> Scene:
    """A thousand connections end with notice within two seconds, as those do that were opened together."""
    scene = Scene().die(HELD, "closed_announced", [60, 61], age=between(58, 60), idle=at(0), requests=requests)
    scene.ticks[1].opened = HELD
    for second in range(62, 121):
        scene.ticks[second].held = 0
    for tick in scene.ticks.values():
        tick.answered = 0
    scene.ticks[2].answered = answered
    return scene.sampled(EVERY, server_ended=0.0, status_active=None, status_accepts=None, status_connects=None)


def test_a_request_limit_of_connections_in_step() -> None:
    one = only(in_step(at(3), answered=3 * HELD))
    assert (one.code, one.certain, "in step" in one.evidence) == ("keepalive_requests", False, True)
    # It is none if some were answered more often, or not all ended at one number.
    assert only(in_step(at(3), answered=4 * HELD)).code == "burst"
    assert only(in_step(between(2, 5), answered=3 * HELD)).code == "burst"


@pytest.mark.parametrize("cause", ["closed_idle", "reset", "closed_awaiting"])
@pytest.mark.parametrize("idle_s", [5.0, 60.0, 77.0, 350.0])
def test_a_remedy_of_a_stream_is_one_that_it_has(cause: str, idle_s: float) -> None:
    """Connections that listen send no heartbeats, so --keepalive changes nothing."""
    scene = Scene(seconds=600, http_protocol="sse", silence_s=900.0).die(400, cause, range(100, 500), age=at(idle_s), idle=at(idle_s), requests=at(0))
    for one in scene.found():
        assert not {word for word in ("--keepalive", "--first-beat", "heartbeat") if word in one.remedy}, one


@pytest.mark.parametrize(
    ("idle_s", "timer_s", "low"),
    [
        # A timer looks early by some milliseconds: truncated, a quarter of its ends is a second early.
        ([3.99] * 25 + [4.0] * 75, 4.0, 3.0),
        ([3.0] * 100, 4.0, 4.0),
        ([3.0] * 60 + [3.99] * 10 + [4.01] * 30, 4.0, 4.0),
        ([4.49] * 100, 4.5, 4.0),
        # At 75 s a record is a second wide in milliseconds too.
        ([74.99] * 25 + [75.0] * 75, 75.0, 74.0),
        ([73.5] * 100, 75.0, 74.0),
    ],
)
def test_an_end_before_a_timer_is_not_of_that_timer(idle_s: list[float], timer_s: float, low: float) -> None:
    dead = Deaths(len(idle_s))
    for value in idle_s:
        dead.idle_s.add(value)
        dead.idle_ms.add(1e3 * value)
    assert idle_window(dead, timer_s)[0] == low
    # An older run file has whole seconds alone.
    dead.idle_ms = Histogram()
    assert idle_window(dead, timer_s)[0] == math.floor(timer_s - 0.25)


@pytest.mark.parametrize(
    ("idle_s", "is_spread"),
    [
        ([1.49, 1.5, 1.51] * 30, False),
        ([1.77, 1.9, 2.0, 2.2, 2.4, 2.8] * 20, True),
        # Others than those of the span, and records of older run files, say nothing.
        ([1.5] * 90 + [0.2, 4.0] * 90, False),
        ([], False),
    ],
)
def test_a_timer_ends_all_after_one_time(idle_s: list[float], is_spread: bool) -> None:
    dead = Deaths(len(idle_s))
    for value in idle_s:
        dead.idle_ms.add(1e3 * value)
    assert has_spread_idle_times(dead, 1, 2) is is_spread
