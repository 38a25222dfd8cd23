from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncli.collect import holders, locate
from asyncli.collect.holders import matching_inodes
from asyncli.collect.listening import no_listener
from asyncli.collect.locate import Found, ServerFacts, config_path, find_server, topmost
from asyncli.collect.procfs import Listener, ancestors
from asyncli.lab.network import Network
from asyncli.model.errors import HostError
from asyncli.model.plan import Plan

# Two processes with one listening socket, as in a forking server: the parent listens, the child inherits.
SERVER_SOURCE = """
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(listener.getsockname()[1], child, flush=True)
sys.stdin.read()
os.kill(child, 9)
"""


class Forked:
    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", SERVER_SOURCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.port, self.child = (int(word) for word in self.process.stdout.readline().split())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@pytest.fixture(scope="module")
def server() -> Iterator[Forked]:
    forked = Forked()
    yield forked
    forked.process.communicate()


def plan(url: str = "http://127.0.0.1:1/", **fields: object) -> Plan:
    return Plan(urls=(url,), **fields)  # type: ignore[arg-type]


def test_a_server_is_found_by_its_port_at_the_top_of_its_tree(server: Forked) -> None:
    ours = {stat.pid for stat in ancestors(os.getpid())}
    found = find_server(plan(server.url), local=True, ours=ours)
    assert found == Found((server.process.pid,), f"listens on port {server.port}")
    both = Plan(urls=(server.url, server.url + "other"))
    assert find_server(both, local=True, ours=ours) == found


def test_server_facts_name_the_process(server: Forked) -> None:
    facts = locate.describe(Found((server.process.pid,), "--server-pid"), "nginx\x1b/1.2")
    assert (facts.pid, facts.found_by, facts.version) == (server.process.pid, "--server-pid", "nginx?/1.2")
    assert facts.exe == os.path.realpath(f"/proc/{server.process.pid}/exe")
    assert facts.name == os.path.basename(facts.exe)
    assert facts.config_path is None
    assert facts.runtime.kind == "python"
    assert facts.record(None)["runtime"] == facts.runtime.document()


def test_facts_of_an_earlier_or_later_agent_are_read() -> None:
    earlier = b'{"pid": 7, "name": "app"}'
    later = b'{"pid": 7, "runtime": {"kind": "wasm", "version": "1", "heap": {}}, "further": 1}'
    assert "runtime" not in msgspec.json.decode(earlier, type=ServerFacts).record(None)
    assert msgspec.json.decode(later, type=ServerFacts).runtime.title == "wasm 1"


def test_a_program_has_the_name_it_was_started_by(tmp_path: Path) -> None:
    shutil.copy("/bin/cat", tmp_path / "the-file")
    (tmp_path / "a-link").symlink_to("the-file")
    for name in ("the-file", "a-link"):
        with subprocess.Popen(["the", "-"], executable=tmp_path / name, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            program.stdin.write(b"there")
            program.stdout.read(5)
            assert locate.process_name(program.pid) == name
            program.stdin.close()


def test_a_port_without_a_listener_is_reported() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        found = find_server(plan(f"http://127.0.0.1:{port}/"), local=True)
    assert (found.pids, str(port) in found.why_not) == ((), True)
    assert "--server-pid" in found.remedy


def test_a_server_is_found_by_any_name_of_its_unix_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "a b.sock", tmp_path / "link"
    link.symlink_to(tmp_path)
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as abstract:
        for listener, address in ((named, f"{link}/a b.sock"), (abstract, "\0asyncli test")):
            listener.bind(address)
            assert find_server(plan(connect_to=f"unix:{address}".replace("\0", "@")), local=True).pids == ()
            listener.listen()
        for place in (f"unix:{path}", f"unix:{link}/a b.sock", "unix:@asyncli test"):
            # Found: it is our own.
            found = find_server(plan(connect_to=place), local=True, ours={os.getpid()})
            assert (found.pids, "asyncli itself" in found.why_not, place in found.why_not) == ((), True, True)
            assert no_listener([(place.removeprefix("unix:"), 0)]) is None
    # By a relative name: a connect identifies the listener.
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tmp_path)
        listener.bind("relative")
        listener.listen()
        monkeypatch.chdir("/")
        assert "asyncli itself" in find_server(plan(connect_to=f"unix:{tmp_path}/relative"), local=True, ours={os.getpid()}).why_not
    left, gone = no_listener([(str(path), 0)]), no_listener([(str(tmp_path / "none"), 0)])
    assert (f"unix:{path}" in left.what, "left" in left.what, "left" in gone.what) == (True, True, False)


