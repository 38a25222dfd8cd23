"""Causes that the run recorded: asyncli's own losses, suspensions, silent client hosts, HTTP
errors.
"""

from __future__ import annotations

import math

from asyncli.analysis.constants import FEWEST, NEARLY_ALL
from asyncli.analysis.losses.server_evidence import cuts
from asyncli.analysis.losses.table import ENDED, LossTable, Reason, pooled, reason, unclaimed
from asyncli.analysis.totals import errors
from asyncli.core.adding import added_up
from asyncli.findings.losses import cut_off, lost_with, remedy_of_statuses
from asyncli.findings.protocol_codes import (
    kind_of_break,
    name_of_reset,
    remedy_of_broken,
    remedy_of_first_answers,
    words_of_goodbye,
)
from asyncli.findings.tls import by_reason, remedy_of_reasons
from asyncli.model.protocol_table import OTHER_REASONS, UNREAD
from asyncli.model.records import ProtocolCounts

#: The code of losses by a suspension of this machine, which do not count against the server.
SUSPENDED = "suspended"
# nginx closes after these errors (ngx_http_special_response_handler); 494 to 497 are sent as 400.
_NGINX_CLOSES_AFTER = frozenset({400, 413, 414, 500, 501})


def generator_lost(table: LossTable) -> None:
    """Claim what was lost with a process or a client host of asyncli."""
    is_limited = any("generator_lost" in limit for limit in table.plan.fail_if)
    words = lost_with(table.run.findings, "asyncli's", is_limited=is_limited)
    explanation = reason(
        "generator_lost", certain=True, processes=words.evidence, remedy=words.remedy
    )
    table.claim(table.of("generator_lost"), explanation)


def unreadable(table: LossTable) -> None:
    """Claim what ended because of what the server sent in place of an answer: by its kind, the most
    frequent last.
    """
    cells = table.of("protocol_error")
    protocol = table.plan.protocol
    if not cells:
        return
    kinds: dict[str, dict[str, int]] = {}
    for why, count in (table.totals.whole.protocol or ProtocolCounts()).broken.items():
        if why != OTHER_REASONS:
            kinds.setdefault(kind_of_break(protocol, why), {})[why] = count
    if not kinds:
        # Files of older versions have no reasons.
        kinds[kind_of_break(protocol, "")] = {}
    *rarer, most_frequent = sorted(kinds, key=lambda kind: sum(kinds[kind].values()))
    for kind in rarer:
        explanation = _unreadable(table, kind, kinds[kind])
        for cell in cells:
            broken = (cell.tick.protocol or ProtocolCounts()).broken
            of_kind = sum(count for why, count in broken.items() if why in kinds[kind])
            table.claim([cell], explanation, count=of_kind)
    table.claim(cells, _unreadable(table, most_frequent, kinds[most_frequent]))


def _unreadable(table: LossTable, kind: str, broken: dict[str, int]) -> Reason:
    reasons = by_reason(
        {name_of_reset(why.removeprefix(UNREAD)): count for why, count in broken.items()}
    )
    remedy = remedy_of_broken(table.plan.protocol, broken)
    rule = "the protocol"
    if table.plan.protocol == "tcp":
        rule = "--expect"
        first_ones = pooled(table.of("protocol_error")).requests
        if table.totals.held and first_ones.greatest == 0:
            remedy = remedy_of_first_answers(table.totals.held)
    if kind != "not_http":
        return reason(kind, certain=True, reasons=reasons, remedy=remedy, rule=rule)
    from_s = min(cell.from_s for cell in table.of("protocol_error"))
    before = sum(tick.answered for _, tick in table.run.ticks_between(-math.inf, from_s))
    form = "no_longer_http" if before else ""
    after_colon = f": {reasons}" if reasons else ""
    return reason(kind, form, certain=True, reasons=after_colon, before=before, remedy=remedy)


