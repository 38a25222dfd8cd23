"""The protocol interface: rows with their own bytes and state, and peers that send unsolicited messages, want replies, or close."""

from __future__ import annotations

from array import array
from collections import Counter

import pytest

from asyncli.engine.shard import Shard, build_shard
from asyncli.engine.sim import SimNet, SimServer, simulate
from asyncli.engine.spread import Destination, Spread
from asyncli.model.plan import Plan
from asyncli.model.protocol_table import PROTOCOLS
from asyncli.model.records import Tick
from asyncli.protocols.interface import CLOSING, ESTABLISHED, NEWS, Event, Protocol, ProtocolError
from asyncli.protocols.settings import SETTINGS


class Counting(Protocol):
    """Each row counts its heartbeats; "ok" answers one, "hey" wants an "ack", "bye" ends the connection."""

    partial: dict[int, bytes]

    def __init__(self, rows: int) -> None:
        self.partial, self.sent = {}, array("I", bytes(4 * rows))

    def heartbeat_for(self, row: int, target: int) -> bytes:
        self.sent[row] += 1
        return b"%d %d" % (row, self.sent[row])

    def feed(self, row: int, data: bytes, awaiting: bool) -> Event | None:
        word = self.partial.pop(row, b"") + data
        if word == b"h":
            self.partial[row] = word
            return None
        events = {b"": None, b"ok": Event(0, True), b"hey": Event(0, True, kind=NEWS, reply=b"ack"), b"bye": Event(0, False, kind=CLOSING)}
        if word not in events:
            raise ProtocolError(str(word))
        return events[word]

    def forget(self, row: int) -> None:
        super().forget(row)
        self.sent[row] = 0


class Peer(SimNet):
    """Answers each heartbeat with ``first``, and then sends ``word``, in parts; ``heard``: the bytes that it received."""

    def __init__(self, word: list[bytes], first: bytes = b"ok") -> None:
        super().__init__(SimServer())
        self.word, self.heard = [first, *word] if first else word, Counter[bytes]()

    def send(self, handle: int, data: bytes) -> int:
        taken = super().send(handle, b"") or len(data)
        if data:
            self.heard[data] += 1
        for number, part in enumerate(self.word if data and data != b"ack" else []):
            self._at(self.now + 0.1 * (number + 1), handle, "data", part)
        return taken


@pytest.mark.parametrize(
    ("word", "cause"),
    [([b"hey"], None), ([b"h", b"ey"], None), ([b"bye"], "closed_announced"), ([b"ok"], "protocol_error"), ([b"what"], "protocol_error")],
)
def test_unsolicited_messages(word: list[bytes], cause: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shard, "new_protocol", lambda _, number: Counting(20))
    plan, there = Plan(urls=("http://127.0.0.1/",), connections=20, keepalive_s=4.0, timeout_s=2.0), Destination(2, "127.0.0.1", 80)
    net, total = Peer(word), Tick()
    for tick in simulate(build_shard(plan, Spread((there,), (), 1, True, 1000)), net.server, 60.0, net=net):
        total.merge_counts(tick)
    acks = net.heard.pop(b"ack", 0)
    assert set(total.deaths) == ({cause} if cause else set())
    assert total.sent == total.answered == sum(net.heard.values())
    assert total.bytes_sent == sum(len(data) * times for data, times in net.heard.items()) + 3 * acks
    if cause:
        # Each connection of a row counts from one.
        assert set(net.heard) == {b"%d 1" % row for row in range(20)}
        assert acks == 0
    else:
        # Each heartbeat has its own bytes, and all news but the last has its reply: news neither answers nor ends anything.
        assert set(net.heard.values()) == {1}
        assert total.answered - 20 <= acks <= total.answered
        assert total.by_status == {}


@pytest.mark.parametrize(("word", "spoke"), [([b"hey"], True), ([b"h"], True), ([], False)])
def test_a_silent_death_records_messages_and_acknowledgement(
    word: list[bytes], spoke: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shard, "new_protocol", lambda _, number: Counting(20))
    plan, there = Plan(urls=("http://127.0.0.1/",), connections=20, keepalive_s=4.0, timeout_s=2.0), Destination(2, "127.0.0.1", 80)
    net, total = Peer(word, b""), Tick()
    for tick in simulate(build_shard(plan, Spread((there,), (), 1, True, 1000)), net.server, 30.0, net=net):
        total.merge_counts(tick)
    assert set(total.deaths) == {"heartbeat_timeout"}
    assert (total.acknowledged, total.spoke) == (total.lost, total.lost if spoke else 0)


class Parting(Counting):
    """"ok" may be followed in the same read by the end: an error, or a goodbye."""

    def feed(self, row: int, data: bytes, awaiting: bool) -> Event | None:
        if data == b"ok?":
            error = ProtocolError("what?")
            error.answer = Event(204, True) if awaiting else None
            raise error
        if data == b"ok.":
            return Event(204, False, end=Event(7, False, kind=CLOSING, rest=b"tired"))
        return super().feed(row, data, awaiting)


