"""What the connections of a run agreed on in TLS and in their protocol, how long handshakes took, and what is odd about it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Self

import msgspec

from asyncli.analysis.totals import Totals, in_ms
from asyncli.core.histogram import Histogram
from asyncli.findings import losses, tls
from asyncli.records import Finding, ProtocolCounts, TlsCounts
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

    @classmethod
    def of(cls, microseconds: Histogram) -> Self:
        return cls(*in_ms(microseconds, 0.5, 0.9, 0.99, 1.0))


class TlsPart(msgspec.Struct):
    """``spoken``: version and cipher suite -> handshakes that agreed on them. ``failed``: handshakes by reason; ``ended``:
    connections that stood and that TLS ended. ``objects``: connections that kept an object of OpenSSL's at the hold's end.
    ``certificates``: when those that were shown end -> full handshakes.

    ``tcp_ms`` and ``handshake_ms``: TCP's handshake, and TLS's after it.
    """

    full: int
    resumed: int
    verified: bool
    spoken: dict[str, int]
    certificates: dict[str, int]
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
    quantiles = map(Quantiles.of, (counts.tcp_us, counts.handshake_us))
    said = (counts.spoken, counts.certificates, counts.failed, counts.ended)
    return TlsPart(counts.full, counts.resumed, verified, *said, objects, *quantiles)


def tls_findings(
    part: TlsPart | msgspec.UnsetType, environment: Mapping[str, Any], *, started: str = "", first: float | None = None,
    held: int = 0,
) -> Iterator[Finding]:  # fmt: skip
    """What the user should know of it. ``first``: with --tls-resume, how many handshakes must be full ones; ``held``: connections
    of a soak, which objects may cost memory.
    """
    if part is msgspec.UNSET:
        return
    if part.failed:
        yield tls.tls_handshakes_failed(part.failed)
    if not part.verified:
        yield tls.tls_unverified()
    for spoken in part.spoken:
        suite = spoken.partition(" ")[2]
        # Of TLS 1.3 all suites have both.
        if not suite.startswith(("TLS_", "ECDHE", "DHE")):
            yield tls.tls_weak("forward secrecy", spoken)
        if not suite.startswith("TLS_") and not any(mode in suite for mode in ("GCM", "CCM", "CHACHA20")):
            yield tls.tls_weak("authenticated encryption", spoken)
    certificate = (environment.get("tls") or {}).get("certificate") or {}
    kind, _, bits = str(certificate.get("key", "")).partition(" ")
    if bits.isdigit() and int(bits) < _LEAST_BITS.get(kind, 0):
        yield tls.tls_weak("key", f"{kind} {bits}")
    if certificate.get("signature") in _BROKEN:
        yield tls.tls_weak("signature", certificate["signature"])
    # Renewal is due when a third of its time is left (letsencrypt.org/docs/integration-guide): 30 days of the usual 90.
    due_days = min(30.0, certificate.get("lasts_days", math.inf) / 3)
    if certificate and certificate["days_left"] <= due_days:
        yield tls.tls_certificate_ends(certificate["subject"], certificate["ends"], certificate["days_left"])
    # A server may show another one after a reload.
    for ends in part.certificates.keys() - {certificate.get("ends")}:
        with contextlib.suppress(ValueError, TypeError):  # a file may say anything
            days_left = (datetime.fromisoformat(ends) - datetime.fromisoformat(started)) / timedelta(days=1)
            if days_left <= due_days:
                yield tls.tls_certificate_ends("another one, shown in the run", ends, days_left)
    if first is not None and not part.resumed and part.full > first:
        yield tls.tls_not_resumed(part.full)
    # Of TLS 1.3 an object waits for a session, where one was asked for.
    if held and part.objects and not all(spoken.startswith("TLSv1.3 ") for spoken in part.spoken):
        yield tls.tls_objects(part.objects, held)


class StreamsPart(msgspec.Struct):
    """Of HTTP/2: how many each connection holds; all that were opened; those lost on connections that lived, and the ``reasons``;
    those open at the hold's end.
    """

    per_connection: int
    streams_opened: int
    streams_lost: int
    streams_open: int
    reasons: dict[str, int]


class ProtocolPart(msgspec.Struct):
    """``handshake_ms``: from the first words to the peer's leave. ``refused``: handshakes by reason. ``broken``: connections that
    broke the protocol, by how. ``goodbyes``: those that the peer took leave of, by its code ("0": none). ``messages`` came
    unasked, ``message_bytes`` of them without framing.
    """

    name: str
    handshake_ms: Quantiles
    refused: dict[str, int]
    broken: dict[str, int]
    goodbyes: dict[str, int]
    messages: int
    message_bytes: int
    streams: StreamsPart | msgspec.UnsetType = msgspec.UNSET
    #: Of HTTP/2, where it was asked for: connections whose requests used the server's dynamic table.
    tables: int | msgspec.UnsetType = msgspec.UNSET
    #: Of WebSocket, where it was offered: permessage-deflate as it was granted -> on how many connections.
    deflate: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    #: Where any answer is right: how the first of each worker began.
    first_answers: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


def protocol_of(run: Run, totals: Totals) -> ProtocolPart | msgspec.UnsetType:
    """Unset of HTTP, which shakes no hands."""
    counts = totals.whole.protocol
    if counts is None or run.plan.protocol == "http":
        return msgspec.UNSET
    goodbyes = {str(code): count for code, count in sorted(counts.goodbyes.items())}
    said = (counts.refused, counts.broken, goodbyes, counts.messages, counts.message_bytes)
    took, first = Quantiles.of(counts.handshake_us), counts.first_answers or msgspec.UNSET
    deflate = counts.deflate if run.plan.ws_deflate else msgspec.UNSET
    tables = counts.tables if run.plan.h2_table else msgspec.UNSET
    return ProtocolPart(run.plan.protocol, took, *said, _streams(run, counts), tables, deflate, first)


def _streams(run: Run, counts: ProtocolCounts) -> StreamsPart | msgspec.UnsetType:
    if not run.plan.streams:
        return msgspec.UNSET
    until = [tick.protocol.streams_open for t_s, tick in run.ticks if t_s <= run.stop_s and tick.protocol is not None]
    lost = counts.streams_lost
    return StreamsPart(run.plan.streams, counts.streams_opened, sum(lost.values()), until[-1] if until else 0, lost)


def protocol_findings(run: Run, totals: Totals, part: ProtocolPart | msgspec.UnsetType) -> Iterator[Finding]:
    retry_s = Histogram() if totals.whole.protocol is None else totals.whole.protocol.retry_s
    if run.hold is not None and retry_s and retry_s.greatest >= run.hold.length_s:
        yield losses.reopened_later(retry_s.count, float(retry_s.greatest), run.hold.length_s)
    if part is not msgspec.UNSET and part.refused:
        yield losses.handshakes_refused(part.name, part.refused)
    if part is not msgspec.UNSET and part.streams is not msgspec.UNSET and part.streams.streams_lost:
        yield losses.streams_lost(part.streams.reasons)