def tls_error(table: LossTable) -> None:
    """Claim what an error of TLS ended: an alert of the server, or something it sent."""
    cells = table.of("tls_failed")
    counts = table.totals.whole.tls
    if not cells or counts is None:
        return
    remedy = remedy_of_reasons(
        counts.ended, "see the server's error log, and middle boxes that change what passes"
    )
    reasons = by_reason(counts.ended)
    table.claim(cells, reason("tls_error", certain=True, reasons=reasons, remedy=remedy))


def goodbye(table: LossTable) -> None:
    """Claim what the server ended with a message of the protocol, with its code and reason."""
    cells = [
        (cell, cell.tick.protocol or ProtocolCounts()) for cell in table.of("closed_announced")
    ]
    for code in dict.fromkeys(code for _, counts in cells for code in counts.goodbyes):
        # Reasons belong to a code for certain only in seconds with one code.
        known = added_up(
            ProtocolCounts(), *(counts for _, counts in cells if counts.goodbyes.keys() == {code})
        )
        own = by_reason(known.farewells)
        if known.goodbyes.get(code) in known.farewells.values():
            own = next(iter(known.farewells))
        said, remedy, _ = words_of_goodbye(table.plan.protocol, code, own)
        explanation = reason("goodbye", certain=True, said=said, remedy=remedy)
        for cell, counts in cells:
            table.claim([cell], explanation, count=counts.goodbyes.get(code, 0))


def suspended(table: LossTable) -> None:
    """Claim what was closed while this machine was suspended: the next heartbeat shows it, within
    gap and timeout.
    """
    timeout_s = table.configured("keepalive_timeout")
    for event, (woke_s, slept_s) in enumerate(table.server.suspensions):
        until_s = woke_s + table.gap_s + table.plan.timeout_s + 3.0
        form = ""
        if timeout_s and slept_s + table.gap_s >= timeout_s:
            form = "suspended_too_long"
        explanation = reason(
            SUSPENDED,
            form,
            certain=True,
            event=event,
            for_s=round(slept_s, 1),
            at_s=woke_s,
            timeout_s=timeout_s,
        )
        for cell in table.of(*ENDED, "heartbeat_timeout", "other"):
            if woke_s - 2.0 < cell.to_s <= until_s:
                least_idle_s = max(0.0, cell.from_s - woke_s - 1.0)
                table.claim([cell], explanation, where=("idle_s", least_idle_s, math.inf))


def client_cut(table: LossTable) -> None:
    """Claim what a silent client host of a cluster reported later: its own network was cut."""
    for event, cut in enumerate(cuts(table.run, table.timeout_s)):
        words = cut_off(cut.hosts, cut.last_s)
        explanation = reason(
            "client_cut",
            event=event,
            timeout_s=table.timeout_s,
            cut=words.evidence,
            remedy=words.remedy,
        )
        for cell in table.of("heartbeat_timeout"):
            if cut.holds(cell.to_s, table.timeout_s):
                table.claim([cell], explanation)


def http_error(table: LossTable) -> None:
    """Claim what ended with an HTTP error that also closed the connection."""
    cells = table.of("closed_announced")
    error_answers = [(cell, sum(errors(cell.tick).values())) for cell in cells]
    answers = sum(count for _, count in error_answers)
    with_close = sum(min(cell.unclaimed, count) for cell, count in error_answers)
    whole = table.totals.whole
    statuses = {}
    for status, count in sorted(errors(whole).items()):
        if any(status in cell.tick.by_status for cell in cells):
            statuses[status] = count
    if not with_close or with_close < NEARLY_ALL * answers:
        return
    # Other errors may have come in the same seconds: they must be as many as the closes.
    closes = table.server.is_nginx and _NGINX_CLOSES_AFTER.issuperset(statuses)
    if not closes and with_close < NEARLY_ALL * unclaimed(cells):
        return
    remedy = remedy_of_statuses(statuses, whole.answered, over_tls=whole.tls is not None)
    listed = ", ".join(map(str, statuses))
    is_certain = with_close >= FEWEST
    explanation = reason("http_error", certain=is_certain, statuses=listed, remedy=remedy)
    for cell, count in error_answers:
        table.claim([cell], explanation, count=count)
