"""What the connections of a run agreed on in TLS, how long their handshakes took, and what is odd about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from asyncli.analysis.totals import Totals
from asyncli.findings.tls import tls_certificate_ends, tls_handshakes_failed, tls_objects, tls_unverified, tls_weak
from asyncli.records import Finding, TlsCounts
from asyncli.run import Run

# RFC 9325, section 4.5.
_LEAST_BITS = {"RSA": 2048, "EC": 224, "DSA": 2048}
_BROKEN = ("md5", "sha1")


class Quantiles(msgspec.Struct):
    """In ms; None without a record."""

    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


class TlsPart(msgspec.Struct):
    """``spoken``: version and cipher suite -> handshakes that agreed on them. ``failed``: handshakes by reason; ``ended``:
    connections that stood and that TLS ended. ``objects``: connections that kept an object of OpenSSL's at the hold's end.

    ``tcp_ms`` and ``handshake_ms``: TCP's handshake, and TLS's after it.
    """

    full: int
    resumed: int
    verified: bool
    spoken: dict[str, int]
    failed: dict[str, int]
    ended: dict[str, int]
    objects: int
    tcp_ms: Quantiles
    handshake_ms: Quantiles


def tls_of(run: Run, totals: Totals) -> TlsPart | msgspec.UnsetType:
    """Unset of a run in the clear."""
    if totals.whole.tls is None:
        return msgspec.UNSET
    until = [tick.tls.objects for t_s, tick in run.ticks if t_s <= run.stop_s and tick.tls is not None]
    return tls_part(totals.whole.tls, not run.plan.insecure, until[-1] if until else 0)


def tls_part(counts: TlsCounts, verified: bool, objects: int = 0) -> TlsPart:
    quantiles = [
        Quantiles(*(None if value is None else value / 1e3 for value in map(one.quantile, (0.5, 0.9, 0.99, 1.0))))
        for one in (counts.tcp_us, counts.handshake_us)
    ]
    return TlsPart(counts.full, counts.resumed, verified, counts.spoken, counts.failed, counts.ended, objects, *quantiles)


def tls_findings(part: TlsPart | msgspec.UnsetType, environment: Mapping[str, Any], held: int = 0) -> Iterator[Finding]:
    """What the user should know of it. ``held``: connections of a soak, which objects may cost memory."""
    if part is msgspec.UNSET:
        return
    if part.failed:
        yield tls_handshakes_failed(part.failed)
    if not part.verified:
        yield tls_unverified()
    for spoken in part.spoken:
        suite = spoken.partition(" ")[2]
        # Of TLS 1.3 all suites have both.
        if not suite.startswith("TLS_") and not (suite.startswith(("ECDHE", "DHE")) and ("GCM" in suite or "CHACHA20" in suite)):
            yield tls_weak("suite", spoken)
    certificate = (environment.get("tls") or {}).get("certificate") or {}
    kind, _, bits = str(certificate.get("key", "")).partition(" ")
    if bits.isdigit() and int(bits) < _LEAST_BITS.get(kind, 0):
        yield tls_weak("key", f"{kind} {bits}")
    if certificate.get("signature") in _BROKEN:
        yield tls_weak("signature", certificate["signature"])
    if certificate and certificate["days_left"] <= 30:
        yield tls_certificate_ends(certificate["subject"], certificate["ends"], certificate["days_left"])
    if part.objects and held:
        yield tls_objects(part.objects, held)
