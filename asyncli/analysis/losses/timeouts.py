"""Timers and limits that end connections one by one: each leaves a narrow mode of age, idle time or
request number.

Limits in nginx.conf come first, then likely ones. Source: ngx_http_update_location_config of nginx
1.22 (keepalive_timeout 0, then keepalive_requests, then keepalive_time cause ``Connection:
close``).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

import msgspec

from asyncli.analysis.constants import FEWEST, NEARLY_ALL
from asyncli.analysis.losses.likelihood import (
    has_spread_idle_times,
    idle_edge,
    idle_window,
    is_surprising,
    mode,
    stands_out,
    surprises,
    timer_window,
    within,
)
from asyncli.analysis.losses.slots import most_held, no_slot_left, outlived
from asyncli.analysis.losses.table import (
    ENDED,
    Field,
    LossCell,
    LossTable,
    Reason,
    marginal,
    pooled,
    reason,
    share_awaiting,
    unclaimed,
)
from asyncli.analysis.losses.unanswered import silences
from asyncli.core.histogram import Histogram, bounds, bucket
from asyncli.findings import Words, loss_causes
from asyncli.findings.known_timers import default_of, known_idle
from asyncli.model.protocol_table import PROTOCOLS
from asyncli.model.units import format_count

# The middle share of ages or idle times that must be narrow.
_MIDDLE = 0.8


def _were_kept_alive(table: LossTable) -> bool:
    """Whether connections were answered more than once before the first ended at an answer."""
    cells = table.of("closed_announced")
    if not cells:
        return False
    before = [
        tick for _, tick in table.run.ticks_between(-math.inf, min(cell.from_s for cell in cells))
    ]
    return sum(tick.answered for tick in before) > 2 * sum(tick.opened for tick in before) > 0


def keepalive_off(table: LossTable) -> None:
    """Claim connections that ended with an answer in HTTP/1.0, or with their first answer."""
    if table.plan.protocol == "http":
        _claim_http_1_0(table)
    setting = _setting_without_keepalive(table)
    answered = table.unclaimed_of("closed_announced").requests
    first = within(answered, 1, 1)
    if not setting and _were_kept_alive(table):
        return
    enough = max(FEWEST, NEARLY_ALL * answered.count, 0.5 * table.totals.whole.opened)
    if not setting and first < enough:
        return
    says = f" (nginx.conf says {setting})" if setting else ""
    explanation = reason(
        "keepalive_off", certain=bool(setting), name=table.server.name, configured=says
    )
    table.claim(table.of("closed_announced"), explanation, where=("requests", 1, 1))


def _claim_http_1_0(table: LossTable) -> None:
    """Claim what ended with an answer in HTTP/1.0, which ends a connection."""
    explanation = reason("keepalive_off", "http_1_0", certain=True)
    for cell in table.of("closed_announced"):
        protocol = cell.tick.protocol
        if protocol is not None:
            count = protocol.farewells.get("HTTP/1.0", 0)
            table.claim([cell], explanation, count=count)


def _setting_without_keepalive(table: LossTable) -> str:
    """The setting of nginx.conf by which a connection ends with its first answer; "" without."""
    if table.configured("keepalive_timeout") == 0:
        return "keepalive_timeout 0"
    requests = table.configured("keepalive_requests")
    if requests is not None and requests <= 1:
        return f"keepalive_requests {requests:.0f}"
    return ""


def configured(table: LossTable) -> None:
    """Claim what ended at a limit in nginx.conf, and heartbeats that crossed with the close of an
    idle connection.
    """
    header_s = table.configured("client_header_timeout")
    if header_s:
        cells = _without_request(table)
        window = idle_window(pooled(cells), header_s)
        _configured(table, cells, "client_header_timeout", header_s, "idle_s", window)
    idle_s = table.configured("keepalive_timeout")
    if idle_s:
        _configured_idle(table, idle_s)
    requests = table.configured("keepalive_requests")
    if requests is not None and requests > 1:
        _configured(
            table,
            table.of("closed_announced"),
            "keepalive_requests",
            requests,
            "requests",
            (requests, requests),
        )
    age_s = table.configured("keepalive_time")
    if age_s is not None:
        # nginx closes them at the next heartbeat.
        window = max(0.0, age_s - 1), age_s + table.gap_s + 1 + table.timeout_s
        _configured(table, table.of("closed_announced"), "keepalive_time", age_s, "age_s", window)


def _configured_idle(table: LossTable, idle_s: float) -> None:
    """Claim what ended after the configured idle time, and heartbeats that crossed with a close."""
    dead = table.unclaimed_of("closed_idle")
    window = idle_window(dead, idle_s)
    if not surprises(table.gap_s, dead.idle_s, *window, configured=True):
        return
    cells = table.of("closed_idle")
    limit = _configured(table, cells, "keepalive_timeout", idle_s, "idle_s", window)
    if limit is not None:
        table.claim(table.of("closed_awaiting", "reset"), limit, where=("idle_s", *window))


def _configured(
    table: LossTable,
    cells: list[LossCell],
    directive: str,
    value: float,
    field: Field,
    window: tuple[float, float],
) -> Reason | None:
    """Claim the losses in the window of a limit if they stand out or are all."""
    histogram = marginal(pooled(cells), field)
    in_window = within(histogram, *window)
    are_many = in_window >= FEWEST
    if in_window != unclaimed(cells):
        if not are_many:
            return None
        if field == "idle_s" and not stands_out(histogram, *window):
            return None
    words = loss_causes.configured_limit(directive, value, are_many)
    limit = Reason(directive, words, are_many)
    table.claim(cells, limit, where=(field, *window))
    return limit


def _without_request(table: LossTable) -> list[LossCell]:
    """Cells with connections closed before any request, with a 408 or without; none if these are
    less than half.
    """
    cells = [cell for cell in table.of("closed_idle", "closed_announced") if cell.without_request()]
    without_request = sum(cell.without_request() for cell in cells)
    if 2 * without_request < unclaimed(cells):
        return []
    return cells


def likely_idle_timeout(table: LossTable) -> None:
    """Claim what ended after one idle time that no configuration has: a timeout of the server or of
    a middle box.
    """
    if not table.plan.upgrades:
        _likely_header_timeout(table)
    for cause in ("closed_idle", "reset", "closed_announced"):
        # A reset in answer to a heartbeat comes from no timer.
        if cause == "reset" and _mostly_awaited(table, cause):
            continue
        span = idle_mode(table, table.of(cause))
        while span is not None and not _is_no_timer(table, cause, span):
            _claim_idle_time(table, cause, span)
            span = idle_mode(table, table.of(cause))


def _is_no_timer(table: LossTable, cause: str, span: tuple[float, float]) -> bool:
    """Whether something else than a timer ended connections after the idle time ``span``: a timer
    ends none sooner, all after one time, and none outlives it.

    That is asked where something else is likely: slots lacked, or the server's own timer is another
    one by its configuration.
    """
    if cause != "closed_idle":
        return False
    if not no_slot_left(table) and not _has_other_timer(table, span):
        return False
    dead = table.unclaimed_of(cause)
    sooner = within(dead.idle_s, 0, span[0] - 1)
    return sooner >= FEWEST or has_spread_idle_times(dead, *span) or outlived(table, span[1])


def _has_other_timer(table: LossTable, span: tuple[float, float]) -> bool:
    """Whether the server that we connect to closes idle connections after a longer time, by its
    configuration.
    """
    idle_s = table.configured("keepalive_timeout")
    if idle_s is None or not table.server.direct or table.plan.upgrades:
        return False
    return idle_s > timer_window(*span)[1]


def _likely_header_timeout(table: LossTable) -> None:
    """Claim what was closed before any request, at one idle time."""
    cells = _without_request(table)
    span = mode(pooled(cells).idle_s, least=_MIDDLE)
    if span is None or span[1] < 1:
        return
    limit = _likely(table, "client_header_timeout", *span)
    table.claim(cells, limit, where=("idle_s", *timer_window(*span)))


def _claim_idle_time(table: LossTable, cause: str, span: tuple[float, float]) -> None:
    """Claim what ended after the idle time ``span``, or at the age that explains more.

    Connections without a second heartbeat end at one age and idle time: the cause is what explains
    more of the others.
    """
    cells = table.of(cause)
    dead = pooled(cells)
    window = timer_window(*span)
    before = unclaimed(cells)
    aged = within(dead.age_s, *window)
    timeout = _whose_timeout(table, cause, *span)
    if aged >= within(dead.idle_s, *window) + FEWEST:
        likely_age_limit(table, (cause,))
        if unclaimed(table.of(cause)) < before:
            return
    elif before == aged and not table.plan.listens:
        timeout = _reworded(timeout, loss_causes.or_lifetime(timeout.words))
    if cause == "closed_idle" and no_slot_left(table):
        # The one that is closed for another is the one that was idle for longest, which is one time
        # while connections come at one pace.
        words = loss_causes.or_no_slot(timeout.words, most_held(table), table.plan.connections)
        timeout = _reworded(timeout, words)
    table.claim(cells, timeout, where=("idle_s", *span))


def _reworded(limit: Reason, words: Words) -> Reason:
    """The same reason in other words."""
    return msgspec.structs.replace(limit, words=words)


def idle_mode(table: LossTable, cells: list[LossCell]) -> tuple[float, float] | None:
    """The idle time of a timer, or None. Below 2 s it may be any event after a ramp, unless the
    losses are spread in time and no connection outlived it; below 1 s any event after an answer.

    Heartbeats are random, and so are idle times at any moment. A server may send to all listening
    connections at once: these then have one idle time at any moment, whatever their age.
    """
    dead = pooled(cells)
    span = mode(dead.idle_s)
    if span is None or not surprises(table.gap_s, dead.idle_s, *span):
        return None
    if span[1] < 2 and not _is_short_timer(table, cells, span):
        return None
    if table.plan.listens:
        have_one_age = mode(dead.age_s, least=_MIDDLE) is not None
        if not have_one_age and not _is_spread(cells, dead.idle_s, span):
            return None
    return span


def _is_short_timer(table: LossTable, cells: list[LossCell], span: tuple[float, float]) -> bool:
    return span[0] >= 1 and _lasted(cells) and not outlived(table, span[1])


def _whose_timeout(table: LossTable, cause: str, low: float, high: float) -> Reason:
    """Whose idle timeout from ``low`` to ``high`` (s) ended connections by ``cause``."""
    event = round(low)
    if cause == "reset":
        return _reset_by_box(table, event, low, high)
    if cause == "closed_announced":
        return reason("idle_timeout", "farewell", event=event)
    whose = known_idle(
        low,
        high,
        "closes",
        upgraded=table.plan.upgrades,
        http=PROTOCOLS[table.plan.protocol].asks_by_http,
    )
    known = reason("idle_timeout", event=event, whose=whose or loss_causes.UNKNOWN_IDLE_TIMEOUT)
    if table.plan.upgrades:
        return known
    have = table.configured("keepalive_timeout")
    default = default_of("keepalive_timeout", low, high)
    # nginx.conf has another time: a default of nginx's may be from before the file was changed,
    # unless something is before nginx.
    if have is not None and not (default and table.server.direct):
        return reason(
            "box_idle_timeout",
            event=event,
            low=low,
            high=high,
            configured=loss_causes.in_seconds(have),
        )
    if table.server.is_nginx or (default and not table.server.name):
        return _likely(table, "keepalive_timeout", low, high, event)
    return known


def _reset_by_box(table: LossTable, event: int, low: float, high: float) -> Reason:
    """A middle box reset them after an idle time: for certain if the server still has most."""
    cells = table.of("reset")
    count = unclaimed(cells)
    from_s = min(cell.from_s for cell in cells)
    to_s = max(cell.to_s for cell in cells)
    kept = table.server.about(from_s, to_s, count).still_open(count)
    if not kept.are_most or kept.count < FEWEST:
        return reason("box_reset", "box_reset_idle", event=event, low=low, high=high)
    form = "box_reset_while_open" if kept.by_kernel else "box_reset_while_counted"
    return reason(
        "box_reset",
        form,
        certain=kept.by_kernel,
        event=event,
        low=low,
        high=high,
        kept=kept.count,
    )


def exact_request_limit(table: LossTable) -> None:
    """Claim what ended without notice after exactly one number of answers, nearly all of them, and
    at no one moment.
    """
    for cause in ("closed_idle", "closed_awaiting", "reset"):
        cells = table.of(cause)
        dead = table.unclaimed_of(cause)
        span = mode(dead.requests, least=NEARLY_ALL)
        if span is not None and span[0] == span[1] >= 2 and _lasted(cells):
            whole = table.totals.whole
            form = "request_limit_of_some" if whole.answered > span[0] * whole.opened else ""
            if _is_narrow(dead.age_s):
                form = "request_limit_or_age"
            table.claim(
                cells,
                reason("request_limit", form, requests=format_count(span[0])),
                where=("requests", *span),
            )


def announced_request_limit(table: LossTable) -> None:
    """Claim what ended with notice after exactly one number of answers, nearly all of them, which
    no connection exceeded. An event at one moment does so too to connections that were opened
    together and send in step.
    """
    cells = table.of("closed_announced")
    dead = table.unclaimed_of("closed_announced")
    whole = table.totals.whole
    span = mode(dead.requests, least=NEARLY_ALL)
    if span is None or span[0] != span[1] or span[1] < 2 or whole.answered > span[1] * whole.opened:
        return
    limit = _likely(table, "keepalive_requests", *span)
    if not _lasted(cells):
        limit = _reworded(limit, loss_causes.or_event(limit.words))
    elif _is_narrow(dead.age_s):
        limit = _reworded(limit, loss_causes.or_age(limit.words))
    table.claim(cells, limit, where=("requests", *span))


def likely_keepalive_requests(table: LossTable) -> None:
    """Claim what ended at one request number, at any age. A limit of requests is exact."""
    dead = table.unclaimed_of("closed_announced")
    span = mode(dead.requests)
    if span is None or span[1] < 2:
        return
    is_exact = span[0] == span[1]
    if not is_exact and mode(dead.age_s, table.gap_s + 1, _MIDDLE) is not None:
        return
    limit = _likely(table, "keepalive_requests", *span)
    table.claim(table.of("closed_announced"), limit, where=("requests", *span))


def _likely(table: LossTable, directive: str, low: float, high: float, event: int = 0) -> Reason:
    """The likely limit of nginx or of a server like it."""
    other = ""
    if not table.server.is_nginx:
        other = table.server.name
    if other == "nginx":
        # Another server, or a middle box, is before it.
        other = "the server or of a middle box"
    words = loss_causes.limit(
        directive, low, high, table.configured(directive), other, certain=False
    )
    return Reason(directive, words, event=event)


def likely_age_limit(
    table: LossTable,
    causes: Sequence[str] = ("closed_announced", "closed_idle", "reset", "closed_awaiting"),
) -> None:
    """Claim losses at one age, but not at one moment: nginx's keepalive_time, or another limit.

    What a heartbeat ends is ended at its age only if nothing was ended at a heartbeat before.
    """
    for cause in causes:
        cells = table.of(cause)
        age_s = table.unclaimed_of(cause).age_s
        announced = cause == "closed_announced"
        by_heartbeat = ended_by_heartbeats(table, cause)
        width = table.gap_s + 1 if announced or by_heartbeat else 0.0
        # An age below 1 s is not known further.
        span = _one_age(age_s, width, width if by_heartbeat else 1.0)
        if span is None:
            continue
        default = announced and default_of("keepalive_time", span[0] - width, span[1])
        if not default and not _is_spread(cells, age_s, span):
            continue
        limit = reason("lifetime")
        if announced:
            limit = _likely(table, "keepalive_time", span[0] - width, span[1])
        low, high = timer_window(*span)
        table.claim(cells, limit, where=("age_s", max(0.0, low - width), high + width))


def _one_age(age_s: Histogram, width: float, least_s: float) -> tuple[float, float] | None:
    """The range of ages about ``width`` (s) wide at which most ended; None if there is none, or if
    it begins below ``least_s``: an age limit ends nothing sooner.
    """
    span = mode(age_s, max(width, 1.0, 0.04 * (age_s.quantile(0.5) or 0.0)), _MIDDLE)
    if span is None or span[0] < least_s:
        return None
    return span


def ended_by_heartbeats(table: LossTable, cause: str) -> bool:
    """Whether connections ended by ``cause`` while a heartbeat waited, and far more often than one
    waits: what ended them did so at the heartbeat, and no clock did.
    """
    if cause != "closed_awaiting" and not (cause == "reset" and _mostly_awaited(table, cause)):
        return False
    deaths = table.totals.whole.deaths
    by_heartbeat = deaths[cause].count if cause in deaths else 0
    by_others = sum(deaths[other].count for other in ENDED if other in deaths and other != cause)
    held = sum(tick.held for _, tick in table.run.ticks)
    if not by_heartbeat or not held:
        return False
    waited = min(1.0, sum(tick.awaiting for _, tick in table.run.ticks) / held)
    return is_surprising(by_heartbeat / (by_heartbeat + by_others), waited, by_heartbeat)


def _mostly_awaited(table: LossTable, cause: str) -> bool:
    """Whether most ended while a heartbeat waited."""
    return share_awaiting(table.of(cause)) >= 0.5


def refused_at_heartbeats(table: LossTable) -> None:
    """Claim what was closed at heartbeats, at any moment, and after different numbers of answers: a
    rule on requests, or an error in what answers them. A box that lost its table resets instead.
    """
    cells = table.of("closed_awaiting")
    if unclaimed(cells) < FEWEST or not _lasted(cells):
        return
    if not ended_by_heartbeats(table, "closed_awaiting"):
        return
    answers = pooled(cells).requests
    answered = loss_causes.answered_before(answers.least, answers.greatest)
    table.claim(cells, reason("refused_requests", answered=answered))


def _is_narrow(histogram: Histogram) -> bool:
    """Whether nearly all ended at one age or idle time."""
    return mode(histogram, least=NEARLY_ALL) is not None


def _is_spread(cells: list[LossCell], age_s: Histogram, ages: tuple[float, float]) -> bool:
    """Whether the losses span twice the width of ``ages``: an age limit spreads them as the opens
    were.
    """
    # At 8 h a bucket is minutes wide.
    low = max(bounds(bucket(int(ages[0])))[0], age_s.least)
    high = min(bounds(bucket(int(ages[1])))[1], age_s.greatest)
    return _lasted(cells, 2 * (high - low))


def _lasted(cells: list[LossCell], least_s: float = 0.0) -> bool:
    """Whether the middle 80 % of the losses took so long, and 4 s: connections opened within 4 s
    have one age at any moment.
    """
    ordered = sorted(cells, key=lambda cell: cell.to_s)
    upto = list(itertools.accumulate(cell.unclaimed for cell in ordered))
    first, last = (ordered[bisect.bisect_left(upto, share * upto[-1])].to_s for share in (0.1, 0.9))
    return last - first >= max(4.0, least_s)


def forgotten(table: LossTable) -> None:
    """Claim what ended at a heartbeat after a long pause: a middle box had forgotten the
    connection.
    """
    for cause in ("reset", "closed_awaiting"):
        # What was never answered was never idle: it waited.
        cells = [cell for cell in table.of(cause) if 2 * cell.without_request() < cell.dead.count]
        if unclaimed(cells) < FEWEST:
            continue
        edge = idle_edge(table.gap_s, pooled(cells).idle_s, waited_before(table, cells))
        if edge is None:
            continue
        if cause == "reset" and share_awaiting(cells) < 0.5:
            continue
        explanation = reason(
            "box_reset",
            "box_forgot",
            low=edge,
            high=edge,
            for_s=loss_causes.in_seconds(edge),
            gap_s=table.gap_s,
        )
        table.claim(cells, explanation, where=("idle_s", edge, math.inf))


def waited_before(table: LossTable, cells: list[LossCell]) -> float:
    """For how long (s) heartbeats may have waited when the first of these losses came, where nobody
    was answered just before: their idle times count that too.
    """
    first = cells[0]
    rows = table.run.ticks_between(first.from_s - table.timeout_s, first.from_s + 0.5)
    stretches = silences(rows)
    if not stretches or stretches[-1].waited < FEWEST or stretches[-1].to_s < rows[-1][0]:
        return 0.0
    return first.to_s - stretches[-1].from_s


def closed_at_once(table: LossTable) -> None:
    """Claim what ended before the first answer: at age 0, or at one age, as where a proxy gives up
    on its backend.
    """
    for cause in ("closed_awaiting", "reset", "closed_idle"):
        cells = _unanswered(table, cause)
        ages = pooled(cells).age_s
        least = max(FEWEST, NEARLY_ALL * unclaimed(table.of(cause)))
        if within(ages, 0, 0) >= least:
            table.claim(cells, reason("closed_at_once"), where=("age_s", 0, 0))
        span = mode(ages, least=_MIDDLE)
        if cause == "closed_idle" or span is None or span[0] < 1:
            continue
        if _lasted(cells) and within(ages, *span) >= least:
            name = table.server.name or table.server.label
            explanation = reason("closed_at_once", "gave_up_on_backend", server=name)
            table.claim(cells, explanation, where=("age_s", *timer_window(*span)))


def _unanswered(table: LossTable, cause: str) -> list[LossCell]:
    """The cells in which connections ended that had never been answered."""
    return [cell for cell in table.of(cause) if cell.without_request()]
