"""TLS servers with faults for tests, on real sockets with OpenSSL. One thread per connection, for few connections."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme
from tls_peer import inside, libssl

_BODY = b"x" * 40_000
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


class Conversation:
    """A connection after its handshake: OpenSSL with memory buffers, so that output can be changed."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.sock, self.incoming, self.outgoing = sock, ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def handshake(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
                self.more()
            except ssl.SSLError:
                self.flush()  # its alert
                raise
            else:
                self.flush()
                return

    def more(self) -> None:
        data = self.sock.recv(1 << 16)
        if not data:
            raise ConnectionError
        self.incoming.write(data)

    def request(self) -> bytes:
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            try:
                data += self.tls.read(1 << 16) or self._ended()
            except ssl.SSLWantReadError:
                self.flush()
                self.more()
        return data

    def _ended(self) -> bytes:
        raise ConnectionError

    def answer(self, request: bytes) -> bytes:
        """Its records that are not yet sent."""
        body = _BODY if request.startswith(b"GET") else b""
        self.tls.write(_HEAD % len(body) + body)
        return self.outgoing.read()

    def flush(self) -> None:
        self.sock.sendall(self.outgoing.read())


# Handshakes by which asyncli measures their cost.
BEFORE_THE_RAMP = 10
Habit = Callable[[Conversation, int], None]


def polite(one: Conversation, number: int) -> None:
    one.sock.sendall(one.answer(one.request()))


def updates_keys(one: Conversation, number: int) -> None:
    request = one.request()
    assert libssl.SSL_key_update(inside(one.tls), number % 2) == 1
    one.sock.sendall(one.answer(request))


def small_records(one: Conversation, number: int) -> None:
    """Send each answer byte by byte, in a record each."""
    request = one.request()
    for byte in _HEAD % 0 if request.startswith(b"HEAD") else b"":
        one.tls.write(bytes((byte,)))
    one.flush()


def replays(one: Conversation, number: int) -> None:
    records = one.answer(one.request())
    one.sock.sendall(records + (records if number else b""))


def garbles(one: Conversation, number: int) -> None:
    records = bytearray(one.answer(one.request()))
    if number:
        records[-1] ^= 1
    one.sock.sendall(records)


def writes_in_the_clear(one: Conversation, number: int) -> None:
    request = one.request()
    one.sock.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n" if number else one.answer(request))


def closes_after_handshake(one: Conversation, number: int) -> None:
    raise ConnectionError


def says_goodbye(one: Conversation, number: int) -> None:
    polite(one, number)
    if number:
        with contextlib.suppress(ssl.SSLError):
            one.tls.unwrap()
        one.flush()
        raise ConnectionError


def asks_anew(one: Conversation, number: int) -> None:
    """Renegotiate TLS 1.2."""
    request = one.request()
    if number:
        libssl.SSL_renegotiate(inside(one.tls))
        with contextlib.suppress(ssl.SSLError):
            one.tls.do_handshake()
        one.flush()
    with contextlib.suppress(ssl.SSLError):
        one.sock.sendall(one.answer(request))


def never_answers_hello(one: Conversation, number: int) -> None:
    raise AssertionError("there is no handshake")


def falls_silent(one: Conversation, number: int) -> None:
    """Complete handshakes only before the ramp, when nothing is sent."""
    one.request()


@contextmanager
def serving(folder: Path, habit: Habit = polite, change: Callable[[ssl.SSLContext], object] = lambda _: None, **issue: object) -> Iterator[int]:
    """The port of a server with this fault on 127.0.0.1; its authority is added to ``ca.pem`` in ``folder``. ``issue``: options of trustme's certificate."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem", append=True)
    names = issue.pop("names", ("127.0.0.1",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names, **issue).configure_cert(context)  # type: ignore[arg-type, misc]
    change(context)
    over = threading.Event()
    sockets: list[socket.socket] = []

    def serve(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, ssl.SSLError):
            if habit is never_answers_hello or (habit is falls_silent and len(sockets) > BEFORE_THE_RAMP):
                over.wait()
                return
            one = Conversation(sock, context)
            one.handshake()
            number = 0
            while True:
                habit(one, number)
                number += 1

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                sockets.append(sock)
                threading.Thread(target=serve, args=(sock,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        thread = threading.Thread(target=accept, args=(listener,), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            for sock in sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            thread.join()


EXPIRED = {"not_after": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), "not_before": datetime.datetime(2019, 1, 1, tzinfo=datetime.UTC)}
