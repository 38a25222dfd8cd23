"""Which programs and files of other users asyncli runs and reads, above all as root."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import AnAgent
from programs import SHORT, alive, here, report, serving, until

from asyncli.collect.locate import Found, describe
from asyncli.model import trust
from asyncli.model.plan import Plan
from asyncli.model.trust import NOBODY, User, ask_program, ask_server, read_regular, user_of
from asyncli.preflight.configured import read_configured

BOB = 1000
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process as another user")
PYTHON = os.path.realpath(sys.executable)


class Stranger:
    """A folder of user 1000, and processes of that user with the name nginx."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marker = folder / "marker"
        self.processes: list[subprocess.Popen[bytes]] = []

    def give(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        os.chown(path, BOB, BOB)
        return path

    def nginx(self, title: str = "nginx", folder: Path | None = None) -> int:
        """The pid of a process that runs a file called nginx there, its own or in ``folder``."""
        exe = (folder or self.folder) / "nginx"
        if not exe.exists():
            shutil.copy("/bin/sleep", exe)
            os.chown(exe, *((BOB, BOB) if folder is None else (0, 0)))
        process = subprocess.Popen([title, "600"], executable=exe, user=BOB, group=BOB, extra_groups=[], cwd="/")
        self.processes.append(process)
        # exec() closes our pipe to it, for which Popen waits, before it has its arguments.
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.001)
        return process.pid

    def replaced(self) -> int:
        """The pid of a process whose file was then made one that leaves a mark when it is run."""
        pid = self.nginx()
        (self.folder / "nginx").unlink()
        self.give("nginx", f"#!/bin/sh\n(id -u; env) > {self.marker}\necho nginx version: nginx/9.9.9\n", 0o755)
        return pid


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    # Other users cannot enter pytest's folders.
    folder = Path(tempfile.mkdtemp(prefix="asyncli-stranger-"))
    folder.chmod(0o755)
    (folder / "bob").mkdir()
    os.chown(folder / "bob", BOB, BOB)
    one = Stranger(folder / "bob")
    yield one
    for process in one.processes:
        process.kill()
        process.wait()
    shutil.rmtree(folder)


@as_root
def test_root_does_not_run_what_a_user_calls_nginx(stranger: Stranger, tmp_path: Path) -> None:
    pid = str(stranger.replaced())
    with serving() as server:
        for words in (
            ("soak", "-c", "2", "--hold", "0.5", *SHORT, "--out", "run.db"), ("check", "-c", "2"), ("bench", "-c", "2", "-n", "10"),
        ):  # fmt: skip
            assert here(tmp_path, *words, "--server-pid", pid, server.url).status == 0
    (finding,) = (one for one in report(tmp_path, "run.db")["findings"] if one["code"] == "server_program_not_run")
    assert (finding["severity"], "1000" in finding["evidence"]) == ("warning", True)
    assert not stranger.marker.exists()


@as_root
def test_the_agent_does_not_run_it_either(stranger: Stranger, tmp_path: Path) -> None:
    with AnAgent(tmp_path, "--server-pid", str(stranger.replaced())) as agent:
        hello = agent.hello()
    assert hello["server"]["not_asked"]["code"] == "server_program_not_run"
    assert not stranger.marker.exists()


@as_root
def test_a_file_of_roots_in_a_folder_that_all_may_write_is_not_run(stranger: Stranger) -> None:
    folder = stranger.folder.parent / "open"
    folder.mkdir()
    folder.chmod(0o777)
    answer = ask_server(str(folder / "nginx"), "--version", stranger.nginx(folder=folder))
    assert (answer.text, answer.distrusted, str(folder) in answer.why_not) == ("", True, True)


def test_a_program_of_roots_is_asked() -> None:
    answer = ask_server(PYTHON, "-V", os.getpid())
    if answer.distrusted:
        pytest.skip(f"the tests' own Python is not root's: {answer.why_not}")
    assert answer.text.startswith("Python 3"), answer


def test_another_file_than_the_one_that_runs_is_not_run() -> None:
    assert ask_server(shutil.which("true") or "/bin/true", "--version", os.getpid()).why_not
    assert ask_server("/no/such/nginx", "-V", os.getpid()).why_not


@pytest.mark.parametrize(
    ("uid", "mode", "safe"),
    [
        (0, 0o755, True), (os.geteuid(), 0o700, True), (54321, 0o755, False), (0, 0o775, False), (0, 0o757, False), (0, 0o1777, False),
    ],
)  # fmt: skip
def test_who_could_change_a_step_of_the_way(uid: int, mode: int, safe: bool) -> None:
    found = os.stat_result((stat.S_IFDIR | mode, 1, 1, 1, uid, 0, 0, 0, 0, 0))
    assert (trust._writable_by_others(("/there", found)) == "") is safe