@pytest.mark.parametrize(("answer", "cause"), [(b"ok?", "protocol_error"), (b"ok.", "closed_announced")])
def test_what_was_answered_before_an_end_in_the_same_read_counts(answer: bytes, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shard, "new_protocol", lambda _, number: Parting(20))
    plan, there = Plan(urls=("http://127.0.0.1/",), connections=20, keepalive_s=4.0, reopen=False), Destination(2, "127.0.0.1", 80)
    net, total = Peer([], answer), Tick()
    for tick in simulate(build_shard(plan, Spread((there,), (), 1, True, 1000)), net.server, 20.0, net=net):
        total.merge_counts(tick)
    assert (total.sent, total.answered, total.beats_failed, total.by_status) == (20, 20, 0, {204: 20})
    assert {name: deaths.count for name, deaths in total.deaths.items()} == {cause: 20}
    assert total.deaths[cause].requests.counts == {1: 20}
    told = total.protocol
    assert told is not None
    assert (told.broken, told.farewells) == (({"what?": 20}, {}) if cause == "protocol_error" else ({}, {"tired": 20}))


class Choosy(Counting):
    """"ok" answers row 0 alone."""

    def feed(self, row: int, data: bytes, awaiting: bool) -> Event | None:
        if row:
            raise ProtocolError("another row's")
        return Event(0, True, own=True) if data else None


def test_a_row_specific_answer_does_not_answer_another_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shard, "new_protocol", lambda _, number: Choosy(20))
    plan, there = Plan(urls=("http://127.0.0.1/",), connections=20, keepalive_s=4.0, reopen=False), Destination(2, "127.0.0.1", 80)
    net, total = Peer([]), Tick()
    for tick in simulate(build_shard(plan, Spread((there,), (), 1, True, 1000)), net.server, 20.0, net=net):
        total.merge_counts(tick)
    assert {cause: deaths.count for cause, deaths in total.deaths.items()} == {"protocol_error": 19}
    assert total.answered == total.sent - 19 > 1


class Shaking(Counting):
    """Held once its peer has sent "welcome" after "hello"; "no" is a refusal."""

    def handshake(self, row: int, target: int) -> bytes:
        self.partial[row] = b"hello"
        return b"hello"

    def feed(self, row: int, data: bytes, awaiting: bool) -> Event | None:
        if self.partial.get(row) != b"hello":
            return super().feed(row, data, awaiting)
        del self.partial[row]
        if data == b"no":
            raise ProtocolError("it said no")
        return Event(0, True, kind=ESTABLISHED) if data else None


class Host(Peer):
    """Answers "hello" with ``word`` after 0.5 s, and a heartbeat with "ok"."""

    def __init__(self, word: list[bytes], connect_s: float) -> None:
        super().__init__([])
        self.server, self.greeting = SimServer(connect_s=connect_s), word

    def send(self, handle: int, data: bytes) -> int:
        if data != b"hello":
            return super().send(handle, data)
        taken = SimNet.send(self, handle, b"") or len(data)
        for part in self.greeting:
            self._at(self.now + 0.5, handle, "data", part)
        return taken


@pytest.mark.parametrize("connect_s", [0.0, 0.01])
@pytest.mark.parametrize(
    ("word", "failure", "why"),
    [
        ([b"welcome"], None, {}), ([b"no"], "handshake_refused", {"it said no"}), ([], "handshake_timeout", {}),
        ([b""], "handshake_refused", {"closed without an answer"}),
    ],
)  # fmt: skip
def test_a_row_is_held_once_its_handshake_is_accepted(word: list[bytes], failure: str | None, why: set[str], connect_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shard, "new_protocol", lambda _, number: Shaking(20))
    plan = Plan(urls=("http://127.0.0.1/",), connections=20, keepalive_s=4.0, timeout_s=2.0, connect_timeout_s=2.0)
    there, net, total = Destination(2, "127.0.0.1", 80), Host(word, connect_s), Tick()
    shard = build_shard(plan, Spread((there,), (), 1, connect_s == 0.0, 1000))
    for tick in simulate(shard, net.server, 30.0, net=net):
        total.merge_counts(tick)
    counts = total.protocol
    assert counts is not None
    assert set(counts.refused) == set(why)
    assert set(total.failures) == ({failure} if failure else set())
    assert total.opened == (0 if failure else 20)
    assert not total.deaths
    # Every attempt has ended, except those of the last seconds.
    assert total.opened + sum(total.failures.values()) <= total.started <= total.opened + sum(total.failures.values()) + 20
    if failure is None:
        # The heartbeat goes out after the handshake, whose time counts for the connect.
        assert total.sent == total.answered > 20
        assert counts.handshake_us.least >= 499_999
        assert total.connect_us.least >= 499_999 + connect_s * 1e6
        assert counts.handshake_us.count == total.connect_us.count == 20


class Eager(SimNet):
    """A broker of MQTT that sends CONNACK and, in the same packet, what would answer the first PINGREQ."""

    def __init__(self) -> None:
        super().__init__(SimServer())

    def send(self, handle: int, data: bytes) -> int:
        taken = super().send(handle, b"") or len(data)
        if data[:1] == b"\x10":
            self._at(self.now + 0.1, handle, "data", b"\x20\2\0\0\xd0\0")
        return taken


def test_an_answer_that_came_with_the_handshake_answers_no_heartbeat() -> None:
    plan, there = Plan(urls=("mqtt://127.0.0.1",), connections=20, keepalive_s=4.0, reopen=False), Destination(2, "127.0.0.1", 1883)
    net, total = Eager(), Tick()
    for tick in simulate(build_shard(plan, Spread((there,), (), 1, True, 1000)), net.server, 10.0, net=net):
        total.merge_counts(tick)
    assert (total.opened, total.sent, total.answered) == (20, 20, 0)
    assert {cause: deaths.count for cause, deaths in total.deaths.items()} == {"protocol_error": 20}


def test_every_protocol_has_its_settings_and_nothing_else_has() -> None:
    assert list(SETTINGS) == list(PROTOCOLS)
