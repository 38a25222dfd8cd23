"""TLS and protocol of a run's connections: what they negotiated, how long handshakes took, and
findings.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Self

import msgspec

from asyncli.analysis.totals import Totals, in_ms, tested
from asyncli.core.histogram import Histogram
from asyncli.findings import losses, server, tls
from asyncli.model.plan import Plan
from asyncli.model.protocol_table import STREAMS, streams_needed
from asyncli.model.records import Finding, ProtocolCounts, TlsCounts
from asyncli.model.run import Run
from asyncli.model.tcp_values import MOST_KINDS
from asyncli.model.units import instant_of

# RFC 9325, section 4.5.
_LEAST_BITS = {"RSA": 2048, "EC": 224, "DSA": 2048}
_BROKEN = ("md5", "sha1")
# Of which an answer has a status to a handshake alone.
_STATUS_OF_HANDSHAKE = ("websocket", *STREAMS)


class Quantiles(msgspec.Struct):
    """Quantiles in ms; None without a record."""

    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, microseconds: Histogram) -> Self:
        return cls(*in_ms(microseconds, 0.5, 0.9, 0.99, 1.0))


class TlsPart(msgspec.Struct):
    """``spoken``: version and cipher suite -> handshakes that negotiated them. ``failed``:
    handshakes by reason; ``ended``: open connections that TLS ended. ``objects``: connections that
    kept an OpenSSL object at the hold's end. ``certificates``: expiry of the server's certificates
    -> full handshakes.

    ``tcp_ms`` and ``handshake_ms``: the TCP handshake, and the TLS handshake after it.
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
    """The TLS part of a report; unset for a run without TLS."""
    if totals.whole.tls is None:
        return msgspec.UNSET
    until = [
        tick.tls.objects for t_s, tick in run.ticks if t_s <= run.stop_s and tick.tls is not None
    ]
    return tls_part(totals.whole.tls, not run.plan.insecure, until[-1] if until else 0)


def tls_part(counts: TlsCounts, verified: bool, objects: int = 0) -> TlsPart:
    quantiles = map(Quantiles.of, (counts.tcp_us, counts.handshake_us))
    by_kind = (counts.spoken, counts.certificates, counts.failed, counts.ended)
    return TlsPart(counts.full, counts.resumed, verified, *by_kind, objects, *quantiles)


def tls_findings(
    part: TlsPart | msgspec.UnsetType,
    environment: Mapping[str, Any],
    *,
    started: str = "",
    first: float | None = None,
    held: int = 0,
    run_s: float = 0.0,
    failed_in_events: int = 0,
) -> Iterator[Finding]:
    """Findings of TLS. ``first``: full handshakes needed with --tls-resume; ``held``: connections
    of a soak; ``run_s``: how long the run lasts, or is to last; ``failed_in_events``: how many
    handshakes of clients that come back from events failed.
    """
    if part is msgspec.UNSET:
        return
    if part.failed:
        of_events = sum(part.failed.values()) <= failed_in_events
        yield tls.tls_handshakes_failed(part.failed, of_events=of_events)
    if not part.verified:
        yield tls.tls_unverified()
    for spoken in part.spoken:
        yield from _weak_suite(spoken)
    certificate = _certificate(environment)
    yield from _weak_certificate(certificate)
    yield from certificate_ends(certificate, run_s, part.certificates, started)
    if first is not None and not part.resumed and part.full > first:
        yield tls.tls_not_resumed(part.full)
    # With TLS 1.3 and --tls-resume an object only waits for a session.
    if held and part.objects and not all(spoken.startswith("TLSv1.3 ") for spoken in part.spoken):
        yield tls.tls_objects(part.objects, held)


def _certificate(environment: Mapping[str, Any]) -> Mapping[str, Any]:
    """The certificate that was probed; {}: none."""
    probed: Mapping[str, Any] = environment.get("tls") or {}
    return probed.get("certificate") or {}


def _weak_suite(spoken: str) -> Iterator[Finding]:
    """``spoken``: version and suite. All suites of TLS 1.3 have forward secrecy and authenticated
    encryption.
    """
    suite = spoken.partition(" ")[2]
    if suite.startswith("TLS_"):
        return
    if not suite.startswith(("ECDHE", "DHE")):
        yield tls.tls_weak("forward secrecy", spoken)
    if not any(mode in suite for mode in ("GCM", "CCM", "CHACHA20")):
        yield tls.tls_weak("authenticated encryption", spoken)


