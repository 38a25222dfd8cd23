"""nginx configurations: read as nginx reads them, and checked against plans."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from asyncli.engine.spread import Destination, Spread
from asyncli.model.plan import Plan
from asyncli.model.records import Check
from asyncli.model.trust import ProgramOutput
from asyncli.preflight import examine, nginx_config, nginx_files, patterns
from asyncli.preflight.configured import Configured, read_configured
from asyncli.preflight.host_limits import Limits, read_limits
from asyncli.preflight.nginx_blocks import NginxConfig
from asyncli.preflight.nginx_checks import nginx_checks
from asyncli.preflight.nginx_choice import (
    StatusAddress,
    directives_for,
    listen_for,
    server_for,
    status_pages,
)
from asyncli.preflight.nginx_config import read_nginx
from asyncli.preflight.nginx_ways import file_kind, timers_for, unknown_kind

_DAY_S = 86400.0
_CONF = """
user www-data;
worker_processes auto;
worker_rlimit_nofile 64k;
include extra/*.conf;
events { worker_connections 768; use epoll; }
http {
    keepalive_timeout 65s 60;
    include sites/*;
    server {
        listen 9000;
        listen [::]:9000 ipv6only=on;
        listen unix:/run/nginx.sock;
        server_name other;
    }
    server {
        listen 127.0.0.1:8081;
        location = /nginx_status { stub_status on; }
    }
}
"""
_SITE = """
server {
    listen 80 default_server backlog=1024 reuseport;
    listen [::1]:80;
    keepalive_requests 500;
    client_header_timeout 1m;
    location = /exact { keepalive_requests 5; }
    location / {
        location /deep/ { keepalive_timeout 3; keepalive_time 10m; }
    }
    location ^~ /static { keepalive_timeout 4; }
    location ~* \\.(png|gif)$ { keepalive_timeout 0; }
}
server {
    listen 80;
    server_name a.example *.b.example ~^c(?<number>\\d+)$;
    keepalive_time 2h;
}
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "default").write_text(_SITE, encoding="utf-8")
    return written(tmp_path, _CONF)


def written(folder: Path, text: str) -> Path:
    path = folder / "nginx.conf"
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path, exe: str | None = None, command_line: str = "") -> NginxConfig:
    config = read_nginx(exe, path, command_line=command_line)
    assert isinstance(config, NginxConfig), config
    return config


def test_the_main_context(conf: Path) -> None:
    config = read(conf)
    assert (config.workers, config.worker_connections, config.rlimit_nofile) == (None, 768, 65536)
    assert status_pages(config) == (StatusAddress("http://127.0.0.1:8081/nginx_status"),)


def test_directives_on_the_command_line_count(conf: Path) -> None:
    title = "nginx: master process nginx -g daemon off; worker_processes 7; -q"
    assert read(conf, command_line=title).workers == 7


def test_sockets_and_server_blocks_are_distinguished(conf: Path) -> None:
    config = read(conf)
    listen = listen_for(config, "127.0.0.1", 80)
    assert (listen.address, listen.backlog, listen.reuseport) == ("*", 1024, True)
    assert listen_for(config, "127.0.0.1", 81) is None
    assert server_for(config, "127.0.0.1", 81, "127.0.0.1") is None
    times = {
        host: getattr(server_for(config, "127.0.0.1", 80, host), "timers").keepalive_time_s  # noqa: B009 (may be None)
        for host in ("127.0.0.1", "a.example", "x.b.example", "c42", "d")
    }
    assert times == {"127.0.0.1": 3600, "a.example": 7200, "x.b.example": 7200, "c42": 7200, "d": 3600}
    nine = listen_for(config, "127.0.0.1", 9000)
    assert (nine.backlog, nine.reuseport) == (None, False)


@pytest.mark.parametrize(
    ("path", "timeout", "requests", "time"),
    [
        ("/", 65, 500, 3600),
        ("/exact", 65, 5, 3600),
        ("/exact?q", 65, 5, 3600),
        ("/exactly", 65, 500, 3600),
        ("/deep/down", 3, 500, 600),
        ("/deep/down.PNG", 0, 500, 3600),
        ("/static/a.png", 4, 500, 3600),
    ],
)
def test_a_location_is_chosen_and_inherits(conf: Path, path: str, timeout: float, requests: int, time: float) -> None:
    server = server_for(read(conf), "127.0.0.1", 80, "127.0.0.1")
    assert server is not None
    timers = timers_for(server, path, file_kind)
    assert (timers.keepalive_timeout_s, timers.keepalive_requests, timers.keepalive_time_s) == (timeout, requests, time)
    assert timers.client_header_timeout_s == 60


@pytest.mark.parametrize(("version", "requests", "time"), [("1.18.0", 100, None), ("1.19.10", 1000, 3600), ("1.22.1", 1000, 3600)])
def test_defaults_depend_on_the_version(tmp_path: Path, version: str, requests: int, time: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "events {} http { server { listen 8080; } }")
    # The path is the built-in one.
    said = f"nginx version: nginx/{version}\nconfigure arguments: --prefix={tmp_path} --conf-path={path}\n"
    monkeypatch.setattr(nginx_config, "ask_server", lambda exe, flag, pid: ProgramOutput(said if (exe, flag) == ("/usr/sbin/nginx", "-V") else ""))
    config = read_nginx("/usr/sbin/nginx", pid=os.getpid())
    assert isinstance(config, NginxConfig)
    server = server_for(config, "127.0.0.1", 8080, "127.0.0.1")
    assert (server.timers.keepalive_requests, server.timers.keepalive_time_s) == (requests, time)
    assert (config.workers, config.worker_connections, config.rlimit_nofile) == (1, 512, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "does not exist"),
        ("http { include missing.conf; }", "missing.conf"),
        ("http {", "unexpected end of file"),
        ("include nginx.conf;", "includes itself"),
        ("include /dev/zero;", "/dev/zero "),
        ("worker_processes many;", "invalid literal"),
        ("events {} http { keepalive_timeout soon; }", "'soon'"),
        ("events;", "block"),
    ],
)
def test_an_unreadable_configuration_is_unknown_with_the_reason(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "nginx.conf"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    check = read_nginx(None, path)
    assert isinstance(check, Check)
    assert (check.verdict, check.code) == ("unknown", "nginx_config")
    assert why in check.detail
    assert check.remedy


def test_reading_a_configuration_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine nested files with ten includes each: a thousand million reads without a bound."""
    monkeypatch.setattr(nginx_files, "_MOST_FILES", 300)
    monkeypatch.setattr(nginx_files, "_MOST_BYTES", 40_000)
    path = written(tmp_path, "include 1;")
    for level in range(1, 10):
        (tmp_path / str(level)).write_text(f"include {level + 1};\n" * 10, encoding="utf-8")
    (tmp_path / "10").write_text("daemon on;", encoding="utf-8")
    check = read_nginx(None, path)
    assert isinstance(check, Check)
    assert "300 files" in check.detail
    path.write_text("include 1;", encoding="utf-8")
    for level in range(1, 10):
        (tmp_path / str(level)).write_text(f"include {level + 1};\n" + "#" * 10_000, encoding="utf-8")
    check = read_nginx(None, path)
    assert isinstance(check, Check)
    assert "40,000 bytes" in check.detail


def test_snippets_that_hundreds_of_sites_include_are_within_the_bound(tmp_path: Path) -> None:
    path = written(tmp_path, "events {} http { include sites/*; }")
    (tmp_path / "sites").mkdir()
    for name in "abc":
        (tmp_path / name).write_text("keepalive_requests 7;", encoding="utf-8")
    for number in range(700):
        (tmp_path / f"site{number}").write_text("server { listen 80; include a; include b; include c; }", encoding="utf-8")
        (tmp_path / "sites" / f"{number}").symlink_to(f"../site{number}")
    assert [one.timers.keepalive_requests for one in read(path).servers] == [7] * 700


def config(tmp_path: Path, server: str = "", main: str = "", listen: str = "8080") -> NginxConfig:
    """An nginx that fits a plan of 100,000 connections, with a test's changes."""
    path = tmp_path / "nginx.conf"
    generous = {"keepalive_timeout": "1h", "keepalive_requests": "10000000", "keepalive_time": "1000h", "client_header_timeout": "1h"}
    lines = "".join(f"{name} {value};" for name, value in generous.items() if f"{name} " not in server)
    if "worker_processes" not in main:
        main += "worker_processes 6;"
    if "worker_rlimit_nofile" not in main:
        main += "worker_rlimit_nofile 20000;"
    slots = "events { worker_connections 19200; }" if "worker_connections" not in main else ""
    path.write_text(
        f"{main} {slots} http {{ server {{ listen {listen}; {lines} {server} location = /nginx_status {{ stub_status; }} }} }}", encoding="utf-8"
    )
    return read(path)


def verdicts(a_config: NginxConfig, limits: Limits | None = None, configured: Configured | None = None, **changes: Any) -> dict[str, Check]:
    plan = Plan(**{"urls": ("http://127.0.0.1:8080/",), "connections": 100_000, **changes})
    return {check.code: check for check in nginx_checks(a_config, plan, limits or Limits(), configured or Configured(), {}, unknown_kind)}


_GOOD = "8080 reuseport backlog=4096"


def test_an_nginx_that_fits(tmp_path: Path) -> None:
    checks = verdicts(config(tmp_path, listen=_GOOD), hold_s=8 * 3600.0, status_url="http://127.0.0.1:8081/nginx_status")
    assert {code: one.detail for code, one in checks.items() if one.verdict != "ok"} == {}
    names = "keepalive_timeout client_header_timeout keepalive_requests keepalive_time worker_connections nofile reuseport backlog stub_status"
    assert set(checks) == {f"nginx_{name}" for name in names.split()}
    assert all(one.remedy == "" for one in checks.values())


@pytest.mark.parametrize(
    ("code", "server", "main", "listen", "changes", "verdict", "says"),
    [
        ("keepalive_timeout", "keepalive_timeout 75s;", "", _GOOD, {}, "ok", "30 s"),
        ("keepalive_timeout", "keepalive_timeout 35s;", "", _GOOD, {}, "warn", "keepalive_timeout 40s"),
        ("keepalive_timeout", "keepalive_timeout 20s;", "", _GOOD, {}, "short", "34.5 %"),
        ("keepalive_timeout", "keepalive_timeout 20s;", "", _GOOD, {"connections": 1}, "warn", "--keepalive 20"),
        ("keepalive_timeout", "keepalive_timeout 0;", "", _GOOD, {}, "short", ""),
        # A run that ends before the timer does; few gaps that are too long, in a short run and in one where each connection meets one.
        ("keepalive_timeout", "keepalive_timeout 75s;", "", _GOOD, {"keepalive_s": 400.0, "connections": 1000, "hold_s": 30.0}, "ok", ""),
        ("keepalive_timeout", "keepalive_timeout 20s;", "", _GOOD, {"keepalive_s": 41.2, "connections": 100}, "warn", "13 of 100"),
        ("keepalive_timeout", "keepalive_timeout 20s;", "", _GOOD, {"keepalive_s": 41.2, "connections": 100, "hold_s": 600.0}, "short", "82 of 100"),
        ("keepalive_timeout", "keepalive_timeout 20s;", "", _GOOD, {"keepalive_s": 41.2, "connections": 1, "hold_s": None}, "short", "1 of 1"),
        ("client_header_timeout", "client_header_timeout 60s;", "", _GOOD, {}, "ok", ""),
        ("client_header_timeout", "client_header_timeout 60s;", "", _GOOD, {"first_beat": "sleep", "keepalive_s": 300.0}, "short", "--first-beat now"),
        ("keepalive_requests", "keepalive_requests 1000;", "", _GOOD, {"hold_s": 3600.0}, "ok", "4 h"),
        ("keepalive_requests", "keepalive_requests 1000;", "", _GOOD, {"hold_s": 8 * 3600.0}, "short", "10000000"),
        ("keepalive_requests", "keepalive_requests 1000;", "", _GOOD, {"hold_s": 4 * 3600.0}, "warn", "10000000"),
        ("keepalive_requests", "keepalive_requests 1000;", "", _GOOD, {"hold_s": None}, "warn", "3 h"),
        ("keepalive_requests", "keepalive_requests 0;", "", _GOOD, {}, "short", ""),
        ("keepalive_time", "keepalive_time 1h;", "", _GOOD, {}, "ok", ""),
        ("keepalive_time", "keepalive_time 1h;", "", _GOOD, {"hold_s": 3510.0}, "warn", ""),
        ("keepalive_time", "keepalive_time 1h;", "", _GOOD, {"hold_s": 8 * 3600.0}, "short", "keepalive_time 1000h"),
        ("keepalive_time", "keepalive_time 1h;", "", _GOOD, {"hold_s": None}, "warn", "1 h"),
        ("worker_connections", "", "events { worker_connections 768; }", _GOOD, {}, "short", "worker_connections 19202 "),
        ("worker_connections", "", "events { worker_connections 18000; }", _GOOD, {}, "warn", "17,441"),
        ("nofile", "", "worker_rlimit_nofile 1024;", _GOOD, {}, "short", "worker_rlimit_nofile 19221"),
        ("nofile", "", "worker_rlimit_nofile 17000;", _GOOD, {}, "warn", ""),
        ("reuseport", "", "", "8080 backlog=4096", {}, "warn", "listen 8080 reuseport"),
        ("reuseport", "", "", "8080 backlog=4096", {"connections": 10_000}, "ok", ""),
        ("backlog", "", "", "127.0.0.1:8080", {}, "warn", "listen 127.0.0.1:8080 backlog=1024"),
        ("backlog", "", "", "8080 reuseport", {}, "ok", "6 "),
        ("backlog", "", "", "8080", {"connections": 10}, "ok", ""),
        ("proxy_protocol", "", "", "8080 proxy_protocol", {}, "short", "--proxy-protocol v1"),
        ("proxy_protocol", "", "", "8080", {"proxy_protocol": "v2"}, "short", "listen 8080 proxy_protocol"),
        ("keepalive_timeout", r"location ~ ^/\d+$ { keepalive_timeout 0; }", "", _GOOD, {"urls": ("http://127.0.0.1:8080/{n}",)}, "short", ""),
    ],
)
def test_a_directive_has_its_verdict_and_remedy(
    *, tmp_path: Path, code: str, server: str, main: str, listen: str, changes: dict[str, Any], verdict: str, says: str
) -> None:
    check = verdicts(config(tmp_path, server, main, listen), **changes)[f"nginx_{code}"]
    assert check.verdict == verdict, check
    assert says in f"{check.detail} {check.remedy} "
    assert (check.remedy == "") == (verdict == "ok")


# Python's engine takes minutes for each.
_SLOW = ("^" + "(?:|/?|/??)" * 30 + "x", "^(/+)+x$", "(.*)*(.*)*(.*)*(.*)*(.*)*(.*)*(.*)*x$")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pattern", _SLOW)
def test_a_pattern_is_never_run_in_a_backtracking_engine(tmp_path: Path, pattern: str) -> None:
    path = "/" * 60
    a_config = config(tmp_path, f'location ~ "{pattern}" {{ keepalive_timeout 0; }}', listen=_GOOD)
    assert verdicts(a_config, urls=(f"http://127.0.0.1:8080{path}",))["nginx_keepalive_timeout"].verdict == "ok"
    assert verdicts(a_config, urls=(f"http://127.0.0.1:8080{path[:20]}x",))["nginx_keepalive_timeout"].verdict == "short"
    named = written(tmp_path, f'events {{ }} http {{ server {{ listen 8080; }} server {{ listen 8080; server_name "~{pattern}"; keepalive_timeout 0; }} }}')
    assert verdicts(read(named), headers=(f"Host: {path}y",))["nginx_keepalive_timeout"].verdict == "ok"


@pytest.mark.timeout(60)
def test_a_time_is_read_without_backtracking(tmp_path: Path) -> None:
    path = written(tmp_path, f'events {{ }} http {{ keepalive_timeout "{"1" * 4000}x"; server {{ listen 8080; }} }}')
    assert isinstance(read_nginx(None, path), Check)


@pytest.mark.parametrize("without", [False, True])
@pytest.mark.parametrize("pattern", [r"^/(?=\d)", r"^/(\d)\1", r"^/(?>\d+)", r"^/\d++$"])
def test_a_pattern_that_cannot_be_decided_is_unknown(tmp_path: Path, pattern: str, without: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which location serves the URL is not known, and so are its timers; slots and backlog are. Without google-re2 it is any pattern."""
    if without:
        monkeypatch.setattr(patterns, "_re2", lambda: None)
        pattern = r"^/\d"
    found = verdicts(config(tmp_path, f'location ~ "{pattern}" {{ keepalive_timeout 0; }}', listen=_GOOD))
    assert found["nginx_pattern"].verdict == "unknown"
    assert not {code for code in found if "keepalive" in code}
    assert found["nginx_backlog"].verdict == "ok"
    named = written(tmp_path, f'events {{ }} http {{ server {{ listen 8080; server_name "~{pattern}"; }} }}')
    assert verdicts(read(named), headers=("Host: 11",))["nginx_pattern"].verdict == "unknown"
    # An exact name, or a location that ends the search, decides before the pattern.
    sure = config(tmp_path, f'location = / {{ keepalive_timeout 0; return 200; }} location ~ "{pattern}" {{ }}', listen=_GOOD)
    assert verdicts(sure)["nginx_keepalive_timeout"].verdict == "short"


def test_the_host_lowers_nginxs_limits(tmp_path: Path) -> None:
    a_config = config(tmp_path, listen="8080 backlog=4096")
    check = verdicts(a_config, Limits(somaxconn=128))["nginx_backlog"]
    assert (check.verdict, check.have) == ("warn", 128)


def test_one_queue_has_one_check(tmp_path: Path) -> None:
    """nginx's queue is the lesser of its backlog and somaxconn: two checks would have two remedies for it."""
    low = Limits(somaxconn=128, memory_available=24_000_000_000)
    lay = Spread((Destination(socket.AF_INET, "127.0.0.1", 8080),), (), 1, True, 28_232)
    plan = Plan(urls=("http://127.0.0.1:8080/",), connections=5000)
    of_nginx = {check.code for check in examine(plan, lay, low, Configured(nginx=config(tmp_path)))}
    assert {"nginx_backlog", "syn_backlog"} <= of_nginx
    assert "somaxconn" not in of_nginx
    assert "somaxconn" in {check.code for check in examine(plan, lay, low, Configured())}


def test_descriptors_are_inherited_from_the_master(tmp_path: Path) -> None:
    path = written(tmp_path, "events { worker_connections 200000; } http { server { listen 8080; } }")
    a_config = read(path)
    assert verdicts(a_config)["nginx_nofile"].verdict == "unknown"
    check = verdicts(a_config, configured=Configured(inherited_nofile=1024))["nginx_nofile"]
    assert (check.verdict, check.have) == ("short", 1024)
    assert "inherited" in check.detail


def test_auto_is_a_worker_a_cpu(tmp_path: Path) -> None:
    a_config = config(tmp_path, main="worker_processes auto;", listen=_GOOD)
    assert verdicts(a_config)["nginx_worker_connections"].verdict == "unknown"
    assert verdicts(a_config, Limits(cpus=6))["nginx_worker_connections"].verdict == "ok"
    assert verdicts(a_config, Limits(cpus=2))["nginx_worker_connections"].verdict == "short"


def test_the_host_header_names_the_server_block(tmp_path: Path) -> None:
    path = written(
        tmp_path, "events { worker_connections 999; } http { server { listen 8080; } server { listen 8080; server_name b; keepalive_timeout 1s; } }"
    )
    small = {"connections": 100}
    assert verdicts(read(path), **small)["nginx_keepalive_timeout"].verdict == "ok"
    assert verdicts(read(path), headers=("Host: b",), **small)["nginx_keepalive_timeout"].verdict == "short"
    # With several URLs the worst counts.
    urls = ("http://127.0.0.1:8080/", "http://b:8080/")
    assert verdicts(read(path), urls=urls, **small)["nginx_keepalive_timeout"].verdict == "short"


def test_pings_of_http2_are_no_requests(tmp_path: Path) -> None:
    a_config = config(tmp_path, listen=_GOOD)
    assert verdicts(a_config, http2=True, h2_heartbeat="head").keys() == verdicts(a_config).keys()
    checks = verdicts(a_config, http2=True)
    assert not checks.keys() & {f"nginx_{name}" for name in ("keepalive_timeout", "keepalive_requests", "keepalive_time")}
    assert checks["nginx_client_header_timeout"].verdict == "ok"
    usual = config(tmp_path, server="client_header_timeout 60s;", listen=_GOOD)
    for hold_s in (60.0, None):
        found = verdicts(usual, http2=True, hold_s=hold_s)["nginx_client_header_timeout"]
        assert found.verdict == "short"
        assert found.remedy.startswith("--h2-heartbeat head, or client_header_timeout ")


def test_held_streams_are_requests_whose_bodies_are_not_sent(tmp_path: Path) -> None:
    usual, good = config(tmp_path, listen=_GOOD), config(tmp_path, server="send_timeout 10000h;", listen=_GOOD)
    assert "nginx_send_timeout" not in verdicts(usual, http2=True)
    for hold_s, heads in ((60.0, None), (None, "head")):
        found = verdicts(usual, http2=True, streams=5, h2_heartbeat=heads, hold_s=hold_s)
        assert (found["nginx_send_timeout"].verdict, found["nginx_send_timeout"].have) == ("short", 60)
        assert verdicts(good, http2=True, streams=5, hold_s=hold_s)["nginx_send_timeout"].verdict == "ok"
        # With streams it has made requests.
        assert ("nginx_client_header_timeout" in found) == (heads is not None)


def test_a_missing_status_page_names_the_block_to_add(tmp_path: Path) -> None:
    path = written(tmp_path, "events {} http { server { listen 8080; } }")
    check = verdicts(read(path))["nginx_stub_status"]
    assert check.verdict == "warn"
    assert "stub_status;" in check.remedy
    assert f"nginx -c {path} -s reload" in check.remedy
    taken = verdicts(read(written(tmp_path, "events {} http { server { listen 8080; } server { listen 8081; } }")))["nginx_stub_status"]
    assert "http://127.0.0.1:8082/nginx_status" in taken.remedy
    given = verdicts(read(path), status_url="http://127.0.0.1:8081/s")["nginx_stub_status"]
    assert given.verdict == "ok"


def test_an_unpolled_status_page_names_its_flag(tmp_path: Path) -> None:
    url = "http://127.0.0.1:8081/s"
    found = read(written(tmp_path, "events {} http { server { listen 8080; } server { listen 8081; location = /s { stub_status; } } }"))
    page = verdicts(found)["nginx_stub_status"]
    assert (page.code, page.verdict, page.remedy) == ("nginx_stub_status", "warn", f"--status-url {url}")
    silent = verdicts(found, configured=Configured(silent_pages=(StatusAddress(url),)))["nginx_stub_status"]
    assert silent.remedy.startswith(f"curl {url} ")


def test_directives_of_a_target_are_recorded_without_secrets(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """worker_processes 2; pid /run/a.pid;
        events { worker_connections 1024; }
        http { keepalive_timeout 75s; access_log /var/log/a.log main;
          server { listen 8080 backlog=4096; server_name a; keepalive_timeout 1h 30m;
            location / { sendfile on; proxy_set_header Authorization "Bearer s3cret"; } }
          server { listen 8081; tcp_nodelay off; } }""",
    )
    said = directives_for(read(path), Plan(urls=("http://127.0.0.1:8080/x",)).targets[0], "127.0.0.1")
    secret = said.pop("location proxy_set_header")
    assert re.fullmatch("#[0-9a-f]{8}", secret)
    assert said == {
        "worker_processes": "2", "pid": "FILE", "events worker_connections": "1024", "http keepalive_timeout": "75s",
        "http access_log": "FILE main", "server listen": "8080 backlog=4096", "server server_name": said["server server_name"],
        "server keepalive_timeout": "1h 30m", "location sendfile": "on",
    }  # fmt: skip


def examined(plan: Plan, spread: Spread, pid: int | None = None, root: Path = Path("/")) -> list[Check]:
    return examine(plan, spread, read_limits(root), read_configured(pid, None, None, root))


def lay() -> Spread:
    return Spread((Destination(socket.AF_INET, "127.0.0.1", 8080),), (), 1, True, 28_232)


def master(root: Path, conf: Path, title: str = "nginx: master process nginx -c {}") -> None:
    for pid, line, parent in ((50, title.format(conf), 1), (51, "nginx: worker process", 50)):
        folder = root / f"proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "cmdline").write_bytes(line.encode() + b"\0" * 9)
        (folder / "stat").write_text(f"{pid} (nginx) S {parent} {'0 ' * 48}\n", encoding="ascii")
        (folder / "limits").write_text("Max open files            600                 20000      files\n", encoding="ascii")


@pytest.mark.parametrize("pid", [50, 51])
def test_a_worker_leads_to_its_master(tmp_path: Path, pid: int) -> None:
    path = written(tmp_path, "events { worker_connections 9999; } http { server { listen 8080; } }")
    master(tmp_path, path)
    plan = Plan(urls=("http://127.0.0.1:8080/",), connections=1000)
    checks = {one.code: one for one in examined(plan, lay(), pid, tmp_path)}
    assert (checks["nginx_nofile"].have, checks["nginx_nofile"].verdict) == (600, "short")


def test_an_nginx_in_a_container_is_unknown(tmp_path: Path) -> None:
    master(tmp_path, path := tmp_path / "nginx.conf")
    path.write_text("events {} http { server { listen 8080; } }", encoding="utf-8")
    for pid, namespace in (("self", "mnt:[1]"), ("50", "mnt:[2]")):
        (tmp_path / f"proc/{pid}/ns").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/ns/mnt").symlink_to(namespace)
    plan = Plan(urls=("http://127.0.0.1:8080/",), connections=1000)
    found = [one for one in examined(plan, lay(), 50, tmp_path) if one.code.startswith("nginx")]
    assert [(one.code, one.verdict) for one in found] == [("nginx_config", "unknown")]


def test_another_server_has_no_nginx_checks_and_an_unknown_one_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "proc/60"
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(b"python\0-m\0http.server\0")
    plan = Plan(urls=("http://127.0.0.1:8080/",), connections=1000)
    codes = {one.code for one in examined(plan, lay(), 60, tmp_path)}
    assert not any(code.startswith("nginx") or code == "server" for code in codes)
    unknown = next(one for one in examined(plan, lay(), None, tmp_path) if one.code == "server")
    assert (unknown.verdict, unknown.remedy) == ("unknown", "")


@pytest.mark.nginx
async def test_the_labs_own_nginx_passes() -> None:
    from asyncli.lab.executables import find_nginx
    from asyncli.lab.nginx import LabNginx

    binary = find_nginx()
    if binary is None or not binary.stub_status:
        pytest.skip("no nginx with stub_status on this host; apt-get install nginx")
    async with LabNginx(connections=10_000, binary=binary) as server:
        plan = Plan(urls=(server.url,), connections=10_000, hold_s=30 * _DAY_S)
        checks = {one.code: one for one in examined(plan, lay(), server.pid)}
        found = {code: one for code, one in checks.items() if code.startswith("nginx_")}
        assert len(found) >= 8
        assert {code: one.remedy for code, one in found.items() if one.verdict != "ok"} == {"nginx_stub_status": f"--status-url {server.status_url}"}


_ZONES = "limit_conn_zone $server_name zone=all:1m; limit_conn_zone $binary_remote_addr zone=each:1m; limit_conn_zone $arg_x zone=other:1m;"


def upgraded(tmp_path: Path, http: str, location: str, *, names: str = "server_name a;", sources: int | None = 1, ports: float | None = 28_000.0, **changes: Any) -> dict[str, Check]:
    """The checks of 1,000 WebSockets through these lines of http and location."""
    text = f"worker_processes 2; events {{ worker_connections 5000; }} http {{ {_ZONES} {http} server {{ listen 8080; {names} location / {{ {location} }} }} }}"
    limits = {} if ports is None else {"server.source_ports": ports}
    plan = Plan(**{"urls": ("ws://127.0.0.1:8080/",), "connections": 1_000, **changes})
    checks = nginx_checks(read(written(tmp_path, text)), plan, Limits(), Configured(limits=limits), {}, file_kind, sources)
    return {check.code.removeprefix("nginx_"): check for check in checks}


@pytest.mark.parametrize(
    ("location", "sources", "verdict", "have"),
    [
        ("limit_conn all 999;", 1, "short", 999),
        ("limit_conn all 1000;", 1, "ok", 1_000),
        ("limit_conn each 500;", 1, "short", 500),
        ("limit_conn each 500;", 2, "ok", 1_000),
        ("limit_conn each 500;", None, "unknown", None),
        ("limit_conn other 500;", 1, "unknown", None),
        ("limit_conn each 400; limit_conn all 300;", 1, "short", 300),
        ("limit_conn all 300; limit_conn_dry_run on;", 1, None, None),
        # A level has those of the outer one only if it has none itself.
        ("limit_conn all 999; location /a { limit_conn all 20; }", 1, "short", 999),
        ("", 1, None, None),
    ],
)
def test_limit_conn_bounds_connections_by_its_key(tmp_path: Path, location: str, sources: int | None, verdict: str | None, have: int | None) -> None:
    check = upgraded(tmp_path, "", f"return 200; {location}", sources=sources).get("limit_conn")
    assert (check and check.verdict, check and check.have) == (verdict, have)
    # nginx does not count what has an empty key.
    if "all" in location and verdict == "short" and "each" not in location:
        assert "limit_conn" not in upgraded(tmp_path, "", f"return 200; {location}", names="")
    # Of connections that stay idle between requests nginx counts only those with one.
    assert "limit_conn" not in upgraded(tmp_path, "", f"return 200; {location}", urls=("http://127.0.0.1:8080/",))


def test_nginx_may_see_other_addresses_than_those_of_the_sockets(tmp_path: Path) -> None:
    by_header = upgraded(tmp_path, "real_ip_header X-Real-IP;", "limit_conn each 500;")["limit_conn"]
    by_protocol = upgraded(tmp_path, "", "limit_conn each 500;", proxy_protocol="v1")["limit_conn"]
    assert (by_header.verdict, by_protocol.verdict) == ("unknown", "unknown")


def test_a_location_inherits_limit_conn_and_the_first_on_the_way_counts(tmp_path: Path) -> None:
    outer = upgraded(tmp_path, "limit_conn all 7;", "return 200;")["limit_conn"]
    on_the_way = upgraded(tmp_path, "", "root /nowhere; limit_conn all 8; try_files /none @app; } location @app { proxy_pass http://127.0.0.1:9;")["limit_conn"]
    assert (outer.have, on_the_way.have) == (7, 8)


@pytest.mark.parametrize(
    ("upstream", "verdict", "have"),
    [
        ("zone u 64k; server 127.0.0.1:1 max_conns=400; server 127.0.0.1:2 max_conns=500;", "short", 900),
        ("zone u 64k; server 127.0.0.1:1 max_conns=400; server 127.0.0.1:2 max_conns=600 backup;", "ok", 1_000),
        ("zone u 64k; server 127.0.0.1:1 max_conns=400; server 127.0.0.1:2 max_conns=900 down;", "short", 400),
        # Without a zone each of two workers counts by itself.
        ("server 127.0.0.1:1 max_conns=400;", "short", 800),
        ("server unix:/run/a max_conns=600;", "ok", 1_200),
        ("zone u 64k; server 127.0.0.1:1 max_conns=400; server 127.0.0.1:2;", None, None),
        # A name may have several addresses.
        ("zone u 64k; server a.example:1 max_conns=400;", "unknown", 400),
    ],
)
def test_max_conns_of_the_upstream_bounds_what_is_proxied(tmp_path: Path, upstream: str, verdict: str | None, have: int | None) -> None:
    http = f"upstream u {{ {upstream} }} upstream v {{ server 127.0.0.1:3 max_conns=1; }}"
    check = upgraded(tmp_path, http, "proxy_pass http://u/x;").get("max_conns")
    assert (check and check.verdict, check and check.have) == (verdict, have)
    assert "max_conns" not in upgraded(tmp_path, http, "return 200;")
    assert "max_conns" not in upgraded(tmp_path, http, "proxy_pass http://$host;")


@pytest.mark.parametrize(
    ("location", "ports", "verdict", "have"),
    [
        ("proxy_pass http://127.0.0.1:1;", 999.0, "short", 999),
        ("proxy_pass http://[::1]:1/x;", 1_000.0, "ok", 1_000),
        ("proxy_pass http://u;", 500.0, "ok", 1_000),
        ("proxy_pass http://localhost:1;", 999.0, "unknown", 999),
        ("proxy_bind 127.0.0.2; proxy_pass http://127.0.0.1:1;", 999.0, "unknown", 999),
        ("proxy_pass http://127.0.0.1:1;", None, "unknown", None),
        ("proxy_pass http://unix:/run/a:/x;", 999.0, None, None),
        ("return 200;", 999.0, None, None),
    ],
)
def test_a_proxy_needs_a_port_to_its_backend_for_each_connection(tmp_path: Path, location: str, ports: float | None, verdict: str | None, have: int | None) -> None:
    upstream = "upstream u { server 127.0.0.1:1; server 127.0.0.1:2; server unix:/run/a; }"
    check = upgraded(tmp_path, upstream, location, ports=ports).get("proxy_ports")
    assert (check and check.verdict, check and check.have) == (verdict, have)