def test_we_are_not_the_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = find_server(plan(f"http://127.0.0.1:{listener.getsockname()[1]}/"), local=True, ours={os.getpid()})
    assert (found.pids, "asyncli itself" in found.why_not) == ((), True)


def test_a_named_pid_is_used_unchanged(server: Forked, tmp_path: Path) -> None:
    assert find_server(plan(server_pid=server.child), local=False).pids == (server.child,)
    pidfile = tmp_path / "server.pid"
    pidfile.write_text(f"{server.process.pid}\n")
    assert find_server(plan(server_pidfile=str(pidfile)), local=False).pids == (server.process.pid,)


def fake_process(proc: Path, pid: int, name: str, parent: int) -> None:
    (proc / f"{pid}/task/{pid}").mkdir(parents=True)
    fields = ["S", str(parent), *["0"] * 15, "1", "0", str(pid), "0", "100", "0"]
    for path in (f"{pid}/stat", f"{pid}/task/{pid}/stat"):
        (proc / path).write_text(f"{pid} ({name}) {' '.join(fields)}\n")


def test_a_name_selects_the_root_of_one_tree(tmp_path: Path) -> None:
    for pid, name, parent in ((1, "init", 0), (10, "nginx", 1), (11, "nginx", 10), (12, "nginx", 10), (20, "nginx", 1)):
        fake_process(tmp_path, pid, name, parent)
    with pytest.raises(HostError, match=r"2 process trees \(pids 10, 20\); name one with --server-pid"):
        find_server(plan(server_name="nginx"), local=True, proc=tmp_path)


def test_a_process_with_asyncli_in_its_tree_is_not_the_server(tmp_path: Path) -> None:
    for pid, name, parent in ((1, "init", 0), (10, "shell", 1), (11, "python3", 10), (20, "python3", 10)):
        fake_process(tmp_path, pid, name, parent)
    (tmp_path / "file").write_text("10\n")
    ours = {stat.pid for stat in ancestors(20, tmp_path)}
    above: list[tuple[dict[str, Any], int]] = [({"server_pid": 1}, 1), ({"server_pid": 20}, 20), ({"server_name": "shell"}, 10)]
    for named, pid in (*above, ({"server_pidfile": f"{tmp_path}/file"}, 10)):
        with pytest.raises(HostError, match=rf"\(pid {pid}\)"):
            find_server(plan(**named), local=False, ours=ours, proc=tmp_path)
    # Started by the same shell, or of the same name.
    for beside in (plan(server_pid=11), plan(server_name="python3")):
        assert find_server(beside, local=False, ours=ours, proc=tmp_path).pids == (11,)


def test_a_forwarder_and_a_hidden_holder_are_not_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_process(tmp_path, 10, "docker-proxy", 1)
    monkeypatch.setattr(holders, "read_listeners", lambda port, proc: [Listener(None, port, 7)])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    hidden = find_server(plan(), local=True, proc=tmp_path)
    assert "another user" in hidden.why_not
    assert (hidden.hidden, locate.describe(hidden).document()["hidden"]) == (True, True)
    assert hidden.remedy.endswith(" NAME)")
    # The socket's user says where to look.
    monkeypatch.setattr(holders, "read_listeners", lambda port, proc: [Listener(None, port, 7, 33)])
    assert find_server(plan(), local=True, proc=tmp_path).remedy.endswith("33 NAME)")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    root = find_server(plan(), local=True, proc=tmp_path)
    assert (root.pids, root.hidden, "CAP_SYS_PTRACE" in root.why_not) == ((), False, True)
    (tmp_path / "10/fd").mkdir()
    (tmp_path / "10/fd/6").symlink_to("socket:[7]")
    forwarder = find_server(plan(), local=True, proc=tmp_path)
    assert (forwarder.pids, forwarder.why_not[:12]) == ((), "docker-proxy")


