"""One connection before a run speaks what all will speak: what it found, and what a server refuses, is told before the ramp."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived
from programs import SHORT, Client, Done, here, speaking
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Request, TextMessage

from asyncli.lab import choose
from asyncli.model.protocol_table import CUT_ANSWER


def answering(greeting: bytes, answer: bytes) -> tuple[Client, list[bytes]]:
    """A client of a server that says ``greeting``, and ``answer`` to each read; and of each connection what was read until its end."""
    heard: list[bytes] = []

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(b"")
        mine = len(heard) - 1
        writer.write(greeting)
        try:
            while data := await reader.read(4096):
                heard[mine] += data
                writer.write(answer)
        except OSError:
            heard[mine] += b" reset"
        writer.close()

    return client, heard


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("tls", [False, True])
def test_raw_tcp_is_greeted_and_its_heartbeat_answered(tls: bool, tmp_path: Path) -> None:
    context = None
    if tls:
        context, authority = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), trustme.CA()
        authority.issue_cert("127.0.0.1").configure_cert(context)
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    client, heard = answering(b"220 ready\r\n", b"250 ok\r\n")
    with speaking(client, context) as at:
        scheme, ca = ("tls", ("--ca", "ca.pem")) if tls else ("tcp", ())
        words = (f"{scheme}://{at}", *ca, "--send", r"NOOP\r\n", "--expect", "/^250/")
        done = here(tmp_path, "check", "--probe", *words, "--greeting", "/^220/")
        assert done.status == 0, done
        assert (r"b'220 ready\r\n'" in done.out, r"b'250 ok\r\n'" in done.out) == (True, True)
        assert ("TLS: TLSv1.3" in done.out) == tls
        # Nine more handshakes of TLS tell what one costs.
        assert [one for one in heard if b"NOOP" in one] == [b"NOOP\r\n"]
        assert len(heard) == (10 if tls else 1)
        done = here(tmp_path, "soak", *words, *SHORT, "--greeting", "/^554/")
        assert (done.status, done.err.count("\n"), "in place of" in done.err, "--header" in done.err) == (2, 1, True, False)
        del heard[:]
        # Nobody has to be asked: nobody is connected to.
        done = here(tmp_path, "check", *words)
        assert (done.status, heard) == (0, [])


def test_what_check_says_of_answers_that_are_not_what_it_waits_for(tmp_path: Path) -> None:
    async def of_websocket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conn = WSConnection(ConnectionType.SERVER)
        while data := await reader.read(4096):
            conn.receive_data(data)
            for event in conn.events():
                if isinstance(event, Request):
                    writer.write(conn.send(AcceptConnection()))
                elif isinstance(event, TextMessage):
                    writer.write(conn.send(TextMessage("pong")))
        writer.close()

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel")
        writer.close()

    async def of_http2(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conn = H2Connection(H2Configuration(client_side=False))
        conn.initiate_connection()
        writer.write(conn.data_to_send())
        while data := await reader.read(4096):
            for event in conn.receive_data(data):
                if isinstance(event, RequestReceived):
                    conn.send_headers(event.stream_id, [(":status", "404")], end_stream=True)
            writer.write(conn.data_to_send())
        writer.close()

    def probed(client: Client, scheme: str, *words: str) -> Done:
        with speaking(client) as at:
            return here(tmp_path, "check", "--probe", "-c", "5", *words, f"{scheme}://{at}/")

    done = probed(of_websocket, "ws", "--ws-message", "ping", "--timeout", "2")
    assert (done.status, "b'pong'" in done.err, "--ws-message" in done.err) == (2, True, True), done
    done = probed(cut, "http", "--method", "GET")
    assert (done.status, CUT_ANSWER in done.err) == (2, True), done
    done = probed(of_http2, "http", "--http2", "--h2-heartbeat", "head")
    assert ("(HTTP 404)" in one_line(done.out), "OK" in one_line(done.out), "warning" in done.out.partition("\n")[0]) == (True, False, True), done


@pytest.mark.parametrize("order", ["127.0.0.1,127.0.0.9", "127.0.0.9,127.0.0.1"])
def test_a_dead_address_beside_one_that_answers_is_told(order: str, tmp_path: Path) -> None:
    with speaking(answering(b"", b"+PONG\r\n")[0]) as at:
        port = at.rpartition(":")[2]
        done = here(tmp_path, "check", "--probe", "--send", "PING", "--resolve", f"there:{port}:{order}", f"tcp://there:{port}")
    assert (done.status, "+PONG" in done.out, f"127.0.0.9:{port} accepted no connect" in one_line(done.out)) == (0, True, True), done


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
@pytest.mark.parametrize(("scheme", "plain"), [("wss", "ws"), ("mqtts", "mqtt"), ("tls", "tcp"), ("https", "http")])
def test_a_port_without_tls_is_told_with_the_scheme_to_write(scheme: str, plain: str, answer: bytes, tmp_path: Path) -> None:
    with speaking(answering(b"", answer)[0]) as at:
        done = here(tmp_path, "check", "--probe", "--connect-timeout", "0.3", f"{scheme}://{at}")
    assert (done.status, f" {plain}://" in done.err) == (2, True), done


@pytest.mark.nginx
async def test_plain_http_is_asked_by_check_alone_and_says_its_status(tmp_path: Path) -> None:
    async with choose("nginx", connections=40) as server:
        assert server.status_url is not None
        there = server.status_url.replace("nginx_status", "nonesuch")
        done = await asyncio.to_thread(here, tmp_path, "check", "--probe", "-c", "10", there)
        assert (done.status, " answered 404 " in one_line(done.out)) == (0, True)
    assert server.complaints == ()


def test_who_is_not_there_is_not_refused(tmp_path: Path) -> None:
    done = here(tmp_path, "check", "--probe", "ws://127.0.0.1:1/")
    assert (done.status, "ws://127.0.0.1:1/: not reached" in one_line(done.out)) == (3, True)
    assert here(tmp_path, "soak", "ws://127.0.0.1:1/", *SHORT, "--quiet").status == 3
