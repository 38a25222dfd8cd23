"""What all tests share: ``nginx`` and ``compiler`` tests are skipped where there is none of it, or fail where it is required.

ASYNCLI_REQUIRE_NGINX and ASYNCLI_REQUIRE_COMPILER require them.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable

import pytest

from asyncli.lab.binary import find_nginx


@functools.cache
def _has_nginx() -> bool:
    binary = find_nginx()
    return binary is not None and binary.stub_status


@functools.cache
def _has_compiler() -> bool:
    """A compiler with the C library's headers: each comes without the other."""
    try:
        command = ["cc", "-fsyntax-only", "-x", "c", "-"]
        return subprocess.run(command, input=b"#include <stdio.h>\n", capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


_NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "nginx": (_has_nginx, "no nginx with stub_status on this host; apt-get install nginx"),
    "compiler": (_has_compiler, "no C compiler with its headers on this host; apt-get install gcc libc6-dev"),
}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # First of all: before a test's own skipif could hide what was required.
    for name, (is_there, why) in _NEEDS.items():
        if item.get_closest_marker(name) is None or is_there():
            continue
        variable = f"ASYNCLI_REQUIRE_{name.upper()}"
        if os.environ.get(variable):
            pytest.fail(f"{why} ({variable} is set)", pytrace=False)
        pytest.skip(why)
