"""Raw TCP: bytes that are sent as a heartbeat, and what is expected of their answer; or connections that only listen.

Nothing here knows where a message of the peer's ends: what comes unasked is counted in bytes.
"""

from __future__ import annotations

from asyncli.expected import Expected, parse_expected
from asyncli.protocols.interface import ANSWER, ESTABLISHED, NEWS, Event, Protocol, ProtocolError
from asyncli.protocols.settings import TcpSettings
from asyncli.records import ProtocolCounts
from asyncli.template import Fields, Filled, same_for_all

_TOLD_BYTES = 40


class Tcp(Protocol):
    """``settings.send`` as heartbeats, each answered by what ``settings.expect`` describes; without it, connections listen."""

    def __init__(self, settings: TcpSettings, fields: Fields) -> None:
        self._send = Filled(settings.send, fields)
        self.heartbeat = same_for_all([self._send]) or None
        self.silence_s = None if settings.send else settings.silence_s
        self._answer = parse_expected(settings.expect)
        self._greeting = parse_expected(settings.greeting) if settings.greeting else None
        self.handshake = None if self._greeting is None else self._await_greeting
        # Nobody looks at it where any is right, so that the first is told.
        self._untold, self._first = settings.expect == "any", b""
        # What is awaited, and what of it has come.
        self.partial: dict[int, tuple[Expected, bytes]] = {}

    def _await_greeting(self, row: int, target: int) -> bytes:
        assert self._greeting is not None
        self.partial[row] = (self._greeting, b"")
        return b""

    def heartbeat_for(self, row: int, target: int) -> bytes:
        return self._send(row)

    def feed(self, row: int, data: bytes, awaiting: bool) -> Event | None:
        expected, come = self.partial.pop(row, (self._answer, b""))
        if not data:
            return None
        greeting = expected is self._greeting
        if not greeting and not awaiting:
            return Event(0, True, len(data), NEWS)
        come += data
        try:
            end = expected.end_in(come)
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        if end is None:
            self.partial[row] = (expected, come)
            return None
        if self._untold and not greeting:
            self._untold, self._first = False, come[:_TOLD_BYTES]
        # What comes in the same read is a part of it.
        return Event(0, True, kind=ESTABLISHED if greeting else ANSWER, rest=b"" if greeting else come[end:])

    def add_counts(self, counts: ProtocolCounts) -> None:
        if self._first:
            counts.first_answers[repr(self._first)] = 1
            self._first = b""
