"""Parsers of servers' status pages, recognised by their text. Pure.

Each returns the ``status.*`` metrics of its page; what a page lacks is absent.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from asyncli.model.metrics import (
    METRICS,
    STATUS_ACCEPTS,
    STATUS_ACTIVE,
    STATUS_BEHIND,
    STATUS_BEHIND_LIMIT,
    STATUS_LIMIT,
    greatest,
)
from asyncli.model.products import Backend, Frontend
from asyncli.model.text import oneline

# Tengine and Angie append columns (request_time). Counts have at most 64 bits. Possessive
# quantifiers (``++``, ``*+``) bound the time on hostile input.
_STUB_STATUS = re.compile(
    r"\s*+Active connections:\s*+(?P<active>[0-9]{1,20}+)[^\S\n]*+\n"
    r"\s*+server accepts handled requests[^\n]*+\n"
    r"\s*+(?P<accepts>[0-9]{1,20}+)\s++(?P<handled>[0-9]{1,20}+)"
    r"\s++(?P<requests>[0-9]{1,20}+)(?![0-9])[^\n]*+\n"
    r"\s*+Reading:\s*+(?P<reading>[0-9]{1,20}+)\s++Writing:\s*+(?P<writing>[0-9]{1,20}+)"
    r"\s++Waiting:\s*+(?P<waiting>[0-9]{1,20}+)\s*+"
)
_MOST_DIGITS = 20
# A server writes its counts one after another, while its workers change them.
_BETWEEN_COUNTS = 1000.0
# A host's kernel accepts at most some million connections a second.
_MOST_ACCEPTS_PER_S = 1e7

# Apache's scoreboard, a character for each process or thread (mod_status).
_READING, _WRITING, _KEPT = "R", "W", "K"
_CSV_MARK = "# pxname,"
_METRIC = {
    metric.removeprefix("status."): metric for metric in METRICS if metric.startswith("status.")
}


class StatusPage(NamedTuple):
    """The counts include our connection and requests. ``frontends`` and ``backends``: HAProxy's by
    name.
    """

    kind: str
    values: dict[str, float]
    frontends: Mapping[str, Frontend] = {}
    backends: Mapping[str, Backend] = {}


class NotStatusPage(ValueError):  # noqa: N818 - it names what the text is
    """The text is no known status page."""


def parse_page(text: str) -> StatusPage:
    """Parse the page of any known server. Raises :class:`NotStatusPage` with the beginning of the
    text.
    """
    text = text.replace("\r\n", "\n")
    for parse in (_stub_status, _apache, _haproxy):
        page = parse(text)
        if page is not None:
            return page
    raise NotStatusPage(f"{excerpt(text)} is not a status page")


def impossible_count(page: StatusPage, before: Mapping[str, float] | None, since_s: float) -> str:
    """Which counts of ``page`` no server can have, as text, or "". ``before``: an earlier page,
    ``since_s`` before it (s).

    A page's numbers divide memory, so one that is impossible would make a cost of nothing.
    """
    values = page.values
    for metric, value in values.items():
        if value > greatest(metric):
            return f"{_shown(metric)} is {value:.3g}, and no host has room for as many"
    active = values.get(STATUS_ACTIVE)
    accepts = values.get(STATUS_ACCEPTS)
    if accepts is None:
        return ""
    # HAProxy's totals may be cleared while sessions are open ("clear counters").
    if page.kind == "stub_status" and active is not None and active > accepts + _BETWEEN_COUNTS:
        return f"{active:,.0f} connections are active and {accepts:,.0f} were ever accepted"
    if before is None or accepts < before.get(STATUS_ACCEPTS, math.inf):
        return ""
    accepted = accepts - before[STATUS_ACCEPTS]
    if accepted > _MOST_ACCEPTS_PER_S * (1.0 + since_s):
        return f"{accepted:,.0f} connections were accepted within {since_s:.1f} s"
    risen = (active or 0.0) - before.get(STATUS_ACTIVE, math.inf)
    if risen > accepted + _BETWEEN_COUNTS:
        return f"{risen:,.0f} more connections are active, and {accepted:,.0f} more were accepted"
    return ""


def _shown(metric: str) -> str:
    return metric.partition(".")[2]


def _stub_status(text: str) -> StatusPage | None:
    """nginx's (ngx_http_stub_status_module): all workers; includes the asking connection and
    request.
    """
    match = _STUB_STATUS.fullmatch(text)
    if match is None:
        return None
    counts = {name: float(number) for name, number in match.groupdict().items()}
    return StatusPage("stub_status", _known(counts))


def _apache(text: str) -> StatusPage | None:
    """Apache's ``server-status?auto`` (mod_status); includes the asking connection.

    Apache counts no accepts, and requests only with ``ExtendedStatus On`` (``Total Accesses``). In
    prefork and worker a process or thread serves one connection, so the busy ones are the active
    connections, and the places of the scoreboard bound them. In event that is ``ConnsTotal``, which
    each process updates only when a timer of one of its connections expires (KeepAliveTimeout,
    Timeout): a sum over several processes mixes instants, so it is used only with a single process.
    """
    fields = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields[name] = value.strip()
    if not {"BusyWorkers", "IdleWorkers", "Scoreboard"} <= fields.keys():
        return None
    board = fields["Scoreboard"]
    counts: dict[str, float | None] = {
        "requests": _number(fields, "Total Accesses"),
        "busy": _number(fields, "BusyWorkers"),
        "idle": _number(fields, "IdleWorkers"),
        "generation": _number(fields, "ParentServerMPMGeneration"),
    }
    connections = _number(fields, "ConnsTotal")
    if connections is None and fields.get("ServerMPM") != "event":
        counts |= {
            "active": _number(fields, "BusyWorkers"),
            "places": float(len(board)),
            "reading": float(board.count(_READING)),
            "writing": float(board.count(_WRITING)),
            "waiting": float(board.count(_KEPT)),
        }
    elif connections and _number(fields, "Processes") == 1:
        # Our own connection counts, so 0 was never updated.
        counts["active"] = connections
        counts["waiting"] = _number(fields, "ConnsAsyncKeepAlive")
    return StatusPage("server-status", _known(counts))


def _haproxy(text: str) -> StatusPage | None:
    """HAProxy's statistics as CSV (management.txt, "9.1. CSV format"): the sum of its frontends.

    One of them, by whatever name, serves the page: it counts our poller's connection and requests,
    the current one included.
    """
    if not text.startswith(_CSV_MARK):
        return None
    try:
        rows = list(csv.DictReader(text[2:].splitlines()))
    except csv.Error:  # a cell of more than 131,072 characters
        return None
    backends = _backends(rows)
    rows = [row for row in rows if row.get("svname") == "FRONTEND"]
    if not rows:
        return None
    # A frontend in mode tcp counts no requests, but has a zero there. Which frontend is ours is not
    # known yet, so the sum is unknown. Before 1.7 there is no column "mode".
    counts_requests = all((row.get("mode") or "http") == "http" for row in rows)
    # conn_tot came with 1.7; stot counts what the rules for connections let through.
    counts = {
        "active": _total(rows, "scur"),
        "accepts": _total(rows, "conn_tot", "stot"),
        "handled": _total(rows, "stot"),
        "requests": _total(rows, "req_tot") if counts_requests else None,
    }
    return StatusPage("haproxy", _known(counts), _frontends(rows), backends)


def _total(rows: Iterable[Mapping[str, str | None]], *names: str) -> float | None:
    """The sum of a number in all rows, of each the first of ``names`` that it has; None if one has
    none of them.
    """
    total = 0.0
    for row in rows:
        numbers = [_number(row, name) for name in names]
        known = [number for number in numbers if number is not None]
        if not known:
            return None
        total += known[0]
    return total


def _frontends(rows: Iterable[Mapping[str, str | None]]) -> dict[str, Frontend]:
    """The frontends with a limit, by name: the last row of a name counts."""
    by_name = {row["pxname"] or "": row for row in rows}
    frontends = {}
    for name, row in by_name.items():
        sessions = _number(row, "scur")
        limit = _number(row, "slim")
        if sessions is not None and limit:
            frontends[name] = Frontend(int(sessions), int(limit))
    return frontends


# Rows of a backend that are no server. The limit of BACKEND is its fullconn, to which servers with
# a minconn adapt: it refuses nothing.
_NO_SERVERS = ("FRONTEND", "BACKEND")
# Beginnings of the status of a server that gets new connections: "UP 1/3" may still fail.
_SERVES = ("UP", "no check")


def _backends(rows: Iterable[Mapping[str, str | None]]) -> dict[str, Backend]:
    """The backends with servers that serve, by name. Those for backup serve once no other does."""
    servers: dict[str, list[Mapping[str, str | None]]] = {}
    for row in rows:
        # A listener's row (socket-stats) has no weight.
        is_server = row.get("svname") not in _NO_SERVERS and row.get("weight")
        if is_server and (row.get("status") or "").startswith(_SERVES):
            servers.setdefault(row["pxname"] or "", []).append(row)
    backends = {}
    for name, of_backend in servers.items():
        active = [row for row in of_backend if _number(row, "act")]
        serving = active or of_backend
        sessions = _total(serving, "scur")
        if sessions is None:
            continue
        backends[name] = Backend(int(sessions), None, is_tcp=serving[0].get("mode") == "tcp")
        limit = _total(serving, "slim")
        if limit is not None:
            backends[name] = msgspec.structs.replace(backends[name], limit=int(limit))
    return backends


# The head of the page for people (stats_dump_html_info of HAProxy's src/stats.c); seen of 2.6.
_GLOBAL_MAXCONN = re.compile(r"<b>maxconn = </b> (?P<limit>[0-9]{1,10}+);")
_CURRENT_CONNS = re.compile(r"current conns = (?P<open>[0-9]{1,10}+);")


def html_url(url: str) -> str | None:
    """Where HAProxy has the page for people, by the ``url`` of its CSV; None if that does not show.

    HAProxy looks for ";csv" anywhere behind its ``stats uri``.
    """
    before, mark, after = url.partition(";csv")
    return f"{before}{after}" if mark else None


def all_frontends(html: str) -> Frontend | None:
    """The connections of all HAProxy's frontends and its global maxconn, which only the page for
    people has; None if this one has not.
    """
    limit = _GLOBAL_MAXCONN.search(html)
    current = _CURRENT_CONNS.search(html)
    if limit is None or current is None or not int(limit["limit"]):
        return None
    return Frontend(int(current["open"]), int(limit["limit"]))


class OurFrontend:
    """Finds the frontend of HAProxy that our connections use: its sessions rose the most since the
    first page.
    """

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._ours = ""
        self._rise = 0

    def limit(self, frontends: Mapping[str, Frontend]) -> dict[str, float]:
        """``status.limit``: the sessions of all frontends at which ours is full; nothing while ours
        is unknown.

        A frontend without a maxconn of its own has the process's, for all together. The page does
        not tell, but then no other may have more.
        """
        self._first = self._first or {name: frontend.open for name, frontend in frontends.items()}
        for name, frontend in frontends.items():
            rise = frontend.open - self._first.get(name, 0)
            if rise > self._rise or len(frontends) == 1:
                self._ours = name
                self._rise = rise
        if self._ours not in frontends:
            return {}
        limit = frontends[self._ours].limit
        if any(frontend.limit > limit for frontend in frontends.values()):
            open_in_all = sum(frontend.open for frontend in frontends.values())
            limit += open_in_all - frontends[self._ours].open
        return {STATUS_LIMIT: float(limit)}


class OurBackend:
    """Finds the backend of HAProxy whose servers our connections use: of those whose sessions rose
    much since the first page, the one that is full first if it goes on.
    """

    def __init__(self) -> None:
        self._first: dict[str, Backend] = {}

    def limit(self, backends: Mapping[str, Backend]) -> dict[str, float]:
        """``status.behind`` and ``status.behind_limit``; nothing while ours is unknown, or has no
        limit.
        """
        self._first = {**backends, **self._first}
        rises = {name: backend.open - self._first[name].open for name, backend in backends.items()}
        highest_rise = max(rises.values(), default=0)
        rooms = {}
        for name, backend in backends.items():
            # Several may share our connections.
            if backend.limit is not None and rises[name] > 0 and 2 * rises[name] >= highest_rise:
                rooms[name] = max(0, backend.limit - self._first[name].open)
        if not rooms:
            return {}
        fullest = max(rooms, key=lambda name: rises[name] / max(1, rooms[name]))
        return {
            STATUS_BEHIND: float(rises[fullest]),
            STATUS_BEHIND_LIMIT: float(rooms[fullest]),
        }


def _number(fields: Mapping[str, str | None], name: str) -> float | None:
    value = fields.get(name) or ""
    if not value.isascii() or not value.isdigit() or len(value) > _MOST_DIGITS:
        return None
    return float(value)


def _known(counts: Mapping[str, float | None]) -> dict[str, float]:
    """The page's values by their names in METRICS. Raises KeyError for an unknown name."""
    values = {}
    for name, count in counts.items():
        metric = _METRIC[name]
        if count is not None:
            values[metric] = count
    return values


def excerpt(text: str, length: int = 60) -> str:
    """The beginning of an untrusted text: one line, quoted and printable."""
    clean = oneline(text[: 4 * length])
    if len(clean) > length:
        return f'"{clean[:length]}..."'
    return f'"{clean}"'
