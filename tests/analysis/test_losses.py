"""Diagnoses of runs that never were: each mechanism by itself, several at once, too few to tell, and what fits none."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from synthetic_run import bare_run

from asyncli.analysis.losses.attribution import Diagnosis, diagnose
from asyncli.analysis.losses.likelihood import chance_idle, mode, within, without
from asyncli.analysis.totals import fold
from asyncli.core.histogram import Histogram
from asyncli.core.life import DEATHS
from asyncli.plan import Plan
from asyncli.records import Check, Deaths, Phase, Sample, Tick

HELD = 1000
NGINX = {"server": {"label": "nginx/1.22.1"}}
Draw = Callable[[random.Random], float]


def at(value: float) -> Draw:
    return lambda _: value


def between(low: float, high: float) -> Draw:
    return lambda chance: chance.uniform(low, high)


ANY_AGE, ANY_IDLE, ANY_REQUESTS = between(1, 100), between(0, 29), between(1, 90)


class Scene:
    """A hold of ``seconds`` with 1000 connections that beat every 1 to 30 s on an nginx of 2 workers, in which some die."""

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
                    "generator.processes": 3.0, "server.processes": 3.0, "server.cpu_s": 0.1 * t_s, "status.active": (HELD if t_s > 1 else 0) + 1.0,
                    "status.accepts": 5000.0 + t_s, "status.connects": 1.0,
                },
            )
            for t_s in range(seconds + 1)
        ]  # fmt: skip
        self.checks: list[Check] = []
        self.environment: dict[str, Any] = dict(NGINX)
        self._random = random.Random(3)

    def says(self, **directives: float) -> Scene:
        """nginx.conf was read, and says this."""
        self.checks += [Check(f"nginx_{name}", name, "ok", have=value) for name, value in directives.items()]
        return self

    def die(
        self, count: int, cause: str, seconds: range | list[int], age: Draw = ANY_AGE, idle: Draw = ANY_IDLE,
        requests: Draw = ANY_REQUESTS,
    ) -> Scene:  # fmt: skip
        """``count`` die, spread evenly over these seconds."""
        places = list(seconds)
        for number in range(count):
            dead = self.ticks[places[number * len(places) // count]].deaths.setdefault(cause, Deaths())
            dead.count += 1
            dead.age_s.add(age(self._random))
            dead.idle_s.add(idle(self._random))
            dead.requests.add(int(requests(self._random)))
        return self

    def sampled(self, seconds: range, **values: float | None) -> Scene:
        """Other values, or None for none, in these seconds' samples; ``status_active`` for status.active."""
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
        run = bare_run(ticks, self.phases, self.samples, self.environment, plan=self.plan, checks=self.checks)
        totals = fold(run)
        found = diagnose(run, totals)
        counts: dict[str, int] = {}
        for one in found:
            counts[one.cause] = counts.get(one.cause, 0) + one.count
            assert one.count > 0
            assert one.evidence
            assert one.remedy
            assert "nan" not in one.evidence.lower().replace("nginx", "")
            assert one.from_s is not None
            assert one.to_s is not None
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


EVER = range(10, 110)


# -- this machine


def test_what_ended_while_this_machine_slept_is_laid_to_that_and_the_rest_is_not() -> None:
    """Woken at 40 s after ten minutes' sleep: what had not been heard of since is explained, what had been is not."""
    scene = Scene().says(keepalive_timeout=75)
    scene.samples.insert(41, Sample(40.3, {"clock.suspended_s": 600.0}))
    scene.die(300, "closed_idle", [40, 41], idle=between(2, 29))
    scene.die(20, "reset", range(42, 60), idle=at(25))
    scene.die(40, "heartbeat_timeout", range(50, 75), idle=at(45))
    scene.die(7, "reset", range(50, 60), idle=at(1))
    assert by_code(scene) == {"suspended": 360, "unexplained": 7}
    one = next(one for one in scene.found() if one.cause == "closed_idle")
    assert all(said in one.evidence for said in ("10 min", "at 0:00:40", "1 min 15 s"))
    scene.checks.clear()
    assert "1 min 15 s" not in scene.found()[0].evidence


# -- a client host


def test_what_a_host_lost_while_it_was_silent_is_laid_to_its_own_way() -> None:
    """A host of two is cut off for 13.6 s, and tells of its dead when it is back; what died before that was the other's."""
    scene = Scene()
    scene.samples.insert(52, Sample(51.4, {"silent.vm at 192.168.1.9": 13.6}))
    scene.die(77, "heartbeat_timeout", range(50, 60))
    for second in range(40, 90):
        scene.ticks[second].latency_us.add(9e6)
    one = only(scene)
    assert (one.code, one.certain) == ("client_cut", False)
    assert all(said in one.evidence for said in ("vm at 192.168.1.9", "13.6 s", "until 0:00:51"))
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
    assert all(number in found[0].evidence for number in ("10.0.0.9", "6.0 s", "10.0.0.10", "7.5 s", "0:00:53"))
    assert all(number in found[1].evidence for number in ("10.0.0.10", "5.5 s", "0:01:31"))


# -- limits and timers


def hours(scene: Scene) -> Scene:
    return scene.die(49_812, "closed_announced", range(5, 35), age=between(3600, 3629.9), idle=at(0), requests=between(200, 260))


