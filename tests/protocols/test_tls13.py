"""The record layer of TLS 1.3, against RFC 8448's example and against OpenSSL."""

from __future__ import annotations

import ssl
from collections.abc import Iterable

import pytest
from tls_peer import ROW, Peer

from asyncli.protocols.tls13 import SUITES, AlertError, RecordError, RecordLayer, expand_label

# RFC 8448, section 3: application traffic secrets of client and server, and the records that they sealed.
CLIENT = bytes.fromhex("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5")
SERVER = bytes.fromhex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643")
SEALED = bytes.fromhex(
    "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b62974e1f5a6292a297"
    "7014bd1e3deae63aeebb21694915e4"
)
CLOSE_NOTIFY = bytes.fromhex("1703030013c9872760655666b74d7ff1153efd6db6d0b0e3")
AES_128 = "TLS_AES_128_GCM_SHA256"
EVERY_SUITE = pytest.mark.parametrize("suite", SUITES)


def example(ours: bytes = CLIENT, theirs: bytes = SERVER, suite: str = AES_128) -> RecordLayer:
    layer = RecordLayer()
    layer.open(ROW, suite, ours, theirs)
    return layer


def taken(layer: RecordLayer, pieces: Iterable[bytes]) -> tuple[bytes, bytes, bool]:
    """The results of all pieces together."""
    plain, replies, ended = b"", b"", False
    for piece in pieces:
        more, reply, ended = layer.feed(ROW, piece)
        plain += more
        replies += reply
    return plain, replies, ended


def test_keys_and_records_are_those_of_the_standard() -> None:
    assert expand_label(CLIENT, "key", 16, "sha256").hex() == "17422dda596ed5d9acd890e3c63f5051"
    assert expand_label(SERVER, "iv", 12, "sha256").hex() == "cf782b88dd83549aadf1e984"
    layer = example()
    assert layer.seal(ROW, bytes(range(50))) == SEALED
    assert layer.alert(ROW, "close_notify") == CLOSE_NOTIFY
    assert example(SERVER, CLIENT).feed(ROW, SEALED) == (bytes(range(50)), b"", False)
    assert taken(example(SERVER, CLIENT), [SEALED + CLOSE_NOTIFY[:9], CLOSE_NOTIFY[9:]]) == (bytes(range(50)), b"", True)


