"""The response scanner: tables of what it must accept. tests/fuzz compares it with h11."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from asyncli.protocols.http1 import MOST_HEAD_BYTES, Scanner
from asyncli.protocols.interface import Event, ProtocolError

OK = b"HTTP/1.1 200 OK\r\n"


def scan(data: bytes, method: str, cuts: Iterable[int] = ()) -> Event | str | None:
    scanner = Scanner(method)
    edges = [0, *sorted(cuts), len(data)]
    try:
        for start, end in itertools.pairwise(edges):
            response = scanner.feed(data[start:end])
            if response is not None:
                return response
    except ProtocolError:
        return "error"
    return None


@pytest.mark.parametrize(
    ("data", "method", "expected"),
    [
        (OK + b"\r\n", "HEAD", Event(200, True)),
        (OK + b"Content-Length: 2\r\n\r\nhi", "GET", Event(200, True, 2)),
        (OK + b"Content-Length: 2\r\n\r\nh", "GET", None),
        (OK + b"connection: Keep-Alive, CLOSE\r\n\r\n", "HEAD", Event(200, False)),
        (b"HTTP/1.1 200\r\n\r\n", "HEAD", Event(200, True)),
        (b"HTTP/1.0 200 OK\r\n\r\n", "HEAD", Event(200, False, rest=b"HTTP/1.0")),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n", "HEAD", Event(200, True)),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK + b"\r\n", "HEAD", Event(200, True)),
        (b"HTTP/1.1 999 Odd\r\n\r\n", "HEAD", Event(999, True)),
        (b"HTTP/1.1 204 No\n\n", "GET", Event(204, True)),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nhi\r\n0\r\n\r\n", "GET", Event(200, True, 2)),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", "GET", None),
    ],
)  # fmt: skip
def test_takes_any_split(data: bytes, method: str, expected: Event | None) -> None:
    assert scan(data, method) == expected
    assert scan(data, method, range(1, len(data))) == expected


def test_bytes_after_a_response_are_kept_apart() -> None:
    scanner = Scanner("HEAD")
    assert scanner.feed(OK + b"\r\nHTTP/1.1 408") == Event(200, True)
    assert scanner.rest == b"HTTP/1.1 408"


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("before", "begin", "end", "after"),
    [
        (b"", OK + b"Content-Length: 0\r\nX: ", b"\r\n\r\n", b""),
        (CHUNKED, b"1;", b"\r\n", b"x\r\n0\r\n\r\n"),
        (CHUNKED + b"0\r\n", b"X: ", b"\r\n\r\n", b""),
    ],
    ids=["head", "chunk header", "trailer"],
)
def test_bounds_hold_for_any_split(before: bytes, begin: bytes, end: bytes, after: bytes) -> None:
    for size, expected in ((MOST_HEAD_BYTES, True), (MOST_HEAD_BYTES + 1, False)):
        data = before + begin + b"x" * (size - len(begin) - len(end)) + end + after
        stop = len(before) + size
        for cuts in ([], [stop - 4], [stop - 2], [stop - 1], list(range(0, len(data), 1448))):
            assert isinstance(scan(data, "GET", cuts), Event) == expected, (size, cuts[:1])


def test_an_empty_line_before_an_answer_is_refused() -> None:
    # RFC 9112, 2.2 lets only a server skip it, before a request.
    for data in (b"\r\n" + OK + b"\r\n", b"\n" + OK + b"\r\n"):
        assert scan(data, "HEAD") == "error"
    scanner = Scanner("GET")
    assert scanner.feed(OK + b"Content-Length: 2\r\n\r\nhi\r\n") == Event(200, True, 2)
    assert scanner.rest == b"\r\n"


@pytest.mark.parametrize(
    ("data", "what"),
    [(b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x80", "it speaks HTTP/2"), (b"\x15\x03\x01\0\x02\x02\x46", "it speaks TLS"), (b"\x88\x02\x03\xea\n\n", ""), (b"\x15 no\n\n", "")],
)
def test_another_protocol_is_recognised_by_its_first_bytes(data: bytes, what: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        Scanner("HEAD").feed(data)
    assert (str(caught.value) == what) == bool(what)