def test_keepalive_time() -> None:
    one = only(hours(Scene().says(keepalive_time=3600, keepalive_requests=1e7)))
    assert (one.code, one.certain, one.count) == ("keepalive_time", True, 49_812)
    assert all(said in one.evidence for said in ("nginx keepalive_time", "says 1 h", "from 0:00:05", "0:00:35"))
    likely = only(hours(Scene()))
    assert (likely.code, likely.certain) == ("keepalive_time", False)
    assert "1 h" in likely.evidence


def test_keepalive_requests() -> None:
    def scene() -> Scene:
        return Scene().die(500, "closed_announced", EVER, age=between(700, 1100), idle=at(0), requests=at(1000))

    one = only(scene().says(keepalive_requests=1000, keepalive_time=3600))
    assert (one.code, one.certain) == ("keepalive_requests", True)
    assert all(number in one.evidence for number in ("1,000", "11 min"))
    assert "1,000" in one.evidence
    likely = only(scene())
    assert (likely.code, likely.certain) == ("keepalive_requests", False)
    assert "1,000" in likely.evidence
    other = only(scene().says(keepalive_requests=5000))
    assert (other.code, other.certain) == ("keepalive_requests", False)
    assert "5,000" in other.evidence


def test_a_limit_of_requests_and_some_that_end_at_another_number_stay_apart() -> None:
    scene = Scene().says(keepalive_requests=1000)
    scene.die(500, "closed_announced", EVER, age=between(9000, 9900), idle=at(0), requests=at(1000))
    scene.die(400, "closed_announced", EVER, age=between(900, 1900), idle=at(0), requests=at(100))
    found = scene.found()
    assert [(one.code, one.count, one.certain) for one in found] == [
        ("keepalive_requests", 500, True), ("keepalive_requests", 400, False),
    ]  # fmt: skip
    assert "1,000" in found[1].evidence


def test_request_numbers_that_spread_at_one_age_are_a_limit_of_age() -> None:
    scene = Scene(seconds=200, keepalive_s=10.0)
    one = only(
        scene.die(902, "closed_announced", range(10, 190), age=between(3600, 3604.9), idle=at(0), requests=between(1184, 1231))
    )
    assert (one.code, one.certain) == ("keepalive_time", False)


@pytest.mark.parametrize(("cause", "seconds"), [("closed_idle", range(100, 160)), ("closed_announced", range(100, 130))])
def test_what_happens_over_a_minute_late_in_a_hold_is_no_limit_of_age(cause: str, seconds: range) -> None:
    # Opened over 100 s.
    scene = Scene(seconds=300).die(
        HELD, cause, seconds, age=between(28_800, 28_930), idle=between(0, 29), requests=between(1800, 2000)
    )
    assert only(scene).code == "unexplained"


def test_regular_heartbeats_make_requests_and_age_look_the_same() -> None:
    def scene() -> Scene:
        return Scene(keepalive_s=2.0).die(500, "closed_announced", EVER, age=between(100, 101), idle=at(0), requests=at(101))

    # The configuration tells them apart.
    assert only(scene().says(keepalive_requests=101)).code == "keepalive_requests"
    assert only(scene().says(keepalive_requests=1e7, keepalive_time=100)).code == "keepalive_time"


def test_keepalive_timeout() -> None:
    def scene() -> Scene:
        return Scene(keepalive_s=200.0).die(400, "closed_idle", EVER, idle=between(74.995, 75.3))

    one = only(scene().says(keepalive_timeout=75))
    assert (one.code, one.certain) == ("keepalive_timeout", True)
    assert "75 s" in one.evidence
    likely = only(scene())
    assert (likely.code, likely.certain) == ("keepalive_timeout", False)
    assert "75 s" in likely.evidence
    # The file may say by now what the running nginx does not know of.
    edited = only(scene().says(keepalive_timeout=3600))
    assert (edited.code, edited.certain) == ("keepalive_timeout", False)
    assert "1 h" in edited.evidence
    other = only(Scene(keepalive_s=200.0).says(keepalive_timeout=3600).die(400, "closed_idle", EVER, idle=at(50)))
    assert (other.code, other.certain) == ("box_idle_timeout", False)
    assert "1 h" in other.evidence


@pytest.mark.parametrize(
    ("label", "idle_s", "code", "words"),
    [
        ("Apache/2.4", 5, "idle_timeout", "Apache and Node.js"),
        ("", 60, "idle_timeout", "AWS's application and classic"),
        ("", 350, "idle_timeout", "AWS's network"),
        ("", 75, "keepalive_timeout", "looks like nginx keepalive_timeout (75 s by default)"),
        ("", 44, "idle_timeout", "an idle timeout of the server or of a box on the way"),
        ("nginx/1.25", 44, "keepalive_timeout", "looks like nginx keepalive_timeout"),
    ],
)
def test_idle_timeouts_that_somebody_is_known_for(label: str, idle_s: float, code: str, words: str) -> None:
    scene = Scene(keepalive_s=1000.0).die(400, "closed_idle", EVER, idle=between(idle_s, idle_s + 0.5))
    scene.environment = {"server": {"label": label}}
    one = only(scene)
    assert (one.code, one.certain) == (code, False)
    assert words in one.evidence


