"""Parsers of servers' status pages, recognised by their text. Pure.

Each returns the ``status.*`` metrics of its page; what a page lacks is absent.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from typing import NamedTuple

from asyncli.model.metrics import METRICS
from asyncli.model.text import oneline

# Tengine and Angie append columns (request_time). Counts have at most 64 bits. Possessive quantifiers (``++``, ``*+``) bound the
# time on hostile input.
_STUB_STATUS = re.compile(
    r"\s*+Active connections:\s*+(?P<active>[0-9]{1,20}+)[^\S\n]*+\n"
    r"\s*+server accepts handled requests[^\n]*+\n"
    r"\s*+(?P<accepts>[0-9]{1,20}+)\s++(?P<handled>[0-9]{1,20}+)\s++(?P<requests>[0-9]{1,20}+)(?![0-9])[^\n]*+\n"
    r"\s*+Reading:\s*+(?P<reading>[0-9]{1,20}+)\s++Writing:\s*+(?P<writing>[0-9]{1,20}+)\s++Waiting:\s*+(?P<waiting>[0-9]{1,20}+)\s*+"
)
_MOST_DIGITS = 20

# Apache's scoreboard, a character for each process or thread (mod_status).
_READING, _WRITING, _KEPT = "R", "W", "K"
_CSV_MARK = "# pxname,"
_METRIC = {metric.removeprefix("status."): metric for metric in METRICS if metric.startswith("status.")}


class StatusPage(NamedTuple):
    """``with_us``: the counts include our own connection and requests."""

    kind: str
    values: dict[str, float]
    with_us: bool


class NotStatusPage(ValueError):  # noqa: N818 - it names what the text is
    """The text is no known status page."""


def parse_page(text: str) -> StatusPage:
    """Parse the page of any known server. Raises :class:`NotStatusPage` with the beginning of the text."""
    text = text.replace("\r\n", "\n")
    for parse in (_stub_status, _apache, _haproxy):
        found = parse(text)
        if found is not None:
            return found
    raise NotStatusPage(f"{excerpt(text)} is no status page")


def _stub_status(text: str) -> StatusPage | None:
    """nginx's (ngx_http_stub_status_module): all workers; includes the asking connection and request."""
    match = _STUB_STATUS.fullmatch(text)
    if match is None:
        return None
    return StatusPage("stub_status", _known({name: float(number) for name, number in match.groupdict().items()}), True)


def _apache(text: str) -> StatusPage | None:
    """Apache's ``server-status?auto`` (mod_status); includes the asking connection.

    Apache counts no accepts, and requests only with ``ExtendedStatus On`` (``Total Accesses``). In prefork and worker a process
    or thread serves one connection, so the busy ones are the active connections. In event that is ``ConnsTotal``, which each
    process updates only when a timer of one of its connections expires (KeepAliveTimeout, Timeout): a sum over several processes
    mixes instants, so it is used only with a single process.
    """
    fields = {name: value.strip() for name, colon, value in (line.partition(":") for line in text.splitlines()) if colon}
    if not {"BusyWorkers", "IdleWorkers", "Scoreboard"} <= fields.keys():
        return None
    board = fields["Scoreboard"]
    found: dict[str, float | None] = {
        "requests": _number(fields, "Total Accesses"),
        "busy": _number(fields, "BusyWorkers"),
        "idle": _number(fields, "IdleWorkers"),
    }
    connections = _number(fields, "ConnsTotal")
    if connections is None and fields.get("ServerMPM") != "event":
        found |= {
            "active": _number(fields, "BusyWorkers"),
            "reading": float(board.count(_READING)),
            "writing": float(board.count(_WRITING)),
            "waiting": float(board.count(_KEPT)),
        }
    elif _number(fields, "Processes") == 1:
        # Our own connection counts, so 0 was never updated.
        found |= {"active": connections or None, "waiting": _number(fields, "ConnsAsyncKeepAlive") if connections else None}
    return StatusPage("server-status", _known(found), True)


def _haproxy(text: str) -> StatusPage | None:
    """HAProxy's statistics as CSV (management.txt, "9.1. CSV format"): the sum of its frontends.

    Excludes frontends with "stats" in their name, unless there is no other; only then the counts include our own polls.
    """
    if not text.startswith(_CSV_MARK):
        return None
    try:
        rows = [row for row in csv.DictReader(text[2:].splitlines()) if row.get("svname") == "FRONTEND"]
    except csv.Error:  # a cell of more than 131,072 characters
        return None
    # A row may lack the last of two columns of one name.
    others = [row for row in rows if "stats" not in (row["pxname"] or "").lower()]
    frontends = others or rows
    if not frontends:
        return None

    def total(*names: str) -> float | None:
        numbers = [next((number for name in names if (number := _number(row, name)) is not None), None) for row in frontends]
        return None if None in numbers else sum(number for number in numbers if number is not None)

    # conn_tot came with 1.7; stot counts what the rules for connections let through.
    found = {
        "active": total("scur"),
        "accepts": total("conn_tot", "stot"),
        "handled": total("stot"),
        "requests": total("req_tot"),
        "limit": total("slim") or None,
    }
    return StatusPage("haproxy", _known(found), with_us=not others)


def _number(fields: Mapping[str, str | None], name: str) -> float | None:
    value = fields.get(name) or ""
    return float(value) if value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS else None


def _known(found: Mapping[str, float | None]) -> dict[str, float]:
    """The page's values by their names in METRICS. Raises KeyError for an unknown name."""
    named = {_METRIC[name]: value for name, value in found.items()}
    return {metric: value for metric, value in named.items() if value is not None}


def excerpt(text: str, length: int = 60) -> str:
    """The beginning of an untrusted text: one line, quoted and printable."""
    clean = oneline(text[: 4 * length])
    return f'"{clean[:length]}..."' if len(clean) > length else f'"{clean}"'
