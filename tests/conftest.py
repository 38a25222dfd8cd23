"""Shared by all tests: those that need a missing server or tool are skipped, or fail if a variable requires it.

ASYNCLI_REQUIRE_NGINX requires nginx, ASYNCLI_REQUIRE_SERVERS every lab server that pip or the distribution installs,
ASYNCLI_REQUIRE_NODE, ASYNCLI_REQUIRE_GO and ASYNCLI_REQUIRE_JAVA those on Node, Go and Java, ASYNCLI_REQUIRE_ENVOY Envoy,
ASYNCLI_REQUIRE_COMPILER the compiler of the server models,
ASYNCLI_REQUIRE_NAMESPACES what network faults need.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from namespaces import can_be_made, own_network

from asyncli.lab.apache import find_apache
from asyncli.lab.executables import find_nginx
from asyncli.lab.nginx import has_nchan
from asyncli.lab.packaged_servers import LabHaproxy, LabMosquitto

if TYPE_CHECKING:
    from devtools import Browser

# Before numpy is loaded: its threads would compete with other tests.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parent / part) for part in ("analysis", "report")]

# The speed of examples depends on how busy the machine is, not on the code.
settings.register_profile("asyncli", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("asyncli")

# Programs under test inherit these: under nohup they would ignore SIGHUP, and in a shell's background SIGINT.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


def _nginx() -> bool:
    binary = find_nginx()
    return binary is not None and binary.stub_status


def _compiler() -> bool:
    """Whether there is a compiler with the C library's headers, which are separate packages."""
    try:
        command = ["cc", "-fsyntax-only", "-x", "c", "-"]
        return subprocess.run(command, input=b"#include <stdio.h>\n", capture_output=True, check=False).returncode == 0
    except OSError:
        return False


# Marker -> whether it is available, the reason for a skip, and the variables that require it.
_SERVERS: dict[str, tuple[Callable[[], bool], str, tuple[str, ...]]] = {
    "nginx": (_nginx, "no nginx with stub_status on this host; apt-get install nginx", ("ASYNCLI_REQUIRE_NGINX", "ASYNCLI_REQUIRE_SERVERS")),
    "apache": (lambda: find_apache() is not None, "no Apache 2.4 on this host; apt-get install apache2", ("ASYNCLI_REQUIRE_SERVERS",)),
    "haproxy": (lambda: LabHaproxy.found() is not None, "no HAProxy on this host; apt-get install haproxy", ("ASYNCLI_REQUIRE_SERVERS",)),
    "nchan": (has_nchan, "no nginx with Nchan on this host; apt-get install libnginx-mod-nchan", ("ASYNCLI_REQUIRE_SERVERS",)),
    "stores": (
        lambda: bool(shutil.which("redis-server") and shutil.which("memcached")),
        "no redis or no memcached on this host; apt-get install redis-server memcached", ("ASYNCLI_REQUIRE_SERVERS",),
    ),
    "mosquitto": (lambda: LabMosquitto.found() is not None, "no mosquitto 2.0 on this host; apt-get install mosquitto", ("ASYNCLI_REQUIRE_SERVERS",)),
    "namespaces": (
        can_be_made,
        "no network namespaces to drop packets in: that takes root, ip and nft; apt-get install iproute2 nftables",
        ("ASYNCLI_REQUIRE_NAMESPACES",),
    ),
    "compiler": (_compiler, "no C compiler with its headers on this host; apt-get install gcc libc6-dev", ("ASYNCLI_REQUIRE_COMPILER",)),
}


#: The fixture of tests that count or look for what is anywhere in their network.
_APART = "apart"
#: Modules that import or call one of these start programs or servers, or wait for time to pass.
_LIVE = re.compile(
    r"^\s*(?:from|import) (?:subprocess|multiprocessing|http\.server|distributed|nbclient|asyncli\.(?:api|lab|agent\.server|trust"
    r"|app\.(?:soak|bench|capacity)|engine\.(?:net|host|worker)))\b|socket\.socket\(|(?:create|start)_server\(|\.sleep\((?!0\))",
    re.MULTILINE,
)
_HELPERS = {path.stem: path for path in Path(__file__).parent.rglob("*.py") if not path.stem.startswith(("test_", "conftest"))}


