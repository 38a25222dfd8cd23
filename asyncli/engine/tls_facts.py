"""A TLS handshake before a run, and what the server negotiates and shows in it."""

from __future__ import annotations

import contextlib
import datetime
import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from asyncli.model.text import printable

if TYPE_CHECKING:
    from cryptography import x509

# A server that refuses our certificate says so at once; one that accepts it mostly sends tickets.
_FIRST_RECORD_MS = 200
_READ_BYTES = 8192
_DAY_S = 86_400


class Certificate(msgspec.Struct, frozen=True):
    """A server's certificate. ``subject`` and ``issuer`` by RFC 4514; ``ends``: ISO 8601, UTC;
    ``lasts_days``: from its begin to its end; ``key``: "EC 256", "RSA 2048".
    """

    subject: str
    issuer: str
    names: list[str]
    ends: str
    days_left: float
    lasts_days: float
    key: str
    signature: str
    #: The certificates that the server sends with it; None: unknown. ``top``: the issuer of the
    #: last one, RFC 4514.
    sent: int | None = None
    top: str = ""

    @property
    def is_self_signed(self) -> bool:
        return self.issuer == self.subject


class TlsFacts(msgspec.Struct, frozen=True):
    """What the server negotiated. Of the fastest handshake, ``handshake_s`` is the duration and
    ``cpu_s`` our CPU time.
    """

    protocol: str
    suite: str
    alpn: str | None
    verified: bool
    handshake_s: float
    cpu_s: float
    certificate: Certificate | None


def shake_hands(
    sock: socket.socket,
    context: ssl.SSLContext,
    name: str,
    run: Callable[[socket.socket, bytes], None] | None = None,
) -> TlsFacts:
    """Do a TLS handshake for the server ``name``, then call ``run`` with the connection and with
    what the server has sent already. Raises OSError (of which ssl.SSLError is one).
    """
    began_s = time.monotonic()
    cpu_began_s = time.thread_time()
    with context.wrap_socket(sock, server_hostname=name) as tls:
        handshake_s = time.monotonic() - began_s
        cpu_s = time.thread_time() - cpu_began_s
        cipher = tls.cipher()
        der = tls.getpeercert(binary_form=True)
        if run is not None:
            run(tls, _first_record(tls))
        return TlsFacts(
            protocol=tls.version() or "",
            suite=cipher[0] if cipher else "",
            alpn=tls.selected_alpn_protocol(),
            verified=context.verify_mode == ssl.CERT_REQUIRED,
            handshake_s=handshake_s,
            cpu_s=cpu_s,
            certificate=_shown_certificate(der, tls),
        )


def _first_record(tls: ssl.SSLSocket) -> bytes:
    """What the server sends at once. With TLS 1.3 it checks our certificate only after our
    handshake is done, so a refusal comes with this read. b"": nothing, or an older TLS.
    """
    if tls.version() != "TLSv1.3":
        return b""
    readable = select.poll()
    readable.register(tls, select.POLLIN)
    readable.poll(_FIRST_RECORD_MS)
    tls.setblocking(False)
    with contextlib.suppress(ssl.SSLWantReadError, ConnectionError):
        return tls.recv(_READ_BYTES)
    return b""


def _shown_certificate(der: bytes | None, tls: ssl.SSLSocket) -> Certificate | None:
    """The server's certificate, with what is known of the others that it sent. None: it showed
    none, or one that cannot be parsed.
    """
    if not der:
        return None
    certificate = read_certificate(der)
    if certificate is None:
        return None
    chain = _sent_chain(tls)
    if chain is None:
        return certificate
    top = ""
    if chain:
        last = read_certificate(chain[-1])
        if last is not None:
            top = last.issuer
    return msgspec.structs.replace(certificate, sent=len(chain), top=top)


def _sent_chain(tls: ssl.SSLSocket) -> list[bytes] | None:
    """The certificates that the server sent, in DER, its own first; None if Python does not tell
    them.
    """
    # Public from Python 3.13 on.
    get_chain = getattr(tls, "get_unverified_chain", None)
    if get_chain is None:
        inner = tls._sslobj  # type: ignore[attr-defined]
        get_chain = getattr(inner, "get_unverified_chain", None)
    if get_chain is None:
        return None
    chain = []
    for certificate in get_chain() or ():
        if isinstance(certificate, bytes):
            chain.append(certificate)
        else:
            chain.append(ssl.PEM_cert_to_DER_cert(certificate.public_bytes()))
    return chain


def read_certificate(der: bytes) -> Certificate | None:
    """The fields of a certificate; None if it cannot be parsed."""
    from cryptography import x509

    try:
        certificate = x509.load_der_x509_certificate(der)
        digest = certificate.signature_hash_algorithm
        begins = certificate.not_valid_before_utc
        ends = certificate.not_valid_after_utc
        now = datetime.datetime.now(datetime.UTC)
        return Certificate(
            subject=printable(certificate.subject.rfc4514_string()),
            issuer=printable(certificate.issuer.rfc4514_string()),
            names=[printable(name) for name in _alternative_names(certificate)],
            ends=ends.isoformat(timespec="seconds"),
            days_left=(ends - now).total_seconds() / _DAY_S,
            lasts_days=(ends - begins).total_seconds() / _DAY_S,
            key=_kind_of_key(certificate.public_key()),
            signature="none" if digest is None else digest.name,
        )
    except (ValueError, TypeError, AttributeError):
        return None


def _alternative_names(certificate: x509.Certificate) -> list[str]:
    """The host names and addresses of its subjectAltName; none without one."""
    from cryptography import x509

    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    names = extension.value
    hosts = names.get_values_for_type(x509.DNSName)
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*hosts, *map(str, addresses)]


def _kind_of_key(key: Any) -> str:
    """``EC 256``, ``RSA 2048``; a kind of one size has no number: ``Ed25519``."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if isinstance(key, ec.EllipticCurvePublicKey):
        return f"EC {key.key_size}"
    kind = type(key).__name__.strip("_").removesuffix("PublicKey")
    if isinstance(key, rsa.RSAPublicKey):
        return f"{kind} {key.key_size}"
    return kind
