"""Loads certificates from PEM files that flags name."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

from asyncli.errors import HostError


def trusting(flag: str, authority: str | None) -> ssl.SSLContext:
    """A client's context that trusts this file's authority (None: the system's). Raises :class:`HostError`."""
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        why = error.strerror if not isinstance(error, ssl.SSLError) and error.strerror else "no certificate in PEM"
        raise HostError(f"{flag} {authority}: cannot be read ({why}); name a file with the authority's certificate") from None


def identify(context: ssl.SSLContext, flags: tuple[str, str], certificate: str, key: str | None) -> ssl.SSLContext:
    """``context`` with this certificate and key, of the files that ``flags`` name. Raises :class:`HostError`."""
    named = [(flag, path) for flag, path in zip(flags, (certificate, key), strict=True) if path is not None]
    for flag, path in named:
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise HostError(f"{flag} {path}: cannot be read ({error.strerror}); name a file in PEM") from None
    try:
        # Never ask for a passphrase.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        why = str(getattr(error, "reason", None) or error).lower().replace("_", " ")
        files = " and ".join(f"{flag} {path}" for flag, path in named)
        what = "hold no certificate with its key, in PEM and without a passphrase"
        raise HostError(f"{files}: {what} ({why}); name both files") from None
    return context


def refused_because(context: ssl.SSLContext, certificate: str) -> str | None:
    """Why clients that trust this certificate will refuse it, in OpenSSL's words ("certificate has expired"); None: they will
    not."""
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
        return None  # of what cannot be tried nothing is said
    return None
