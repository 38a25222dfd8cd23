"""permessage-deflate: grants compared with websockets, messages with wsproto. tests/fuzz compares streams of frames."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
import zlib

import pytest
from websockets.exceptions import NegotiationError
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.headers import parse_extension
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Message, TextMessage
from wsproto.extensions import PerMessageDeflate

from asyncli.model.records import ProtocolCounts
from asyncli.model.template import Fields
from asyncli.protocols.deflate import Deflated, deflated, parameters_of
from asyncli.protocols.interface import ANSWER, ESTABLISHED, NEWS, Event, ProtocolError
from asyncli.protocols.websocket import accept_of

ASK = b"GET / HTTP/1.1\r\nHost: there\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
HEAD = b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Accept: %b\r\nSec-WebSocket-Extensions: %b\r\n\r\n"
OFFER = b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"


def granted(message: bytes = b"", grant: bytes = b"permessage-deflate") -> Deflated:
    """Row 7's connection."""
    protocol = Deflated([ASK + OFFER], os.urandom, message, Fields())
    key = protocol.handshake(7, 0).split(b"Sec-WebSocket-Key: ")[1].strip()
    assert protocol.feed(7, HEAD % (accept_of(key), grant), False) == Event(0, True, kind=ESTABLISHED)
    return protocol


@pytest.mark.parametrize("cut", [1, 7, 10_000])
@pytest.mark.parametrize(("bits", "fresh"), [(15, False), (9, False), (12, True)])
def test_a_message_and_its_echo_are_compressed(bits: int, fresh: bool, cut: int) -> None:
    # It repeats text at distances beyond the smallest window.
    text = "größer, " + "".join(map(str, range(600))) * 2
    protocol, server = Deflated([ASK + OFFER], os.urandom, text.encode(), Fields()), WSConnection(ConnectionType.SERVER)
    terms = PerMessageDeflate(client_max_window_bits=bits, server_max_window_bits=bits, server_no_context_takeover=fresh)
    server.receive_data(protocol.handshake(0, 0))
    list(server.events())
    assert protocol.feed(0, server.send(AcceptConnection(extensions=[terms])), False) == Event(0, True, kind=ESTABLISHED)
    protocol.add_counts(counts := ProtocolCounts())
    assert counts.deflate == {f"permessage-deflate; client_max_window_bits={bits}" + "; server_no_context_takeover" * fresh: 1}
    for _ in range(3):
        server.receive_data(protocol.heartbeat_for(0, 0))
        assert "".join(event.data for event in server.events() if isinstance(event, Message)) == text
        for words, kind in (("something else", NEWS), (text, ANSWER)):
            data = server.send(TextMessage(words))
            assert data[0] & 0x40
            events = [protocol.feed(0, data[at : at + cut], True) for at in range(0, len(data), cut)]
            (last,) = [event for event in events if event is not None and (event.kind == ANSWER or event.messages)]
            # Equal bytes mean something else the next time.
            assert (last.kind, last.own) == (kind, kind == ANSWER)
    assert bool(protocol._inflaters) != fresh
    protocol.forget(0)
    assert (protocol.partial, protocol._inflaters) == ({}, {})


def test_only_possible_answers_are_inflated() -> None:
    protocol, short = granted(b"hello"), deflated(b"hello")
    for echo in (b"\x81\x05hello", b"\xc1" + bytes([len(short)]) + short):
        assert protocol.feed(7, echo, True) == Event(0, True, kind=ANSWER, own=bool(protocol._inflaters))
    protocol = granted()
    pong = protocol.answers[protocol.owed[7]]
    assert protocol.feed(7, b"\xc1\x03\xff\xff\xff" + pong, True) == Event(0, True, 3, kind=ANSWER, messages=1)
    assert not protocol._inflaters


@pytest.mark.parametrize(
    "grant",
    [
        "", ";server_no_context_takeover ; client_no_context_takeover", "; server_max_window_bits=8", '; client_max_window_bits="10"; server_max_window_bits = 15',
        "; client_max_window_bits", "; server_max_window_bits=7", "; server_max_window_bits=08", "; server_max_window_bits=16", "; server_no_context_takeover=1",
        "; server_no_context_takeover; server_no_context_takeover", "; mux", ", permessage-deflate", "-frame", "; server_max_window_bits",
    ],
)  # fmt: skip
def test_grants_are_accepted_as_by_websockets(grant: str) -> None:
    extension = f"permessage-deflate{grant}"
    try:
        ((name, parameters),) = parse_extension(extension)
        terms = ClientPerMessageDeflateFactory(client_max_window_bits=True).process_response_params(parameters, [])
        if name != "permessage-deflate":
            raise NegotiationError(name)
    except (NegotiationError, ValueError):
        with pytest.raises(ProtocolError):
            parameters_of(extension.encode())
        return
    found = parameters_of(extension.encode())
    assert (terms.remote_no_context_takeover, terms.local_no_context_takeover) == (b"server_no_context_takeover" in found, b"client_no_context_takeover" in found)
    assert terms.remote_max_window_bits == int(found.get(b"server_max_window_bits", b"15"))


def test_a_bomb_takes_no_memory() -> None:
    protocol, deflater = granted(b"hello"), zlib.compressobj(9, wbits=-15)
    large, small = (deflater.compress(text) + deflater.flush(zlib.Z_SYNC_FLUSH)[:-4] for text in (bytes(10_000_000), b"hello"))
    bomb, hello = b"\xc1\x7e" + len(large).to_bytes(2) + large, b"\xc1" + bytes([len(small)]) + small
    larger = zlib.compress(bytes(20_000_000), 9, -15)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            granted(b"hello").feed(7, b"\xc1\x7e" + len(larger).to_bytes(2) + larger, True)
        assert protocol.feed(7, bomb, True) == Event(0, True, 10_000_000, kind=NEWS, messages=1)
        # Nor do bytes after a final block.
        ended = granted(b"hello")
        ended.feed(7, b"\x41\x02\x03\x00", True)
        for _ in range(100):
            ended.feed(7, b"\x00\x7e\xff\xff" + bytes(65_535), True)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert protocol.feed(7, hello, True) == Event(0, True, kind=ANSWER, own=True)


def test_without_deflate_zlib_is_not_loaded() -> None:
    code = (
        "import os, sys; from asyncli.engine import worker; from asyncli.model.template import Fields;"
        "from asyncli.protocols.settings import *; new = lambda settings: (settings.new(os.urandom, Fields()), print('zlib' in sys.modules));"
        "new(HttpSettings('HEAD', (b'x',))), new(WebSocketSettings((b'x',))), new(WebSocketSettings((b'x',), deflate=True))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "False", "True"]