@EVERY_SUITE
def test_keys_are_changed_before_a_cipher_wears_out(suite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncli.protocols.tls13._MOST_RECORDS", 5)
    peer = Peer(suite)
    for number in range(23):
        record = peer.layer.seal(ROW, b"%d" % number)
        assert peer.reads(record) == b"%d" % number
        # A key update of 27 bytes, every fifth time.
        assert (len(record) > 5 + 17 + 3) == (number % 5 == 0 and number > 0)


def test_both_ends_may_send_close_notify() -> None:
    peer = Peer(AES_128)
    peer.layer.feed(ROW, peer.unread)
    with pytest.raises(ssl.SSLWantReadError):
        peer.tls.unwrap()
    assert peer.layer.feed(ROW, peer.outgoing.read()) == (b"", b"", True)
    peer.incoming.write(peer.layer.alert(ROW, "close_notify"))
    peer.tls.unwrap()


def test_an_alert_has_its_name() -> None:
    peer = Peer(AES_128)
    peer.layer.feed(ROW, peer.unread)
    record = bytearray(peer.layer.seal(ROW, b"x"))
    record[-1] ^= 1
    with pytest.raises(ssl.SSLError):
        peer.reads(bytes(record))
    with pytest.raises(AlertError, match=r"^bad_record_mac$"):
        peer.layer.feed(ROW, peer.outgoing.read())


def inner(content: bytes, kind: int, padding: int = 0) -> bytes:
    """A record of the server with this content, kind and padding."""
    server = example(SERVER, CLIENT)
    return server.seal(ROW, content + bytes((kind,)) + bytes(padding - 1), 0) if padding else server.seal(ROW, content, kind)


UPDATE = bytes((24, 0, 0, 1, 0))
TICKET = bytes((4, 0, 0, 100)) + bytes(100)


@pytest.mark.parametrize(
    ("record", "alert"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "unexpected_message"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "unexpected_message"),  # an alert in the clear
        (b"\x14\x03\x03\x00\x01\x01", "unexpected_message"),  # change_cipher_spec: only in the handshake
        (b"\x17\x03\x03\x41\x01", "record_overflow"),
        (b"\x17\x03\x03\x00\x10" + bytes(16), "bad_record_mac"),
        (b"\x17\x03\x03\x00\x20" + bytes(32), "bad_record_mac"),
        (inner(b"", 0, 9), "unexpected_message"),  # nothing but padding
        (inner(b"?", 25), "unexpected_message"),
        (inner(b"", 22), "unexpected_message"),
        (inner(b"\x02", 21), "decode_error"),
        (inner(bytes((13, 0, 0, 0)), 22), "unexpected_message"),  # a certificate is asked for
        (inner(bytes((24, 0, 0, 2, 0, 0)), 22), "decode_error"),
        (inner(bytes((24, 0, 0, 1, 2)), 22), "illegal_parameter"),
        (inner(UPDATE + TICKET, 22), "unexpected_message"),
        (inner(bytes((4, 3, 0, 0)), 22), "decode_error"),  # a ticket of 196,608 bytes
    ],
)  # fmt: skip
def test_violations_are_errors_with_their_alert(record: bytes, alert: str) -> None:
    for pieces in ([record], [bytes((byte,)) for byte in record]):
        with pytest.raises(RecordError) as error:
            taken(example(), pieces)
        assert error.value.alert == alert


@pytest.mark.parametrize(
    ("end", "error"), [(b"\x17\x03\x03\x00\x20" + bytes(32), RecordError), (b"\2\x28", AlertError)], ids=["garbage", "alert"]
)
def test_what_came_before_an_error_in_the_same_read_is_not_lost(end: bytes, error: type[RecordError | AlertError]) -> None:
    server = example(SERVER, CLIENT)
    records = server.seal(ROW, b"an ", 23) + server.seal(ROW, b"answer", 23)
    records += server.seal(ROW, end, 21) if error is AlertError else end
    with pytest.raises(error) as caught:
        example().feed(ROW, records)
    assert caught.value.plain == b"an answer"


def test_replayed_and_reordered_records_are_errors() -> None:
    server = example(SERVER, CLIENT)
    first, second = server.seal(ROW, b"first"), server.seal(ROW, b"second")
    for records in ([first, first], [second]):
        with pytest.raises(RecordError) as error:
            taken(example(), records)
        assert error.value.alert == "bad_record_mac"


def test_padding_and_empty_records_have_no_content() -> None:
    assert example().feed(ROW, inner(b"answer", 23, 300)) == (b"answer", b"", False)
    assert example().feed(ROW, inner(b"", 23)) == (b"", b"", False)


def test_a_message_may_span_consecutive_records() -> None:
    server = example(SERVER, CLIENT)
    layer = example()
    assert taken(layer, [server.seal(ROW, TICKET[:3], 22), server.seal(ROW, TICKET[3:60], 22)]) == (b"", b"", False)
    both = server.seal(ROW, TICKET[60:], 22) + server.seal(ROW, b"answer")
    assert layer.feed(ROW, both) == (b"answer", b"", False)
    layer.feed(ROW, server.seal(ROW, TICKET[:50], 22))
    with pytest.raises(RecordError) as error:
        layer.feed(ROW, server.seal(ROW, b"answer"))
    assert error.value.alert == "unexpected_message"


def test_keys_are_gone_with_the_connection() -> None:
    layer = example()
    layer.feed(ROW, b"\x17\x03")
    layer.forget(ROW)
    assert not any(any(column) for way in (layer._out, layer._in) for column in (way.keys, way.secrets))
    assert not layer._partial
