"""The built-in server's HTTP/1.1: what to answer to one request head. Pure.

Enough of RFC 9112 for keep-alive clients, and strict where a lenient server would hide a client's mistake.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

#: The end of a request head; bare line feeds are taken for line ends, as RFC 9112 2.2 allows and nginx does.
HEAD_END = re.compile(rb"\r?\n\r?\n")
#: A longer head is refused: nginx's four buffers of 8 kB.
LONGEST_HEAD = 32_768

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/(\d)\.(\d)")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")
_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    505: b"HTTP Version Not Supported",
}
_SERVER = b"\r\nServer: asyncli\r\nDate: "


class Request(NamedTuple):
    """What a head asks for: ``status`` 200 unless the head itself is wrong, ``keep`` if the client wants more."""

    status: int
    path: bytes
    head_only: bool
    keep: bool


_BAD = Request(400, b"", head_only=False, keep=False)


# Heartbeats are the same bytes over and over: one look in a table for nearly all of them.
@lru_cache(maxsize=512)
def understand(head: bytes) -> Request:
    """One request head, without its final blank line."""
    lines = head.replace(b"\r\n", b"\n").split(b"\n")
    match = _REQUEST_LINE.fullmatch(lines[0])
    if match is None:
        return _BAD
    method, target, major, minor = match.groups()
    if major != b"1":
        return Request(505, b"", head_only=False, keep=False)
    keep, hosts, body = minor != b"0", 0, False
    for line in lines[1:]:
        field = _FIELD.fullmatch(line)
        if field is None:
            return _BAD
        name, value = field[1].lower(), field[2].lower()
        if name == b"connection":
            options = {option.strip() for option in value.split(b",")}
            keep = b"close" not in options and (keep or b"keep-alive" in options)
        elif name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            body = True
    if hosts > 1 or (hosts == 0 and minor != b"0"):
        return _BAD
    path = target.partition(b"?")[0]
    known = method in (b"GET", b"HEAD", b"OPTIONS")
    # A body is not read, so nothing after it could be told from it: answer, and close.
    return Request(200 if known else 405, path, head_only=method == b"HEAD", keep=keep and known and not body)


def answer(status: int, body: bytes, date: bytes, *, head_only: bool, keep: bool) -> bytes:
    """A response; to HEAD the same head without the body."""
    return b"".join(
        (
            b"HTTP/1.1 %d %b" % (status, _REASONS[status]),
            _SERVER,
            date,
            b"\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n" % len(body),
            b"Allow: GET, HEAD, OPTIONS\r\n" if status == 405 else b"",
            b"Connection: keep-alive\r\n\r\n" if keep else b"Connection: close\r\n\r\n",
            b"" if head_only else body,
        )
    )


class Counts(NamedTuple):
    """What a stub_status page shows; ``waiting`` is the rest of ``active``."""

    active: int
    accepts: int
    handled: int
    requests: int
    reading: int
    writing: int


def status_page(counts: Counts) -> bytes:
    """nginx's stub_status text, trailing spaces and all (ngx_http_stub_status_module.c)."""
    waiting = max(0, counts.active - counts.reading - counts.writing)
    return (
        b"Active connections: %d \n" % counts.active
        + b"server accepts handled requests\n %d %d %d \n" % (counts.accepts, counts.handled, counts.requests)
        + b"Reading: %d Writing: %d Waiting: %d \n" % (counts.reading, counts.writing, waiting)
    )