@functools.cache
def _is_live(path: Path) -> bool:
    """Whether a test module, or a helper that it imports, starts something, so that a quick run excludes it."""
    text = path.read_text(encoding="utf-8")
    named = {_HELPERS[name] for name in re.findall(r"^(?:from|import) (?:tests\.)?(\w+)", text, re.MULTILINE) if name in _HELPERS}
    return _LIVE.search(text) is not None or any(_is_live(one) for one in named - {path})


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import modules without tests for a lane of scripts/test: each of its processes would."""
    if collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    marks, live = set(re.findall(r"mark\.(\w+)", text)), _is_live(collection_path)
    has_some = {
        "alone": "alone" in marks or f'usefixtures("{_APART}")' in text, "measures and not alone": "measures" in marks,
        "live and not measures": live or bool(marks & _SERVERS.keys()), "not live and not measures": not live,
    }  # fmt: skip
    return not has_some.get(config.option.markexpr, True) or None


#: The modules that take longest, each in one process or by its single tests; the longest first.
_LONG = (
    "test_packages", "test_hosts_in_namespaces", "test_notebooks", "test_thread_limits",
    "test_page_in_chromium", "test_cluster_on_loopback", "test_baseline_run", "test_documented_runs", "test_report_files", "test_far_values",
    "test_client_lost", "test_cost_so_far",
)  # fmt: skip


def _place(item: pytest.Item) -> tuple[int, int]:
    """Where a test stands when several processes share the work: the longest first, so that all end at about the same time, and then
    those that wait among those that compute, so that the CPUs are in use all the time."""
    stem = item.path.stem
    rank = _LONG.index(stem) if stem in _LONG else len(_LONG)
    return rank, zlib.crc32(_unit(item.nodeid).encode())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark live tests, and order all for several processes."""
    if _is_shuffled(config):
        items.sort(key=_place)
    for item in items:
        if any(item.get_closest_marker(server) for server in _SERVERS) or _is_live(item.path):
            item.add_marker("live")
        if _APART in item.fixturenames and not _has("namespaces"):
            item.add_marker("alone")


def _is_shuffled(config: pytest.Config) -> bool:
    """Whether several processes share tests that may run beside any others: those that measure stay in their order."""
    return hasattr(config, "workerinput") and "not measures" in config.option.markexpr


def _unit(nodeid: str) -> str:
    """The tests that one process runs one after another: those of a module that share a fixture, or a single one."""
    path = nodeid.partition("::")[0]
    return path if _shares(path) else nodeid


@functools.cache
def _shares(path: str) -> bool:
    """Whether a module's tests share a fixture, which several processes would each start."""
    module = Path(__file__).parent.parent / path
    return any('scope="' in one.read_text(encoding="utf-8") for one in (module, module.with_name("conftest.py")) if one.exists())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Assign the tests of a module that share a fixture to one process."""
    from xdist.scheduler import LoadScopeScheduling

    class BySharing(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid)

        def _reschedule(self, node: Any) -> None:
            # One test waits behind the one that runs, not two: it may run for a minute, while other processes have nothing to do.
            if self.workqueue and self._pending_of(self.assigned_work[node]) >= 2:
                return
            super()._reschedule(node)

    # In the order of pytest_collection_modifyitems, not by the number of tests.
    config.option.loadscopereorder = "not measures" not in config.option.markexpr
    return BySharing(config, log)


@functools.cache
def _has(server: str) -> bool:
    return _SERVERS[server][0]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # First of all hooks: a test's own skipif must not hide a required server.
    for server, (_, why, flags) in _SERVERS.items():
        if item.get_closest_marker(server) is None or _has(server):
            continue
        asked = next((flag for flag in flags if os.environ.get(flag)), None)
        if asked:
            pytest.fail(f"{why} ({asked} is set)", pytrace=False)
        pytest.skip(why)


@pytest.fixture(scope="module")
def apart() -> Iterator[None]:
    """Run a module's tests in a network of their own: nobody else has its ports, and its counts are of nobody else. Where none can be
    made, they run alone."""
    if not _has("namespaces"):
        yield
        return
    with own_network():
        yield


@pytest.fixture(scope="module")
def go() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def browser(go: Callable[[Coroutine[Any, Any, Any]], Any]) -> Iterator[Browser]:
    # Here: aiohttp takes a while, and few tests need it.
    from devtools import Browser, find_chromium

    binary = find_chromium()
    if binary is None:
        why = "no Chromium on this host; apt-get install chromium"
        if os.environ.get("ASYNCLI_REQUIRE_CHROMIUM"):
            pytest.fail(f"{why} (ASYNCLI_REQUIRE_CHROMIUM is set)", pytrace=False)
        pytest.skip(why)
    browser = Browser(binary)
    go(browser.__aenter__())
    yield browser
    go(browser.__aexit__(None, None, None))