def test_heartbeats_that_crossed_with_the_close_belong_to_it() -> None:
    scene = Scene(keepalive_s=200.0).says(keepalive_timeout=75).die(400, "closed_idle", EVER, idle=at(75))
    found = scene.die(3, "closed_awaiting", EVER, idle=at(75)).die(2, "reset", EVER, idle=at(75)).found()
    assert {(one.cause, one.code, one.count) for one in found} == {
        ("closed_idle", "keepalive_timeout", 400), ("closed_awaiting", "keepalive_timeout", 3), ("reset", "keepalive_timeout", 2),
    }  # fmt: skip
    # One event did it all.
    assert len({one.incident for one in found}) == 1


def test_idle_times_that_random_moments_would_show_too_say_nothing() -> None:
    # Beats once a second: whenever something happens, everyone was idle for 0 s.
    scene = Scene(keepalive_s=2.0).says(keepalive_timeout=1).die(60, "closed_idle", EVER, idle=at(0))
    assert only(scene).code == "unexplained"


def test_a_dozen_idle_times_that_agree_by_accident_say_nothing() -> None:
    # In gaps of 1 to 5 s half of all random moments find 1 or 2 s.
    assert only(Scene(keepalive_s=10.0).die(12, "reset", EVER, idle=between(1, 2.9))).code == "unexplained"
    assert only(Scene(keepalive_s=10.0).die(120, "reset", EVER, idle=between(1, 2.9))).code == "box_reset"


def test_client_header_timeout() -> None:
    scene = Scene(keepalive_s=200.0).die(60, "closed_idle", EVER, age=at(60), idle=at(60), requests=at(0))
    assert (only(scene).code, only(scene).certain) == ("client_header_timeout", False)
    scene.says(client_header_timeout=60, keepalive_timeout=60)
    assert (only(scene).code, only(scene).certain) == ("client_header_timeout", True)


def test_keepalive_that_is_off() -> None:
    scene = Scene().die(1000, "closed_announced", [5], age=at(0), idle=at(0), requests=at(1))
    assert (only(scene).code, only(scene).certain) == ("keepalive_off", False)
    assert only(scene.says(keepalive_timeout=0)).certain
    none = Scene().says(keepalive_requests=0).die(60, "closed_announced", EVER, age=at(0), idle=at(0), requests=at(1))
    assert only(none).certain
    assert "keepalive_requests 0" in only(none).evidence
    # Where nearly all live and beat, a few that ended so early say nothing.
    few = Scene().die(5, "closed_announced", EVER, idle=at(0), requests=at(1))
    few.ticks[1].opened = HELD
    assert "keepalive_off" not in by_code(few)


def test_errors_that_end_the_connection() -> None:
    scene = Scene().die(100, "closed_announced", EVER, idle=at(0))
    for second in EVER:
        scene.ticks[second].by_status = {200: 50, 502: 1}
    assert only(scene).code == "http_error"
    assert "HTTP 502" in only(scene).evidence
    # Few beside many closes are no reason, unless they are such as nginx closes after.
    few = Scene().die(1000, "closed_announced", EVER, idle=at(0))
    few.ticks[20].by_status = few.ticks[21].by_status = {502: 3}
    assert only(few).code == "unexplained"
    few.ticks[20].by_status = few.ticks[21].by_status = {500: 3}
    assert by_code(few) == {"http_error": 6, "unexplained": 994}
    # Errors that leave the connection open are no reason.
    for second in EVER:
        scene.ticks[second].by_status = {404: 50}
    assert only(scene).code == "unexplained"


def test_closed_at_once_and_at_a_certain_age() -> None:
    assert only(Scene().die(60, "closed_awaiting", EVER, age=at(0.01), idle=at(0.01), requests=at(0))).code == "closed_at_once"
    one = only(Scene().die(60, "closed_idle", EVER, age=between(300, 300.9)))
    assert (one.code, one.certain) == ("lifetime", False)
    assert "300 s" in one.evidence


def test_the_words_of_a_farewell_are_an_idle_timeout() -> None:
    assert only(Scene().die(60, "closed_announced", EVER, idle=at(20))).code == "idle_timeout"


def test_what_its_cause_says_already() -> None:
    assert [one.code for one in Scene().die(7, "generator_lost", [5]).die(3, "protocol_error", [5]).found()] == [
        "generator_lost",
        "not_http",
    ]


# -- room, and moments


def test_idle_reuse() -> None:
    scene = Scene().die(300, "closed_idle", range(2, 12)).die(4, "reset", range(2, 12))
    for second in range(2, 12):
        scene.ticks[second].opened = 40
    assert set(by_code(scene)) == {"unexplained", "too_few"}
    full = scene.says(worker_connections=1060)
    found = full.found()
    assert [(one.cause, one.code, one.certain) for one in found] == [
        ("closed_idle", "idle_reuse", True),
        ("reset", "idle_reuse", True),
    ]
    # Its own listeners, its channel and our status page take slots too: 1,000 clients are 15/16 of 1,070 already.
    full.checks = []
    assert {one.certain for one in full.says(worker_connections=1070).found() if one.code == "idle_reuse"} == {True}
    # With room for twice as many it is something else.
    full.checks = []
    assert "idle_reuse" not in by_code(full.says(worker_connections=2200))
    # With room for all of them, but perhaps not in the worker that was dealt most.
    full.checks = []
    assert {one.certain for one in full.says(worker_connections=1100).found() if one.code == "idle_reuse"} == {False}