def _weak_certificate(certificate: Mapping[str, Any]) -> Iterator[Finding]:
    kind, _, bits = str(certificate.get("key", "")).partition(" ")
    if bits.isdigit() and int(bits) < _LEAST_BITS.get(kind, 0):
        yield tls.tls_weak("key", f"{kind} {bits}")
    if certificate.get("signature") in _BROKEN:
        yield tls.tls_weak("signature", certificate["signature"])


def certificate_ends(
    certificate: Mapping[str, Any], run_s: float, shown: Iterable[str] = (), started: str = ""
) -> Iterator[Finding]:
    """Findings of the probed ``certificate`` ({}: none), and of others that were ``shown`` in the
    run.
    """
    # Renewal is due when a third of the lifetime is left (letsencrypt.org/docs/integration-guide):
    # 30 days of the usual 90.
    due_days = max(run_s / 86_400, min(30.0, certificate.get("lasts_days", math.inf) / 3))
    ends = []
    if certificate:
        ends.append((certificate.get("subject", ""), certificate["ends"], certificate["days_left"]))
    # After a reload a server may show another certificate.
    other = "another one, shown in the run" if certificate else "shown in the run"
    for instant in set(shown) - {certificate.get("ends")}:
        with contextlib.suppress(ValueError, TypeError):  # a file may contain anything
            left = datetime.fromisoformat(instant) - datetime.fromisoformat(started)
            ends.append((other, instant, left / timedelta(days=1)))
    for name, instant, days_left in ends:
        if days_left <= due_days:
            yield tls.tls_certificate_ends(name, instant, days_left, run_s)


def planned_s(plan: Plan, now_s: float) -> float:
    """How long a run of ``plan`` that starts at ``now_s`` (s since 1970) will last (s); 0 if it has
    no end.
    """
    if plan.hold_until is not None:
        return instant_of(plan.hold_until, now_s) - now_s + plan.residue_s
    return 0.0 if plan.hold_s is None else plan.lasts_s


class StreamsPart(msgspec.Struct):
    """HTTP/2 streams held per connection, opened in all, lost on open connections (``reasons``),
    and open at the hold's end.
    """

    per_connection: int
    streams_opened: int
    streams_lost: int
    streams_open: int
    reasons: dict[str, int]


class ProtocolPart(msgspec.Struct):
    """``handshake_ms``: from the first bytes to the peer's acceptance. ``refused``: handshakes by
    reason. ``broken``: connections that ended because the server broke the protocol, by how.
    ``goodbyes``: those that it closed with notice, by code ("0": none). ``messages`` were no
    answers, with ``message_bytes`` without framing.
    """

    name: str
    handshake_ms: Quantiles
    refused: dict[str, int]
    broken: dict[str, int]
    goodbyes: dict[str, int]
    messages: int
    message_bytes: int
    streams: StreamsPart | msgspec.UnsetType = msgspec.UNSET
    #: For HTTP/2 with --h2-table: connections whose requests used the server's dynamic table.
    tables: int | msgspec.UnsetType = msgspec.UNSET
    #: For WebSocket with --ws-deflate: permessage-deflate as negotiated -> connections.
    deflate: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    #: If any answer is accepted: how the first answer of each worker began.
    first_answers: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


def refused_with_error(protocol: str, failures: Mapping[str, int], errors: int) -> int:
    """How many of the failed connects of an event an answer with an error refused: handshakes of a
    protocol in which nothing else has a status. ``failures``: by cause; ``errors``: all answers
    with an error status.
    """
    if protocol not in _STATUS_OF_HANDSHAKE:
        return 0
    return min(errors, failures.get("handshake_refused", 0))


def protocol_of(run: Run, totals: Totals) -> ProtocolPart | msgspec.UnsetType:
    """The protocol part of a report; unset for HTTP, which has no handshake."""
    counts = totals.whole.protocol
    if counts is None or run.plan.protocol == "http":
        return msgspec.UNSET
    goodbyes = {str(code): count for code, count in sorted(counts.goodbyes.items())}
    recorded = (counts.refused, counts.broken, goodbyes, counts.messages, counts.message_bytes)
    took = Quantiles.of(counts.handshake_us)
    first = counts.first_answers or msgspec.UNSET
    deflate = counts.deflate if run.plan.ws_deflate else msgspec.UNSET
    tables = counts.tables if run.plan.h2_table else msgspec.UNSET
    return ProtocolPart(
        run.plan.protocol, took, *recorded, _streams(run, counts), tables, deflate, first
    )


