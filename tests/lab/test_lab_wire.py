"""The built-in server's reading of a request head, against a table and against h11 as the client."""

from __future__ import annotations

import h11
import pytest

from asyncli.lab.wire import HEAD_END, Counts, answer, status_page, understand


@pytest.mark.parametrize(
    ("head", "status", "keep"),
    [
        (b"HEAD / HTTP/1.1\r\nHost: a", 200, True),
        (b"GET /any/path?q=1 HTTP/1.1\r\nhost:a", 200, True),
        (b"OPTIONS / HTTP/1.1\r\nHost: a", 200, True),
        (b"HEAD / HTTP/1.1\nHost: a", 200, True),
        (b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close", 200, False),
        (b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, Close", 200, False),
        (b"HEAD / HTTP/1.0", 200, False),
        (b"HEAD / HTTP/1.0\r\nConnection: Keep-Alive", 200, True),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0", 200, True),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked", 501, False),
        (b"GET / HTTP/1.1", 400, False),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b", 400, False),
        (b"GET / HTTP/1.1\r\nHost : a", 400, False),
        (b"GET /\r\nHost: a", 400, False),
        (b"GET  / HTTP/1.1\r\nHost: a", 400, False),
        (b"\x16\x03\x01", 400, False),
        (b"GET / HTTP/2.0\r\nHost: a", 505, False),
    ],
)
def test_a_head_is_understood(head: bytes, status: int, keep: bool) -> None:
    request = understand(head)
    assert (request.status, request.keep) == (status, keep)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("status", [200, 400, 404, 405, 505])
def test_an_answer_is_what_h11_expects(method: str, status: int) -> None:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(answer(status, b"ok\n", b"Thu, 01 Jan 1970 00:00:00 GMT", head_only=method == "HEAD", keep=True))
    response = client.next_event()
    assert isinstance(response, h11.Response)
    assert response.status_code == status
    assert dict(response.headers)[b"content-length"] == b"3"
    body = client.next_event()
    if method == "GET":
        assert isinstance(body, h11.Data)
        assert body.data == b"ok\n"
        body = client.next_event()
    assert isinstance(body, h11.EndOfMessage)
    assert client.next_event() is h11.NEED_DATA


def test_a_head_ends_at_the_first_blank_line() -> None:
    match = HEAD_END.search(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET")
    assert match.end() == 27


def test_the_status_page_is_nginx_to_the_byte() -> None:
    assert status_page(Counts(291, 16630948, 16630946, 31070465, 6, 179)) == (
        b"Active connections: 291 \nserver accepts handled requests\n 16630948 16630946 31070465 \n"
        b"Reading: 6 Writing: 179 Waiting: 106 \n"
    )
