"""Raw TCP: a heartbeat of any bytes with its expected answer, or connections that only listen.

Nothing tells where an unsolicited message ends, so those are counted in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from asyncli.model.protocol_table import UNASKED
from asyncli.model.records import ProtocolCounts
from asyncli.model.tcp_values import NONCE_FIELD, Expected, asks_for_nonce, parse_expected
from asyncli.model.template import Fields, Filled, same_for_all
from asyncli.protocols.answer_kinds import SHOWN_BYTES, AnswerKinds
from asyncli.protocols.interface import ANSWER, ESTABLISHED, NEWS, Event, Protocol, ProtocolError
from asyncli.protocols.nonces import Nonces

if TYPE_CHECKING:
    from asyncli.protocols.settings import TcpSettings


class Tcp(Protocol):
    """Heartbeats ``settings.send``, each answered as ``settings.expect`` describes; without it,
    connections that listen.
    """

    def __init__(
        self, settings: TcpSettings, fields: Fields, entropy: Callable[[int], bytes]
    ) -> None:
        self._nonces = Nonces(entropy, b"")
        self._send = (
            Filled(settings.send, fields, nonce=self._nonces.text) if settings.send else None
        )
        self._unasked = 0
        self.heartbeat = None if self._send is None else same_for_all([self._send])
        self.silence_s = None if settings.send else settings.silence_s
        self._answer = parse_expected(settings.expect)
        self._repeats = asks_for_nonce(settings.expect)
        self._greeting = parse_expected(settings.greeting) if settings.greeting else None
        self.handshake = None if self._greeting is None else self._await_greeting
        # If any answer is right, the first one is reported, for the user to check, and those of
        # other kinds are counted.
        self._unreported, self._first = settings.expect == "any", b""
        self._kinds = AnswerKinds() if settings.expect == "any" else None
        self._takes_any = settings.expect == "any"
        # What is awaited, and the bytes so far.
        self.partial: dict[int, tuple[Expected, bytes]] = {}

    def _await_greeting(self, row: int, target: int) -> bytes:
        assert self._greeting is not None
        self.partial[row] = (self._greeting, b"")
        return b""

    def heartbeat_for(self, row: int, target: int) -> bytes:
        assert self._send is not None
        if self._send.numbered:
            self._nonces.add_row(row)
            self._nonces.take(row)
        return self._send(row)

    def _answer_to(self, row: int, awaiting: int) -> Expected:
        """The expected answer to the first of a row's heartbeats of which ``awaiting`` are
        unanswered.
        """
        if not self._repeats or row >= len(self._nonces.owed):
            return self._answer
        nonce = self._nonces.text(row, before=max(0, awaiting - 1)).hex().encode()
        return Expected(exact=self._answer.exact.replace(NONCE_FIELD.encode(), nonce))

    def feed(self, row: int, data: bytes, awaiting: int) -> Event | None:
        if row in self.partial:
            expected, received = self.partial.pop(row)
        else:
            expected, received = self._answer_to(row, awaiting), b""
        if not data:
            return None
        greeting = expected is self._greeting
        if not greeting and not awaiting:
            self._note_unasked(expected, data)
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
            self._unreported, self._first = False, received[:SHOWN_BYTES]
            if self._kinds is not None:
                self._kinds.begin(received)
        if greeting:
            return Event(0, True, kind=ESTABLISHED)
        return self._answers_in(row, expected, received, end, awaiting)

    def _answers_in(
        self, row: int, expected: Expected, received: bytes, end: int, awaiting: int
    ) -> Event:
        """The meaning of bytes in which the first expected answer ends at ``end``."""
        if awaiting > 1:
            return self._several_answers(row, received, end, awaiting)
        # Those of another kind are not taken for the usual answer, so that each comes here and is
        # counted.
        kinds = self._kinds
        own = self._repeats or (
            kinds is not None and not received.startswith(kinds.usual) and kinds.is_other(received)
        )
        # More bytes in the same read belong to it, but for another answer.
        event = Event(0, True, kind=ANSWER, rest=received[end:], own=own)
        if expected.exact:
            self._note_unasked(expected, received[end:], event)
        return event

    def _several_answers(self, row: int, received: bytes, end: int, awaiting: int) -> Event:
        """The answers in the bytes of a row that has not read for a time, the first of which ends
        at ``end``. Any bytes answer all, if any are right.
        """
        if self._takes_any:
            return Event(0, True, kind=ANSWER, own=True, answers=awaiting)
        answers = 1
        while answers < awaiting:
            expected = self._answer_to(row, awaiting - answers)
            rest = received[end:]
            try:
                further = expected.end_in(rest) if rest else None
            except ValueError as error:
                broken = ProtocolError(str(error))
                broken.answer = Event(0, True, kind=ANSWER, own=True, answers=answers)
                raise broken from None
            if further is None:
                if rest:
                    self.partial[row] = (expected, rest)
                break
            end += further
            answers += 1
        return Event(0, True, kind=ANSWER, own=True, answers=answers)

    def _note_unasked(self, expected: Expected, data: bytes, answer: Event | None = None) -> None:
        """Handle bytes that nothing asked for, perhaps after ``answer`` in the same read. Raises
        :class:`ProtocolError` if they begin with exactly the expected answer. A looser form may be
        meant to accept what the server sends by itself.
        """
        if not self._send:
            return
        try:
            end = expected.end_in(data)
        except ValueError:
            return
        if end is None:
            return
        if expected.exact:
            error = ProtocolError(UNASKED)
            error.answer = answer
            raise error
        self._unasked += 1

    def add_counts(self, counts: ProtocolCounts) -> None:
        counts.unasked, self._unasked = self._unasked, 0
        if self._first:
            counts.first_answers[repr(self._first)] = 1
            self._first = b""
        if self._kinds is not None:
            counts.other_answers = self._kinds.take()