@pytest.mark.parametrize(
    ("named", "holder", "opener", "listeners", "users"),
    [
        (10, 20, 0, [{"name": "python3", "pid": 20}], []),
        (10, 11, 0, [], []),
        # A worker, whose master listens.
        (11, 10, 0, [], []),
        # These listen for others.
        (10, 30, 0, [], []),
        (10, 1, 0, [], []),
        # Hidden: a user none of whose processes is named, or root, or one of its users.
        (10, None, 1000, [], [1000]),
        (10, None, 0, [], []),
        (10, None, 33, [], []),
        # In a container, with its own network.
        (40, 20, 1000, [], []),
    ],
)
def test_a_named_process_that_does_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: int, holder: int | None, opener: int, listeners: list[object], users: list[int]
) -> None:
    tree = {1: ("systemd", 0, 0), 10: ("nginx", 1, 0), 11: ("nginx", 10, 33), 20: ("python3", 1, 1000), 30: ("docker-proxy", 1, 0), 40: ("app", 1, 0)}
    for pid, (name, parent, user) in tree.items():
        fake_process(tmp_path, pid, name, parent)
        (tmp_path / f"{pid}/status").write_text(f"Uid:\t0\t{user}\t{user}\t{user}\nGid:\t0\n")
        (tmp_path / f"{pid}/fd").mkdir()
    for pid in ("self", "40"):
        (tmp_path / pid / "ns").mkdir(parents=True)
        (tmp_path / pid / "ns/net").symlink_to(f"net:[{pid}]")
    if holder is not None:
        (tmp_path / f"{holder}/fd/6").symlink_to("socket:[7]")
    monkeypatch.setattr(holders, "read_listeners", lambda port, proc: [Listener(None, port, 7, opener)])
    found = find_server(plan(server_pid=named), local=True, proc=tmp_path)
    told = locate.doubt(plan(server_pid=named), found, proc=tmp_path)
    said = {} if told is None else told.fields
    assert (found.pids, said.get("listeners", []), said.get("users", [])) == ((named,), listeners, users)


def test_an_exact_address_is_preferred_to_the_wildcard() -> None:
    listeners = [Listener(None, 80, 1), Listener("127.0.0.1", 80, 2), Listener("127.0.0.2", 80, 3)]
    assert matching_inodes(listeners, {"127.0.0.1"}) == {2}
    assert matching_inodes(listeners, {"127.0.0.9"}) == {1}
    assert matching_inodes(listeners[1:], {"127.0.0.9"}) == set()


def test_the_topmost_ancestor_has_the_same_name(tmp_path: Path) -> None:
    for pid, name, parent in ((12, "nginx", 11), (11, "nginx", 10), (10, "sh", 1), (1, "init", 0)):
        fake_process(tmp_path, pid, name, parent)
    assert topmost(12, (), tmp_path) == 11
    assert topmost(12, {11}, tmp_path) == 12


BUILT = "nginx version: nginx/1.22.1\nconfigure arguments: --prefix=/usr/share/nginx --conf-path=/etc/nginx/nginx.conf"
MASTER = "nginx: master process nginx"


@pytest.mark.parametrize(
    ("command", "built", "cwd", "path"),
    [
        (f"{MASTER} -g daemon off;", BUILT, "/", "/etc/nginx/nginx.conf"),
        (f"{MASTER} -c /srv/a.conf", BUILT, "/", "/srv/a.conf"),
        (f"{MASTER} -c/srv/a.conf -p /run", BUILT, "/", "/srv/a.conf"),
        (f"{MASTER} -p /run/one -c a.conf", BUILT, "/", "/run/one/a.conf"),
        (f"{MASTER} -p one -c conf/a.conf", BUILT, "/home/me", "/home/me/one/conf/a.conf"),
        (f"{MASTER} -p one -c a.conf", BUILT, None, None),
        (f"{MASTER} -c a.conf", BUILT, "/", "/usr/share/nginx/a.conf"),
        (f"{MASTER}", "", "/", None),
        ("", "", None, None),
    ],
)
def test_the_configuration_path_is_nginxs(command: str, built: str, cwd: str | None, path: str | None) -> None:
    assert config_path(command, built, cwd) == path


@pytest.mark.parametrize(
    ("exe", "version", "config", "differs"),
    [
        ("/usr/sbin/nginx", "nginx/1.22.1", "aa", []),
        ("/usr/sbin/nginx", "nginx", "aa", []),
        (None, None, None, []),
        ("/opt/nginx", "nginx/1.22.1", "aa", ["executable /opt/nginx, before /usr/sbin/nginx"]),
        ("/usr/sbin/nginx", "nginx/1.24.0", "aa", ["version nginx/1.24.0, before nginx/1.22.1"]),
        ("/usr/sbin/nginx", "openresty/1.22.1", "aa", ["version openresty/1.22.1, before nginx/1.22.1"]),
        ("/usr/sbin/nginx", "nginx/1.22.1", "bb", ["configuration bb, before aa"]),
    ],
)
def test_differences_between_two_servers(exe: str | None, version: str | None, config: str | None, differs: list[str]) -> None:
    before = ServerFacts(pid=1, exe="/usr/sbin/nginx", version="nginx/1.22.1", config_hash="aa").record("the lab's")
    now = ServerFacts(pid=2, exe=exe, version=version, config_hash=config)
    assert now.differences(before) == differs
    assert msgspec.structs.replace(now, directives={"sendfile": "on"}).differences(ServerFacts().record(None)) == []


