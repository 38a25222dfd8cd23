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

from asyncli.analysis.constants import FEWEST, NEARLY_ALL
from asyncli.analysis.losses.likelihood import (
    idle_edge,
    mode,
    stands_out,
    surprises,
    timer_window,
    within,
)
from asyncli.analysis.losses.table import (
    Field,
    LossCell,
    LossTable,
    Reason,
    pooled,
    reason,
    share_awaiting,
    unclaimed,
)
from asyncli.core.histogram import Histogram, bounds, bucket
from asyncli.findings import loss_causes
from asyncli.findings.known_timers import default_of, known_idle
from asyncli.model.protocol_table import PROTOCOLS
from asyncli.model.units import format_count

# The middle share of ages or idle times that must be narrow.
_MIDDLE = 0.8


def _were_kept_alive(table: LossTable) -> bool:
    """Whether connections were answered more than once before the first that ended with an answer.
    """
    cells = table.of("closed_announced")
    if not cells:
        return False
    before = [
        tick for _, tick in table.run.ticks_between(-math.inf, min(cell.from_s for cell in cells))
    ]
    return sum(tick.answered for tick in before) > 2 * sum(tick.opened for tick in before) > 0


def keepalive_off(table: LossTable) -> None:
    """Claim connections that ended with an answer in HTTP/1.0, or with their first answer."""
    for cell in table.of("closed_announced") if table.plan.protocol == "http" else ():
        count = (
            cell.tick.protocol.farewells.get("HTTP/1.0", 0) if cell.tick.protocol is not None else 0
        )
        table.claim([cell], reason("keepalive_off", "http_1_0", certain=True), count=count)
    timeout, requests = (
        table.configured("keepalive_timeout"),
        table.configured("keepalive_requests"),
    )
    setting = "keepalive_timeout 0" if timeout == 0 else ""
    if not setting and requests is not None and requests <= 1:
        setting = f"keepalive_requests {requests:.0f}"
    answered = table.unclaimed_of("closed_announced").requests
    first = within(answered, 1, 1)
    if not setting and _were_kept_alive(table):
        return
    if setting or first >= max(
        FEWEST, NEARLY_ALL * answered.count, 0.5 * table.totals.whole.opened
    ):
        says = setting and f" (nginx.conf says {setting})"
        found = reason(
            "keepalive_off", certain=bool(setting), name=table.server.name, configured=says
        )
        table.claim(table.of("closed_announced"), found, where=("requests", 1, 1))


def configured(table: LossTable) -> None:
    """Claim what ended at a limit in nginx.conf, and heartbeats that crossed with the close of an
    idle connection.
    """
    header_s, idle_s = (
        table.configured("client_header_timeout"),
        table.configured("keepalive_timeout"),
    )
    requests, age_s = table.configured("keepalive_requests"), table.configured("keepalive_time")
    if header_s:
        _configured(
            table,
            _without_request(table),
            "client_header_timeout",
            header_s,
            "idle_s",
            timer_window(header_s, header_s),
        )
    if idle_s:
        window = timer_window(idle_s, idle_s)
        if surprises(
            table.gap_s, table.unclaimed_of("closed_idle").idle_s, *window, configured=True
        ):
            found = _configured(
                table, table.of("closed_idle"), "keepalive_timeout", idle_s, "idle_s", window
            )
            if found is not None:
                table.claim(table.of("closed_awaiting", "reset"), found, where=("idle_s", *window))
    if requests is not None and requests > 1:
        _configured(
            table,
            table.of("closed_announced"),
            "keepalive_requests",
            requests,
            "requests",
            (requests, requests),
        )
    if age_s is not None:
        # nginx closes them at the next heartbeat.
        window = max(0.0, age_s - 1), age_s + table.gap_s + 1 + table.timeout_s
        _configured(table, table.of("closed_announced"), "keepalive_time", age_s, "age_s", window)


