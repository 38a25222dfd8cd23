"""Plans from flags and files: what is accepted, and the one-line error for each wrong input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asyncli.agent.wire import read_token
from asyncli.model.errors import PlanError
from asyncli.model.mqtt_values import topic_and_qos
from asyncli.model.plan import KEYS, Layer, Plan, build_plan, load_plan, plan_document, shown_plan
from asyncli.model.plan_file import read_plan_file
from asyncli.model.template import Template
from asyncli.model.values import parse_url

URL = "http://127.0.0.1:8080/"


def plan(**values: Any) -> Plan:
    return build_plan([Layer("--{key}", {"urls": [URL], **values})])


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('connections = "2k"\nkeepalive = 10\nramp = "20/5ms"\nheader = ["X-A: 1"]\n')
    built = build_plan(
        [Layer("d: {key}", {"urls": [URL], "hold": "1h", "keepalive": 99}), read_plan_file(file), Layer("--{key}", {"connections": "5k"})]
    )
    assert (built.connections, built.keepalive_s, built.batch, built.interval_s, built.hold_s) == (5000, 10, 20, 0.005, 3600)
    assert built.headers == ("X-A: 1",)
    file.write_text('urls = ["https://a/"]\ntls_min = 1.2\ntls_max = 1.3\n')
    built = build_plan([read_plan_file(file)])
    assert (built.tls_min, built.tls_max) == ("1.2", "1.3")


def test_every_field_of_a_plan_has_a_key_and_every_shipped_plan_reads() -> None:
    # The hold has two fields: how long, or until when; a login comes by a file alone.
    assert {field for field, _ in KEYS.values()} | {"hold_until", "mqtt_login"} == set(Plan.__struct_fields__)
    configs = Path(__file__).parent.parent / "configs"
    assert sorted(file.stem for file in configs.glob("*.toml")) == ["100k", "bench", "overnight", "smoke"]
    shipped = [configs / f"{name}.toml" for name in ("100k", "overnight", "smoke")]
    assert [build_plan([read_plan_file(file), Layer("--{key}", {"urls": [URL]})]).connections for file in shipped] == [100_000, 100_000, 2000]


def test_a_recorded_plan_comes_back_whole() -> None:
    built = plan(connections="100k", hold="forever", source=["127.0.0.2", "::1"])
    assert load_plan(plan_document(built)) == built
    assert built.seed == load_plan(plan_document(built)).seed
    for wrong in ({"unknown": 1}, {"connections": -1}, {"interval_s": 0.0}, {"urls": ["nowhere"]}, {"first_beat": "x" * 5000}):
        with pytest.raises(PlanError, match=r"^recorded plan: .{1,300}$"):
            load_plan({"urls": [URL], **wrong})


def test_a_hold_by_the_wall_clock_keeps_its_words(tmp_path: Path) -> None:
    built = plan(hold="until 07:00")
    assert (built.hold_s, built.hold_until) == (None, "07:00")
    assert load_plan(plan_document(built)) == built
    assert plan(hold="Until  7:00").hold_until == "07:00"
    assert plan(hold="until 2030-11-22T07:00").hold_until == "2030-11-22T07:00"
    # The stronger layer's word is the only one.
    for weak, strong, fields in (("until 07:00", "8h", (28800, None)), ("8h", "until 07:00", (None, "07:00")), ("until 07:00", "forever", (None, None))):
        layers = [Layer("a.toml: {key}", {"urls": [URL], "hold": weak}), Layer("--{key}", {"hold": strong})]
        built = build_plan(layers)
        assert (built.hold_s, built.hold_until) == fields


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("http://a", "a", 80, "/"),
        ("http://[::1]:8080/x?y=1", "::1", 8080, "/x?y=1"),
        ("HTTP://A.b:1/", "a.b", 1, "/"),
        ("http://h?q", "h", 80, "/?q"),
        ("http://[fe80::1%25lo]:1/", "fe80::1%lo", 1, "/"),
        ("http://h/login?next=http://me@other/", "h", 80, "/login?next=http://me@other/"),
    ],
)
def test_urls(url: str, host: str, port: int, path: str) -> None:
    target = parse_url(url)
    assert (target.host, target.port, target.path) == (host, port, path)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"urls": ["127.0.0.1:8080"]}, "no scheme"),
        ({"urls": ["ftp://a/"]}, "unknown scheme"),
        ({"urls": ["a:1"]}, "mqtts"),
        ({"urls": ["h2c://a/"]}, "--http2"),
        ({"urls": ["sse://a/"]}, "--protocol sse"),
        ({"urls": ["ws://a/#b"]}, "RFC 6455"),
        ({"urls": ["tcp://a:1/#b"]}, "tcp://127.0.0.1:6379"),
        ({"urls": ["https://a/", "http://a/"]}, "http and https in one run"),
        ({"connect_to": "10.0.0.7"}, "--connect-to: '10.0.0.7' is not a host and a port; write for example 10.0.0.7:443"),
        ({"connect_to": ":::"}, "--connect-to: ':::' names no other host or port; "),
        ({"connect_to": "a:1:b:99999"}, "--connect-to: 'http://b:99999': port '99999' is not a port"),
        ({"connect_to": "a:1:b/c:2"}, "--connect-to: 'a:1:b/c:2' is not HOST1:PORT1:HOST2:PORT2; "),
        ({"urls": ["http://a/"], "connect_to": "b:80:c:80"}, "--connect-to: no URL has the host and port before the second colon of 'b:80:c:80'; "),
        ({"connect_to": "a:0"}, "--connect-to: 'http://a:0': port '0' is not a port"),
        ({"connect_to": "unix:a.sock"}, "--connect-to: 'unix:a.sock' has no absolute path; write for example unix:/run/app.sock"),
        ({"connect_to": "unix:/" + "x" * 107}, "its path has 108 bytes, at most 107 work"),
        ({"connect_to": "unix:/a", "source": ["127.0.0.2"]}, "--source: a Unix socket has no source addresses; leave it out"),
        ({"resolve": ["a:80"]}, "--resolve: 'a:80' is not HOST:PORT:ADDRESS; write for example shop.example:443:10.0.0.7,10.0.0.8"),
        ({"resolve": ["a:80:10.0.0.7,b"]}, "is not HOST:PORT:ADDRESS"),
        ({"resolve": ["a:80:10.0.0.7"]}, "--resolve: no URL has 'a:80'; write the host and port of one"),
        ({"urls": ["http://a/"], "resolve": ["a:80:10.0.0.7"], "connect_to": "b:1"}, "--connect-to and --resolve: "),
        ({"sni": "a"}, "--sni: no URL uses TLS; write https://"),
        ({"send": "x"}, "--send: only for tcp://, not for HTTP; leave it out"),
        ({"urls": ["tcp://a"]}, "'tcp://a' is not a host and a port; write for example tcp://127.0.0.1:6379"),
        ({"urls": ["tcp://a:1/x"]}, "is not a host and a port"),
        ({"urls": ["tcp://a:1"], "header": ["A: b"]}, "--header: TCP has no headers; leave it out"),
        ({"urls": ["tcp://a:1"], "expect": "x"}, "--expect: nothing is sent that it could answer; write --send BYTES beside it"),
        ({"urls": ["tcp://a:1"], "send": "x", "silence": "3"}, "--send and --silence: a connection sends heartbeats or listens; leave one out"),
        ({"urls": ["ws://a/"], "method": "GET"}, "--method: only for http://, not for WebSocket; leave it out"),
        ({"ws_message": "x"}, "--ws-message: only for ws://, not for HTTP; leave it out"),
        ({"silence": "5s"}, "--silence: only for --protocol sse or --protocol stream or tcp://, not for HTTP; leave it out"),
        ({"protocol": "sse", "method": "GET"}, "--method: only for http://, not for Server-sent events; leave it out"),
        ({"urls": ["ws://a/"], "protocol": "sse"}, "--protocol: only for http://, not for WebSocket; leave it out"),
        ({"protocol": "grpc"}, "'grpc' is not a protocol over http://; write sse or stream"),
        ({"urls": ["ws://a/"], "ws_message": ""}, "--ws-message: '' is not a text"),
        ({"protocol": "sse", "header": ["last-event-ID: 5"]}, "--header: asyncli sets last-event-ID itself; leave it out"),
        ({"subscribe": ["a"]}, "--subscribe: only for mqtt://, not for HTTP; leave it out"),
        ({"urls": ["mqtt://a"], "header": ["A: b"]}, "--header: MQTT has no headers; leave it out"),
        ({"urls": ["mqtt://a/b"]}, "'mqtt://a/b' is not a host and a port; write for example mqtt://127.0.0.1:1883"),
        ({"urls": ["mqtt://me:pw@a"]}, "'mqtt://***@a' carries a user name; leave it out, and write --mqtt-login-file FILE"),
        ({"urls": ["mqtt://a"], "mqtt_version": "4"}, "--mqtt-version: '4' is not a version of MQTT; write 3.1.1 or 5"),
        ({"urls": ["mqtt://a"], "mqtt_id": "fixed"}, "--mqtt-id: 'fixed' is the same for all connections, but a broker requires unique ids; write {n} in it"),
        ({"urls": ["mqtt://a"], "mqtt_id": "{n}{m:x}"}, "--mqtt-id: '{n}{m:x}': '{m:x}' is not a field; write {n}, {n:06d} or {random}"),
        ({"urls": ["mqtt://a"], "mqtt_id": "{n!r}"}, "'{n!r}' is not a field"),
        ({"urls": ["mqtt://a"], "mqtt_id": "{n"}, "has an unpaired brace; write {{ or }} for a brace"),
        ({"urls": ["mqtt://a"], "mqtt_id": "{n}\n"}, "has control characters"),
        ({"urls": ["mqtt://a"], "subscribe": ["a@3"]}, "--subscribe: 'a@3' is not a topic and a QoS; write for example sensors/#@1"),
        ({"urls": ["mqtt://a"], "subscribe": ["a/#/b"]}, "--subscribe: 'a/#/b': a wildcard must be a whole level, # the last one"),
        ({"urls": ["mqtt://a"], "subscribe": ["a/b+"]}, "a wildcard must be a whole level"),
        ({"urls": ["mqtt://a"], "mqtt_login_file": "/nowhere"}, "--mqtt-login-file: '/nowhere' cannot be read (No such file or directory); name a file with one line"),
        ({"urls": ["mqtt://a"], "mqtt_login_file": "/dev/null"}, "'/dev/null' has no login in it; name a file with one line, user:password"),
        ({"urls": ["ws://a/"], "header": ["Upgrade: x"]}, "--header: asyncli sets Upgrade itself"),
        ({"urls": ["ws://a/"], "http2": True}, "--http2: only for http://, not for WebSocket; leave it out"),
        ({"http2": True, "method": "GET"}, "--method: only for http://, not for HTTP/2; leave it out"),
        ({"h2_heartbeat": "head"}, "--h2-heartbeat: only for --http2, not for HTTP; leave it out"),
        ({"http2": True, "h2_heartbeat": "get"}, "is not a heartbeat of HTTP/2; write ping or head"),
        ({"http2": True, "header": ["A: b"]}, "--header: pings have no headers"),
        ({"http2": True, "h2_heartbeat": "head", "header": ["Upgrade: x"]}, "--header: HTTP/2 allows no Upgrade; leave it out"),
        ({"urls": ["ws://a/"], "status_url": "ws://a/"}, "unknown scheme 'ws'; write http or https"),
        ({"urls": ["http://a/"], "insecure": True}, "no URL uses TLS"),
        ({"urls": ["https://a/"], "client_key": "k.pem"}, "a key without its certificate"),
        ({"urls": ["https://a/"], "insecure": True, "ca": "a.pem"}, "leave one out"),
        ({"urls": ["https://a/"], "tls_min": "1.3", "tls_max": "1.2"}, "write the higher version"),
        ({"urls": ["https://a/"], "tls_min": "1.3", "tls_ciphers": "X"}, "--tls-ciphers and --tls-min: for TLS 1.3 the server chooses"),
        ({"urls": ["tcp://a:1"], "send": "x {n}", "expect": "{nonce}"}, "--expect: --send has no {nonce}"),
        ({"urls": ["https://a/"], "alpn": "mqtt,"}, "is not a list of protocols"),
        ({"urls": ["https://a/"], "alpn": "h2", "http2": True}, "--alpn and --http2: HTTP/2 is what --http2 offers"),
        ({"urls": ["mqtt://a"], "alpn": "mqtt"}, "--alpn: no URL uses TLS"),
        ({"urls": ["https://a/"], "tls_min": "1.1"}, "is not a version of TLS"),
        ({"urls": ["https://a/"], "client_key": ""}, "--client-key: is empty; name a file, or leave it out"),
        ({"urls": ["http://a b/"]}, "white space"),
        ({"urls": ["http://a:65536/"]}, "65536"),
        ({"urls": ["http://a:0/"]}, "port"),
        ({"urls": ["http:///x"]}, "no host"),
        ({"urls": ["http://[::1/"]}, "not a URL"),
        ({"urls": ["http://me@a/"]}, "--header"),
        ({"urls": []}, "no URL"),
        ({"interval": "0"}, "--interval"),
        ({"batch": "0"}, "--batch"),
        ({"ramp": "10/0ms"}, "--ramp"),
        ({"ramp": "100/s", "batch": "5"}, "--ramp and --batch: "),
        ({"connections": "0"}, "--connections"),
        ({"connections": "many"}, "--connections"),
        ({"connections": "11M"}, "--connections"),
        ({"keepalive": "1.9"}, "below 2 s"),
        ({"hold": "soon"}, "--hold"),
        ({"hold": "until"}, "--hold: 'until' has no time after it; write both in quotes, for example 'until 07:00'"),
        ({"hold": "until seven"}, "'seven' is not a time of day"),
        ({"hold": "until 2020-01-01T07:00"}, "'2020-01-01T07:00' has passed; write a future time"),
        ({"hold": "until 9999-01-01T07:00"}, "more than ten years away"),
        ({"hold": "till 07:00"}, "a hold may also be 'forever', or 'until 07:00'"),
        ({"source": ["nowhere"]}, "--source"),
        ({"header": ["no colon"]}, "--header"),
        ({"header": ["Connection: close"]}, "sets Connection itself"),
        ({"header": ["A: b\r\nC: d"]}, "--header"),
        ({"method": "POST"}, "--method"),
        ({"server_pid": "1", "server_name": "nginx"}, "name the server once"),
        ({"server_pid": "-1"}, "--server-pid"),
        ({"status_url": "nginx_status"}, "--status-url"),
        ({"server_metrics": ["metrics"]}, "--server-metrics"),
        ({"server_metrics": ["ftp://h/"]}, "unknown scheme 'ftp'"),
        ({"server_metrics": ["mqtt://h/topic"]}, "'mqtt://h/topic' is not a host and a port; write for example mqtt://127.0.0.1:1883"),
        ({"server_metrics": ["mqtt://:tiger-4711@h/"]}, "'mqtt://***@h/' has no login that MQTT can send; write mqtt://USER:PASSWORD@HOST/"),
        ({"server_metrics": ["mqtt://me:a%00b@h/"]}, "'mqtt://***@h/' has no login that MQTT can send"),
        ({"status_url": "mqtt://h/"}, "unknown scheme 'mqtt'"),
        ({"metrics_map": ["active=a"]}, "--metrics-map: there is no page of metrics; name it with --server-metrics"),
        ({"server_metrics": ["http://h/"], "metrics_map": ["active"]}, "'active' names no metric; write active=NAME"),
        ({"server_metrics": ["http://h/"], "metrics_map": ["open=a"]}, "'open' is not known; write one of active, accepts, requests, live, heap"),
        ({"server_metrics": ["http://h/"], "metrics_map": ["active=a{b}"]}, "'b' are no labels"),
        ({"server_metrics": ["http://h/"], "metrics_map": ["active=a", "active=b"]}, "several metrics for active; leave out all but one"),
        ({"server_metrics": ["http://h/"], "agent": "http://h:9165"}, "give --server-metrics to 'asyncli agent'"),
        ({"plateaus": "101"}, "--plateaus"),
        ({"connections": "5", "plateaus": "6"}, "more plateaus"),
        ({"seed": "x"}, "--seed"),
        ({"interval": 1e-300}, "below 1us"),
    ],
)  # fmt: skip
def test_wrong_input_gets_one_line(values: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(**values)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert caught.value.exit_status == 2


def test_a_ramp_may_be_a_rate_in_flags_and_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('ramp = "200/s"\nconnections = 3000')
    of_file, of_flag = build_plan([Layer("d", {"urls": [URL]}), read_plan_file(file)]), plan(ramp="200/s", connections=3000)
    for one in (of_file, of_flag):
        assert (one.asked_per_s, one.batch, one.schedule.end_s) == (pytest.approx(200), 2, pytest.approx(15, abs=0.02))
    # A flag is stronger than a file, whichever way either says it.
    stronger = build_plan([Layer("d", {"urls": [URL]}), read_plan_file(file), Layer("--{key}", {"ramp": "10/1s"})])
    assert (stronger.batch, stronger.interval_s) == (10, 1.0)


@pytest.mark.parametrize(
    ("place", "first", "second"),
    [
        ("Shop.example:80:10.0.0.7:8080", ("10.0.0.7", 8080), ("other.example", 81)),
        ("::[::1]:", ("::1", 80), ("::1", 81)),
        (":81::8081", ("shop.example", 80), ("other.example", 8081)),
        ("other.example:::9", ("shop.example", 80), ("other.example", 9)),
    ],
)
def test_four_parts_of_connect_to_are_curls(place: str, first: tuple[str, int], second: tuple[str, int]) -> None:
    targets = plan(urls=["http://shop.example/", "http://other.example:81/"], connect_to=place).targets
    assert [(target.host, target.port) for target in targets] == [first, second]
    # The requests are those of the URLs.
    assert [target.authority for target in targets] == ["shop.example", "other.example:81"]


def test_a_server_may_be_elsewhere_than_its_url_says() -> None:
    made = plan(urls=["https://shop.example:444/x"], connect_to="[::1]:8443", sni="other.example")
    (target,) = made.targets
    assert (target.host, target.port, target.path, target.authority, target.name) == ("::1", 8443, "/x", "shop.example:444", "other.example")
    (target,) = plan(urls=["http://shop.example/"], connect_to="10.0.0.7:80").targets
    assert (target.host, target.port, target.authority, target.name) == ("10.0.0.7", 80, "shop.example", "shop.example")
    for path in ("/run/app.sock", "@app"):
        (target,) = plan(urls=["wss://shop.example/x"], connect_to=f"unix:{path}").targets
        assert (target.host, target.port, target.authority, target.name) == (path, 0, "shop.example", "shop.example")


def test_addresses_of_a_name_may_be_said() -> None:
    urls = ["http://SHOP.example/x", "http://other.example/", "http://[::1]:81/"]
    made = plan(urls=urls, resolve=["Shop.example:80:10.0.0.7,[::1]", "shop.example:80:10.0.0.8,10.0.0.7", "[::1]:81:127.0.0.1"])
    assert [(one.host, one.addresses) for one in made.targets] == [
        ("shop.example", ("10.0.0.7", "::1", "10.0.0.8")), ("other.example", ()), ("::1", ("127.0.0.1",)),
    ]


def test_a_plan_of_mqtt() -> None:
    made = plan(urls=["mqtts://broker"], mqtt_version=5.0, mqtt_id="{random}{{{n:04x}}}", subscribe=["+/{n}/#@2", "a@b", "$share/x/#"])
    (target,) = made.targets
    assert (target.port, target.secure, made.mqtt_version, made.subscribe) == (8883, True, "5", ("+/{n}/#@2", "a@b", "$share/x/#"))
    assert Template(made.mqtt_id or "").fill({"n": 300, "random": "3f2a9c"}) == "3f2a9c{012c}"
    assert [topic_and_qos(one) for one in made.subscribe] == [("+/{n}/#", 2), ("a@b", 0), ("$share/x/#", 0)]
    assert load_plan(plan_document(made)) == made


def test_a_plan_that_is_printed_shows_no_secret(tmp_path: Path) -> None:
    from rich.pretty import pretty_repr

    (tmp_path / "login").write_text("abc:abc:def\n")
    login = plan(urls=["mqtt://a"], mqtt_login_file=str(tmp_path / "login"))
    for text in (repr(login), pretty_repr(login), str(shown_plan(login))):
        assert "abc" not in text
        assert "***" in text
    assert plan_document(login)["mqtt_login"] == "abc:abc:def"
    made = plan(header=["Authorization: Bearer abc"])
    for text in (repr(made), pretty_repr(made), str(shown_plan(made))):
        assert "abc" not in text
        assert "Authorization: ***" in text
    assert plan_document(made)["headers"] == ("Authorization: Bearer abc",)


BOM = "\ufeff"


def test_byte_order_marks_of_small_files_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Editors of Windows, and PowerShell, write one."""
    monkeypatch.delenv("ASYNCLI_AGENT_TOKEN", raising=False)
    token = "0123456789abcdef0123456789"
    texts = {"plan": 'urls = ["http://a/"]\nhold = "5s"\n', "headers": "X-A: 1\r\nX-B: 2\r\n", "login": "user:secret\r\n", "token": f"{token}\r\n"}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(f"{BOM}{text}".encode())
    layer = read_plan_file(tmp_path / "plan")
    built = build_plan([layer, Layer("--{key}", {"header_file": str(tmp_path / "headers")})])
    assert (built.urls, built.hold_s, built.headers) == (("http://a/",), 5.0, ("X-A: 1", "X-B: 2"))
    assert plan(urls=["mqtt://a"], mqtt_login_file=str(tmp_path / "login")).mqtt_login == "user:secret"
    assert read_token(str(tmp_path / "token"), "--token-file") == token
