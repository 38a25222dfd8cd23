from __future__ import annotations

from pathlib import Path

import pytest

from asyncli.collect.nginx_workers import NginxWorkers, role_of
from asyncli.collect.procfs import Stat

MASTER = "nginx: master process /usr/sbin/nginx -c nginx.conf"
WORKER = "nginx: worker process"
MANAGER = "nginx: cache manager process"


@pytest.mark.parametrize(
    ("title", "role"),
    [
        (MASTER, "master"),
        (WORKER, "worker"),
        ("nginx: worker process is shutting down", "worker"),
        (MANAGER, "cache manager"),
        ("nginx: cache loader process", "cache loader"),
        ("nginx -c nginx.conf", ""),
        ("", ""),
    ],
)
def test_the_role_in_a_title(title: str, role: str) -> None:
    assert role_of(title) == role


def titled(proc: Path, pid: int, title: str, *, name: str = "nginx", state: str = "S") -> Stat:
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "cmdline").write_text(title + "\0")
    return Stat(pid, name, state, 1, 0.0, 0.0, 1, pid)


def counts(workers: float, stopped: float = 0.0, ended: float = 0.0) -> dict[str, float]:
    return {"server.workers": workers, "server.workers_stopped": stopped, "server.workers_ended": ended}


def test_helpers_are_no_workers(tmp_path: Path) -> None:
    master = titled(tmp_path, 1, MASTER)
    manager = titled(tmp_path, 2, MANAGER, state="T")
    worker = titled(tmp_path, 3, WORKER)
    workers = NginxWorkers(tmp_path)
    assert workers.read([master, manager, worker]) == counts(1)
    # The manager ends, and its successor still has its master's title.
    young = titled(tmp_path, 4, MASTER)
    assert workers.read([master, young, worker]) == counts(1)
    titled(tmp_path, 4, MANAGER)
    assert workers.read([master, young, worker]) == counts(1)
    stopped = titled(tmp_path, 5, WORKER, state="T")
    assert workers.read([master, young, stopped]) == counts(1, stopped=1, ended=1)
    # All are gone, and started again.
    assert workers.read([]) == {}
    assert workers.read([titled(tmp_path, 6, MASTER), titled(tmp_path, 7, WORKER)]) == counts(1, ended=2)


def test_nothing_of_other_servers_and_of_hidden_titles(tmp_path: Path) -> None:
    apache = titled(tmp_path, 1, "/usr/sbin/apache2 -k start", name="apache2")
    assert NginxWorkers(tmp_path).read([apache]) == {}
    master = titled(tmp_path, 2, MASTER)
    hidden = titled(tmp_path, 3, "")
    assert NginxWorkers(tmp_path).read([master, hidden]) == {}
    # A shell that started it has no title of nginx.
    shell = titled(tmp_path, 4, "sh start.sh", name="sh")
    assert NginxWorkers(tmp_path).read([shell, master, titled(tmp_path, 5, WORKER)]) == counts(1)
