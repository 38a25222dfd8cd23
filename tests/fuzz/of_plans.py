"""Mutated plans, as values and as files. Checks: built or refused in one line; a plan is equal after a round trip by its document
and by its keys; its targets are those of yarl; its schedule is finite.
"""

from __future__ import annotations

import contextlib
import math
from random import Random
from typing import Any

import msgspec
from chance import ODD_TEXTS, maybe, mutated
from scratch import FOLDER
from yarl import URL

from asyncli.model.errors import PlanError
from asyncli.model.plan import KEYS, Layer, Plan, build_plan, load_plan, plan_document
from asyncli.model.plan_file import read_plan_file
from asyncli.model.status_place import status_place
from asyncli.model.units import parse_pace
from asyncli.model.values import parse_target

#: Values by their keys, or the bytes of a plan file, or what a run file may have as its plan.
Case = dict[str, Any] | bytes | tuple[str, Any]

_COUNTS = ("1", "5000", "100k", "1.5M", "1_000", "10M", "11M", "0", "-1", "1.2", "1e3", " 2K ", "٣", "9" * 400, 1, 10, 5000, 10**400, 1.0, 0.1, -5, True, float("nan"), float("inf"), None)
_TIMES = ("0", "1", "10ms", "90s", "8h", "1h30m", "1 h 30 m", "250us", "0.001us", "1.9", "9" * 400, "1d", "3650d", "4000d", "-1", "inf", "soon", 0, 1, 60, 2.5, 1e-300, 5e-324, 1e300, -0.0, float("nan"))
_URLS = (
    "http://127.0.0.1:8080/", "http://127.0.0.1:8080/", "http://a", "http://[::1]:8080/x?y=1", "HTTP://A.b:1/", "http://h?q", "http://a:65535", "http://a:0/", "http://a:80:90/", "http://1::2:80/",
    "http://[::1", "http://[::1]x:80/", "http://[]/", "http://a:/", "http://:80/", "http://me@a/", "http://a/{n}?{random}&{id}", "http://{n}/", "http://a/{n:06f}", "http://@a/", "http://a/%zz#f", "https://a/", "ftp://a", "a", "", "http://", "http:///", "http://a\\b/",
    "http://a:" + "9" * 5000, "http://[v1.x]/", "http://[fe80::1%25lo]/", "http://a/" + "x" * 3000, "http://a;b/", "http://a_b.c./", "http://-/", "http://a#b", "http://1.2.3.999/", "http://%41/", "http://a:+80/", "ws://a/", "wss://a:1/x", "mqtt://a", "mqtts://a/x", "tcp://a:1/", "tls://a:1/x", "tcp://a",
)  # fmt: skip
_WHOLES = ("1", "0", "7", "-1", "2", "100", "101", "1_0", " 5 ", "٣", "x", "9" * 5000, 0, 1, 2, 5, 100, 2**63, 10**400, 1.0, True, None)
_HEADERS = ("X-A: 1", "A:b", "A:", ": b", "no colon", "Connection: close", "Host: x", "A: b\r\nC: d", "A: \x7f", "A: é", "A:\tb ", "A: " + "x" * 5000, "Accept: */*", "A b: c", "A: {n:06d} {x}", "A: {n:x6}", "A: {{n}}{")
_SOURCES = ("127.0.0.2", "::1", " 127.0.0.3 ", "nowhere", "fe80::1%lo", "1", "", "127.0.0.1/8", "0x7f.1", "٣.1.1.1")
_TEXTS = ("nginx", "", "a\0b", "/run/nginx.pid", "x" * 3000, 5, None, [], "\udc80")
_OF = {
    "urls": _URLS, "connections": _COUNTS, "keepalive": _TIMES, "batch": _COUNTS, "interval": _TIMES, "hold": (*_TIMES, "forever"), "baseline": _TIMES, "residue": _TIMES, "plateaus": _WHOLES,
    "plateau_rest": _TIMES, "workers": _WHOLES, "source": _SOURCES, "timeout": _TIMES, "connect_timeout": _TIMES, "status_url": (*_URLS, "http://a:b@h/s", "http://***@h/", "http://a@h", "http://:b@h/", "http://a:%zz@h/", "unix:/s", "unix:@s:/p?q", "http://unix:/s:/p", "unix:", "unix:/s:p"), "server_metrics": (*_URLS, "http://a:b@h/metrics?x", "unix:/s:/varz", "unix:", "mqtt://h", "mqtts://a:b@[::1]:9/", "mqtt://***@h/", "mqtt://@h", "mqtt://a:%00@h", "mqtt://h/t?q#f"), "metrics_map": ("active=a", "heap=a{b=\"c\"}", "live=a{", "x=a", "active=", "active=a\x1b"), "status_header": _HEADERS, "collect": ("auto", "none", "true {pid}", "http://h/gc?gc=1", "https://a:b@h/x", "http://", ""), "server_pid": _WHOLES, "server_pidfile": _TEXTS,
    "server_name": _TEXTS, "agent": (*_URLS, "https://h", "http://[::1]:1", "http://h/x"), "agent_token_file": _TEXTS, "agent_ca": _TEXTS, "method": ("HEAD", "GET", "OPTIONS", "POST", "", 1, []), "header": _HEADERS, "first_beat": ("now", "sleep", "later", 1, []), "reopen": (True, False, 1, "yes"),
    **dict.fromkeys(("ca", "data", "client_cert", "client_key", "tls_ciphers", "alpn", "ws_message", "sni"), _TEXTS), **dict.fromkeys(("insecure", "tls_resume", "http2", "ws_deflate", "h2_table"), (True, False, 1)), "h2_heartbeat": ("ping", "head", "HEAD", None), "streams": _WHOLES,
    "mqtt_version": ("3.1.1", "5", 5, 5.0, 4, "3.1", True, []), "mqtt_id": ("{n}", "dev-{n:06d}-{random}", "{n", "{m}", "{n!r}", "{n:{n}}", "fixed", "{{n}}{n:x}", "{n:999d}", 5),
    "subscribe": ("a/#@1", "a/+/b", "#", "a#", "#/a", "a+@2", "@1", "a@3", "a@b", "a/{n}@2", "a/{m}", "a{", "", 5),
    **dict.fromkeys(("tls_min", "tls_max"), ("1.2", "1.3", "1.1", 1.2, None)),
    "connect_to": ("10.0.0.7:443", "[::1]:80", "a:1", "a", "a:0", "a:1/", "a:1/x", "http://a:1", "a@b:1", "unix:/run/a.sock", "unix:@a", "unix:a", "unix:", "unix:/" + "x" * 200, "", 5), "resolve": ("a:80:10.0.0.7", "127.0.0.1:8080:127.0.0.2,[::1]", "127.0.0.1:8080:::1", "[::1]:8080:::1", "a:80", "a:80:b", "a:x:::1", "a:0:::1", "a:80:,", "", 5), "proxy_protocol": ("v1", "v2", "v3", 1, ""), "protocol": ("sse", "stream", "http", "", 1, None), "silence": (*_TIMES, "forever"), "send": ("PING\\r\\n", "{n:4d}{\\x7d", "{random:1}", "", "\\x", *_TEXTS),
    **dict.fromkeys(("expect", "greeting"), ("any", "+PONG\\r\\n", "/^ok/", "/(/", "5 bytes", "0 bytes", *_TEXTS)),
    "events": ([["30s", "storm"]], [["50%", "drop 30% how=fin"], [5, "drop 0.1%"]], [{"at": "1s", "do": "drop", "share": "5%"}], [["0%", "storm"], ["0s", "storm"]], [["1s"]], [["1s", "drop"]], [["x", "storm"]], [["200%", "storm"]], [["1s", "drop nan%"]], [{"at": 1}], "storm", [5], [], None),
    "churn": ("1%/m", "0.5%/s", "20%/h", "10%/s", "11%/s", "1%", "1/m", "0%/m", "nan%/m", "1%/d", "", 5),
    "reconnect": ("now", "jitter:10s", "backoff:1s..60s", "fixed:3s", "backoff:2s..1s", "backoff:1s", "jitter:", "now:1s", "fixed:2h", "soon", "", 5),
    "fail_if": ("lost > 1", "cost.server_user worse by 3%", "", 5), "baseline_run": ("main.db", "", "\x00", 5), "abort": (True, False, None), "seed": _WHOLES, "force": (True, False, 0), "ramp": ("10/10ms", "1/1h", "0/1s", "10/0", "/", "1/2/3", "10/", "9k/1us", 10, [], None),
}  # fmt: skip
assert set(_OF) == {*KEYS, "ramp"}
_NAMES = tuple(_OF)