def test_a_reload_of_a_server_that_is_nearly_full_is_no_idle_reuse() -> None:
    # What is lost is replaced within the same second.
    for slots in (1040, 1100):
        scene = burst().says(worker_connections=slots).sampled(range(61, 121), status_connects=2.0)
        for second in range(60, 121):
            scene.ticks[second].held = HELD
        scene.ticks[60].opened = HELD
        assert (only(scene).code, only(scene).certain) == ("reload", True)


def test_a_server_that_never_holds_what_is_asked_for_and_closes_as_many_as_it_accepts() -> None:
    scene = Scene(connections=2000).die(300, "closed_idle", range(10, 40))
    assert only(scene).code == "unexplained"
    for second in range(10, 40):
        scene.ticks[second].opened = 12
    assert (only(scene).code, only(scene).certain) == ("idle_reuse", False)
    assert all(number in only(scene).evidence for number in ("1,000", "2,000"))
    # Where all that was asked for is held, what is lost is replaced for another reason.
    scene.plan = Scene().plan
    assert only(scene).code == "unexplained"


def burst(count: int = HELD, cause: str = "closed_idle", second: int = 60) -> Scene:
    # Its configuration was read, so it is the one that we connect to.
    scene = Scene().says(keepalive_timeout=3600, keepalive_requests=1e7, keepalive_time=1e6).die(count, cause, [second])
    for later in range(second, 121):
        scene.ticks[later].held = HELD - count
    return scene


def test_a_reload() -> None:
    # Unpolled: only the share of the dead speaks.
    alone = burst().sampled(range(121), status_active=None, status_accepts=None, status_connects=None)
    assert (only(alone).code, only(alone).certain) == ("reload", False)
    assert "1,000" in only(alone).evidence
    # The status connection ended with them, and the server let go of them all.
    polled = burst().sampled(range(61, 121), status_active=1.0, status_connects=2.0)
    assert (only(polled).code, only(polled).certain) == ("reload", True)
    # Where something may stand between, that is a likelihood.
    polled.checks = []
    assert (only(polled).code, only(polled).certain) == ("reload", False)
    # Its processes were counted as they ended.
    counted = burst().sampled(range(121), status_active=None, status_accepts=None, status_connects=None, server_ended=0.0)
    assert (only(counted.sampled(range(61, 121), server_ended=2.0)).certain) is True
    assert only(counted).from_s == 60.0


def test_those_who_were_told_in_a_reload_belong_to_it() -> None:
    scene = (
        burst(980).die(20, "closed_announced", [60], idle=at(0)).sampled(range(61, 121), status_active=1.0, status_connects=2.0)
    )
    assert by_code(scene) == {"reload": 1000}


def test_a_crash_of_a_worker() -> None:
    # nginx never counts down what a killed worker held.
    counted = burst(480)
    assert (only(counted).code, only(counted).certain) == ("worker_crash", True)
    assert "480" in only(counted).evidence
    counted.checks = []
    assert (only(counted).code, only(counted).certain) == ("worker_crash", False)
    share = burst(480).sampled(range(121), status_active=None)
    assert (only(share).code, only(share).certain) == ("worker_ended", False)
    orderly = burst(480).sampled(range(61, 121), status_active=HELD - 480 + 1.0)
    assert (only(orderly).code, only(orderly).certain) == ("worker_ended", False)
    ended = share.sampled(range(61), server_ended=0.0).sampled(range(61, 121), server_ended=1.0)
    assert (only(ended).code, only(ended).certain) == ("worker_ended", True)
    # Nobody ended: it was something else.
    assert only(share.sampled(range(61, 121), server_ended=0.0)).code == "burst"
    # The end of an only worker may be a reload as well as a crash.
    lone = burst().sampled(range(121), status_active=None, status_connects=None, server_processes=2.0, server_ended=0.0)
    lone.sampled(range(61, 121), server_ended=1.0)
    assert (only(lone).code, only(lone).certain) == ("reload", False)


def test_a_server_that_ends_and_one_that_is_restarted() -> None:
    gone = burst(cause="reset").sampled(range(61, 121), server_processes=None, server_cpu_s=None, status_active=None)
    assert (only(gone).code, only(gone).certain) == ("server_ended", True)
    back = burst(cause="reset").sampled(range(61, 64), server_processes=None, status_active=None)
    assert (only(back).code, only(back).certain) == ("server_restarted", True)
    anew = burst().sampled(range(61, 121), status_accepts=1.0, status_active=1.0)
    assert (only(anew).code, only(anew).certain) == ("server_restarted", True)
    refused = burst().sampled(range(121), server_processes=None, status_active=None, status_accepts=None, status_connects=None)
    for second in range(60, 63):
        refused.ticks[second].failures = {"refused": 300}
    assert (only(refused).code, only(refused).certain) == ("server_ended", False)