def _configured(
    table: LossTable,
    cells: list[LossCell],
    directive: str,
    value: float,
    field: Field,
    window: tuple[float, float],
) -> Reason | None:
    """Claim the losses in the window of a limit if they stand out or are all."""
    histogram: Histogram = getattr(pooled(cells), field)
    there = within(histogram, *window)
    if there != unclaimed(cells) and (
        there < FEWEST or (field == "idle_s" and not stands_out(histogram, *window))
    ):
        return None
    found = Reason(
        directive, loss_causes.configured_limit(directive, value, there >= FEWEST), there >= FEWEST
    )
    table.claim(cells, found, where=(field, *window))
    return found


def _without_request(table: LossTable) -> list[LossCell]:
    """Cells with connections closed before any request, with a 408 or without; none if these are
    less than half.
    """
    cells = [cell for cell in table.of("closed_idle", "closed_announced") if cell.without_request()]
    return cells if 2 * sum(cell.without_request() for cell in cells) >= unclaimed(cells) else []


def likely_idle_timeout(table: LossTable) -> None:
    """Claim what ended after one idle time that no configuration has: a timeout of the server or of
    a middle box.
    """
    cells = [] if table.plan.upgrades else _without_request(table)
    span = mode(pooled(cells).idle_s, least=_MIDDLE)
    if span is not None and span[1] >= 1:
        table.claim(
            cells,
            _likely(table, "client_header_timeout", *span),
            where=("idle_s", *timer_window(*span)),
        )
    for cause in ("closed_idle", "reset", "closed_announced"):
        # A reset in answer to a heartbeat comes from no timer.
        if cause == "reset" and share_awaiting(table.of(cause)) >= 0.5:
            continue
        while (span := idle_mode(table, cells := table.of(cause))) is not None:
            # Connections without a second heartbeat end at one age and idle time: the cause is what
            # explains more of the others.
            dead, window, before = pooled(cells), timer_window(*span), unclaimed(cells)
            aged, found = within(dead.age_s, *window), _whose_timeout(table, cause, *span)
            if aged >= within(dead.idle_s, *window) + FEWEST:
                likely_age_limit(table, (cause,))
                if unclaimed(table.of(cause)) < before:
                    continue
            elif before == aged and not table.plan.listens:
                found = Reason(
                    found.code, loss_causes.or_lifetime(found.words), found.certain, found.event
                )
            table.claim(cells, found, where=("idle_s", *span))


def idle_mode(table: LossTable, cells: list[LossCell]) -> tuple[float, float] | None:
    """The idle time of a timer, or None. Below 2 s it may be any event after a ramp.

    Heartbeats are random, and so are idle times at any moment. A server may send to all listening
    connections at once: these then have one idle time at any moment, whatever their age.
    """
    dead = pooled(cells)
    span = mode(dead.idle_s)
    if span is None or span[1] < 2 or not surprises(table.gap_s, dead.idle_s, *span):
        return None
    sent_at_once = (
        table.plan.listens
        and mode(dead.age_s, least=_MIDDLE) is None
        and not _is_spread(cells, dead.idle_s, span)
    )
    return None if sent_at_once else span


def _whose_timeout(table: LossTable, cause: str, low: float, high: float) -> Reason:
    """Whose idle timeout from ``low`` to ``high`` (s) ended connections by ``cause``."""
    event = round(low)
    if cause == "reset":
        cells = table.of(cause)
        count = unclaimed(cells)
        from_s, to_s = min(cell.from_s for cell in cells), max(cell.to_s for cell in cells)
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
    if cause == "closed_announced":
        return reason("idle_timeout", "farewell", event=event)
    whose = known_idle(
        low,
        high,
        "closes",
        upgraded=table.plan.upgrades,
        http=PROTOCOLS[table.plan.protocol].asks_by_http,
    )
    known = reason("idle_timeout", "known_timeout" if whose else "", event=event, whose=whose)
    if table.plan.upgrades:
        return known
    have, default = (
        table.configured("keepalive_timeout"),
        default_of("keepalive_timeout", low, high),
    )
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