def _good(key: str) -> tuple[Any, ...]:
    """The valid values of a key."""
    found = []
    for value in _OF[key]:
        with contextlib.suppress(ValueError):
            (parse_pace if key == "ramp" else KEYS[key][1])(value)
            found.append(value)
    return tuple(found)


_GOOD = {key: _good(key) for key in _NAMES}
_LISTS = ("urls", "resolve", "source", "header", "fail_if", "baseline_run", "subscribe")
_DATES = ("1979-05-27T07:32:00Z", "1979-13-01", "25:00:00", "1979-05-27")
_PIECES = ("[", "{a=", "[[a]]\n", "a.", "1", '"', "#", "\n", "x = 1\n", "'", "\\", "connections = 5\n", "urls = [", "0", "_")
_FILE = FOLDER / "plan.toml"
_HERE = Layer("--{key}", {"urls": ["http://127.0.0.1:8080/"]})


def generate(chance: Random) -> Case:
    """Some keys with valid or nearly valid values; as values, as a file, or as a run file's document."""
    values: dict[str, Any] = {}
    for _ in range(1 + chance.randrange(5)):
        key = chance.choice(_NAMES)
        values[key] = _value(chance, key)
    match chance.randrange(8):
        case 0 | 1 | 2:
            if maybe(chance, 20):
                values[chance.choice(("conections", "", "{key}", "a\nb", "server-pid"))] = 1
            return values
        case 3:
            return "document", _document(chance)
        case _:
            return _file(chance, values)


