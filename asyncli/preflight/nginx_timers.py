"""Checks a plan against an nginx's timers: which close long-lived connections, and when.

Pure. The rules are nginx's (nginx.org, ngx_http_request.c of 1.22).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from asyncli.model.plan import Plan
from asyncli.model.records import Check
from asyncli.model.units import format_count, format_duration
from asyncli.preflight.demand import longest_gap_s, mean_gap_s, oldest_s
from asyncli.preflight.limit import Verdict, limit
from asyncli.preflight.nginx_blocks import Timers

# Of a billion connections, fewer than one lives six deviations less than the mean.
_DEVIATIONS = 6.0
# With so many expected losses the probability of none is e**-20: certain enough to refuse.
_CERTAIN = 20.0
# A hold until stopped counts as thirty days.
_FAR_S = 30 * 86400.0


def timer_checks(timers: Timers, plan: Plan) -> Iterator[Check]:
    if plan.streams:
        yield _send_timeout(timers.send_timeout_s, plan)
    elif plan.requests != "heartbeats":
        yield _timeout_without_requests(timers.client_header_timeout_s, plan)
    if plan.requests != "heartbeats":
        return
    yield _keepalive_timeout(timers, plan)
    yield _header_timeout(timers, plan)
    yield _keepalive_requests(timers, plan)
    if timers.keepalive_time_s is not None:
        yield _keepalive_time(timers.keepalive_time_s, plan)


def _send_timeout(have: float, plan: Plan) -> Check:
    need = _age_to_reach(plan)
    return limit(
        "nginx_send_timeout",
        "send_timeout against the age of the oldest stream",
        "s",
        have,
        need,
        detail="nginx resets a stream whose body it cannot send for this time, and held streams do "
        "not read theirs",
        remedy=f"send_timeout {math.ceil(need) + 60}s in nginx.conf",
    )


def _timeout_without_requests(have: float, plan: Plan) -> Check:
    need = _age_to_reach(plan)
    timeout = f"client_header_timeout {math.ceil(need) + 60}s"
    return limit(
        "nginx_client_header_timeout",
        "client_header_timeout against the age of the oldest connection",
        "s",
        have,
        need,
        detail="nginx closes an HTTP/2 connection without a request after this time, and pings are "
        "no requests",
        remedy=f"--h2-heartbeat head, or {timeout} in nginx.conf",
    )


def _age_to_reach(plan: Plan) -> float:
    """The age that the oldest connection is to reach (s)."""
    age = oldest_s(plan)
    return _FAR_S if age is None else age


def _keepalive_timeout(timers: Timers, plan: Plan) -> Check:
    have = timers.keepalive_timeout_s
    need, detail = _longest_pause(plan)
    remedy = f"keepalive_timeout {math.ceil(need)}s in nginx.conf"
    fits = math.floor(2 * (have - plan.timeout_s))
    if fits >= 2:
        remedy = f"{remedy}, or --keepalive {fits}: gaps are up to half of it"
    short: Verdict = "warn"
    if have == 0:
        short = "short"
        detail = "0 turns keep-alive off"
    elif have < need:
        short, detail = _closed(plan, have, detail)
    subject = "keepalive_timeout against the longest gap between heartbeats"
    return limit(
        "nginx_keepalive_timeout",
        subject,
        "s",
        have,
        need,
        short=short,
        detail=detail,
        remedy=remedy,
    )


def _header_timeout(timers: Timers, plan: Plan) -> Check:
    have = timers.client_header_timeout_s
    short: Verdict = "warn"
    if plan.first_beat == "sleep":
        need, detail = _longest_pause(plan)
        remedy = f"client_header_timeout {math.ceil(need)}s in nginx.conf, or --first-beat now"
        if have < need:
            short, detail = _closed(plan, have, detail, first=True)
    else:
        need = plan.timeout_s
        detail = "the first heartbeat is sent at once"
        remedy = f"client_header_timeout {math.ceil(need)}s in nginx.conf"
    return limit(
        "nginx_client_header_timeout",
        "client_header_timeout against the first heartbeat",
        "s",
        have,
        need,
        short=short,
        detail=detail,
        remedy=remedy,
    )


def _longest_pause(plan: Plan) -> tuple[float, str]:
    """The longest time (s) from nginx's answer to a heartbeat, which may be late by the timeout,
    and its parts in words.
    """
    age = oldest_s(plan)
    pause = longest_gap_s(plan) + plan.timeout_s
    if age is not None and age < pause:
        return age, f"the run ends when its oldest connection is {format_duration(age)} old"
    apart = format_duration(longest_gap_s(plan))
    late = format_duration(plan.timeout_s)
    detail = f"heartbeats come up to {apart} apart (half of --keepalive), and up to {late} late"
    return pause, detail


def _closed(plan: Plan, have: float, detail: str, *, first: bool = False) -> tuple[Verdict, str]:
    """The verdict on a timer of ``have`` s that starts at each answer (``first``: only at the
    connect), and ``detail`` with subject it closes.
    """
    gap = longest_gap_s(plan)
    if have == gap:
        return "warn", f"{detail}; a heartbeat that is late finds its connection closed"
    if have > gap:
        late = f"more than {format_duration(have - gap)} late"
        return "warn", f"{detail}; a heartbeat that is {late} finds its connection closed"
    # Gaps are uniform in [1, keepalive/2].
    odds = min(1.0, (gap - have) / max(gap - 1, 1e-9))
    share = _share_closed(plan, have, odds, first=first)
    lost = format_count(int(float(f"{share * plan.connections:.2g}")))
    when = "in the end" if oldest_s(plan) is None else "by the end of the hold"
    closes = (
        f"{100 * odds:.3g} % of the gaps are longer than {format_duration(have)}, and nginx closes "
        f"their connections: about {lost} of {format_count(plan.connections)} {when}"
    )
    none_is_closed = (1 - share) ** plan.connections
    verdict: Verdict = "short" if none_is_closed <= math.exp(-_CERTAIN) else "warn"
    return verdict, f"{detail}; {closes}"


def _share_closed(plan: Plan, have: float, odds: float, *, first: bool) -> float:
    """The share of connections that a timer of ``have`` s closes by the end of the hold.

    ``odds``: that a gap is longer. ``first``: only the first gap counts.
    """
    age = oldest_s(plan)
    if age is None:
        return odds if first else 1.0
    slept_s = 0.0
    if plan.first_beat == "sleep" and not first:
        slept_s = mean_gap_s(plan)
    batches = plan.schedule.batches
    sampled = range(0, batches, math.ceil(batches / 100))
    closed = 0.0
    for batch in sampled:
        left_s = age - plan.schedule.due_s(batch) - slept_s - have
        if left_s <= 0:
            continue
        # The exponent: how many gaps began by then, the renewal function of uniform gaps.
        gaps = 1.0
        if not first:
            gaps = max(1, 2 / 3 + 2 * left_s / (1 + max(1.0, have)))
        closed += 1 - (1 - odds) ** gaps
    return closed / len(sampled)


def _keepalive_requests(timers: Timers, plan: Plan) -> Check:
    have = timers.keepalive_requests
    age = oldest_s(plan)
    mean = mean_gap_s(plan)
    # A lifetime is a sum of gaps uniform in [1, keepalive/2].
    life_s = max(0, have - 1) * mean
    deviation_s = math.sqrt(max(0, have - 1) / 12) * (longest_gap_s(plan) - 1)
    # The shortest of N such lifetimes; never below one second a gap.
    shortest_s = max(0.0, have - 1.0, life_s - _DEVIATIONS * deviation_s)
    requests = format_count(have)
    apart = format_duration(mean)
    detail = f"{requests} requests, {apart} apart on average, take {format_duration(life_s)}"
    if have == 0:
        detail = "0 turns keep-alive off"
        shortest_s = 0.0
    need = None if age is None else 1 + math.ceil(age / mean)
    remedy = f"keepalive_requests {max(10_000_000, 10 * (need or have))} in nginx.conf"
    verdict: Verdict = "warn"
    if age is None:
        begins = format_duration(shortest_s)
        detail += f"; held until stopped, so the first connections close {begins} after the start"
        remedy += ", or a --hold"
    else:
        detail += f"; the oldest connection reaches {format_duration(age)}"
        if age > life_s and plan.connections >= _CERTAIN:
            verdict = "short"
    if shortest_s > _age_to_reach(plan):
        verdict = "ok"
        remedy = ""
    return Check(
        "nginx_keepalive_requests",
        "keepalive_requests against the heartbeats of one connection",
        verdict,
        have,
        need,
        "requests",
        detail,
        remedy,
    )


def _keepalive_time(have: float, plan: Plan) -> Check:
    age = oldest_s(plan)
    closes = (
        "nginx closes a connection at its first request past this age, so those opened together "
        "close together"
    )
    verdict: Verdict = "warn"
    if age is None:
        begin = format_duration(have)
        detail = f"held until stopped, so losses begin {begin} after the start; {closes}"
        remedy = "keepalive_time 1000h in nginx.conf, or a --hold"
    else:
        detail = closes
        remedy = f"keepalive_time {max(1000, math.ceil(age / 360))}h in nginx.conf"
        # Within one more gap the first batch sends that request.
        if age > have + longest_gap_s(plan) + plan.timeout_s:
            verdict = "short"
    if have > _age_to_reach(plan):
        verdict = "ok"
        remedy = ""
    subject = "keepalive_time against the age of the oldest connection"
    return Check("nginx_keepalive_time", subject, verdict, have, age, "s", detail, remedy)
