"""Which server block and location answers: asyncli's choice against the real nginx, which says by a header what it chose."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from programs import until

from asyncli.collect.status_reader import StatusReader
from asyncli.lab.certificate import issue
from asyncli.lab.executables import find_nginx
from asyncli.lab.ports import free_pair
from asyncli.model.plan import Plan
from asyncli.model.values import TlsOptions
from asyncli.preflight.nginx_blocks import NginxConfig, ServerBlock
from asyncli.preflight.nginx_choice import (
    StatusAddress,
    listen_for,
    server_for,
    status_pages,
)
from asyncli.preflight.nginx_config import read_nginx
from asyncli.preflight.nginx_ways import file_kind, timers_for, unknown_kind
from asyncli.preflight.patterns import Undecided

pytestmark = pytest.mark.nginx

#: Each "@" becomes a keepalive_timeout of its own, and a header that says it. "P0" to "P5" are ports, "DIR" is a folder.
SERVERS = """
server { listen P0 default_server; @ }
server { listen 127.0.0.1:P0; @ }
server { listen 127.0.0.2:P0; server_name named; @ }
server { listen [::]:P0; @ }
server { listen [::1]:P0; @ }

server { listen P1; server_name ~^a\\.; @ }
server { listen P1; server_name *.example.test; @ }
server { listen P1; server_name *.deep.example.test; @ }
server { listen P1; server_name www.*; @ }
server { listen P1; server_name www.exam.*; @ }
server { listen P1; server_name a.example.test; @ }
server { listen P1; server_name .dotted.test; @ }
server { listen P1; server_name ~^(?<number>\\d+)\\.; @ }
server { listen P1 default_server; server_name _; @ }

server { listen 127.0.0.1:P2-P3; @ }
server { listen 127.0.0.1:P3; server_name second; @ }
server { listen [::]:P4 ipv6only=off; @ }

