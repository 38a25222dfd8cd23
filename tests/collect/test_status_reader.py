"""Polling a status page: on one connection; an unknown page is quoted."""

from __future__ import annotations

from pathlib import Path

import pytest
import strange_tls as strange
from programs import serving

from asyncli.collect import status_reader
from asyncli.collect.status_reader import StatusReader
from asyncli.model.errors import PeerError, UntrustedPeerError
from asyncli.model.products import Frontend
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


HTML_OF_HAPROXY = (
    "<html><head><title>Statistics Report for HAProxy</title>\n"
    "<b>maxsock = </b> 98; <b>maxconn = </b> 40; <b>maxpipes = </b> 0<br>\n"
    "current conns = 7; current pipes = 0/0; conn rate = 1/sec;\n"
)


@pytest.mark.parametrize(
    ("second", "limit", "answered"),
    [
        (page(HTML_OF_HAPROXY), {"status.limit_in_all": 40}, True),
        (page(HTML_OF_HAPROXY + "x" * (2 << 20)), {"status.limit_in_all": 40}, True),
        (page(HTML), {}, True),
        (page("", "403 Forbidden"), {}, True),
        (page(HTML_OF_HAPROXY.replace("40", "9" * 40)), {}, True),
        (b"", {}, False),
    ],
)
async def test_haproxys_page_for_people_is_read_once(
    second: bytes, limit: dict[str, int], answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_reader, "TIMEOUT_S", 0.5)
    heard = []

    def answer(number: int) -> bytes:
        heard.append(server.heard.split()[1])
        return second if number == 2 else page(CSV)

    with serving(answer=answer) as server:
        reader = StatusReader(f"{server.url}stats;csv;norefresh", headers=["X-Token: t"])
        try:
            first = await reader.read()
            values = await reader.read()
        finally:
            await reader.close()
    assert heard == [b"/stats;csv;norefresh", b"/stats;norefresh", b"/stats;csv;norefresh"]
    assert b"X-Token: t" in server.heard
    assert {name: value for name, value in first.items() if name.endswith("in_all")} == limit
    # It is a request to the server like any other; the first page had not counted it.
    assert (first["status.polls"], values["status.polls"]) == (1, 3)
    assert values["status.unanswered"] == (0 if answered else 1)
    assert reader.all_frontends == (Frontend(7, 40) if limit else None)