def test_what_the_server_itself_shows_comes_before_a_likely_limit() -> None:
    scene = Scene(keepalive_s=200.0).die(HELD, "closed_idle", [6], age=at(4), idle=at(4), requests=at(0))
    assert only(scene).code == "client_header_timeout"
    scene.sampled(range(7, 121), server_processes=None, status_active=None)
    assert (only(scene).code, only(scene).certain) == ("server_ended", True)


def test_a_remote_server_that_dies_is_not_reloaded() -> None:
    remote = burst().sampled(range(121), server_processes=None, server_cpu_s=None)
    remote.checks = []
    remote.sampled(range(61, 121), status_active=None, status_accepts=None, status_connects=None)
    assert (only(remote).code, only(remote).certain) == ("server_ended", False)
    unpolled = remote.sampled(range(121), status_active=None, status_accepts=None, status_connects=None)
    unpolled.environment = {"server": {"label": "Apache/2.4"}}
    unpolled.ticks[62].opened = HELD


@pytest.mark.parametrize("every_s", [3, 4])
def test_processes_that_are_read_seldom_have_not_ended(every_s: int) -> None:
    scene = burst(100, cause="reset").sampled(range(61, 121), status_active=901.0)
    for t_s in range(121):
        if t_s % every_s:
            scene.sampled(range(t_s, t_s + 1), server_processes=None, server_cpu_s=None)
    assert only(scene).code == "burst"
    # For as long as several such readings they were gone.
    assert only(scene.sampled(range(58, 90), server_processes=None)).code == "server_restarted"


def test_a_reading_that_is_missing_at_the_end_of_the_file_is_no_end_of_the_server() -> None:
    scene = burst(100, cause="reset", second=119).sampled(range(120, 121), server_processes=None, status_active=901.0)
    assert only(scene).code == "burst"


def test_a_helper_that_ends_meanwhile_has_nothing_to_do_with_it() -> None:
    def scene(count: int, cause: str) -> Scene:
        of_eight = burst(count, cause).sampled(range(121), server_processes=9.0, server_ended=0.0)
        return of_eight.sampled(range(61, 121), server_ended=1.0, status_active=HELD - count + 1.0)

    assert only(scene(12, "reset")).code == "burst"
    assert (only(scene(125, "closed_idle")).code, only(scene(125, "closed_idle")).certain) == ("worker_ended", True)


def test_one_late_reading_is_no_end_of_the_server() -> None:
    scene = burst().sampled(range(61, 121), status_active=1.0, status_connects=2.0).sampled(range(61, 62), server_processes=None)
    assert only(scene).code == "reload"


def test_what_the_server_still_counts_though_it_was_reset_was_reset_by_a_box() -> None:
    one = only(burst(cause="reset"))
    assert (one.code, one.certain) == ("box_reset", True)
    assert "1,000" in one.evidence


def test_a_box_that_loses_its_table_and_a_burst_of_some() -> None:
    assert only(burst(cause="reset").sampled(range(61, 121), status_active=1.0)).code == "box_reset"
    some = burst(100).sampled(range(61, 121), status_active=901.0)
    assert (only(some).code, only(some).certain) == ("burst", False)


def test_reloads_again_and_again_are_one_diagnosis() -> None:
    scene = Scene(seconds=600).says(keepalive_timeout=3600)
    for place, second in enumerate(range(60, 600, 60)):
        scene.die(HELD, "closed_idle", [second]).sampled(range(second + 1, 601), status_connects=2.0 + place)
    one = only(scene)
    assert (one.code, one.certain, one.count) == ("reload", True, 9 * HELD)
    assert all(number in one.evidence for number in ("9 moments", "0:01:00", "0:02:00", "0:03:00", "6 more"))
    assert (one.from_s, one.to_s) == (60.0, 541.0)


def test_a_reload_that_nothing_proves_stays_a_likelihood_beside_those_that_are_proven() -> None:
    scene = Scene(seconds=300).says(keepalive_timeout=3600)
    for place, second in enumerate((60, 120, 180)):
        scene.die(HELD, "closed_idle", [second]).sampled(range(second + 1, 301), status_connects=2.0 + place)
    scene.die(HELD - 50, "closed_idle", [240])
    assert [(one.code, one.count, one.certain) for one in scene.found()] == [
        ("reload", 3 * HELD, True), ("reload", HELD - 50, False),
    ]  # fmt: skip


@pytest.mark.parametrize("second", [59, 61])
def test_one_beyond_a_second_s_border_belongs_to_its_moment(second: int) -> None:
    one = only(Scene().die(1, "reset", [second]).die(HELD - 1, "reset", [60]))
    assert (one.code, one.count) == ("box_reset", HELD)
    # One who died a while before does not.
    assert by_code(Scene().die(1, "reset", [second - 5]).die(HELD - 1, "reset", [60])) == {"box_reset": HELD - 1, "too_few": 1}


def test_the_first_few_of_a_great_burst_belong_to_it() -> None:
    """100,000 take an nginx that reloads some seconds to close: in the first one may be less than a tenth of the fullest."""
    scene = Scene(seconds=300, connections=100_000).says(keepalive_timeout=3600)
    for second, dead in enumerate((3_840, 18_363, 14_635, 43_395, 19_767), 60):
        scene.die(dead, "closed_idle", [second])
    one = only(scene.sampled(range(65, 301), status_connects=2.0))
    assert (one.code, one.count, one.certain) == ("reload", 100_000, True)


