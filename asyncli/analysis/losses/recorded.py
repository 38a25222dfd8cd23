"""What the run itself recorded of why connections ended: asyncli's own losses, suspensions, silent client hosts, HTTP errors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncli.analysis.losses.likelihood import FEWEST, NEARLY_ALL
from asyncli.analysis.losses.server_evidence import cuts
from asyncli.analysis.losses.table import ENDED, LossCell, LossTable, Reason, left
from asyncli.findings import Words, causes, losses
from asyncli.records import HOST_LOST, RESUMED, Finding

#: The code of what a suspension of this machine explains: no loss of the server's.
SUSPENDED = "suspended"
# What nginx answers with and closes, by itself (ngx_http_special_response_handler); 494 to 497 go out as 400.
_NGINX_CLOSES_AFTER = frozenset({400, 413, 414, 500, 501})


def lost_with(findings: Sequence[Finding], whose: str) -> Words:
    """With what of asyncli's own connections were lost, by the findings of the run file. ``whose``: "asyncli's", "its"."""
    # The file of an older asyncli has no fields.
    hosts = list(dict.fromkeys(str(one.fields.get("host", "its name is not known")) for one in findings if one.code == HOST_LOST))
    processes = any(one.code == "worker_lost" or (one.code == RESUMED and one.fields.get("held")) for one in findings)
    return losses.lost_with(hosts, processes, whose)


def generator_lost(table: LossTable) -> None:
    """What was lost with a process or a client host of asyncli's own."""
    words = causes.generator_lost(lost_with(table.run.findings, "asyncli's"))
    table.claim(table.of("generator_lost"), Reason("generator_lost", words, certain=True))


def not_http(table: LossTable) -> None:
    """What answered with something else than HTTP; and how many answers had been HTTP before."""
    if cells := table.of("protocol_error"):
        before = sum(tick.answered for _, tick in table.run.ticks_between(-math.inf, min(cell.from_s for cell in cells)))
        table.claim(cells, Reason("not_http", causes.not_http(before), certain=True))


def suspended(table: LossTable) -> None:
    """This machine slept and nobody beat: what had not been heard of again when it ended had been given up meanwhile.

    Its next heartbeat comes within the longest gap, and shows it within the timeout.
    """
    timeout = table.configured("keepalive_timeout")
    for event, (woke_s, slept_s) in enumerate(table.server.suspensions):
        until_s = woke_s + table.gap_s + table.timeout_s + 3.0
        passed = timeout if timeout and slept_s + table.gap_s >= timeout else None
        reason = Reason(SUSPENDED, causes.suspended(slept_s, woke_s, passed), True, event)
        for cell in table.of(*ENDED, "heartbeat_timeout", "other"):
            if woke_s - 2.0 < cell.to_s <= until_s:
                table.claim([cell], reason, where=("idle_s", max(0.0, cell.from_s - woke_s - 1.0), math.inf))


def client_cut(table: LossTable) -> None:
    """A client host of a cluster was silent to asyncli too, and told of these deaths when it spoke again: its own way was cut."""
    for event, cut in enumerate(cuts(table.run, table.timeout_s)):
        cells = [cell for cell in table.of("heartbeat_timeout") if cut.holds(cell.to_s, table.timeout_s)]
        table.claim(cells, Reason("client_cut", causes.client_cut(table.timeout_s, cut.hosts, cut.last_s), event=event))


def http_error(table: LossTable) -> None:
    """An error as answer, and the connection closed with it: nearly each error comes with a close."""
    bad = [(cell, _errors(cell)) for cell in table.of("closed_announced")]
    answers, closed = sum(sum(errors.values()) for _, errors in bad), left([cell for cell, _ in bad])
    both = sum(min(cell.left, sum(errors.values())) for cell, errors in bad)
    statuses = sorted({status for _, errors in bad for status in errors})
    # Errors after which nginx does not close may only have come in the same seconds: they must be as many as the closes.
    closes = table.server.is_nginx and _NGINX_CLOSES_AFTER.issuperset(statuses)
    if not both or both < NEARLY_ALL * answers or (not closes and both < NEARLY_ALL * closed):
        return
    reason = Reason("http_error", causes.http_error(statuses), certain=both >= FEWEST)
    for cell, errors in bad:
        table.claim([cell], reason, count=sum(errors.values()))


def _errors(cell: LossCell) -> dict[int, int]:
    return {status: count for status, count in cell.tick.by_status.items() if status >= 400}
