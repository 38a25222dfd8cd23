"""An OpenSSL server in memory, as the oracle of the record layer."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import ssl
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trustme

from asyncli.engine.tls_handshake import Handshake, KeyLog
from asyncli.model.values import TlsOptions
from asyncli.protocols.tls13 import SUITES, RecordLayer

ROW = 5
NAME = "server.test"
# A Python with a statically linked OpenSSL would get pointers of another OpenSSL.
if "/libssl.so.3" not in Path("/proc/self/maps").read_text(encoding="utf-8"):
    pytest.skip("this Python's ssl is not linked to libssl.so.3", allow_module_level=True)
libssl = ctypes.CDLL("libssl.so.3")
_KEY_UPDATE_NOT_REQUESTED, _KEY_UPDATE_REQUESTED = 0, 1


def inside(what: Any) -> ctypes.c_void_p:
    """The SSL or SSL_CTX pointer in CPython's object: the first field after its head, for an SSL after the socket (Modules/_ssl.c)."""
    place = 24 if isinstance(what, ssl.SSLObject) else 16
    return ctypes.c_void_p.from_address(id(getattr(what, "_sslobj", what)) + place)


@functools.cache
def authority() -> trustme.CA:
    return trustme.CA()


@functools.cache
def server_context(suite: str | None = None) -> ssl.SSLContext:
    """A server's context with only this TLS 1.3 cipher suite."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert(NAME).configure_cert(context)
    if suite is not None:
        assert libssl.SSL_CTX_set_ciphersuites(inside(context), suite.encode()) == 1
    return context


@functools.cache
def authority_file() -> str:
    folder = TemporaryDirectory()
    _folders.append(folder)
    path = Path(folder.name, "ca.pem")
    authority().cert_pem.write_to_path(path)
    return str(path)


_folders: list[TemporaryDirectory[str]] = []


@functools.cache
def client() -> tuple[ssl.SSLContext, KeyLog]:
    from asyncli.model.certificates import client_context

    context = client_context(TlsOptions(ca=authority_file()))
    return context, KeyLog(context)


class Peer:
    """The server's end of a connection after the handshake; ``layer`` has the client's, as row :data:`ROW`."""

    def __init__(self, suite: str) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = server_context(suite).wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.layer = RecordLayer()
        context, keylog = client()
        ours = Handshake(0, 0.0)
        ours.begin(context, NAME, None)
        ours.step()
        hello = ours.outgoing.read()
        over = False
        self.incoming.write(hello)
        while not over:
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
            over = ours.feed(self.outgoing.read())
            self.incoming.write(ours.outgoing.read())
        self.tls.do_handshake()
        assert (ours.tls.cipher() or ("",))[0] == suite in SUITES
        self.layer.open(ROW, suite, *keylog.take(hello[11:43]))
        #: What it has sent since then, first the tickets.
        self.unread = ours.partial + self.outgoing.read()

    def writes(self, data: bytes) -> bytes:
        """The records of these bytes."""
        self.tls.write(data)
        return self.outgoing.read()

    def updates_keys(self, asks: bool) -> bytes:
        kind = _KEY_UPDATE_REQUESTED if asks else _KEY_UPDATE_NOT_REQUESTED
        assert libssl.SSL_key_update(inside(self.tls), kind) == 1
        return self.writes(b".")

    def reads(self, data: bytes) -> bytes:
        """The bytes that it reads from records."""
        self.incoming.write(data)
        heard = b""
        try:
            while piece := self.tls.read(1 << 16):
                heard += piece
        except ssl.SSLWantReadError:
            pass
        return heard
