"""Loads certificates from the PEM files that flags name."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Sequence
from pathlib import Path

from asyncli.model.errors import HostError
from asyncli.model.values import TlsOptions

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def client_context(options: TlsOptions, offered: Sequence[str] = ("http/1.1",)) -> ssl.SSLContext:
    """The TLS context of a process's connections; ``offered``: protocols by ALPN. Raises :class:`HostError`."""
    context = trusting("--ca", options.ca)
    if options.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if options.client_cert is not None:
        identify(context, ("--client-cert", "--client-key"), options.client_cert, options.client_key)
    context.minimum_version = _VERSIONS.get(options.tls_min or "1.2", ssl.TLSVersion.TLSv1_2)
    if options.tls_max is not None:
        context.maximum_version = _VERSIONS[options.tls_max]
    if options.tls_ciphers is not None:
        try:
            context.set_ciphers(options.tls_ciphers)
        except ssl.SSLError:
            what = "OpenSSL knows none of them; 'openssl ciphers -v' lists those of TLS 1.2 (for TLS 1.3 the server chooses)"
            raise HostError(f"--tls-ciphers {options.tls_ciphers}: {what}") from None
    context.options |= ssl.OP_NO_RENEGOTIATION
    if offered:
        context.set_alpn_protocols(list(offered))
    return context


def not_http2(chosen: str | None) -> str:
    """The error for a protocol other than h2 that the server chose by ALPN; "" for h2."""
    return "" if chosen == "h2" else f"the server {f'speaks {chosen}' if chosen else 'chose nothing'} in ALPN, not h2"


def reason_of(error: ssl.SSLError) -> str:
    """OpenSSL's reason for an error: "certificate has expired", "alert handshake failure", "wrong version number"."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = (error.reason or str(error)).lower().replace("_", " ")
    for before in ("sslv3 ", "tlsv13 ", "tlsv1 "):
        reason = reason.removeprefix(before)
    return reason


def trusting(flag: str, authority: str | None) -> ssl.SSLContext:
    """A client's context that trusts this file's authority (None: the system's). Raises :class:`HostError`."""
    try:
        context = ssl.create_default_context(cafile=authority)
        # Ignore $SSLKEYLOGFILE: no secret goes into a file.
        context.keylog_filename = None  # type: ignore[assignment]
        return context
    except (OSError, ssl.SSLError) as error:
        why = error.strerror if not isinstance(error, ssl.SSLError) and error.strerror else "no certificate in PEM"
        raise HostError(f"{flag} {authority}: cannot be read ({why}); name a file with the authority's certificate") from None


def identify(context: ssl.SSLContext, flags: tuple[str, str], certificate: str, key: str | None) -> ssl.SSLContext:
    """Load this certificate and key, which ``flags`` name, into ``context`` and return it. Raises :class:`HostError`."""
    named = [(flag, path) for flag, path in zip(flags, (certificate, key), strict=True) if path is not None]
    for flag, path in named:
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise HostError(f"{flag} {path}: cannot be read ({error.strerror}); name a file in PEM") from None
    asked = []

    def no_passphrase() -> str:
        asked.append(True)
        return ""

    try:
        context.load_cert_chain(certificate, key, password=no_passphrase)
    except (ssl.SSLError, OSError, ValueError) as error:
        # Without a reason OpenSSL's text is its source file and line.
        reason = error.reason if isinstance(error, ssl.SSLError) else str(error)
        why = f" ({reason.lower().replace('_', ' ')})" if reason else ""
        files = " and ".join(f"{flag} {path}" for flag, path in named)
        what = f"{'hold' if key else 'holds'} no certificate with its key, in PEM{why}; name both files"
        if asked:
            what = "the key has a passphrase; write it without one (openssl pkey -in KEY -out PLAIN)"
        elif reason == "KEY_VALUES_MISMATCH":
            what = "the key does not belong to the certificate; name the one that does"
        raise HostError(f"{files}: {what}") from None
    return context


def refused_because(context: ssl.SSLContext, certificate: str) -> str | None:
    """OpenSSL's reason ("certificate has expired") why clients that trust this certificate will refuse it; None: they accept
    it, or it cannot be tried."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client.load_verify_locations(certificate)
        ends = client.wrap_bio(back, there), context.wrap_bio(there, back, server_side=True)
        for end in ends * 2:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (OSError, ValueError):
        pass
    return None
