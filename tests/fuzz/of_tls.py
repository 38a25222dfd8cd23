"""Records for the record layer. Checks: OpenSSL's are read in any split, and ours by OpenSSL; mutated ones give no byte that was
not sent, and end in an error with its alert, the same in any split."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from chance import maybe, mutated
from of_http1 import pieces
from tls_peer import ROW, Peer

from asyncli.protocols.tls13 import SUITES, AlertError, RecordError, RecordLayer

_PEERS: dict[str, tuple[Peer, list[int]]] = {}
# Streams of a connection: a handshake for each would take most of the time.
_STREAMS = 500
_SECRETS = {suite: (bytes(range(length)), bytes(range(100, 100 + length))) for suite, (_, _, _, length) in SUITES.items()}
_UPDATE, _UPDATE_ASKED = bytes((24, 0, 0, 1, 0)), bytes((24, 0, 0, 1, 1))
_TICKET = bytes((4, 0, 0, 60)) + bytes(60)
_MESSAGES = (
    _TICKET, _TICKET + _TICKET, _TICKET[:30], _TICKET[30:], _UPDATE, _UPDATE_ASKED, _TICKET + _UPDATE, _UPDATE + _TICKET, b"", b"\x18\0\0\2\0\0",
    b"\x18\0\0\1\2", b"\x0d\0\0\0", b"\4\xff\xff\xff", b"\4\0", b"\x18",
)  # fmt: skip


class Case(NamedTuple):
    """By OpenSSL: ``said`` is (bytes, whether its keys change before them, and ours), ``bent`` None. Sealed by us: (content, kind,
    padding), and ``bent`` the records, mutated or not."""

    suite: str
    said: tuple[tuple[bytes, int, int], ...]
    cuts: tuple[int, ...] = ()
    bent: bytes | None = None


def generate(chance: Random) -> Case:
    """Half by OpenSSL, half sealed by us and perhaps mutated."""
    suite = chance.choice(list(SUITES))
    cuts = tuple(chance.randrange(chance.choice((60, 600, 40_000))) for _ in range(chance.randrange(6)))
    if maybe(chance, 2):
        said = tuple(
            (chance.randbytes(chance.choice((1, 2, 90, 300, 20_000))), maybe(chance, 20), maybe(chance, 20)) for _ in range(chance.randrange(1, 5))
        )
        return Case(suite, said, cuts)
    records = tuple(_record(chance) for _ in range(chance.randrange(1, 5)))
    data = b"".join(sealed(suite, records))
    if not maybe(chance, 3):
        data = mutated(chance, data)
    return Case(suite, records, cuts, data)


def _record(chance: Random) -> tuple[bytes, int, int]:
    padding = chance.choice((0, 0, 0, 1, 200))
    if maybe(chance, 4):
        return chance.choice(_MESSAGES), 22, padding
    if maybe(chance, 15):
        return bytes((chance.randrange(3), chance.choice((0, 0, 10, 90, 255)))) + bytes(maybe(chance, 5)), 21, padding
    kind = chance.choice((1, 20, 24, 255)) if maybe(chance, 30) else 23
    return chance.randbytes(chance.choice((0, 1, 80, 16_000))), kind, padding


def sealed(suite: str, records: tuple[tuple[bytes, int, int], ...]) -> list[bytes]:
    """The server's records."""
    server = RecordLayer()
    ours, theirs = _SECRETS[suite]
    server.open(ROW, suite, theirs, ours)
    found = []
    for content, kind, padding in records:
        found.append(server.seal(ROW, content + bytes((kind,)) + bytes(padding), 0) if padding else server.seal(ROW, content, kind))
        if kind == 22 and content[-5:] in (_UPDATE, _UPDATE_ASKED):
            server._out.update(ROW, server._suite[ROW])
    return found


def check(case: Case) -> str:
    """The kind of the outcome. Raises AssertionError if a check fails."""
    return _of_openssl(case) if case.bent is None else _bent(case, case.bent)


def _of_openssl(case: Case) -> str:
    peer, streams = _PEERS.get(case.suite, (None, [_STREAMS]))
    if peer is None or streams[0] >= _STREAMS:
        peer, streams = Peer(case.suite), [0]
        peer.layer.feed(ROW, peer.unread)
        _PEERS[case.suite] = peer, streams
    streams[0] += 1
    try:
        wanted, data = b"", b""
        for content, theirs, ours in case.said:
            if theirs:
                data += peer.updates_keys(asks=ours == 1)
                wanted += b"."
            data += peer.writes(content)
            wanted += content
        heard, replies = b"", b""
        for part in pieces(data, case.cuts):
            plain, reply, ended = peer.layer.feed(ROW, part)
            assert not ended
            heard, replies = heard + plain, replies + reply
        assert heard == wanted
        back = replies + b"".join(peer.layer.seal(ROW, content) for content, _, _ in case.said)
        assert peer.reads(back) == b"".join(content for content, _, _ in case.said)
    except BaseException:
        del _PEERS[case.suite]
        raise
    return "accepted of OpenSSL"


def _bent(case: Case, data: bytes) -> str:
    whole, parts = _read(case.suite, [data]), _read(case.suite, pieces(data, case.cuts))
    said = b"".join(content for content, kind, _ in case.said if kind == 23)
    assert said.startswith(whole[0]), "bytes that were not sent"
    # In pieces, records before the error are read.
    assert parts[1] == whole[1], f"in pieces {parts[1]}, whole {whole[1]}"
    assert said.startswith(parts[0])
    return "accepted" if whole[1] is None else whole[1]


def _read(suite: str, parts: list[bytes]) -> tuple[bytes, str | None]:
    layer = RecordLayer()
    layer.open(ROW, suite, *_SECRETS[suite])
    heard = b""
    try:
        for part in parts:
            plain, _, ended = layer.feed(ROW, part)
            heard += plain
            if ended:
                return heard, "close_notify"
    except RecordError as error:
        return heard, error.alert
    except AlertError:
        return heard, "an alert"
    return heard, None

