"""Limits of --fail-if: parsing, errors, judgement and texts."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncli.analysis.bench_result import BenchResult
from asyncli.analysis.worsening import Worsening
from asyncli.model.errors import PlanError
from asyncli.model.plan import Plan
from asyncli.model.quantities import BEYOND_LATENESS, beyond_lateness, so_far
from asyncli.model.records import Deaths, Tick
from asyncli.report.limits_so_far import LimitsSoFar, stays_crossed
from asyncli.report.live_thresholds import require_limits, too_short
from asyncli.report.summary import Summary, limit_findings
from asyncli.report.thresholds import (
    OF_BASELINE,
    differences_shown,
    judge,
    judge_worsening,
    keys,
    parse,
    require,
)

DOCUMENT: dict[str, Any] = {
    "connections": {"requested": 1000, "held": 995, "lost": 5, "deaths": {"reset": 5}},
    "heartbeats": {"sent": 20_000, "failed": 7, "by_status": {"200": 19_990}, "latency_ms": {"p99": 251.0, "max": None}},
    "cost": {"server_user": {"bytes_per_connection": 2100.0}, "kernel": None},
    "drift": {"server_user": {"bytes_per_hour": 1.2e6}},
    "run": {"duration_s": 3600.0},
}


def crossed(text: str) -> bool | None:
    return judge([parse(text, Summary)], DOCUMENT)[0].crossed


@pytest.mark.parametrize(
    ("text", "is_crossed"),
    [
        ("lost > 0.1%", True),
        ("lost > 0.5%", False),
        ("lost >= 0.5%", True),
        ("lost > 4", True),
        ("connections.lost>5", False),
        ("held < 1k", True),
        ("heartbeats.failed > 0.1%", False),
        ("heartbeats.latency_ms.p99 > 250", True),
        ("heartbeats.latency_ms.p99 > 250ms", True),
        ("heartbeats.latency_ms.p99 > 0.3s", False),
        ("cost.server_user.bytes_per_connection > 2KB", True),
        ("cost.server_user > 2KiB", True),
        ("cost.server_user > 2.2kB", False),
        ("drift.server_user > 1MB/h", True),
        ("drift.server_user > 1.2e6", False),
        ("run.duration_s < 1h", False),
        ("connections.deaths.reset != 0", True),
        # A cause that did not occur counts 0; a number that was not measured is unknown.
        ("connections.deaths.closed_idle > 0", False),
        ("heartbeats.by_status.502 > 0", False),
        ("heartbeats.by_status.200 > 99%", True),
        ("heartbeats.latency_ms.max > 1s", None),
        ("cost.kernel > 1", None),
        ("drift.kernel > 1MB/h", None),
    ],
)
def test_limit_is_judged(text: str, is_crossed: bool | None) -> None:
    assert crossed(text) is is_crossed


@pytest.mark.parametrize("bound_s", [5, 9])
def test_a_number_at_the_top_of_the_json_has_limits(bound_s: int) -> None:
    limit = parse(f"duration_s > {bound_s}", BenchResult)
    assert judge([limit], {"duration_s": 7.0})[0].crossed is (bound_s == 5)
    assert judge([limit], {})[0].crossed is None


@given(st.integers(1, 9999), st.integers(1, 1_000_000))
def test_exact_percentage_is_not_above_the_limit(hundredths: int, times: int) -> None:
    document = {"connections": {"requested": 10_000 * times, "lost": hundredths * times}}
    for sign, is_crossed in ((">", False), (">=", True), ("==", True), ("<", False)):
        limit = parse(f"lost {sign} {hundredths // 100}.{hundredths % 100:02}%", Summary)
        assert judge([limit], document)[0].crossed is is_crossed


@pytest.mark.parametrize("microseconds", [1, 7, 100, 300, 1_100, 4_700, 70_000])
def test_exact_latency_is_not_above_the_limit(microseconds: int) -> None:
    document = {"heartbeats": {"latency_ms": {"max": microseconds / 1000}}}
    for written in (f"{microseconds}us", f"{microseconds / 1000}ms", f"{microseconds / 1000}", f"{microseconds / 1e6:.6f}s"):
        for sign, is_crossed in ((">", False), (">=", True)):
            outcome = judge([parse(f"heartbeats.latency_ms.max {sign} {written}", Summary)], document)[0]
            assert outcome.crossed is is_crossed, written


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("server.cpu_s.hold_end > 1m", 60), ("server.cpu_s.hold_end > 60s", 60), ("server.cpu_s.baseline > 90", 90),
        ("generator.cpu_s > 250ms", Fraction(1, 4)), ("generator.cpu_us_per_heartbeat > 0.1ms", 100),
        ("heartbeats.latency_ms.p99 > 1m", 60_000), ("drift.server_user.minutes < 1h", 60), ("drift.server_user.bin_s > 1m", 60),
        ("server.pss_bytes.hold_end > 1MB", 10**6), ("residue.server_user > 1MiB", 2**20), ("residue.after_s < 1m", 60),
        ("drift.kernel.bytes_per_request > 1kB", 1000), ("drift.kernel > 1MB/h", 10**6), ("drift.kernel > 1.1MB", 1_100_000),
        ("ramp.achieved_per_s < 1k/s", 1000), ("ramp.achieved_per_s < 1m", 10**6), ("held < 1.1k", 1100), ("opened > 1M", 10**6),
    ],
)  # fmt: skip
def test_bound_takes_the_unit_of_its_key(text: str, bound: int | Fraction) -> None:
    assert parse(text, Summary).bound == bound


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a limit; write KEY > NUMBER"),
        ("lost", "is not a limit"),
        ("lost > ", "is not a limit"),
        ("lost > many", "'many' does not fit; write a number"),
        ("lost > 1MB", "'1MB' does not fit"),
        ("lots > 1", "did you mean 'lost'?"),
        # cost.ends is nearer, and is not compared.
        ("cost.nosuch worse by 3%", "did you mean 'cost.stacks'?"),
        ("heartbeats.p99 > 1", "did you mean 'heartbeats.latency_ms.p99' or"),
        ("failed > 1", "is ambiguous; write connections.failed or heartbeats.failed"),
        ("plan.connections > 1", "is not a number of a run"),
        ("run.verdict == 1", "is not a number of a run"),
        ("cost.server_user > 1%", "is not a share of a count"),
        ("heartbeats.latency_ms.p99 > 5 parsecs", "is not a duration"),
        ("__import__('os') > 1", "is not a limit"),
        ("connections.deaths.* > 0", "replace * by a name"),
        # The count of an unknown name would always be 0.
        ("connections.deaths.heartbeat_timout > 0", "is not a cause in connections.deaths; did you mean 'heartbeat_timeout'?"),
        ("connections.failures.fire > 0", "write one of refused, reset, unreachable, connect_timeout"),
        ("heartbeats.by_status.5xx > 0", "is not an HTTP status; write three digits, such as heartbeats.by_status.503"),
        ("events.1.error_answers.5xx > 0", "such as events.1.error_answers.503"),
        ("connections.deaths > 0", "'connections.deaths' is not a number of a run"),
        ("lost > 1e999", "is too large"),
        # As a fraction it would fill the memory.
        ("lost > 1e-999999999", "too large"),
        ("server.cpu_s.hold_end > 1e-999999999s", "is not a duration"),
        ("server.cpu_s.hold_end > 1MB", "is not a duration"),
        ("cost.kernel > 1MB/h", "does not fit"),
        ("cost.server_user > " + "9" * 400, "999... is too large"),
        # A backtracking pattern would try every split of the blanks, for minutes.
        ("lost > 1" + " " * 120_000 + "x", "... does not fit"),
        ("x" * 120_000, "xxx... is not a limit"),
        ("lost worse by 3%", "connections.lost is not compared"),
        ("drift.kernel worse by 1MB/h", "cost.at_goal, drift.server_user, heartbeats.latency_ms.p50,"),
        ("cost.host_total worse by 3%", "is not compared"),
        ("drift.server_user worse by 3%", "near zero"),
        ("cost.server_user worse by 0%", "'0%' is no"),
        ("cost.server_user worse by -3%", "'-3%' is no"),
        ("cost.server_user worse by", "is not a limit"),
        ("cost.server_user worse than 3%", "KEY worse by NUMBER"),
        ("cost.server_user worse by 3 parsecs", "does not fit"),
    ],
)
def test_invalid_limit_says_what_to_write(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse(text, Summary)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        (" lost  > 4 ", "5"), ("heartbeats.latency_ms.p99 > 250", "251 ms"), ("lost >\n4", "5"),
        ("drift.server_user > 1MB/h", "1.2 MB an hour"), ("cost.kernel > 1", "unknown"), ("lost > 0.1%", "5, 0.5 % of the 1,000 asked for"),
    ],
)  # fmt: skip
def test_a_value_has_its_unit(text: str, amount: str) -> None:
    (outcome,) = judge([parse(text, Summary)], DOCUMENT)
    assert outcome.amount == amount


def test_every_key_of_the_contract_can_be_limited() -> None:
    assert len(keys(Summary)) > 100
    for key in keys(Summary):
        named = key.replace("by_status.*", "by_status.200").replace("error_answers.*", "error_answers.503").replace("*", "other")
        assert parse(f"{named} > 1", Summary).key == named
    assert not [key for key in keys(Summary) if key.startswith(("plan", "environment"))]


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("lost > 2", 2), ("lost > 0.2%", 2), ("connections.deaths.reset >= 1", 0), ("heartbeats.failed > 0", 1),
        ("heartbeats.latency_ms.max > 5ms", 2), ("connections.failures.refused > 0", 2), ("heartbeats.by_status.502 > 0", None),
        ("connections.opened > 15", 1), ("heartbeats.sent > 20", 2), ("heartbeats.lateness_ms.max > 1ms", 1),
        ("ramp.lateness_ms.max > 1ms", 0),
        # A number that may still improve is judged only at the end.
        ("held < 1", None), ("heartbeats.latency_ms.p99 > 1us", None), ("heartbeats.failed > 0.001%", None), ("lost < 5", None),
    ],
)  # fmt: skip
def test_live_limits_judge_growing_numbers_only(text: str, when: int | None) -> None:
    ticks = [
        Tick(opened=10, sent=10, deaths={"reset": Deaths(1)}),
        Tick(opened=10, sent=10, beats_failed=1, deaths={"reset": Deaths(1)}),
        Tick(sent=10, deaths={"reset": Deaths(1)}, failures={"refused": 1}),
    ]
    ticks[0].ramp_lateness_us.add(2000)
    ticks[1].lateness_us.add(2000)
    ticks[2].latency_us.add(9000)
    limits = LimitsSoFar(Plan(urls=("http://a/",), connections=1000, fail_if=(text,)))
    crossed_at = None
    for at, tick in enumerate(ticks):
        limits.tick(tick)
        if limits.crossed() is not None and crossed_at is None:
            crossed_at = at
    assert crossed_at == when


@pytest.mark.parametrize(
    ("limit", "late_us", "is_crossed"),
    [("> 100ms", 0, True), ("> 100ms", 60_000, True), ("> 100ms", 167_000, None), ("< 100ms", 167_000, False), ("> 200ms", 167_000, False)],
)
def test_a_latency_above_its_limit_by_asyncli_s_own_lateness_is_undecided(limit: str, late_us: int, is_crossed: bool | None) -> None:
    total = Tick(answered=100)
    total.latency_us.add_counts({169_000: 100})
    total.lateness_us.add_counts({late_us: 100})
    document = so_far(total)
    document["heartbeats"][BEYOND_LATENESS] = beyond_lateness(total.latency_us, total.lateness_us)
    (outcome,) = judge([parse(f"heartbeats.latency_ms.p99 {limit}", Summary)], document)
    assert outcome.crossed is is_crossed
    assert outcome.by_lateness is (is_crossed is None)
    assert ("lateness" in outcome.words) is outcome.by_lateness


@pytest.mark.parametrize(
    ("value", "ci95", "is_crossed"),
    [
        (0.0, (-0.9e6, 0.9e6), False), (0.0, (-1.4e6, 1.4e6), None), (0.0, (1.1e6, 1.4e6), None), (0.0, None, False),
        # A limit within the interval is undecided, not crossed.
        (1.8e9, (0.0, 1.9e9), None), (1.8e9, (1.7e9, 1.9e9), True),
    ],
)  # fmt: skip
def test_limit_within_the_interval_is_undecided(value: float, ci95: tuple[float, float] | None, is_crossed: bool | None) -> None:
    document = {"drift": {"server_user": {"bytes_per_hour": value, "ci95": ci95}}}
    (outcome,) = judge([parse("drift.server_user > 1MB", Summary)], document)
    assert outcome.crossed is is_crossed
    assert ("interval" in outcome.words) == (ci95 is not None)


@pytest.mark.parametrize(
    ("limit", "keepalive_s", "hold_s", "least"),
    [
        ("drift.server_user > 10MB/h", 60.0, 2.0, "14 s"),  # ten seconds, after a quarter in which memory settles
        ("drift.server_user > 10MB/h", 60.0, 14.0, None),
        ("host_total.bytes_per_hour > 10MB/h", 2.0, 11.0, "12 s"),
        ("host_total.bytes_per_hour > 10MB/h", 2.0, 12.0, None),
        ("drift.kernel > 1MB", 60.0, None, None),
        ("lost > 0", 60.0, 2.0, None),
    ],
)
def test_hold_too_short_for_a_drift_limit_has_a_finding(limit: str, keepalive_s: float, hold_s: float | None, least: str | None) -> None:
    found = too_short(Plan(urls=("http://a/",), keepalive_s=keepalive_s, hold_s=hold_s, fail_if=("held < 1", limit)))
    assert len(found) == (least is not None)
    assert all(str(least) in one.evidence for one in found)


@pytest.mark.parametrize(
    ("text", "bound", "whole"),
    [
        ("cost.server_user worse by 3%", Fraction(3, 100), OF_BASELINE), ("cost.server_user worse  by 30 B", 30, None),
        ("cost.live worse by 1kB", 1000, None), ("drift.server_user worse by 1MB/h", 10**6, None),
        ("heartbeats.latency_ms.p99 worse by 5ms", 5, None), ("latency_ms.p50 worse by 20%", Fraction(1, 5), OF_BASELINE),
    ],
)  # fmt: skip
def test_a_limit_may_compare_with_earlier_runs(text: str, bound: int | Fraction, whole: str | None) -> None:
    limit = parse(text, Summary)
    assert (limit.bound, limit.whole, limit.is_relative) == (bound, whole, True)


def test_a_difference_is_judged_by_its_interval() -> None:
    limit = parse("cost.server_user worse by 3%", Summary)
    before = Worsening(value=1020.0, before=1000.0, difference=20.0, low=-5.0, high=29.0, over=-1.0, runs=3)
    calls = []
    for low, over in ((-5.0, -1.0), (5.0, -1.0), (5.0, 1.0), (-5.0, 1.0)):
        outcome = judge_worsening(limit, msgspec.structs.replace(before, low=low, over=over))
        calls.append(outcome.crossed)
    assert calls == [False, False, True, None]
    amount = judge_worsening(limit, before).amount
    assert [number for number in ("1,020 B", "+2.00 %", "1,000 B", "-0.50 %", "+2.90 %") if number not in amount] == []
    unknown = judge_worsening(limit, "no slope is known")
    assert (unknown.crossed, unknown.value) == (None, None)


@pytest.mark.parametrize(
    ("text", "low", "high", "ends", "is_wide"),
    [
        ("cost.server_user worse by 3%", -300.0, 340.0, ("-30.00 %", "+34.00 %"), False),
        ("cost.server_user worse by 3%", -2180.0, math.inf, ("-100.00 %", "any"), True),
        ("cost.server_user worse by 30B", -2180.0, 500.0, ("-1,000 B", "+500 B"), True),
        # Growth may be negative.
        ("drift.server_user worse by 30B/h", -2180.0, 500.0, ("-2,180 B an hour", "+500 B an hour"), True),
    ],
)
def test_nothing_is_less_than_nothing(text: str, low: float, high: float, ends: tuple[str, str], is_wide: bool) -> None:
    limit = parse(text, Summary)
    before = Worsening(value=1020.0, before=1000.0, difference=20.0, low=low, high=high, over=1.0, runs=1)
    amount = judge_worsening(limit, before).amount
    assert [end for end in ends if end not in amount] == []
    # The middle of an interval wider than the value itself is no number to show.
    assert ("+2.00 %" in amount or "+20 B" in amount) is not is_wide
    assert differences_shown(limit, 1000.0, (low, 20.0, high))[::2] == ends


def test_a_bare_number_is_no_limit_on_what_is_worse() -> None:
    for text, units in (("cost.server_user worse by 3", "3B"), ("drift.server_user worse by 1e6", "1e6B/h"), ("latency_ms.p99 worse by +.5", ".5ms")):
        with pytest.raises(PlanError, match=re.escape(units)):
            require([text], Summary)
        # A run of an earlier version may have one.
        assert parse(text, Summary).is_relative
    require(["cost.server_user worse by 3 %", "drift.server_user worse by 1MB/h", "latency_ms.p99 worse by 5 ms", "lost > 3"], Summary)


def test_a_bench_is_compared_with_no_earlier_run() -> None:
    with pytest.raises(ValueError, match="only a soak"):
        parse("latency_ms.p99 worse by 3%", BenchResult)


@pytest.mark.parametrize(
    ("text", "is_crossed"),
    [("events.1.back.all_s > 5s", True), ("events.1.back.p50_s >= 15s", True), ("events.1.back.all_s > 20s", None), ("events.1.back.all_s < 5s", None)],
)
def test_who_is_not_back_for_longer_than_a_limit_crosses_it(text: str, is_crossed: bool | None) -> None:
    document = {"events": [{"number": 1, "back": {"p50_s": None, "all_s": None, "waited_s": 15.0}}]}
    [outcome] = judge([parse(text, Summary)], document)
    assert outcome.crossed is is_crossed
    assert outcome.amount.startswith("more" if is_crossed else "unknown")
    assert ("15 s" in outcome.amount) is (">" in text)


@pytest.mark.parametrize(("key", "is_crossed"), [("all_s", True), ("p50_s", None)])
def test_who_was_not_back_tells_of_all_and_not_of_a_share_where_some_are_unknown(key: str, is_crossed: bool | None) -> None:
    """Of 100, 40 were back and 20 surely were not; the other 40 may have been, which would be most of them."""
    back = {"p50_s": None, "all_s": None, "waited_s": 15.0}
    [outcome] = judge([parse(f"events.1.back.{key} > 5s", Summary)], {"events": [{"number": 1, "lost_with_worker": 40, "back": back}]})
    assert outcome.crossed is is_crossed


@pytest.mark.parametrize(("ended", "stalled", "crossed"), [(0, None, False), (5, None, None), (0, 5, None)])
def test_an_event_that_ended_none_keeps_a_limit_on_the_time_back(ended: int, stalled: int | None, crossed: bool | None) -> None:
    event: dict[str, Any] = {"number": 1, "ended": ended, "back": {"p50_s": None, "all_s": None, "waited_s": None}}
    if stalled is not None:
        event["stalled"] = stalled
    [outcome] = judge([parse("events.1.back.all_s > 5s", Summary)], {"events": [event]})
    assert outcome.crossed is crossed
    [told] = limit_findings([outcome])
    assert told.code == ("limit_unknown" if crossed is None else "limit_kept")


@pytest.mark.parametrize("key", ["back.all_s", "not_back"])
@pytest.mark.parametrize(("absent", "is_crossed"), [(20, None), (0, False), (19, False)])
def test_an_event_that_took_nobody_keeps_no_limit(key: str, absent: int, is_crossed: bool | None) -> None:
    back = {"all_s": 1.0 if absent == 19 else None, "waited_s": None}
    event = {"number": 1, "chosen": 20, "absent": absent, "ended": 0, "not_back": 0, "back": back}
    [outcome] = judge([parse(f"events.1.{key} > 5", Summary)], {"events": [event]})
    assert outcome.crossed is is_crossed


@pytest.mark.parametrize(
    ("limit", "is_crossed"),
    [
        ("all_s > 20s", False),
        ("all_s > 9.5s", False),
        ("p50_s >= 9.6s", False),
        ("all_s > 9s", None),
        ("all_s > 4s", None),
        ("all_s > 3.5s", True),
        ("p90_s < 10s", True),
        ("all_s < 3s", False),
        ("all_s < 5s", None),
        ("all_s == 20s", None),
        ("within_s > 1s", None),
    ],
)
def test_a_time_noticed_between_two_readings_is_judged_by_both(limit: str, is_crossed: bool | None) -> None:
    noticed = {"p50_s": None, "p90_s": None, "all_s": None, "left": 7, "left_after_s": 4.0, "all_at_most_s": 9.5}
    [outcome] = judge([parse(f"events.1.noticed.{limit}", Summary)], {"events": [{"number": 1, "noticed": noticed}]})
    assert (outcome.crossed, outcome.value) == (is_crossed, None)
    is_told = "within" not in limit
    assert ("4 s" in outcome.amount, "9.5 s" in outcome.amount) == (is_told, is_told)


@pytest.mark.parametrize(
    ("left_after_s", "at_most_s", "crossed"), [(8.0, None, [True, None]), (None, 8.0, [None, False]), (None, None, [None, None]), (4.0, None, [None, None])]
)
def test_a_time_noticed_with_one_reading_is_judged_by_that(left_after_s: float | None, at_most_s: float | None, crossed: list[bool | None]) -> None:
    """The server held some to the end, or none at one reading; or nothing tells either."""
    limits = [parse(f"events.1.noticed.all_s > {bound}s", Summary) for bound in (6, 9)]
    noticed = {"all_s": None, "left_after_s": left_after_s, "all_at_most_s": at_most_s}
    document = {"events": [{"number": 1, "noticed": noticed}]}
    outcomes = judge(limits, document)
    assert [outcome.crossed for outcome in outcomes] == crossed
    codes = {True: "limit_crossed", False: "limit_kept", None: "limit_unknown"}
    assert [finding.code for finding in limit_findings(outcomes)] == [codes[one] for one in crossed]
    # Nobody fell silent, or the event was no such one.
    for event in ({"number": 1, "noticed": None}, {"number": 1}):
        assert [outcome.crossed for outcome in judge(limits, {"events": [event]})] == [None, None]


def test_a_mark_has_no_time_back() -> None:
    plan = Plan(urls=("http://127.0.0.1/",), connections=10, events=("5s storm", "9s mark deployed"), fail_if=("events.1.back.all_s > 1s",))
    require_limits(plan)
    with pytest.raises(PlanError, match="mark"):
        require_limits(msgspec.structs.replace(plan, fail_if=("events.2.back.all_s > 1s",)))


@pytest.mark.parametrize(("event", "is_right"), [("5s storm", True), ("13s storm", False), ("5s vanish 10% for 9s", False), ("60% storm", True)])
def test_a_time_back_needs_a_hold_in_which_some_come_back(event: str, is_right: bool) -> None:
    plan = Plan(urls=("http://127.0.0.1/",), connections=10, hold_s=20.0, reconnect="fixed:8s", events=(event,), fail_if=("events.1.back.all_s > 9s",))
    if is_right:
        require_limits(plan)
        return
    with pytest.raises(PlanError, match="hold"):
        require_limits(plan)


@pytest.mark.parametrize(
    ("text", "is_crossed"), [("churn.back.p99_s > 1s", True), ("churn.back.p99_s > 3s", False), ("churn.not_back > 1", True), ("churn.ended > 5", False)]
)
def test_churn_has_limits_of_its_own(text: str, is_crossed: bool) -> None:
    threshold = parse(text, Summary)
    document = {"events": [{"number": 0, "ended": 5, "back": {"p99_s": 2.5}, "not_back": 2}, {"number": 1, "ended": 9, "back": {"p99_s": 9.0}}]}
    [outcome] = judge([threshold], document)
    assert outcome.crossed is is_crossed
    assert f"{text}: churn." in outcome.words
    plan = Plan(urls=("http://a/",), connections=10, churn="5%/m", fail_if=(text,))
    require_limits(plan)
    with pytest.raises(PlanError, match=r"--churn"):
        require_limits(msgspec.structs.replace(plan, churn=None))
    # A share of those who come and go all the time may be faster later.
    assert not stays_crossed(threshold)


@pytest.mark.parametrize(
    ("most_s", "text", "crossed"),
    [
        (4.6, "> 2s", True),
        (4.6, "> 4s", None),
        (4.6, "> 5s", False),
        (None, "> 2s", True),
        (None, "> 5s", None),
        ("exact", "> 2s", True),
        ("exact", "> 4s", False),
        (3.0, "> 2s", True),
        (3.0, "> 4s", False),
    ],
)
@pytest.mark.parametrize("figure", ["no_answers", "stood_still"])
def test_a_limit_within_the_bounds_of_a_time_without_answers_is_undecided(
    figure: str, most_s: float | str | None, text: str, crossed: bool | None
) -> None:
    event: dict[str, Any] = {"number": 1, f"{figure}_s": 3.0, f"{figure}_at_most_s": most_s}
    if most_s == "exact":
        del event[f"{figure}_at_most_s"]
    [outcome] = judge([parse(f"events.1.{figure}_s {text}", Summary)], {"events": [event]})
    assert outcome.crossed is crossed
    said = ("at least" in outcome.words, "at most" in outcome.words)
    if most_s in ("exact", 3.0):
        assert said == (False, False)
    elif crossed is None:
        assert said == (True, most_s is not None)
    else:
        assert said == (crossed, not crossed)


@pytest.mark.parametrize("figure", ["no_answers_s", "stood_still_s", "took_s", "noticed.all_s", "closes.reset", "timed_out", "slow_readers.user.total"])
def test_a_limit_on_what_churn_never_has_is_refused(figure: str) -> None:
    text = f"churn.{figure} > 1"
    plan = Plan(urls=("http://a/",), connections=10, churn="5%/m", fail_if=(text,))
    with pytest.raises(PlanError, match=rf"--fail-if '{text}': {figure.partition('.')[0]} is not known of churn"):
        require_limits(plan)
    of_storm = msgspec.structs.replace(plan, events=("5s storm",), fail_if=(f"events.1.{figure} > 1",))
    require_limits(of_storm)
