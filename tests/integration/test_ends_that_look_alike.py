"""Real servers that end young connections for different reasons: rules on a rate, workers that end in turn, a short idle timeout, and
no free slot."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fault_table
import provoked
import pytest
from namespaces import Cable
from programs import report, run, until

from asyncli.collect.listening import no_listener
from asyncli.lab.apache import find_apache
from asyncli.lab.ports import free_pair

_PACE = ("--ramp", "20/s", "--baseline", "2", "--hold", "6s", "--residue", "0.2", "--force", "--quiet")


@contextlib.contextmanager
def serving(argv: Sequence[str | Path], port: int) -> Iterator[str]:
    """The URL of a server that runs in the foreground."""
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: no_listener([("127.0.0.1", port)]) is None, "it listens")
            yield f"http://127.0.0.1:{port}/"
        finally:
            server.terminate()


def soaked(folder: Path, url: str, *more: str) -> dict[str, Any]:
    run(folder, "soak", url, *_PACE, "--out", "run.db", *more)
    return report(folder, "run.db")


def diagnoses(summary: dict[str, Any], fewest: int = 5) -> set[str]:
    """The codes of the diagnoses of at least ``fewest`` connections: a few may cross with a close."""
    return {diagnosis["code"] for diagnosis in summary["diagnoses"] if diagnosis["count"] >= fewest}


_NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections {slots}; }}
http {{
  access_log off; keepalive_timeout 300s; limit_req_zone $server_addr zone=all:1m rate=15r/s;
  server {{ listen 127.0.0.1:{port}; location / {{ empty_gif; {rule} }} }}
}}
"""


@contextlib.contextmanager
def an_nginx(folder: Path, *, rule: str, slots: int) -> Iterator[tuple[str, int]]:
    port, other = free_pair("127.0.0.1")
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder, port=port, rule=rule, slots=slots))
    with serving(["nginx", "-c", config], port) as url:
        yield url, other


@pytest.mark.nginx
def test_a_rule_on_the_rate_of_requests_is_no_age_limit(tmp_path: Path) -> None:
    with an_nginx(tmp_path, rule="limit_req zone=all burst=2 nodelay; limit_req_status 444;", slots=400) as (url, _):
        summary = soaked(tmp_path, url, "-c", "60", "-k", "10")
    assert diagnoses(summary) == {"refused_requests"}
    fault_table.require_as_written("test_a_rule_on_the_rate_of_requests_is_no_age_limit", summary)


_HAPROXY = """
global
  {user}
defaults
  mode {mode}
  timeout client 300s
  timeout server 300s
  timeout connect 3s
frontend web
  bind 127.0.0.1:{port}
{rules}
"""
_OF_RATE = """
  stick-table type ip size 1k expire 30s store http_req_rate(3s)
  http-request track-sc0 src
  http-request reject if { sc0_http_req_rate gt 50 }
  http-request return status 200
"""
_OF_IDLE_TIME = """
  timeout http-keep-alive 1500ms
  http-request return status 200
"""


@contextlib.contextmanager
def a_haproxy(folder: Path, rules: str, *, mode: str = "http", port: int = 0, user: str = "") -> Iterator[str]:
    port = port or free_pair("127.0.0.1")[0]
    config = folder / "haproxy.cfg"
    config.write_text(_HAPROXY.format(mode=mode, port=port, user=user, rules=rules))
    with serving(["haproxy", "-db", "-f", config], port) as url:
        yield url


@pytest.mark.haproxy
def test_a_stick_table_of_rates_is_no_age_limit(tmp_path: Path) -> None:
    with a_haproxy(tmp_path, _OF_RATE) as url:
        summary = soaked(tmp_path, url, "-c", "60", "-k", "10")
    assert diagnoses(summary) == {"refused_requests"}
    fault_table.require_as_written("test_a_stick_table_of_rates_is_no_age_limit", summary)


@pytest.mark.haproxy
@pytest.mark.parametrize("keepalive", ["4", "10", "60"])
def test_a_short_idle_timeout_is_no_lack_of_slots(tmp_path: Path, keepalive: str) -> None:
    with a_haproxy(tmp_path, _OF_IDLE_TIME) as url:
        summary = soaked(tmp_path, url, "-c", "60", "-k", keepalive)
    assert diagnoses(summary) == {"idle_timeout"}
    fault_table.require_as_written("test_a_short_idle_timeout_is_no_lack_of_slots", summary)