def _value(chance: Random, key: str) -> Any:
    value = chance.choice(_OF[key] if maybe(chance, 6) else _GOOD[key])
    if isinstance(value, str) and maybe(chance, 12):
        value = mutated(chance, value, ODD_TEXTS)
    if key in _LISTS and not maybe(chance, 4):
        value = [value, *(chance.choice(_OF[key]) for _ in range(chance.randrange(2)))]
    return chance.choice(ODD_TEXTS) if maybe(chance, 100) else value


def _file(chance: Random, values: dict[str, Any]) -> bytes:
    lines = [f"{key} = {_toml(chance, value)}" for key, value in values.items()]
    if maybe(chance, 10):
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(("[soak]", "# a comment", "a.b = 1", "[[x]]", "nonsense", "= 1", '"" = 1', "[a", "x = {a = 1, b = [1, 2]}")))
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    if maybe(chance, 3):
        data = mutated(chance, data)
    if maybe(chance, 500):
        at = chance.randrange(len(data) + 1)
        piece = chance.choice(_PIECES).encode()
        data = data[:at] + piece * (chance.choice((1_000, 10_000)) // len(piece)) + data[at:]
    return data


def _toml(chance: Random, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return chance.choice((f'"{value}"', f"'{value}'", f'"""{value}"""', value)) if maybe(chance, 4) else msgspec.json.encode(value.encode("utf-8", "replace").decode()).decode()
    if isinstance(value, list):
        return f"[{', '.join(_toml(chance, one) for one in value)}]"
    if isinstance(value, int) and value > 2**64:
        return hex(value)
    return chance.choice(_DATES) if value is None else repr(value)


_FIELDS = Plan.__struct_fields__
_RAW = (None, 0, 1, -1, 5, 2**63, 1e308, -1.0, 0.5, "", "x", "now", "HEAD", True, [], ["x"], ["http://a/"], {}, "9" * 5000)


def _document(chance: Random) -> Any:
    if maybe(chance, 50):
        return chance.choice(_RAW)
    document: dict[str, Any] = {"urls": ["http://127.0.0.1:8080/"]}
    for _ in range(chance.randrange(4)):
        document[chance.choice(_FIELDS) if not maybe(chance, 20) else "unknown"] = chance.choice(_RAW)
    return document


def check(case: Case) -> str:
    """The kind of the outcome. Raises AssertionError if a check fails."""
    try:
        if isinstance(case, bytes):
            _FILE.write_bytes(case)
            plan = build_plan([_HERE, read_plan_file(_FILE)])
        elif isinstance(case, tuple):
            plan = load_plan(case[1])
        else:
            plan = build_plan([_HERE, Layer("--{key}", case)])
    except PlanError as error:
        words = str(error)
        assert len(words.splitlines()) == 1, words
        assert len(words) < 1_500, f"{len(words)} characters of complaint"
        assert isinstance(case, tuple) or ";" in words or "write" in words, f"says not how to mend it: {words}"
        return "refused" if not isinstance(case, tuple) else "refused, a document"
    document = plan_document(plan)
    assert load_plan(document) == plan
    assert load_plan(msgspec.json.decode(msgspec.json.encode(document))) == plan
    schedule = plan.schedule
    assert math.isfinite(plan.asked_per_s)
    assert 0 <= schedule.due_s(schedule.batches - 1) <= schedule.end_s < math.inf
    for url in (*plan.urls, *([status_place(plan.status_url).url] if plan.status_url else [])):
        target = parse_target(url)
        parsed = URL(url, encoded=True)
        assert (parsed.host or "").lower() == target.host.lower(), (parsed.host, target.host)
        # yarl does not know the ports of MQTT.
        assert (parsed.port or target.port) == target.port, (parsed.port, target.port)
    if not isinstance(case, tuple):
        values = {key: document[field] for key, (field, _) in KEYS.items() if document[field] is not None or key == "hold"}
        assert build_plan([Layer("again: {key}", values)]) == plan, "the document makes another plan"
    return "accepted, a document" if isinstance(case, tuple) else "accepted, a file" if isinstance(case, bytes) else "accepted"
