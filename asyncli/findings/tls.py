"""Findings of TLS: failed handshakes, weak certificates and ciphers, and the cost of OpenSSL's
objects.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from asyncli.findings import Words, finding
from asyncli.model.units import format_count, format_duration

TLS_REMEDY = "see the server's error log, and --tls-min, --tls-max, --ca and --client-cert"
NO_HTTP2_REMEDY = "leave --http2 out, or enable HTTP/2 on the server"
_MOST_REASONS = 8
# Kind of reason -> remedy. Such handshakes fail at any number of connections.
_REMEDIES = {
    "ours": (
        "name a certificate that the server trusts and that is valid: --client-cert, --client-key"
    ),
    "expired": "renew the server's certificate",
    "sni": (
        "the server has no host of that name (SNI): use one that it has, in the URL or with --sni"
    ),
    "name": "use a name that the server's certificate has, in the URL or with --sni",
    "theirs": (
        "see the certificate that the server shows: replace it, or name its authority with --ca"
    ),
    "alpn": NO_HTTP2_REMEDY,
}
_DAY_S = 86_400.0
_CHOICE = "see ssl_protocols and ssl_ciphers of the server, and what a newer OpenSSL there offers"


def by_reason(reasons: Mapping[str, int] | Mapping[int, int]) -> str:
    """``12 × alert certificate_required, 3 × ...``, the most frequent first, at most eight."""
    ranked = sorted(reasons.items(), key=lambda reason: (-reason[1], reason[0]))
    counts = [f"{format_count(count)} × {why}" for why, count in ranked[:_MOST_REASONS]]
    others = sum(count for _, count in ranked[_MOST_REASONS:])
    if others:
        counts.append(f"{format_count(others)} others")
    return ", ".join(counts)


def refuses_ours(reason: str) -> bool:
    """Whether the server refuses our certificate: an alert about a certificate means ours."""
    if reason in ("alert unknown ca", "alert unknown_ca"):
        return True
    return reason.startswith("alert") and "certificate" in reason


def unknown_name(reason: str) -> bool:
    """Whether the server knows no host of the name that we sent (alert 112; nginx:
    ssl_reject_handshake).
    """
    return "unrecognized name" in reason.replace("_", " ")


def kind_of(reason: str) -> str:
    """What a TLS error with this reason is about: a certificate ("ours"; of the server's "expired",
    "name", "theirs"), "sni", "alpn", or "" for anything else, which may depend on the number of
    connections.
    """
    if refuses_ours(reason):
        return "ours"
    if unknown_name(reason):
        return "sni"
    is_of_certificate = "certificate" in reason or "mismatch" in reason
    if reason.startswith("alert") or not is_of_certificate:
        return "alpn" if "ALPN" in reason else ""
    if "expired" in reason:
        return "expired"
    if "mismatch" in reason:
        return "name"
    return "theirs"


def remedy_of_reasons(reasons: Mapping[str, int], otherwise: str) -> str:
    """The remedies of TLS errors with these reasons; ``otherwise`` if none is known."""
    kinds = set(map(kind_of, reasons))
    remedies = [remedy for kind, remedy in _REMEDIES.items() if kind in kinds]
    if not remedies:
        return otherwise
    return "; ".join(remedies)


@finding("tls_handshakes_failed", "error")
def tls_handshakes_failed(reasons: Mapping[str, int], *, of_events: bool = False) -> Words:
    """TCP connected but TLS failed: by the server's alert, or by OpenSSL's message on this host.
    ``of_events``: all were of clients on their way back from events of the plan, which have them
    among their connects; then it is an info.
    """
    evidence = f"TLS handshakes failed: {by_reason(reasons)}"
    if of_events:
        return Words(f"{evidence}; all of clients on their way back from events", "", "info")
    return Words(evidence, remedy_of_reasons(reasons, TLS_REMEDY))


@finding("tls_unverified", "info", "name the authority with --ca")
def tls_unverified() -> str:
    """--insecure: the server's identity was not checked."""
    return "the server's certificate was not verified (--insecure)"


@finding("tls_certificate_ends", "warning", "renew it")
def tls_certificate_ends(subject: str, ends: str, days_left: float, run_s: float) -> str:
    """The server's certificate expires before the run ends (later handshakes fail), or within 30
    days of the run's start and within the last third of its lifetime. ``run_s``: how long the run
    lasts, or is to last.
    """
    left_s = days_left * _DAY_S
    until = datetime.datetime.fromisoformat(ends).astimezone(datetime.UTC)
    # Dates do not tell what happens within a run.
    form = "%F" if left_s >= max(2 * _DAY_S, run_s) else "%F %T UTC"
    if left_s <= 0:
        when = f"expired on {until:{form}}"
    elif left_s < run_s:
        run_ends = until + datetime.timedelta(seconds=run_s - left_s)
        when = f"expires on {until:{form}}, before the run ends ({run_ends:{form}})"
    else:
        left = format_duration(left_s) if left_s < 2 * _DAY_S else f"{days_left:.0f} days"
        when = f"expires on {until:{form}}, in {left}"
    return f"the server's certificate ({subject}) {when}"


@finding("tls_weak", "warning")
def tls_weak(what: str, chosen: str) -> Words:
    """The server's choice is weaker than RFC 9325 (sections 4.1 to 4.5) recommends. ``what``:
    "forward secrecy" or "authenticated encryption" (which its suite lacks), "key" or "signature".
    """
    certificate = {
        "key": (
            f"the server's certificate has a key of {chosen}, below 2,048 bits of RSA or 224 of a "
            "curve (RFC 9325, 4.5)"
        ),
        "signature": f"the server's certificate is signed with {chosen} (RFC 9325, 4.5)",
    }
    if what in certificate:
        return Words(certificate[what], "replace the certificate")
    return Words(f"the server chose {chosen}, which has no {what} (RFC 9325, 4.1, 4.2)", _CHOICE)


@finding(
    "tls_not_resumed",
    "warning",
    "enable session tickets or a session cache, or leave --tls-resume out",
)
def tls_not_resumed(full: int) -> str:
    """With --tls-resume no handshake was resumed."""
    return f"--tls-resume: the server resumed no session; {format_count(full)} handshakes were full"


@finding("tls_objects", "info")
def tls_objects(connections: int, of: int) -> Words:
    """Connections without TLS 1.3 keep an OpenSSL object, which is memory of asyncli, not of the
    server.
    """
    return Words(
        f"{format_count(connections)} of {format_count(of)} connections keep an OpenSSL object "
        "(TLS 1.2): part of asyncli's cost",
        "allow TLS 1.3 on the server to hold more with less memory",
    )