def test_a_program_is_asked_with_little_and_not_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCLI_TOKEN", "secret")

    def script(text: str) -> str:
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    said = ask_program(script("echo to $1 >&2; env; cat; tty"), "-V")
    assert "to -V" in said
    assert "LC_ALL=C" in said
    assert "secret" not in said
    assert "not a" in said
    endless = ask_program(script("exec yes nginx"), "-V")
    assert len(endless) == 64 * 1024
    monkeypatch.setattr(trust, "_TIMEOUT_S", 0.5)
    pidfile = tmp_path / "pid"
    begun_s = time.monotonic()
    assert ask_program(script(f"sleep 600 & echo $! > {pidfile}; echo begun; wait"), "-V") == "begun\n"
    assert time.monotonic() - begun_s < 60
    # Its children are killed too; they may be zombies for a while.
    left = int(pidfile.read_text())
    until(lambda: not alive(left), "it is gone")
    assert ask_program(str(tmp_path / "none"), "-V") == ""


@as_root
@pytest.mark.parametrize("kind", ["fifo", "zero", "secret", "tree"])
def test_a_users_nginx_conf_is_read_as_that_user_would(stranger: Stranger, tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("worker_connections root:$6$hash;", encoding="utf-8")
    secret.chmod(0o600)
    tree = tmp_path / "tree"
    tree.mkdir(mode=0o700)
    (tree / "one.conf").write_text("worker_connections 1;", encoding="utf-8")
    fifo = stranger.folder / "fifo"
    os.mkfifo(fifo, 0o666)
    what = {"fifo": fifo, "zero": Path("/dev/zero"), "secret": secret, "tree": tree / "*"}[kind]
    conf = stranger.give("nginx.conf", f"events {{ include {what}; }} http {{}}")
    pid = stranger.nginx(f"nginx: master process nginx -c {conf}")
    configured = read_configured(pid, None, None)
    assert configured.nginx is None or kind == "tree"
    if configured.unknown is not None:
        assert str(what) in configured.unknown.detail
        assert "hash" not in configured.unknown.detail
        assert ("user 1000" in configured.unknown.detail) is (kind in ("secret", "tree"))
    # The main file, whose fingerprint goes into the report.
    for named in (fifo, Path("/dev/zero"), secret):
        facts = describe(Found((stranger.nginx(f"nginx: master process nginx -c {named}"),), "--server-pid"))
        assert (facts.config_path, facts.config_hash) == (str(named), None)


@as_root
def test_a_user_may_have_what_that_user_may_read(stranger: Stranger, tmp_path: Path) -> None:
    own = stranger.give("own", "mine", 0o400)
    assert read_regular(own, 10, User(BOB)) == b"mine"
    shared = stranger.folder.parent / "shared"
    shared.write_text("ours", encoding="utf-8")
    os.chown(shared, 0, 4242)
    shared.chmod(0o640)
    assert read_regular(shared, 10, User(BOB, frozenset({4242}))) == b"ours"
    link = stranger.folder / "link"
    link.symlink_to(shared)
    for path, user in ((own, NOBODY), (link, User(BOB)), (own, User(BOB + 1))):
        with pytest.raises(PermissionError):
            read_regular(path, 10, user)
    # All may read the file, but not enter its folder.
    inside = tmp_path / "inside"
    inside.write_text("within", encoding="utf-8")
    inside.chmod(0o644)
    tmp_path.chmod(0o700)
    assert read_regular(inside, 10, User(0)) == b"within"
    with pytest.raises(PermissionError):
        read_regular(inside, 10, User(BOB))


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="4 bytes"):
        read_regular(path, 4)
    with pytest.raises(OSError, match="regular file"):
        read_regular(tmp_path, 5)


def test_a_process_has_its_real_user() -> None:
    mine = user_of(os.getpid())
    assert (mine.uid, mine.groups) == (os.getuid(), frozenset({os.getgid(), *os.getgroups()}))
    assert user_of(2**22 + 1) == NOBODY


def test_a_pid_file_that_is_a_fifo_is_refused(tmp_path: Path) -> None:
    from asyncli.collect.locate import find_server
    from asyncli.model.errors import HostError

    os.mkfifo(tmp_path / "pid")
    with pytest.raises(HostError, match="regular file"):
        find_server(Plan(urls=("http://127.0.0.1:1/",), server_pidfile=str(tmp_path / "pid")), local=True)
