"""The file of --data: what is used of it, and what is refused."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncli.engine.shard import Shard, build_shard
from asyncli.engine.spread import Destination, Spread
from asyncli.model.data_file import described, read_data
from asyncli.model.errors import PlanError
from asyncli.model.plan import Layer, Plan, build_plan
from asyncli.protocols.interface import Protocol

HERE = Spread((Destination(2, "127.0.0.1", 80),), (), 1, True, 1000)
ROWS = [("alpha", "", "x y"), ("zwei,te", "a:b", "ü"), ('qu"ote', "{n}", "line\nend")]


def made(path: Path, text: str | bytes | None, **values: Any) -> Plan:
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return build_plan([Layer("{key}", {"urls": ["http://a/{device}"], "connections": 2, "data": str(path), **values})])


def spoken(plan: Plan) -> Protocol:
    """Row 0 is the second connection's. As another host has its orders."""
    sent = msgspec.msgpack.encode(build_shard(plan, HERE, read_data(plan)))
    return msgspec.msgpack.decode(sent, type=Shard).new_protocol(lambda row: row + 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("device", "token", "unused"), *ROWS])
    return path


def test_each_connection_has_its_row_and_only_what_is_used_is_kept(file: Path) -> None:
    plan = made(file, None, urls=["tcp://a:1"], send=r"{device}/{token}/{n}/{{device}}/{other\n", connections=3)
    data = read_data(plan)
    assert data is not None
    assert (data.columns, data.rows, data.texts) == (("device", "token"), 3, b'alpha\0zwei,te\0a:bqu"ote\0{n}')
    heard = [spoken(plan).heartbeat_for(row - 1, 0) for row in range(3)]
    assert heard == [f"{device}/{token}/{n}/{{device}}/{{other\n".encode() for n, (device, token, _) in enumerate(ROWS)]
    # Of the same rows another order, or another column, is another run.
    assert len({str(described(read_data(made(file, None, urls=["tcp://a:1"], send=one, connections=2)) or data)) for one in ("{token}", "{device}", "{token} {device}")}) == 3


def test_every_protocol_takes_columns(file: Path) -> None:
    mqtt = spoken(made(file, None, urls=["mqtt://a"], mqtt_id="{unused}", subscribe=["of/{token}"]))
    assert mqtt.handshake is not None
    assert "\0\2ü".encode() in mqtt.handshake(0, 0)
    good = "device,token\na,b%20\nsecond,tok\n"
    for values in ({}, {"protocol": "sse"}, {"urls": ["ws://a/{device}"]}):
        protocol = spoken(made(file, good.replace(",tok\n", "," + "tok" * 9999 + "\n"), header=["Authorization: Bearer {token}"], **values))
        asked = (protocol.handshake or protocol.heartbeat_for)(0, 0)
        assert b" /second HTTP/1.1\r\n" in asked
        assert b"\r\nAuthorization: Bearer %b\r\n" % (b"tok" * 9999) in asked


def test_a_login_of_mqtt_may_be_of_columns(file: Path, tmp_path: Path) -> None:
    (tmp_path / "login").write_text("{device}:{token}\n")
    plan = build_plan([Layer("{key}", {"urls": ["mqtt://a"], "connections": 2, "data": str(file), "mqtt_login_file": str(tmp_path / "login")})])
    handshake = spoken(plan).handshake
    assert handshake is not None
    assert handshake(0, 0).endswith(b"\0\7zwei,te\0\3a:b")


@pytest.mark.parametrize(
    ("text", "values", "said"),
    [
        ("device\na\n", {}, "has only 1 row"),
        ("device\n", {}, "has only 0 rows"),
        ("", {}, "no header line"),
        (",1\na,b\n", {}, "no header line"),
        ("name\na\nb\n", {}, "URL: '{device}'"),
        ("name\na\nb\n", {"urls": ["http://a/"]}, "{name}"),
        ("name\na\nb\n", {"urls": ["http://a/"], "header": ["A: {secret}"]}, "--header: "),
        ("name\na\nb\n", {"urls": ["mqtt://a"], "mqtt_id": "{id}"}, "--mqtt-id: '{id}'"),
        ("device\na\nb c\n", {}, "line 3: device"),
        ("device\na\nü\n", {}, "line 3: device"),
        ('device\na\n"b\r\nHost: x"\n', {"urls": ["http://a/"], "header": ["A: {device}"]}, "line 4: device"),
        ("device\na\nb\0\n", {"urls": ["tcp://a:1"], "send": "{device}"}, "rows.csv"),
        ("device\na\n" + "b" * 4000, {"urls": ["mqtt://a"], "subscribe": ["{device}" * 17]}, "--subscribe would be 68,000"),
        ("device,b\na\nb\n", {}, "row 1 has 1 value"),
        ("device,device\na,b\n", {}, "two columns called 'device'"),
        ("device,n\na,b\n", {}, "{n} is a built-in field"),
        (b"device\n\xff\n\xfe\n", {}, "UTF-8"),
        ('device\n"a\n', {}, "comma-separated"),
        (None, {"data": "/dev/zero"}, "not a file"),
        (None, {"data": "absent.csv"}, "not a file"),
    ],
)
def test_what_does_not_do_is_refused_in_a_line(tmp_path: Path, text: str | bytes | None, values: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError) as refused:
        read_data(made(tmp_path / "rows.csv", text, **values))
    line = str(refused.value)
    assert said in line
    assert len(line.splitlines()) == 1
    assert ";" in line
    assert "secret" not in line
