"""Inputs that once failed the checks of their target: found by fuzzing, or the reason for it."""

from __future__ import annotations

from typing import Any

from of_http1 import Case as Answer
from of_runs import Case as Damage
from of_websocket import Case as Frames

_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"
_PAGE = "Active connections: 1 \nserver accepts handled requests\n 1 1 1 \nReading: 0 Writing: 1 Waiting: 0 \n"


def _meta(key: str, value: Any) -> Damage:
    return Damage(sql=(("UPDATE meta SET value = ? WHERE key = ?", (value, key)),))


def _set(table: str, column: str, value: Any, reader: str = "run") -> Damage:
    return Damage(sql=((f"UPDATE {table} SET {column} = ? WHERE rowid = 1", (value,)),), reader=reader)


FOUND: dict[str, list[Any]] = {
    # More echoes than one, and then a goodbye.
    "websocket": [Frames(b"\x81\x05hello" * 2 + b"\x88\0", (), b"hello")],
    "http2": [],
    "tcp": [],
    "mqtt": [],
    "http1": [
        # Taken in one read, refused in two.
        Answer("GET", _OK + b"X: " + b"x" * 70_000 + b"\r\n\r\n", (68_000,)),
        Answer("GET", _CHUNKED + b"1;" + b"x" * 70_000 + b"\r\nx\r\n0\r\n\r\n", (68_000,)),
        Answer("GET", _CHUNKED + b"0\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", (68_000,)),
        # A folded line of a trailer could hold anything.
        Answer("GET", _CHUNKED + b"0\r\nA: b\r\n c\r:\n\r\n"),
        # h11 alone refuses what is no length where it stands.
        Answer("GET", _CHUNKED + b"0\r\nTransfer-Encoding:chunked, chunked\r\n\r\n"),
        Answer("GET", _CHUNKED + b"5\r\nhello\r\n0\r\nContent-Length: 5\r\nContent-Length: x\r\n\r\n"),
        # Each copied the bytes behind it.
        Answer("GET", _CHUNKED + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n"),
        Answer("HEAD", b"HTTP/1.1 100\r\n\r\n" * 50_000 + _OK + b"\r\n"),
        # Each copied and searched the bytes before it.
        Answer("HEAD", _OK + b"X: " + b"x" * 60_000 + b"\r\n\r\n", tuple(range(1, 60_000))),
        Answer("HEAD", _OK + b"X: y" + b"\n z" * 20_000 + b"\r\n\r\n"),
    ],
    "sse": [],
    "tls": [],
    "pages": [
        _PAGE.replace("s: 1", "s: " + "9" * 400),
        _PAGE.replace(" \nserver", "\n" * 500_000 + "sever"),
        _PAGE.replace(" 1 \nR", " " + "1" * 500_000),
        "# pxname,svname,scur\nlab,FRONTEND," + "x" * 140_000,
        "# pxname,svname,scur,pxname\nlab,FRONTEND,3\n",
    ],
    "plans": [
        b"seed = " + b"9" * 5000,
        b"seed = 0x" + b"f" * 5000,
        b"urls = " + b"[" * 5000,
        b"a." * 30_000 + b"a = 1",
        b"first_beat = '" + b"x" * 5000 + b"'",
        b'status_url = "http://[::1]:8]:8080/"',
        {"urls": ["http://a:80:90/"]},
        {"urls": ["http://1::2:80/"]},
        {"urls": ["http://a\\b/"]},
        {"urls": ["http://a:" + "9" * 5000]},
        {"urls": ["http://[fe80::1%25lo]/"]},
        {"interval": 5e-324},
        {"server_name": "\udc80"},
        {"a\nb": 1},
        ("document", {"urls": ["nowhere"]}),
        ("document", {"urls": ["http://a/"], "connections": -1}),
        ("document", {"urls": ["http://a/"], "interval_s": 0.0}),
        ("document", {"urls": ["http://a/"], "first_beat": "9" * 5000}),
    ],
    "thresholds": [
        "lost > 1E+400",
        "cost.server_user > " + "9" * 400,
        "lost > 1" + " " * 120_000 + "x",
        "x" * 20_000 + " > 1",
        "generator.processes  < \n -1",
        "connections.deaths.* > 0",
        # Read as the one before.
        "connections.deaths== 975",
    ],
    "runs": [
        _meta("started_wall_s", "1e18"),
        _meta("started_wall_s", "-1e18"),
        _meta("environment", "[" * 3000),
        _meta("environment", '{"a":' * 2000),
        _meta("id", b"\xff"),
        _meta("plan", '{"urls": ["x"]}'),
        _meta("plan", '{"urls": ["http://a/"], "batch": 0}'),
        _meta("plan", '{"urls": ["http://a/"], "first_beat": "' + "x" * 5000 + '"}'),
        _set("ticks", "t_s", "soon"),
        _set("ticks", "t_s", float("inf")),
        _set("ticks", "payload", b"\x81\xa4held\xff"),
        _set("ticks", "payload", b"\x81\xabcpu_user_s\xcb\x7f\xf0" + bytes(6)),
        # Histograms: a key of 62 bits, and one below 0.
        _set("ticks", "payload", b"\x81\xaalatency_us\x93\x81\xcf\x40" + bytes(7) + b"\x03\x05\x05"),
        _set("ticks", "payload", b"\x81\xaalatency_us\x93\x81\xff\x01\x05\x05"),
        # Deaths below 0.
        _set("ticks", "payload", b"\x81\xa6deaths\x81\xa5reset\x91\xe6", "report"),
        _set("samples", "value", "much"),
        _set("samples", "value", 1e300, "report"),
        _set("samples", "t_s", b"\0", "follower"),
        _set("metrics", "name", b"\xff"),
        _set("findings", "code", b"\xff"),
        Damage(
            sql=(
                ("DROP TABLE meta", ()),
                ("CREATE VIEW meta AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS key, i AS value FROM n", ()),
            )
        ),
    ],
}