@pytest.mark.haproxy
def test_a_lack_of_slots_is_no_idle_timeout(tmp_path: Path) -> None:
    # The proxy hides the limit in nginx.conf. All are closed after about one idle time, which later ones outlive.
    with an_nginx(tmp_path, rule="", slots=60) as (url, port):
        server = f"  default_backend nginx\nbackend nginx\n  server one {url.removeprefix('http://').rstrip('/')}"
        with a_haproxy(tmp_path, server, mode="tcp", port=port) as before_it:
            summary = soaked(tmp_path, before_it, "-c", "100", "-k", "60", "--no-reopen")
    assert diagnoses(summary) == {"idle_reuse"}
    fault_table.require_as_written("test_a_lack_of_slots_is_no_idle_timeout", summary)


@pytest.mark.nginx
def test_a_lack_of_slots_with_an_edited_configuration_is_no_timeout(tmp_path: Path) -> None:
    """The limit that counts is no longer in the file. What is closed was idle for longest, which is no one time."""
    with an_nginx(tmp_path, rule="", slots=300) as (url, _):
        config = tmp_path / "nginx.conf"
        config.write_text(config.read_text().replace("worker_connections 300", "worker_connections 9000"))
        summary = soaked(tmp_path, url, "-c", "450", "-k", "6", "--ramp", "45/s")
    assert diagnoses(summary) == {"idle_reuse"}
    fault_table.require_as_written("test_a_lack_of_slots_with_an_edited_configuration_is_no_timeout", summary)


_RELAY = """
  timeout client 3s
  default_backend nginx
backend nginx
  server one 127.0.0.1:{port}
"""
# All but what the relay itself sends, which runs as another user.
_REDIRECT = "table ip t {{ chain o {{ type nat hook output priority -100; meta skuid != 65534 tcp dport {port} redirect to :{relay}; }}; }}"


@pytest.mark.haproxy
@pytest.mark.namespaces
def test_a_relay_before_nginx_ends_sooner_than_its_timeout(tmp_path: Path) -> None:
    """As in a service mesh: the clients' packets go to a relay that they do not know of, and nginx's limit is the longer one."""
    with Cable() as cable, cable.inside("server"), provoked.an_nginx(keepalive_timeout_s=4) as nginx:
        relay = _RELAY.format(port=nginx.port)
        with a_haproxy(tmp_path, relay, mode="tcp", user="uid 65534") as before_it:
            redirect = _REDIRECT.format(port=nginx.port, relay=before_it.rstrip("/").rpartition(":")[2])
            subprocess.run(["nft", redirect], check=True)
            summary = soaked(tmp_path, nginx.url, "-c", "60", "-k", "14", "--server-pid", str(nginx.pid))
    assert diagnoses(summary) == {"box_idle_timeout"}
    fault_table.require_as_written("test_a_relay_before_nginx_ends_sooner_than_its_timeout", summary)


_APACHE = """
ServerRoot {folder}
DefaultRuntimeDir {folder}
PidFile {folder}/apache.pid
ErrorLog {folder}/error.log
ServerName localhost
Listen 127.0.0.1:{port}
{modules}
<Location "/">
    SetHandler server-status
</Location>
KeepAliveTimeout 300
MaxKeepAliveRequests 0
StartServers 2
ServerLimit 20
ThreadsPerChild 16
MaxRequestWorkers 320
MaxConnectionsPerChild 10
"""


# On a busy host Apache's workers end seconds after they closed their connections: then the cause is unknown, and told so.
@pytest.mark.measures
@pytest.mark.apache
def test_workers_that_end_in_turn_are_no_age_limit(tmp_path: Path) -> None:
    apache = find_apache()
    assert apache is not None
    files = [(name, f"{apache.modules}/mod_{name}.so") for name in ("mpm_event", "unixd", "authz_core", "status")]
    modules = "\n".join(f"LoadModule {name}_module {file}" for name, file in files if Path(file).is_file())
    port, _ = free_pair("127.0.0.1")
    config = tmp_path / "apache.conf"
    config.write_text(_APACHE.format(folder=tmp_path, port=port, modules=modules))
    with serving([apache.path, "-DFOREGROUND", "-f", config], port) as url:
        summary = soaked(tmp_path, url, "-c", "60", "-k", "20")
    assert diagnoses(summary) == {"workers_in_turn"}
    fault_table.require_as_written("test_workers_that_end_in_turn_are_no_age_limit", summary)
