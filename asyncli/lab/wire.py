"""HTTP/1.1 for the lab's Python servers: parses a request head and makes the response. Pure.

Enough of RFC 9112 for keep-alive clients, and strict, so that a client's mistake is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

#: The end of a request head; a bare line feed ends a line too, as RFC 9112 2.2 allows and nginx
#: does.
HEAD_END = re.compile(rb"\r?\n\r?\n")
#: A longer head is refused; models.c has the same limit.
LONGEST_HEAD = 8_192

#: A regular expression for a token's character.
TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_LINE_END = re.compile(rb"\r?\n")
_REQUEST_LINE = re.compile(rb"(" + TOKEN + rb"+) ([^\x00-\x20\x7f]+) HTTP/([0-9])\.([0-9])")
_FIELD = re.compile(rb"(" + TOKEN + rb"+):[ \t]*([^\r\0]*?)[ \t]*")
_METHODS = (b"GET", b"HEAD", b"OPTIONS", b"POST")
_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    431: b"Request Header Fields Too Large",
    501: b"Not Implemented",
    505: b"HTTP Version Not Supported",
}


class Request(NamedTuple):
    """A parsed head: ``status`` 200 unless the head is invalid; ``keep``: keep the connection;
    ``body``: its length in bytes; ``expects``: the client waits for 100 Continue.
    """

    status: int
    path: bytes = b""
    head_only: bool = False
    keep: bool = False
    body: int = 0
    expects: bool = False


# Heartbeats repeat the same bytes.
@lru_cache(maxsize=512)
def parse_request(head: bytes) -> Request:
    """Parse a request head without its final blank line."""
    lines = _LINE_END.split(head)
    match = _REQUEST_LINE.fullmatch(lines[0])
    if match is None:
        return Request(400)
    method, target, major, minor = match.groups()
    if major != b"1":
        return Request(505)
    values = _values_by_name(lines[1:])
    if values is None:
        return Request(400)
    is_http_1_0 = minor == b"0"
    hosts = len(values.get(b"host", ()))
    if hosts > 1 or (hosts == 0 and not is_http_1_0):
        return Request(400)
    size = _body_size(values.get(b"content-length", ()))
    if size is None:
        return Request(400)
    if b"transfer-encoding" in values:
        return Request(501)
    return Request(
        status=200 if method in _METHODS else 405,
        path=target.partition(b"?")[0],
        head_only=method == b"HEAD",
        keep=_keeps(values.get(b"connection", ()), is_http_1_0=is_http_1_0),
        body=size,
        expects=not is_http_1_0 and b"100-continue" in values.get(b"expect", ()),
    )


def _values_by_name(lines: Iterable[bytes]) -> dict[bytes, list[bytes]] | None:
    """The header fields in lower case; None if a line is none."""
    values: dict[bytes, list[bytes]] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            return None
        values.setdefault(field[1].lower(), []).append(field[2].lower())
    return values


def _body_size(lengths: Iterable[bytes]) -> int | None:
    """The length of the body by its Content-Length fields; None if they are invalid or differ."""
    sizes = set()
    for length in lengths:
        if not length.isdigit() or len(length) > 18:
            return None
        sizes.add(int(length))
    if len(sizes) > 1:
        return None
    return max(sizes, default=0)


def _keeps(values: Iterable[bytes], *, is_http_1_0: bool) -> bool:
    """Whether the connection is kept, by the ``values`` of its Connection headers."""
    options = set()
    for value in values:
        options |= {option.strip(b" \t") for option in value.split(b",")}
    if b"close" in options:
        return False
    return not is_http_1_0 or b"keep-alive" in options


@lru_cache(maxsize=64)
def answer(
    status: int, body: bytes = b"", date: bytes = b"", *, head_only: bool, keep: bool
) -> bytes:
    """A response, with ``date`` as the Date header if given; ``head_only``: without the body."""
    parts = [b"HTTP/1.1 %d %b\r\nServer: asyncli\r\n" % (status, _REASONS[status])]
    if date:
        parts.append(b"Date: %b\r\n" % date)
    if status == 405:
        parts.append(b"Allow: %b\r\n" % b", ".join(_METHODS))
    if body:
        parts.append(b"Content-Type: text/plain\r\n")
    connection = b"keep-alive" if keep else b"close"
    parts.append(b"Content-Length: %d\r\nConnection: %b\r\n\r\n" % (len(body), connection))
    if not head_only:
        parts.append(body)
    return b"".join(parts)


def status_page(
    *, active: int, accepts: int, handled: int, requests: int, reading: int, writing: int
) -> bytes:
    """nginx's stub_status text, with its trailing spaces (ngx_http_stub_status_module.c)."""
    waiting = max(0, active - reading - writing)
    return (
        b"Active connections: %d \n" % active
        + b"server accepts handled requests\n %d %d %d \n" % (accepts, handled, requests)
        + b"Reading: %d Writing: %d Waiting: %d \n" % (reading, writing, waiting)
    )
