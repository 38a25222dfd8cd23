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
    """The TLS context of a process's connections; ``offered``: protocols by ALPN. Raises
    :class:`HostError`.
    """
    context = trusting("--ca", options.ca)
    if options.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if options.client_cert is not None:
        identify(
            context, ("--client-cert", "--client-key"), options.client_cert, options.client_key
        )
    context.minimum_version = _VERSIONS.get(options.tls_min or "1.2", ssl.TLSVersion.TLSv1_2)
    if options.tls_max is not None:
        context.maximum_version = _VERSIONS[options.tls_max]
    if options.tls_ciphers is not None:
        try:
            context.set_ciphers(options.tls_ciphers)
        except ssl.SSLError:
            raise HostError(
                f"--tls-ciphers {options.tls_ciphers}: OpenSSL knows none of them; "
                "'openssl ciphers -v' lists those of TLS 1.2 (for TLS 1.3 the server chooses)"
            ) from None
    context.options |= ssl.OP_NO_RENEGOTIATION
    if offered:
        context.set_alpn_protocols(list(offered))
    return context


def not_http2(chosen: str | None) -> str:
    """The error for a protocol other than h2 that the server chose by ALPN; "" for h2."""
    if chosen == "h2":
        return ""
    if not chosen:
        return "the server chose nothing in ALPN, not h2"
    return f"the server speaks {chosen} in ALPN, not h2"


def reason_of(error: ssl.SSLError) -> str:
    """OpenSSL's reason for an error: "certificate has expired", "alert handshake failure", "wrong
    version number".
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = (error.reason or str(error)).lower().replace("_", " ")
    for before in ("sslv3 ", "tlsv13 ", "tlsv1 "):
        reason = reason.removeprefix(before)
    return reason


def trusting(flag: str, authority: str | None) -> ssl.SSLContext:
    """A client's context that trusts this file's authority (None: the system's). Raises
    :class:`HostError`.
    """
    try:
        context = ssl.create_default_context(cafile=authority)
        # Ignore $SSLKEYLOGFILE: no secret goes into a file.
        context.keylog_filename = None  # type: ignore[assignment]
        return context
    except (OSError, ssl.SSLError) as error:
        why = "no certificate in PEM"
        if not isinstance(error, ssl.SSLError) and error.strerror:
            why = error.strerror
        raise HostError(
            f"{flag} {authority}: cannot be read ({why}); "
            "name a file with the authority's certificate"
        ) from None


def identify(
    context: ssl.SSLContext, flags: tuple[str, str], certificate: str, key: str | None
) -> ssl.SSLContext:
    """Load this certificate and key, which ``flags`` name, into ``context`` and return it. Raises
    :class:`HostError`.
    """
    named = {flags[0]: certificate}
    if key is not None:
        named[flags[1]] = key
    for flag, path in named.items():
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise HostError(
                f"{flag} {path}: cannot be read ({error.strerror}); name a file in PEM"
            ) from None
    asked = []

    def no_passphrase() -> str:
        asked.append(True)
        return ""

    try:
        context.load_cert_chain(certificate, key, password=no_passphrase)
    except (ssl.SSLError, OSError, ValueError) as error:
        # Without a reason OpenSSL's text is its source file and line.
        reason = error.reason if isinstance(error, ssl.SSLError) else str(error)
        files = " and ".join(f"{flag} {path}" for flag, path in named.items())
        why = _why_not_loaded(reason, has_key=bool(key), has_passphrase=bool(asked))
        raise HostError(f"{files}: {why}") from None
    return context


def _why_not_loaded(reason: str | None, *, has_key: bool, has_passphrase: bool) -> str:
    if has_passphrase:
        return "the key has a passphrase; write it without one (openssl pkey -in KEY -out PLAIN)"
    if reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate; name the one that does"
    verb = "hold" if has_key else "holds"
    in_brackets = f" ({reason.lower().replace('_', ' ')})" if reason else ""
    return f"{verb} no certificate with its key, in PEM{in_brackets}; name both files"


def refused_because(context: ssl.SSLContext, certificate: str) -> str | None:
    """OpenSSL's reason ("certificate has expired") why clients that trust this certificate will
    refuse it; None: they accept it, or it cannot be tried.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server = ssl.MemoryBIO()
    to_client = ssl.MemoryBIO()
    try:
        client.load_verify_locations(certificate)
        client_end = client.wrap_bio(to_client, to_server)
        server_end = context.wrap_bio(to_server, to_client, server_side=True)
        for end in (client_end, server_end, client_end, server_end):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (OSError, ValueError):
        pass
    return None