def exact_request_limit(table: LossTable) -> None:
    """Claim what ended without notice after exactly one number of answers, nearly all of them, and
    at no one moment.
    """
    for cause in ("closed_idle", "closed_awaiting", "reset"):
        cells, dead = table.of(cause), table.unclaimed_of(cause)
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
    cells, found, whole = (
        table.of("closed_announced"),
        table.unclaimed_of("closed_announced"),
        table.totals.whole,
    )
    span = mode(found.requests, least=NEARLY_ALL)
    if span is None or span[0] != span[1] or span[1] < 2 or whole.answered > span[1] * whole.opened:
        return
    limit = _likely(table, "keepalive_requests", *span)
    if not _lasted(cells):
        limit = Reason(limit.code, loss_causes.or_event(limit.words), limit.certain, limit.event)
    elif _is_narrow(found.age_s):
        limit = Reason(limit.code, loss_causes.or_age(limit.words), limit.certain, limit.event)
    table.claim(cells, limit, where=("requests", *span))


def likely_keepalive_requests(table: LossTable) -> None:
    """Claim what ended at one request number, at any age. A limit of requests is exact."""
    found = table.unclaimed_of("closed_announced")
    span = mode(found.requests)
    if (
        span is not None
        and span[1] >= 2
        and (span[0] == span[1] or mode(found.age_s, table.gap_s + 1, _MIDDLE) is None)
    ):
        table.claim(
            table.of("closed_announced"),
            _likely(table, "keepalive_requests", *span),
            where=("requests", *span),
        )


def _likely(table: LossTable, directive: str, low: float, high: float, event: int = 0) -> Reason:
    """The likely limit of nginx or of a server like it."""
    name = table.server.name
    other = (
        ""
        if table.server.is_nginx or not name
        else name
        if name != "nginx"
        else "the server or of a middle box"
    )
    words = loss_causes.limit(
        directive, low, high, table.configured(directive), other, certain=False
    )
    return Reason(directive, words, event=event)


def likely_age_limit(
    table: LossTable,
    causes: Sequence[str] = ("closed_announced", "closed_idle", "reset", "closed_awaiting"),
) -> None:
    """Claim losses at one age, but not at one moment: nginx's keepalive_time, or another limit."""
    for cause in causes:
        cells, age_s = table.of(cause), table.unclaimed_of(cause).age_s
        announced = cause == "closed_announced"
        width = table.gap_s + 1 if announced else 0.0
        span = mode(age_s, max(width, 1.0, 0.04 * (age_s.quantile(0.5) or 0.0)), _MIDDLE)
        if span is None or span[1] < 1:
            continue
        default = announced and default_of("keepalive_time", span[0] - width, span[1])
        if not default and not _is_spread(cells, age_s, span):
            continue
        found = reason(
            "lifetime", "lifetime_at_one_idle_time" if _is_narrow(pooled(cells).idle_s) else ""
        )
        if announced:
            found = _likely(table, "keepalive_time", span[0] - width, span[1])
        low, high = timer_window(*span)
        table.claim(cells, found, where=("age_s", max(0.0, low - width), high + width))


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
        edge = idle_edge(table.gap_s, pooled(cells).idle_s) if unclaimed(cells) >= FEWEST else None
        if edge is not None and (cause != "reset" or share_awaiting(cells) >= 0.5):
            found = reason(
                "box_reset",
                "box_forgot",
                low=edge,
                high=edge,
                for_s=loss_causes.in_seconds(edge),
                gap_s=table.gap_s,
            )
            table.claim(cells, found, where=("idle_s", edge, math.inf))


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
        waited = cause != "closed_idle" and span is not None and span[0] >= 1 and _lasted(cells)
        if waited and span is not None and within(ages, *span) >= least:
            name = table.server.name or table.server.label
            found = reason("closed_at_once", "gave_up_on_backend", server=name)
            table.claim(cells, found, where=("age_s", *timer_window(*span)))


def _unanswered(table: LossTable, cause: str) -> list[LossCell]:
    """The cells in which connections ended that had never been answered."""
    return [cell for cell in table.of(cause) if cell.without_request()]