def test_moments_that_come_all_the_time_are_none() -> None:
    scene = Scene(seconds=1000).die(6000, "closed_idle", range(10, 990, 10))
    # The first or the last of them has neighbours on one side alone.
    assert by_code(scene)["unexplained"] > 5800


def test_deaths_at_an_even_pace_are_no_burst() -> None:
    assert only(Scene().die(400, "closed_idle", EVER)).code == "unexplained"


# -- silence


def silent(count: int, seconds: range, gap: Draw, **options: Any) -> Scene:
    scene = Scene(**options)
    timeout = scene.plan.timeout_s
    return scene.die(count, "heartbeat_timeout", seconds, idle=lambda chance: gap(chance) + timeout + 0.1 * chance.random())


def test_a_box_that_drops_silently() -> None:
    scene = silent(200, EVER, between(240, 300), keepalive_s=600.0)
    one = only(scene)
    assert (one.code, one.certain) == ("silent_drop", False)
    assert "240 s" in one.evidence
    assert (
        "looks like a box on the way drops idle connections without a word (the idle timeout of Azure's load balancer)"
        in one.evidence
    )
    # The server still counts them.
    for second, tick in scene.ticks.items():
        tick.held = HELD - min(200, max(0, (second - 10) * 2))
    assert only(scene).certain
    assert "200" in only(scene).evidence


def test_a_server_that_stands_still() -> None:
    scene = silent(HELD, range(60, 80), between(1, 30))
    for second in range(50, 121):
        scene.ticks[second].answered = 0
    assert (only(scene).code, only(scene).certain) == ("path_cut", False)
    scene.sampled(range(50, 121), status_active=None, status_accepts=None, server_cpu_s=5.0)
    assert (only(scene).code, only(scene).certain) == ("server_stalled", True)
    scene.sampled(range(121), server_processes=None, server_cpu_s=None, status_active=None, status_accepts=None)
    assert (only(scene).code, only(scene).certain) == ("server_stalled", False)


def test_a_silence_is_dated_by_its_first_heartbeat() -> None:
    # Those that died first, at 0:01:00, had waited for the 10 s of --timeout.
    assert "from 0:00:50" in only(unanswered(silent(HELD, range(60, 80), between(1, 30)))).evidence
    assert "from 0:00:50" in only(unanswered(silent(500, range(60, 61), between(1, 30)))).evidence


def test_a_server_that_wakes_stood_still_before() -> None:
    scene = silent(500, range(60, 63), between(1, 30))
    for second in range(50, 62):
        scene.ticks[second].answered = 0
    # It answers what has waited.
    scene.ticks[62].answered = 900
    scene.sampled(range(50, 63), status_active=None, status_accepts=None, status_connects=None, server_cpu_s=5.0)
    assert (only(scene).code, only(scene).certain) == ("server_stalled", True)


def unanswered(scene: Scene, first: int = 50, last: int = 120) -> Scene:
    """Nobody is answered in these seconds."""
    for second in range(first, last + 1):
        scene.ticks[second].answered = 0
    return scene


def counting(scene: Scene, name: str, before: float, meanwhile: float, since_s: int = 50) -> Scene:
    """A counter that rises by so much a second before the 50th, and from then on."""
    value = 0.0
    for sample in scene.samples:
        value += meanwhile if since_s < sample.t_s <= 80 else before
        sample.values[name] = value
    return scene


def test_what_nobody_acknowledged_was_lost_on_the_way() -> None:
    # Each of the 60 a second is sent again three times; a server that stands still has a kernel that acknowledges.
    scene = unanswered(silent(HELD, range(60, 80), between(1, 30)))
    scene.sampled(range(50, 121), status_active=None, status_accepts=None, server_cpu_s=5.0)
    one = only(counting(scene, "tcp.RetransSegs", 0.1, 180.0))
    assert (one.code, one.certain) == ("path_cut", False)
    assert "3,238" in one.evidence
    assert only(counting(scene, "tcp.RetransSegs", 0.1, 1.0)).code == "server_stalled"
    # Other programs went on with theirs; and on one host nothing is lost on the way.
    assert only(counting(scene, "tcp.RetransSegs", 170.0, 180.0)).code == "server_stalled"
    scene.environment["local"] = True
    assert only(counting(scene, "tcp.RetransSegs", 0.1, 180.0)).code == "server_stalled"


def test_a_host_without_a_route_knows_what_was_cut() -> None:
    scene = unanswered(silent(HELD, range(60, 80), between(1, 30)))
    scene.ticks[65].failures = {"unreachable": 7}
    one = only(scene)
    assert (one.code, one.certain) == ("path_cut", True)
    assert "7 connects" in one.evidence


def test_what_the_server_counted_arrived() -> None:
    def scene(meanwhile: float) -> Scene:
        return counting(
            counting(unanswered(silent(HELD, range(60, 80), between(1, 30))), "status.requests", 61.0, meanwhile), "status.polls", 1.0, 1.0
        )

    late, cut = only(scene(61.0)), only(scene(1.0))
    assert (late.code, cut.code) == ("answers_late", "path_cut")
    assert "1,020" in late.evidence