server {
    listen P5; root DIR; @
    location = /exact { @ return 200; }
    location /prefix { @ return 200;
        location /prefix/inner { @ return 200; }
        location ~ \\.inner$ { @ return 200; }
    }
    location ^~ /static { @ return 200; }
    location ~ \\.(png|inner)$ { @ return 200; }
    location ~* ^/case { @ return 200; }
    location /with { @ }
    location = /with/index.html { @ }
    location /without/ { @ error_page 403 /exact; }
    location /lost { @ error_page 404 = @named; }
    location @named { @ return 200; }
    location /tried { @ try_files $uri $uri/ /prefix; }
    location /fallback { @ try_files /nothing =404; error_page 404 /static/404; }
    location /old { @ rewrite ^/old/(.*)$ /prefix/$1 last; return 403; }
    location /broken { @ rewrite ^/broken/(.*)$ /with/$1 break; }
    location /refused { @ deny all; error_page 403 /exact; }
    location /keepalive/off { keepalive_timeout 0; rewrite ^ /exact last; }
    rewrite ^/moved/(.*)$ /static/$1;
    location /aliased/ { @ alias DIR/with/; try_files $uri =404; error_page 404 /exact; }
}
"""
NAMES = (
    "a.example.test", "b.example.test", "x.deep.example.test", "a.deep.example.test", "deep.example.test", "example.test", "www.any",
    "www.exam.ple", "WWW.EXAM.ple.", "dotted.test", "a.dotted.test", "xdotted.test", "42.net", "a.net", "other", "127.0.0.1",
)  # fmt: skip
PATHS = (
    "/", "/exact", "/exact?q=1", "/exactly", "/prefix", "/prefix/", "/prefix/inner/x", "/prefix/x.inner", "/x.inner", "/static/a.png",
    "/a.png", "/CASE", "//exact", "/x/../exact", "/%65xact", "/with/", "/with/file", "/with/nothing", "/without/", "/lost", "/tried/x",
    "/fallback", "/old/inner/x", "/old", "/broken/file", "/refused", "/moved/x", "/nothing", "/aliased/file", "/aliased/nothing",
)  # fmt: skip


def in_a_row(count: int = 6) -> list[int]:
    """Ports that follow each other and are free."""
    while True:
        first = free_pair("127.0.0.1")[0]
        ports = [first + number for number in range(count)]
        with contextlib.ExitStack() as stack:
            try:
                for port in ports:
                    stack.enter_context(socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True))
            except OSError:
                continue
            return ports


@contextlib.contextmanager
def started(folder: Path, servers: str, port: int) -> Iterator[Path]:
    """A real nginx with these server blocks, one of which listens on ``port``; yields its configuration's path."""
    binary = find_nginx()
    assert binary is not None
    temporary = "".join(f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    path = folder / "nginx.conf"
    http = f"http {{ access_log off; server_tokens off; {temporary} {servers} }}"
    path.write_text(f"daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/err; events {{ }} {http}", encoding="utf-8")
    process = subprocess.Popen([binary.path, "-c", path], stderr=subprocess.PIPE)
    try:
        until(lambda: process.poll() is not None or connects(port), "nginx listens")
        assert process.poll() is None, process.stderr.read() if process.stderr is not None else ""
        yield path
    finally:
        process.terminate()
        process.communicate()


def connects(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def let_others_in(folder: Path) -> None:
    """nginx's workers are another user's if root starts it: they must reach the files."""
    for path in (folder, *folder.parents):
        if path == Path(tempfile.gettempdir()):
            break
        path.chmod(0o755)


class Running(NamedTuple):
    config: NginxConfig
    ports: list[int]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("nginx")
    let_others_in(folder)
    for name in ("with", "without"):
        (folder / name).mkdir()
    for name in ("with/index.html", "with/file"):
        (folder / name).write_text("x", encoding="ascii")
    ports = in_a_row()
    text = SERVERS.replace("DIR", str(folder))
    for number, port in enumerate(ports):
        text = text.replace(f"P{number}", str(port))
    numbers = itertools.count(1000)
    text = re.sub("@(?!named)", lambda _: "keepalive_timeout {0}s; add_header X-Chosen {0} always;".format(next(numbers)), text)
    with started(folder, text, ports[0]) as path:
        config = read_nginx(None, path)
        assert isinstance(config, NginxConfig), config
        yield Running(config, ports)


def chosen(address: str, port: int, host: str, path: str) -> float:
    """The keepalive_timeout of what answered, as nginx says."""
    connection = http.client.HTTPConnection(address, port, timeout=10)
    try:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        answer.read()
        return float(answer.getheader("X-Chosen") or 0)
    finally:
        connection.close()


def expected(config: NginxConfig, address: str, port: int, host: str, path: str) -> float | str:
    """The same, as asyncli chooses; what it cannot tell."""
    server = server_for(config, address, port, host)
    assert isinstance(server, ServerBlock), server
    timers = timers_for(server, path, file_kind)
    return timers.pattern if isinstance(timers, Undecided) else timers.keepalive_timeout_s


def test_the_most_exact_listen_of_the_sockets_own_family(running: Running) -> None:
    first, *_ = running.ports
    for address in ("127.0.0.1", "127.0.0.2", "127.0.0.3", "::1"):
        for host in ("127.0.0.1", "named"):
            assert expected(running.config, address, first, host, "/") == chosen(address, first, host, "/"), (address, host)


def test_a_range_of_ports_and_one_socket_for_both_families(running: Running) -> None:
    _, _, low, high, both, _ = running.ports
    for port, address in ((low, "127.0.0.1"), (high, "127.0.0.1"), (both, "127.0.0.1"), (both, "::1")):
        for host in ("127.0.0.1", "second"):
            assert expected(running.config, address, port, host, "/") == chosen(address, port, host, "/"), (port, host)
    assert server_for(running.config, "127.0.0.1", running.ports[-1] + 1, "a") is None
    assert listen_for(running.config, "127.0.0.9", low) is None


@pytest.mark.parametrize("host", NAMES)
def test_names_exact_then_wildcards_then_patterns(running: Running, host: str) -> None:
    port = running.ports[1]
    assert expected(running.config, "127.0.0.1", port, host, "/") == chosen("127.0.0.1", port, host, "/")


@pytest.mark.parametrize("path", PATHS)
def test_locations_after_internal_redirects(running: Running, path: str) -> None:
    port = running.ports[5]
    assert expected(running.config, "127.0.0.1", port, "x", path) == chosen("127.0.0.1", port, "x", path)


def test_a_location_that_turns_keep_alive_off_does_so_for_what_it_redirects_to(running: Running) -> None:
    port = running.ports[5]
    assert expected(running.config, "127.0.0.1", port, "x", "/keepalive/off") == 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/keepalive/off")
    assert connection.getresponse().getheader("Connection") == "close"
    connection.close()


def test_what_depends_on_files_that_cannot_be_looked_up_is_undecided(running: Running) -> None:
    server = server_for(running.config, "127.0.0.1", running.ports[5], "x")
    assert isinstance(server, ServerBlock)
    undecided = [path for path in PATHS if isinstance(timers_for(server, path, unknown_kind), Undecided)]
    # Only where the ways lead to different timers.
    assert {"/with/", "/tried/x", "/aliased/file"} <= {*undecided}
    assert not {"/exact", "/prefix/inner/x", "/static/a.png", "/old/inner/x"} & {*undecided}


async def test_each_proposed_status_page_answers(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    plain, secure, *_ = in_a_row()
    issued, authority = issue("127.0.0.1"), tmp_path / "ca.pem"
    authority.write_bytes(issued.authority)
    (tmp_path / "pem").write_bytes(issued.certificate + issued.key)
    page = "{ stub_status; allow 127.0.0.1; allow unix:; deny all; }"
    servers = f"""
        server {{ listen {plain} default_server; return 200 other; }}
        server {{ listen {plain}; server_name *.internal; location = /named {page} }}
        server {{ listen 127.0.0.1:{secure} ssl; ssl_certificate {tmp_path}/pem; ssl_certificate_key {tmp_path}/pem;
                 location /over/tls {page} }}
        server {{ listen unix:{tmp_path}/socket; location / {page} location = /deep {page} }}
    """
    with started(tmp_path, servers, plain) as path:
        config = read_nginx(None, path)
        assert isinstance(config, NginxConfig), config
        pages = status_pages(config, Plan(urls=(f"https://localhost:{secure}/",)).targets)
        assert len(pages) == 4
        assert StatusAddress(f"https://localhost:{secure}/over/tls") in pages
        for found in pages:
            reader = StatusReader(found.url, TlsOptions(ca=str(authority)), [f"Host: {found.host}"] if found.host else ())
            values = await reader.read()
            await reader.close()
            assert values["status.active"] >= 1, found
