"""What all tests share: tests that need a real server are skipped where there is none, or fail where one is asked for.

ASYNCLI_REQUIRE_NGINX asks for nginx, ASYNCLI_REQUIRE_SERVERS for every server of the lab, ASYNCLI_REQUIRE_COMPILER for what builds
its models, ASYNCLI_REQUIRE_NAMESPACES for what the faults of the network take.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from namespaces import can_be_made

from asyncli.lab.apache import find_apache
from asyncli.lab.binary import find_nginx
from asyncli.lab.haproxy import find_haproxy

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
        return subprocess.run(command, input=b"#include <stdio.h>\n", capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


# A marker's name: whether its server is here, why not, and what asks for it.
_SERVERS: dict[str, tuple[Callable[[], bool], str, tuple[str, ...]]] = {
    "nginx": (_nginx, "no nginx with stub_status on this host; apt-get install nginx", ("ASYNCLI_REQUIRE_NGINX", "ASYNCLI_REQUIRE_SERVERS")),
    "apache": (lambda: find_apache() is not None, "no Apache 2.4 on this host; apt-get install apache2", ("ASYNCLI_REQUIRE_SERVERS",)),
    "haproxy": (lambda: find_haproxy() is not None, "no HAProxy on this host; apt-get install haproxy", ("ASYNCLI_REQUIRE_SERVERS",)),
    "namespaces": (
        can_be_made,
        "no network namespaces to drop packets in: that takes root, ip and nft; apt-get install iproute2 nftables",
        ("ASYNCLI_REQUIRE_NAMESPACES",),
    ),
    "compiler": (_compiler, "no C compiler with its headers on this host; apt-get install gcc libc6-dev", ("ASYNCLI_REQUIRE_COMPILER",)),
}


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