@pytest.mark.parametrize(("cause", "code"), [("heartbeat_timeout", "answers_in_part"), ("closed_awaiting", "cut_short")])
def test_bytes_that_are_no_whole_answer_are_a_part_of_one(cause: str, code: str) -> None:
    scene = unanswered(Scene(), 50, 80).die(600, cause, range(60, 80), idle=between(11, 40))
    for second, tick in scene.ticks.items():
        tick.bytes_received = 200 * tick.answered + (30 * 80 if 60 <= second < 80 else 0)
    one = only(scene)
    assert (one.code, one.certain) == (code, False)
    assert "40%" in one.evidence
    # Without the bytes it is none.
    for tick in scene.ticks.values():
        tick.bytes_received = 200 * tick.answered
    assert only(scene).code != code


def test_answers_after_the_way_was_mended_say_nothing_of_before() -> None:
    # The last of those that asked before die as others are answered already.
    assert only(unanswered(silent(HELD, range(60, 80), between(1, 30)), 50, 69)).code == "path_cut"


def test_a_quiet_fleet_is_not_silent_for_a_second_without_an_answer() -> None:
    # An answer every other second, and none in the two in which the dead were asked.
    scene = silent(6, range(60, 61), between(1, 30))
    for second, tick in scene.ticks.items():
        tick.sent = tick.answered = second % 2 if not 49 <= second <= 53 else 0
    assert only(scene).code == "unexplained"


def test_packets_that_are_lost_here_and_there() -> None:
    scene = silent(50, range(60, 80), between(1, 30))
    counting(counting(scene, "tcp.OutSegs", 120.0, 120.0), "tcp.RetransSegs", 0.0, 40.0)
    one = only(scene)
    assert (one.code, one.certain) == ("packets_lost", False)
    assert "25%" in one.evidence
    scene.environment["local"] = True
    assert only(scene).code == "unexplained"
    scene.environment["local"] = False
    # They may have begun to be lost long before one of a connection's went unanswered for too long.
    assert only(counting(scene, "tcp.RetransSegs", 0.0, 40.0, 15)).code == "packets_lost"
    # As many as the dead sent again by themselves are no sign of more.
    assert only(counting(scene, "tcp.RetransSegs", 0.0, 12.0)).code == "unexplained"


def test_what_answered_with_http_before_is_a_server() -> None:
    before = only(Scene().die(9, "protocol_error", EVER)).remedy
    never = Scene().die(9, "protocol_error", EVER)
    for tick in never.ticks.values():
        tick.answered = 0
    assert "URL" in only(never).remedy
    assert "URL" not in before


def long_gap(chance: random.Random) -> float:
    """The gap of 1 to 30 s in which a random moment falls: a long one is met the more often."""
    return (1 + chance.random() * (30**2 - 1)) ** 0.5


@pytest.mark.parametrize("count", [25, 500])
def test_gaps_in_which_a_moment_fell_are_no_box(count: int) -> None:
    for seed in range(60):
        scene = Scene()
        scene._random = random.Random(seed)
        scene.die(count, "heartbeat_timeout", range(70, 100), idle=lambda chance: long_gap(chance) + 10 + 0.1 * chance.random())
        assert by_code(scene) == {"worker_stalled" if count == 500 else "unexplained": count}, seed
        # A table that was lost shows at each connection's next heartbeat.
        table = Scene()
        table._random = random.Random(seed)
        table.die(2 * count, "reset", range(60, 90), idle=long_gap)
        for tick in table.ticks.values():
            tick.beats_failed = tick.lost
        assert by_code(table) == {"unexplained": 2 * count}, seed


def test_a_server_that_is_slow_and_a_worker_that_stands_still() -> None:
    slow = silent(50, range(60, 80), between(1, 30))
    for second in range(50, 90):
        slow.ticks[second].latency_us.add(9e6)
    assert only(slow).code == "server_slow"
    assert only(silent(500, range(60, 90), between(1, 30))).code == "worker_stalled"
    assert only(silent(50, EVER, between(1, 30))).code == "unexplained"


def test_silences_far_apart_are_told_apart() -> None:
    scene = Scene(seconds=300).die(200, "heartbeat_timeout", range(20, 60), idle=between(250.1, 310), age=between(300, 400))
    scene.plan = Plan(urls=("http://127.0.0.1:1/",), connections=HELD, keepalive_s=60.0, timeout_s=10.0)
    scene.die(800, "heartbeat_timeout", range(200, 220), idle=between(11, 40))
    for second in range(190, 301):
        scene.ticks[second].answered = 0
    assert by_code(scene) == {"path_cut": 800, "silent_drop": 200}


# -- boxes


def test_a_box_that_forgets_and_resets() -> None:
    scene = Scene(keepalive_s=1000.0).die(200, "reset", EVER, idle=between(350, 499))
    # While idle, it fits nothing; by the answer to a heartbeat, those with the longer pauses were forgotten.
    assert only(scene).code == "unexplained"
    for tick in scene.ticks.values():
        tick.beats_failed = tick.lost
    one = only(scene)
    assert (one.code, one.certain) == ("box_reset", False)
    assert "350 s" in one.evidence
    exact = only(Scene(keepalive_s=1000.0).die(200, "reset", EVER, idle=between(240, 240.5)))
    assert exact.code == "box_reset"
    assert "240 s" in exact.evidence


