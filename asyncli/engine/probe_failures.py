"""Why the TLS handshake of a test connection failed, and what to do, in words."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Sequence

from asyncli.engine.tls_facts import Certificate
from asyncli.findings.tls import refuses_ours, unknown_name
from asyncli.model.certificates import reason_of
from asyncli.model.plan import Plan
from asyncli.model.protocol_table import PROTOCOLS
from asyncli.model.values import Target

_INSECURE = "--insecure skips verification"
# OpenSSL's X509_V_ERR_... that are explained further (openssl/x509_vfy.h).
_NOT_YET_VALID = 9
_EXPIRED = 10
_OTHER_NAMES = (62, 64)
_SHORT_KEY = 66
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
# OpenSSL's reasons, as `reason_of` writes them.
_NO_TLS_THERE = (
    "wrong version number",
    "http request",
    "record layer failure",
    "packet length too long",
)
_NO_COMMON_VERSION = ("unsupported protocol", "no protocols available", "wrong ssl version")
_NO_COMMON_CIPHER = ("alert handshake failure", "no cipher match", "no shared cipher")
_CLOSED = "unexpected eof while reading"
_NAMES_SHOWN = 3


def why_failed(error: OSError, plan: Plan, target: Target) -> str:
    """Why a handshake failed, and what to do. Of certificates that are not trusted,
    :func:`why_untrusted` says more.
    """
    plain, _ = PROTOCOLS[target.protocol].schemes
    see_log = f"see the server's log; if it does not speak TLS there, write {plain}://"
    if isinstance(error, TimeoutError):
        limit = f"--connect-timeout ({plan.connect_timeout_s:g} s)"
        return f"the TLS handshake took longer than {limit}; {see_log}"
    reason = ""
    if isinstance(error, ssl.SSLError) and error.reason:
        reason = reason_of(error)
    explanation = _explain_reason(reason, plan, target)
    if explanation is not None:
        return explanation
    return f"the TLS handshake failed ({_describe(error, reason)}); {see_log}"


def _explain_reason(reason: str, plan: Plan, target: Target) -> str | None:
    """What OpenSSL's ``reason`` means, and what to do; None if its own words must do."""
    if reason in _NO_TLS_THERE:
        plain, secure = PROTOCOLS[target.protocol].schemes
        return f"port {target.port} does not speak TLS; write {plain}://, or its {secure} port"
    if "protocol version" in reason or reason in _NO_COMMON_VERSION:
        allowed = _allowed_versions(plan)
        return f"no version of TLS in common ({allowed} allowed here); see --tls-min and --tls-max"
    if reason in _NO_COMMON_CIPHER:
        return (
            "no cipher suite in common, or it requires a certificate; see --tls-ciphers, "
            "--client-cert and its log"
        )
    if unknown_name(reason):
        return (
            f"the server has no host of the name {target.name} (SNI); use a name that it has, in "
            "the URL or with --sni"
        )
    if refuses_ours(reason):
        return (
            f"it refused our certificate ({reason}); give one from an authority that it trusts: "
            "--client-cert, --client-key"
        )
    return None


def _allowed_versions(plan: Plan) -> str:
    """``1.2 to 1.3``, or the only one."""
    lowest = plan.tls_min or "1.2"
    highest = plan.tls_max or "1.3"
    if lowest == highest:
        return lowest
    return f"{lowest} to {highest}"


def _describe(error: OSError, reason: str) -> str:
    if isinstance(error, ConnectionResetError):
        return "the server reset the connection"
    if reason and reason != _CLOSED:
        return reason
    if isinstance(error, ssl.SSLError | ConnectionError):
        return "the server closed the connection"
    return str(error)


def why_untrusted(
    error: ssl.SSLCertVerificationError,
    name: str,
    certificate: Certificate | None,
    authority: str | None,
) -> str:
    """Why the certificate of the server ``name`` is not trusted, and what to do. ``certificate``:
    None if it could not be read; ``authority``: the file of --ca, None: the system's authorities.
    """
    code = error.verify_code
    if code in _OTHER_NAMES:
        return _of_other_names(name, certificate)
    if code == _EXPIRED and certificate is not None:
        return (
            f"its certificate expired on {certificate.ends[:10]}, {-certificate.days_left:.1f} "
            f"days ago; renew it, or {_INSECURE}"
        )
    if code == _NOT_YET_VALID and certificate is not None:
        return _not_yet_valid(certificate)
    if code == _SHORT_KEY:
        key = "unknown" if certificate is None else certificate.key
        return f"its key is too short ({key}); issue one with a longer key, or {_INSECURE}"
    if code in _UNKNOWN_AUTHORITY:
        return _of_unknown_authority(certificate, authority)
    return f"its certificate cannot be trusted ({error.verify_message}); renew it, or {_INSECURE}"


def _of_other_names(name: str, certificate: Certificate | None) -> str:
    remedy = f"use a name that it has, or {_INSECURE}"
    if certificate is None:
        return f"its certificate is not for {name}; {remedy}"
    if not certificate.names:
        # RFC 9525, section 6.3; Chrome since version 58, Go since 1.15.
        return (
            "its certificate has no subjectAltName, and its subject "
            f"({certificate.subject}) no longer counts; issue one with a subjectAltName of {name}, "
            f"or {_INSECURE}"
        )
    names = _first_of(certificate.names) or certificate.subject
    return f"its certificate is not for {name}, but for {names}; {remedy}"


def _not_yet_valid(certificate: Certificate) -> str:
    lasts = datetime.timedelta(days=certificate.lasts_days)
    begins = datetime.datetime.fromisoformat(certificate.ends) - lasts
    return (
        f"its certificate is not valid before {begins:%F %R} UTC by this host's clock; check both "
        f"clocks, or {_INSECURE}"
    )


def _of_unknown_authority(certificate: Certificate | None, authority: str | None) -> str:
    signer = "an authority unknown here"
    if authority is not None:
        signer = f"another authority than that of --ca {authority}"
    remedy = f"name the authority's file with --ca, or {_INSECURE}"
    if certificate is None:
        return f"its certificate is signed by {signer}; {remedy}"
    if certificate.is_self_signed:
        return f"its certificate is signed by {signer} (itself); {remedy}"
    if certificate.sent == 1:
        return _of_missing_chain(certificate, authority)
    top = certificate.top or certificate.issuer
    return f"its certificate is signed by {signer} ({top}); {remedy}"


def _of_missing_chain(certificate: Certificate, authority: str | None) -> str:
    """The server sends its own certificate alone, and its issuer is not trusted here."""
    lacks = "is not known here"
    if authority is not None:
        lacks = f"is not in --ca {authority}"
    return (
        f"its certificate is signed by {certificate.issuer}, which the server does not send and "
        f"which {lacks}; if that is an intermediate authority, have the server send its "
        "certificate too (the whole chain); else name its file with --ca, or "
        f"{_INSECURE}"
    )


def _first_of(names: Sequence[str]) -> str:
    """``a, b, c and 4 more``"""
    listed = ", ".join(names[:_NAMES_SHOWN])
    others = len(names) - _NAMES_SHOWN
    if others > 0:
        return f"{listed} and {others} more"
    return listed