def test_configurations_differ_by_directives() -> None:
    before = ServerFacts(pid=1, config_hash="aa", directives={"http sendfile": "on", "server listen": "80"}).record(None)
    now = ServerFacts(pid=2, config_hash="bb", directives={"http sendfile": "on", "server listen": "80"})
    assert now.differences(before) == []
    other = msgspec.structs.replace(now, directives={"http sendfile": "off", "server listen": "80"})
    assert other.differences(before) == ["http sendfile off, before on"]
    assert msgspec.structs.replace(now, directives={}).differences(before) == ["configuration bb, before aa"]


def test_listeners_are_read_from_the_socket_tables(server: Forked, tmp_path: Path) -> None:
    assert no_listener([("127.0.0.1", server.port)]) is None
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        nobody = no_listener([("127.0.0.1", port), ("::1", port)])
        assert (f"127.0.0.1:{port}, [::1]:{port}" in nobody[0], nobody[1]) == (True, None)
        # One of two is enough; another address of the same port does not count.
        assert no_listener([("127.0.0.1", port), ("127.0.0.1", server.port)]) is None
        assert no_listener([("127.0.0.2", server.port)]) is not None
    with socket.create_server(("0.0.0.0", 0)) as anywhere:
        assert no_listener([("127.0.0.3", anywhere.getsockname()[1])]) is None
    # Without the tables the answer is unknown.
    assert no_listener([("127.0.0.1", 1)], tmp_path) is None


@pytest.mark.parametrize(("host", "named"), [("::1", "127.0.0.1"), ("127.0.0.1", "::1"), ("127.0.0.2", "127.0.0.1")])
def test_a_listener_at_another_address_is_named(host: str, named: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"no {host} on this host")
    with listener:
        port = listener.getsockname()[1]
        there, url = (f"[{one}]" if ":" in one else one for one in (host, named))
        what = no_listener([(named, port)])
        assert (there in what[0], what[1]) == (True, f"http://{there}:{port}/")
        found = find_server(plan(f"http://{url}:{port}/"), local=True)
        assert (found.why_not, f"http://{there}:{port}/" in found.remedy) == (what[0], True)


def test_a_redirected_port_has_a_listener() -> None:
    """As a container's published port, or a node port of Kubernetes: this host's tables have no listener there."""
    try:
        with Network({"server": "10.77.0.8/24"}) as network, network.inside("server"):
            rule = "add table ip nat; add chain ip nat output { type nat hook output priority -100; };"
            rule += " add rule ip nat output tcp dport 8080 redirect to :8081"
            if shutil.which("nft") is None or subprocess.run(["nft", rule], capture_output=True, check=False).returncode:
                pytest.skip("no nft, or no NAT in this kernel")
            assert no_listener([("10.77.0.8", 8080)]) is not None
            with socket.create_server(("", 8081)):
                assert no_listener([("10.77.0.8", 8080)]) is None
    except HostError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("named", [50, 51], ids=["master", "worker"])
@pytest.mark.parametrize("own_files", [False, True], ids=["ip netns exec", "container"])
def test_nginxs_configuration_is_read_if_it_is_our_file_in_another_mount_namespace(tmp_path: Path, own_files: bool, named: int) -> None:
    config, root = tmp_path / "nginx.conf", tmp_path / "root"
    theirs = root / str(config).lstrip("/")
    theirs.parent.mkdir(parents=True)
    for path in (config, theirs):
        path.write_text("events {}\n")
    for pid, namespace in (("self", "mnt:[1]"), ("50", "mnt:[2]"), ("51", "mnt:[2]")):
        (tmp_path / f"proc/{pid}/ns").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/ns/mnt").symlink_to(namespace)
    # A worker's title names no file.
    for pid, parent, title in (("50", 1, f"master process nginx -c {config}"), ("51", 50, "worker process")):
        there = tmp_path / f"proc/{pid}"
        (there / "root").symlink_to(root if own_files else "/")
        (there / "exe").symlink_to("/nowhere/nginx")
        (there / "cmdline").write_bytes(f"nginx: {title}".encode())
        (there / "stat").write_text(f"{pid} (nginx) S {parent} " + "0 " * 49)
    facts = locate.describe(Found((named,), "--server-pid"), proc=tmp_path / "proc")
    assert (facts.name, facts.config_path) == ("nginx", None if own_files else str(config))