# -- several at once


def test_a_limit_and_then_a_reload() -> None:
    scene = Scene().says(keepalive_requests=100, keepalive_time=3600)
    scene.die(500, "closed_announced", range(10, 50), age=between(300, 500), idle=at(0), requests=at(100))
    scene.die(480, "closed_idle", [60]).die(20, "closed_announced", [60], idle=at(0), requests=between(1, 90))
    for second in range(60, 121):
        scene.ticks[second].held = 0
    for second in range(50, 60):
        scene.ticks[second].held = 500
    scene.sampled(range(50, 60), status_active=501.0).sampled(range(61, 121), status_active=1.0, status_connects=2.0)
    assert by_code(scene) == {"keepalive_requests": 500, "reload": 500}


def test_a_timer_among_others_takes_only_its_own() -> None:
    scene = Scene(keepalive_s=400.0).says(keepalive_timeout=75).die(300, "closed_idle", EVER, idle=at(75))
    found = scene.die(40, "closed_idle", EVER, idle=between(1, 60)).found()
    assert [(one.code, one.count, one.certain) for one in found] == [("keepalive_timeout", 300, True), ("unexplained", 40, False)]


def test_two_timeouts_that_no_configuration_names() -> None:
    scene = Scene(keepalive_s=1000.0).die(300, "closed_idle", EVER, idle=at(60)).die(200, "closed_idle", EVER, idle=at(350))
    assert sorted((one.code, one.count) for one in scene.found()) == [("keepalive_timeout", 200), ("keepalive_timeout", 300)]


# -- too few, nothing known


def test_too_few_to_tell() -> None:
    one = only(Scene().die(3, "closed_idle", EVER, idle=between(1, 29)))
    assert (one.code, one.certain) == ("too_few", False)
    # That few exactly where the configuration has its limit are at least likely.
    few = only(Scene().says(keepalive_requests=1000).die(2, "closed_announced", EVER, requests=at(1000), idle=at(0)))
    assert (few.code, few.certain) == ("keepalive_requests", False)
    assert "looks like" in few.evidence


@pytest.mark.parametrize("cause", ["closed_idle", "reset", "closed_awaiting", "closed_announced", "heartbeat_timeout", "other"])
def test_what_fits_none_is_said_to_fit_none(cause: str) -> None:
    scene = Scene(seconds=2000).die(100, cause, range(10, 1990), age=between(1, 1900), idle=between(0, 29))
    assert (only(scene).code, only(scene).certain) == ("unexplained", False)


def test_nothing_died_and_nothing_is_known() -> None:
    assert Scene().found() == []
    ticks = [(2.0, Tick(second=1, deaths={"closed_idle": Deaths(count=4), "generator_lost": Deaths(count=2)}))]
    run = bare_run(ticks, plan=Scene().plan)
    found = diagnose(run, fold(run))
    assert [(one.code, one.count, one.from_s) for one in found] == [("too_few", 4, 1.0), ("generator_lost", 2, 1.0)]


# -- the measures


def histogram(values: list[float]) -> Histogram:
    made = Histogram()
    for value in values:
        made.add(value)
    return made


def test_how_many_lie_where() -> None:
    ages = histogram([3590.0, 3600.0, 3601.0, 10.0])
    assert (within(ages, 0, 20), within(ages, 3602, 9999), within(ages, 0, 9999), within(Histogram(), 0, 9)) == (1, 0, 4, 0)
    rest = without(ages, 3500, 3700)
    assert (rest.count, rest.least, rest.greatest) == (1, 10, 10)
    assert without(ages, 0, 1e9).count == 0
    assert mode(histogram([75.0] * 18 + [3.0, 99.0]), least=0.8) == (75.0, 75.0)
    assert mode(histogram([75.0] * 4)) is None
    assert mode(histogram([float(one) for one in range(100)])) is None
    assert mode(histogram([float(one) for one in range(100)] + [50.0] * 40)) is not None


@pytest.mark.parametrize("gap_s", [1.0, 3.0, 30.0])
def test_the_chance_of_an_idle_time_is_what_random_moments_show(gap_s: float) -> None:
    chance = random.Random(5)
    seen = 0
    for _ in range(20_000):
        # Renewals with gaps uniform in [1, gap], looked at in a random moment.
        now, moment = 0.0, chance.uniform(200, 300)
        while (after := now + chance.uniform(1.0, gap_s)) <= moment:
            now = after
        seen += moment - now < 2.0
    assert chance_idle(gap_s, 0, 1) == pytest.approx(seen / 20_000, abs=0.012)


# -- whatever the records say


@pytest.mark.parametrize("seed", range(150))
def test_whatever_the_records_say_it_adds_up(seed: int) -> None:
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
        scene.says(keepalive_timeout=chance.choice([0, 1, 75]), keepalive_requests=chance.choice([1, 30, 1000]))
        scene.says(keepalive_time=3600, client_header_timeout=60, worker_connections=chance.choice([0, 100, 1e6]))
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