def _streams(run: Run, counts: ProtocolCounts) -> StreamsPart | msgspec.UnsetType:
    if not run.plan.streams:
        return msgspec.UNSET
    until = [
        tick.protocol.streams_open
        for t_s, tick in run.ticks
        if t_s <= run.stop_s and tick.protocol is not None
    ]
    lost = counts.streams_lost
    return StreamsPart(
        run.plan.streams, counts.streams_opened, sum(lost.values()), until[-1] if until else 0, lost
    )


# Simple and bulk errors of RESP (the Redis serialization protocol: "-ERR", "-OOM", "!21"), -ERR of
# NATS and POP3 (RFC 1939), and those of memcached's protocol.txt. A negative number is none.
_ERRORS = re.compile(r"""b['"](?:-[A-Z]{2,}|!\d|(?:CLIENT_|SERVER_)?ERROR\b)""")


def _kinds_of_answers(counts: ProtocolCounts, answered: int) -> Iterator[Finding]:
    """What kinds of answers came, where any was accepted."""
    first = list(counts.first_answers)
    others = counts.other_answers
    if not first or not answered:
        return
    usual = answered - sum(others.values())
    wrong = {sample: count for sample, count in others.items() if _ERRORS.match(sample)}
    if all(map(_ERRORS.match, first)):
        wrong[first[0]] = wrong.get(first[0], 0) + usual
    if wrong:
        right = next((sample for sample in (*first, *others) if not _ERRORS.match(sample)), "")
        commonest = max(wrong, key=wrong.__getitem__)
        yield server.answers_look_like_errors(sum(wrong.values()), answered, commonest, right)
    elif others and len(others) < MOST_KINDS:
        commonest = max(others, key=others.__getitem__)
        yield server.answers_differ(sum(others.values()), answered, first[0], commonest)


def protocol_findings(
    run: Run, totals: Totals, part: ProtocolPart | msgspec.UnsetType
) -> Iterator[Finding]:
    counts = totals.whole.protocol or ProtocolCounts()
    if run.plan.protocol == "http" and counts.first_answers:
        yield server.event_stream()
    if counts.draining:
        yield server.connections_draining(counts.draining, _first_draining_s(run))
    yield from _streams_not_allowed(run)
    yield from _not_accepted(run, totals)
    if counts.unasked and totals.whole.answered:
        yield server.answers_unproven(counts.unasked, totals.whole.answered)
    yield from _kinds_of_answers(counts, totals.whole.answered)
    yield from _reopened_later(run, counts)
    if part is msgspec.UNSET:
        return
    if part.refused:
        yield losses.handshakes_refused(part.name, part.refused)
    if part.streams is not msgspec.UNSET and part.streams.streams_lost:
        yield losses.streams_lost(part.streams.reasons)


def _reopened_later(run: Run, counts: ProtocolCounts) -> Iterator[Finding]:
    """Connections that the server told to come back after the hold's length."""
    retry_s = counts.retry_s
    if run.hold is not None and retry_s and retry_s.greatest >= run.hold.length_s:
        yield losses.reopened_later(retry_s.count, float(retry_s.greatest), run.hold.length_s)


def _first_draining_s(run: Run) -> float:
    for t_s, tick in run.ticks:
        if tick.protocol is not None and tick.protocol.draining:
            return t_s
    return run.stop_s


def _streams_not_allowed(run: Run) -> Iterator[Finding]:
    """Connections of HTTP/2 on which no further request would have been served."""
    counts = [
        (t_s, tick.protocol.without_streams)
        for t_s, tick in run.ticks
        if t_s <= run.stop_s and tick.protocol is not None
    ]
    short = [(t_s, count) for t_s, count in counts if count]
    if not short:
        return
    from_s, _ = short[0]
    last_s, _ = short[-1]
    heads = run.plan.h2_heartbeat == "head"
    yield server.streams_not_allowed(
        max(count for _, count in short),
        streams_needed(run.plan.streams, heads),
        heads,
        from_s,
        next((t_s for t_s, _ in counts if t_s > last_s), None),
    )


def _not_accepted(run: Run, totals: Totals) -> Iterator[Finding]:
    """Connections that the kernel alone granted."""
    acceptance = totals.acceptance
    if acceptance.waiting and acceptance.accepted:
        yield server.not_accepted(min(acceptance.waiting, totals.open), known=True)
        return
    if not run.plan.listens or not totals.whole.opened:
        return
    if not tested(run.plan, totals.whole, accepted=acceptance.accepted):
        yield server.not_accepted(totals.whole.opened, acceptance.known)
