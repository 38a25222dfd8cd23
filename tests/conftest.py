"""What all tests share: tests that need a real server are skipped where there is none, or fail where one is asked for.

ASYNCLI_REQUIRE_NGINX asks for nginx, ASYNCLI_REQUIRE_SERVERS for every server of the lab that pip or the distribution installs,
ASYNCLI_REQUIRE_NODE and ASYNCLI_REQUIRE_GO for those on Node and Go, ASYNCLI_REQUIRE_COMPILER for what builds its models,
ASYNCLI_REQUIRE_NAMESPACES for what the faults of the network take.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from namespaces import can_be_made

from asyncli.lab.apache import find_apache
from asyncli.lab.executables import find_nginx
from asyncli.lab.nginx import has_nchan
from asyncli.lab.one_process import LabHaproxy, LabMosquitto

# Before numpy is loaded: its threads would take the CPUs that other tests of a lane use.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parent / part) for part in ("analysis", "report")]

# How fast examples are made and run says how busy the machine is, and nothing of the code.
settings.register_profile("asyncli", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("asyncli")

# Programs under test inherit them: one that was started under nohup would rightly not hear a SIGHUP, nor a SIGINT one that a shell
# started in the background.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


def _nginx() -> bool:
    binary = find_nginx()
    return binary is not None and binary.stub_status


def _compiler() -> bool:
    """A compiler with the C library's headers: each comes without the other."""
    try:
        command = ["cc", "-fsyntax-only", "-x", "c", "-"]
        return subprocess.run(command, input=b"#include <stdio.h>\n", capture_output=True, check=False).returncode == 0
    except OSError:
        return False


# A marker's name: whether its server is here, why not, and what asks for it.
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


#: Who imports or calls one of these starts programs or servers, or waits for time to pass.
_LIVE = re.compile(
    r"^\s*(?:from|import) (?:subprocess|multiprocessing|http\.server|distributed|nbclient|asyncli\.(?:api|lab|agent\.server|trust"
    r"|app\.(?:soak|bench|capacity)|engine\.(?:net|host|worker)))\b|socket\.socket\(|(?:create|start)_server\(|\.sleep\((?!0\))",
    re.MULTILINE,
)
_HELPERS = {path.stem: path for path in Path(__file__).parent.rglob("*.py") if not path.stem.startswith(("test_", "conftest"))}


@functools.cache
def _is_live(path: Path) -> bool:
    """Whether a module of tests, or a helper that it imports, starts something: its tests then are not for a quick run."""
    text = path.read_text(encoding="utf-8")
    named = {_HELPERS[name] for name in re.findall(r"^(?:from|import) (?:tests\.)?(\w+)", text, re.MULTILINE) if name in _HELPERS}
    return _LIVE.search(text) is not None or any(_is_live(one) for one in named - {path})


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no module of which a lane of scripts/test wants nothing: each of its processes would."""
    if collection_path.suffix != ".py" or config.option.markexpr not in ("measures", "live and not measures", "not live and not measures"):
        return None
    marks = set(re.findall(r"mark\.(\w+)", collection_path.read_text(encoding="utf-8")))
    if config.option.markexpr == "measures":
        return "measures" not in marks or None
    live = _is_live(collection_path)
    return (live if config.option.markexpr.startswith("not") else not live and not marks & _SERVERS.keys()) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is live. The longest begin first: the others' ends then are near its end."""
    items.sort(key=lambda item: "notebooks" not in item.nodeid)
    for item in items:
        if any(item.get_closest_marker(server) for server in _SERVERS) or _is_live(item.path):
            item.add_marker("live")


@functools.cache
def _shares(path: str) -> bool:
    """Whether the tests of a module share a fixture: in several processes each would start all of what they share."""
    module = Path(__file__).parent.parent / path
    return any('scope="' in one.read_text(encoding="utf-8") for one in (module, module.with_name("conftest.py")) if one.exists())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where several processes share the tests, one has those of a module that share a fixture."""
    from xdist.scheduler import LoadScopeScheduling

    class BySharing(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return path if _shares(path) else nodeid

    return BySharing(config, log)


@functools.cache
def _has(server: str) -> bool:
    return _SERVERS[server][0]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # First of all: before a test's own skipif could hide what was required.
    for server, (_, why, flags) in _SERVERS.items():
        if item.get_closest_marker(server) is None or _has(server):
            continue
        asked = next((flag for flag in flags if os.environ.get(flag)), None)
        if asked:
            pytest.fail(f"{why} ({asked} is set)", pytrace=False)
        pytest.skip(why)
