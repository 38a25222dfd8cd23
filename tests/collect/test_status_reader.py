"""Polling a status page: on one connection; an unknown page is quoted."""

from __future__ import annotations

from pathlib import Path

import pytest
import strange_tls as strange
from programs import serving

from asyncli.collect.status_reader import StatusReader
from asyncli.model.errors import PeerError, UntrustedPeerError
from asyncli.model.values import TlsOptions

HTML = "<html>\r\n<head><title>Welcome to nginx!</title></head>\n\x1b[31m" + "x" * 10_000
CSV = "# pxname,svname,scur,slim,stot,req_tot\nall,FRONTEND,4,9,6,9\n"


def page(text: str, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n{more}\r\n{text}".encode()


async def test_polls_share_one_connection_and_are_counted() -> None:
    with serving(answer=page(CSV)) as server:
        reader = StatusReader(server.url)
        try:
            await reader.read()
            values = await reader.read()
        finally:
            await reader.close()
    assert server.accepts == 1
    assert values == {
        "status.active": 4, "status.accepts": 6, "status.handled": 6, "status.requests": 9, "status.limit": 9,
        "status.polls": 2, "status.connects": 1, "status.unanswered": 0,
    }


async def test_a_page_whose_certificate_has_expired_is_not_trusted(tmp_path: Path) -> None:
    with strange.serving(tmp_path, **strange.EXPIRED) as port:
        reader = StatusReader(f"https://127.0.0.1:{port}/status", TlsOptions(ca=str(tmp_path / "ca.pem")))
        with pytest.raises(UntrustedPeerError, match="renew it"):
            await reader.read()
        await reader.close()


async def test_a_page_with_impossible_counts_is_refused_until_it_is_right() -> None:
    huge = CSV.replace(",4,", f",{2**64 - 1},")
    with serving(answer=lambda number: page(huge if number == 2 else CSV)) as server:
        reader = StatusReader(server.url)
        try:
            first = await reader.read()
            with pytest.raises(PeerError, match="impossible counts"):
                await reader.read()
            third = await reader.read()
        finally:
            await reader.close()
    assert third == first | {"status.polls": 3, "status.unanswered": 1}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (page(HTML, more="Content-Type: text/html\r\n"), 'answered text/html "<html> <head><title>Welcome to nginx!'),
        (page("", "302 Found", "Location: /status?again\r\n"), "answered 302"),
    ],
)
async def test_an_unknown_page_is_quoted_and_a_redirect_not_followed(answer: bytes, said: str) -> None:
    with serving(answer=answer) as server:
        reader = StatusReader(server.url)
        with pytest.raises(PeerError) as caught:
            await reader.read()
        await reader.close()
    message = str(caught.value)
    assert message.startswith(f"status page {server.url}: ")
    assert said in message
    assert (message.isprintable(), len(message) < 300, server.requests) == (True, True, 1)


async def test_what_an_unknown_page_repeats_of_its_login_is_hidden() -> None:
    with serving(answer=page("no me:tiger-4711", "403 No tiger-4711")) as server:
        reader = StatusReader(f"http://me:tiger-4711@127.0.0.1:{server.port}/status")
        with pytest.raises(PeerError) as caught:
            await reader.read()
        await reader.close()
    assert ("***" in str(caught.value), "tiger" in str(caught.value)) == (True, False)
