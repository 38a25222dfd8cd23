"""Findings of TLS: what failed, what the server's certificate and choice are worth, and what OpenSSL's objects cost."""

from __future__ import annotations

from collections.abc import Mapping

from asyncli.findings import Words, finding
from asyncli.units import format_count

TLS_REMEDY = "see the server's error log, and --tls-min, --tls-max, --ca and --client-cert"
NO_HTTP2_REMEDY = "leave --http2 out, or switch HTTP/2 on there"
_MOST_REASONS = 8
_CHOICE = "see ssl_protocols and ssl_ciphers of the server, and what a newer OpenSSL there offers"


def by_reason(reasons: Mapping[str, int]) -> str:
    """``12 × alert certificate_required, 3 × ...``, the most frequent first; many are not all told."""
    ranked = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))
    told = [f"{format_count(count)} × {why}" for why, count in ranked[:_MOST_REASONS]]
    more = sum(count for _, count in ranked[_MOST_REASONS:])
    return ", ".join([*told, f"{format_count(more)} others"] if more else told)


def refuses_ours(reason: str) -> bool:
    """An alert about a certificate is about ours."""
    return reason.startswith("alert") and ("certificate" in reason or reason in ("alert unknown ca", "alert unknown_ca"))


def mend(reasons: Mapping[str, int], otherwise: str) -> str:
    """What to do about these reasons."""
    mends = ["name a certificate that the server trusts: --client-cert, --client-key"] if any(map(refuses_ours, reasons)) else []
    if any(("certificate" in one or "mismatch" in one) and not one.startswith("alert") for one in reasons):
        mends.append("see the certificate that the server shows now: before the run it could be trusted; renew or replace it")
    if any("ALPN" in one for one in reasons):
        mends.append(NO_HTTP2_REMEDY)
    return "; ".join(mends) or otherwise


@finding("tls_handshakes_failed", "error")
def tls_handshakes_failed(reasons: Mapping[str, int]) -> Words:
    """TCP connected and TLS did not: by the alert that came, or by OpenSSL's words here."""
    return Words(f"handshakes of TLS failed: {by_reason(reasons)}", mend(reasons, TLS_REMEDY))


@finding("tls_unverified", "info", "name the authority with --ca")
def tls_unverified() -> str:
    """--insecure: nobody checked that the server is who it says it is."""
    return "the server's certificate was not verified (--insecure)"


@finding("tls_certificate_ends", "warning", "renew it")
def tls_certificate_ends(subject: str, ends: str, days_left: float) -> str:
    """The server's certificate ends within 30 days of the run's begin, and within the last third of its time."""
    when = f"ends on {ends[:10]}, in {days_left:.0f} days" if days_left > 0 else f"ended on {ends[:10]}"
    return f"the server's certificate ({subject}) {when}"


@finding("tls_weak", "warning")
def tls_weak(what: str, chosen: str) -> Words:
    """What the server chose is below what RFC 9325 (sections 4.1 to 4.5) recommends. ``what``: "forward secrecy", "authenticated
    encryption" (what its suite has not), "key" or "signature".
    """
    said = {
        "key": f"the server's certificate has a key of {chosen}, below 2,048 bits of RSA or 224 of a curve (RFC 9325, 4.5)",
        "signature": f"the server's certificate is signed with {chosen} (RFC 9325, 4.5)",
    }
    if what in said:
        return Words(said[what], "have another certificate made")
    return Words(f"the server chose {chosen}, which has no {what} (RFC 9325, 4.1, 4.2)", _CHOICE)


@finding("tls_not_resumed", "warning", "switch tickets or a cache of sessions on, or leave --tls-resume out")
def tls_not_resumed(full: int) -> str:
    """--tls-resume, and no handshake was resumed."""
    return f"resumption was asked for, and the server gave no session that it takes again: {format_count(full)} full"


@finding("tls_objects", "info")
def tls_objects(connections: int, of: int) -> Words:
    """Objects of OpenSSL's that connections keep which do not speak TLS 1.3: memory of asyncli's, not the server's."""
    return Words(
        f"{format_count(connections)} of {format_count(of)} connections keep an object of OpenSSL's, as TLS 1.2 does: memory of "
        "asyncli's, which the row of asyncli in the table of costs has",
        "allow TLS 1.3 on the server to hold more with less",
    )
