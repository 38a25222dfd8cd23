"""Raw TCP: a heartbeat of any bytes with its expected answer, or connections that only listen.

Nothing tells where an unsolicited message ends, so those are counted in bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncli.model.records import ProtocolCounts
from asyncli.model.tcp_values import Expected, parse_expected
from asyncli.model.template import Fields, Filled, same_for_all
from asyncli.protocols.interface import ANSWER, ESTABLISHED, NEWS, Event, Protocol, ProtocolError

if TYPE_CHECKING:
    from asyncli.protocols.settings import TcpSettings

_SHOWN_BYTES = 40


class Tcp(Protocol):
    """Heartbeats ``settings.send``, each answered as ``settings.expect`` describes; without it, connections that listen."""

    def __init__(self, settings: TcpSettings, fields: Fields) -> None:
        self._send = Filled(settings.send, fields)
        self.heartbeat = same_for_all([self._send]) or None
        self.silence_s = None if settings.send else settings.silence_s
        self._answer = parse_expected(settings.expect)
        self._greeting = parse_expected(settings.greeting) if settings.greeting else None
        self.handshake = None if self._greeting is None else self._await_greeting
        # If any answer is right, the first one is reported, for the user to check.
        self._unreported, self._first = settings.expect == "any", b""
        # What is awaited, and the bytes so far.
        self.partial: dict[int, tuple[Expected, bytes]] = {}

    def _await_greeting(self, row: int, target: int) -> bytes:
        assert self._greeting is not None
        self.partial[row] = (self._greeting, b"")
        return b""

    def heartbeat_for(self, row: int, target: int) -> bytes:
        return self._send(row)

    def feed(self, row: int, data: bytes, awaiting: bool) -> Event | None:
        expected, received = self.partial.pop(row, (self._answer, b""))
        if not data:
            return None
        greeting = expected is self._greeting
        if not greeting and not awaiting:
            return Event(0, True, len(data), NEWS)
        received += data
        try:
            end = expected.end_in(received)
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        if end is None:
            self.partial[row] = (expected, received)
            return None
        if self._unreported and not greeting:
            self._unreported, self._first = False, received[:_SHOWN_BYTES]
        # More bytes in the same read belong to it.
        return Event(0, True, kind=ESTABLISHED if greeting else ANSWER, rest=b"" if greeting else received[end:])

    def add_counts(self, counts: ProtocolCounts) -> None:
        if self._first:
            counts.first_answers[repr(self._first)] = 1
            self._first = b""
