"""What a protocol that shakes hands said: how long its handshakes took, why they were refused, and what came unasked."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from asyncli.analysis.tls import Quantiles
from asyncli.analysis.totals import Totals
from asyncli.findings import losses
from asyncli.records import Finding, ProtocolCounts
from asyncli.run import Run


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
    return ProtocolPart(run.plan.protocol, took, *said, _streams(run, counts), first)


def _streams(run: Run, counts: ProtocolCounts) -> StreamsPart | msgspec.UnsetType:
    if not run.plan.streams:
        return msgspec.UNSET
    until = [tick.protocol.streams_open for t_s, tick in run.ticks if t_s <= run.stop_s and tick.protocol is not None]
    lost = counts.streams_lost
    return StreamsPart(run.plan.streams, counts.streams_opened, sum(lost.values()), until[-1] if until else 0, lost)


def protocol_findings(part: ProtocolPart | msgspec.UnsetType) -> Iterator[Finding]:
    if part is not msgspec.UNSET and part.refused:
        yield losses.handshakes_refused(part.name, part.refused)
    if part is not msgspec.UNSET and part.streams is not msgspec.UNSET and part.streams.streams_lost:
        yield losses.streams_lost(part.streams.reasons)
