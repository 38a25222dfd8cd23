"""Templates: fields in texts that differ between connections, and where they are filled in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived

from asyncli.engine.shard import build_shard
from asyncli.engine.spread import Destination, Spread
from asyncli.model.errors import PlanError
from asyncli.model.plan import Layer, build_plan
from asyncli.model.template import Fields, Filled, OpenTemplate, unknown_fields
from asyncli.protocols.interface import ANSWER, NEWS, Protocol

HERE = Spread((Destination(2, "127.0.0.1", 80),), (), 1, True, 1000)


def spoken(url: str, **values: Any) -> Protocol:
    """The protocol of a plan with the seed 0x3f2a9c, for connections from number 41 on."""
    return build_shard(build_plan([Layer("--{key}", {"urls": [url], "seed": 0x3F2A9C, **values})]), HERE).new_protocol(lambda row: row + 41)


@pytest.mark.parametrize(
    ("text", "of_seven"),
    [
        ("a-{n}-{n:04d}-{n:x}-{random}", "a-7-0007-7-3f2a9c"),
        ('{"op":"ping","id":{n},"of":{"a":{"b":{n}}}}', '{"op":"ping","id":7,"of":{"a":{"b":7}}}'),
        ("{{n}} {{n:03d}} {{random}}", "{n} {n:03d} {random}"),
        ("{user} {{user}} {} {0} { n} {n } {N} { {n} }", "{user} {{user}} {} {0} { n} {n } {N} { 7 }"),
        ("GET {user1000}.following {\r\n}", "GET {user1000}.following {\r\n}"),
        ("{{n} {n}} }{n}{", "{7 7} }7{"),
        ("\xff\x00é{n}", "\xff\x00é7"),
    ],
)
def test_only_what_is_a_field_is_filled_in(text: str, of_seven: str) -> None:
    fields = Fields(lambda row: row + 5, "3f2a9c")
    assert OpenTemplate(text).fill({"n": 7, "random": "3f2a9c"}) == of_seven
    assert Filled(text.encode(), fields)(2).decode() == of_seven
    assert Filled(text.encode(), fields).varies == ("{n" in text.replace("{{n}} {{n:03d}}", "").replace("{n }", "")), text
    assert list(unknown_fields(text, None)) == []


def test_what_only_looks_like_a_field_is_seen() -> None:
    assert list(unknown_fields("{n:06s}{random:3}{user}{{n:q}}", None)) == ["{n:06s}", "{random:3}"]
    assert list(unknown_fields("{n}{user}{{user}}{nam-e}", ("user",))) == ["{nam-e}"]


@pytest.mark.parametrize("text", ['{"op":"ping","of":{"a":{}}}', "{id}", "{{n}}", "plain"])
def test_where_nothing_varies_one_heartbeat_is_all_rows(text: str) -> None:
    assert spoken("http://a/", header=[f"X: {text}"]).heartbeat is not None
    assert spoken("tcp://a:1", send=text).heartbeat == text.replace("{{n}}", "{n}").encode()


def test_http_asks_for_each_row() -> None:
    http = spoken("http://a/{n}?of={random}", header=["X-Id: meter-{n:06d}"])
    assert http.heartbeat is None
    assert b"HEAD /43?of=3f2a9c HTTP/1.1\r\n" in http.heartbeat_for(2, 0)
    assert b"\r\nX-Id: meter-000043\r\n" in http.heartbeat_for(2, 0)
    same = spoken("http://a/{random}").heartbeat
    assert same is not None
    assert b" /3f2a9c " in same


@pytest.mark.parametrize("keys", [{"protocol": "sse"}, {"protocol": "stream"}, {}])
def test_handshakes_ask_for_each_row(keys: dict[str, Any]) -> None:
    protocol = spoken("http://a/{n}" if keys else "ws://a/{n}", header=["X-Id: {n:x}"], **keys)
    assert protocol.handshake is not None
    for row in (0, 1):
        asked = protocol.handshake(row, 0)
        assert asked.startswith(b"GET /%d HTTP/1.1\r\n" % (41 + row))
        assert b"\r\nX-Id: %x\r\n" % (41 + row) in asked


def test_http2_asks_for_each_row() -> None:
    protocol = spoken("http://a/{n}", header=["X-Id: {n:06d}"], http2=True, h2_heartbeat="head")
    assert protocol.handshake is not None
    for row in (0, 5):
        server = H2Connection(H2Configuration(client_side=False))
        server.receive_data(protocol.handshake(row, 0))
        (asked,) = (one for one in server.receive_data(protocol.heartbeat_for(row, 0)) if isinstance(one, RequestReceived))
        assert {(b":path", b"/%d" % (41 + row)), (b"x-id", b"%06d" % (41 + row))} <= set(asked.headers)


def test_bytes_of_tcp_and_logins_of_mqtt_are_of_each_row() -> None:
    tcp = spoken("tcp://a:1", send=r"\xff{n}\r\n")
    assert (tcp.heartbeat, tcp.heartbeat_for(1, 0), tcp.silence_s) == (None, b"\xff42\r\n", None)
    mqtt = spoken("mqtt://a", mqtt_id="é{n}", subscribe=["a/{n:03d}"])
    assert mqtt.handshake is not None
    assert "é42".encode() in mqtt.handshake(1, 0)


def text_frame(payload: bytes) -> bytes:
    return bytes((0x81, len(payload))) + payload


def test_a_message_of_another_row_answers_no_row() -> None:
    """Nor may the engine compare answers by equal bytes, as it does if all rows send the same."""
    message = '{"op":"ping","id":{n}}'
    protocol = spoken("ws://a/", ws_message=message)
    mine, other = (text_frame(json.dumps({"op": "ping", "id": n}, separators=(",", ":")).encode()) for n in (42, 43))
    answer, news = protocol.feed(1, mine, True), protocol.feed(1, other, True)
    same = spoken("ws://a/", ws_message="ping").feed(1, text_frame(b"ping"), True)
    assert [(one.kind, one.own, one.messages) for one in (answer, news, same) if one is not None] == [(ANSWER, True, 0), (NEWS, False, 1), (ANSWER, False, 0)]


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"urls": ["http://a/{n:06f}"]}, "urls: '{n:06f}'"), ({"header": ["A: Bearer {n:secret}"]}, "header: "), ({"urls": ["tcp://a:1"], "send": "{random:2}"}, "send: '{random:2}'"),
        ({"urls": ["ws://a/"], "ws_message": "{n:}{n:z}"}, "ws_message: '{n:z}'"), ({"urls": ["mqtt://a"], "subscribe": ["{topic}"]}, "subscribe: '{topic}'"), ({"urls": ["mqtt://a"], "mqtt_id": "{n}{id}"}, "mqtt_id: '{id}'"),
    ],
)  # fmt: skip
def test_a_field_that_is_none_is_refused_in_a_line(values: dict[str, Any], where: str) -> None:
    with pytest.raises(PlanError, match=where) as refused:
        build_plan([Layer("{key}", {"urls": ["http://a/"], **values})])
    assert "secret" not in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
