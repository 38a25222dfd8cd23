"""What all tests share: ``nginx`` tests are skipped where there is none, or fail where ASYNCLI_REQUIRE_NGINX asks for one."""

from __future__ import annotations

import functools
import os

import pytest

from asyncli.lab.binary import find_nginx


@functools.cache
def _has_nginx() -> bool:
    binary = find_nginx()
    return binary is not None and binary.stub_status


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # First of all: before a test's own skipif could hide what was required.
    if item.get_closest_marker("nginx") is None or _has_nginx():
        return
    why = "no nginx with stub_status on this host; apt-get install nginx"
    if os.environ.get("ASYNCLI_REQUIRE_NGINX"):
        pytest.fail(f"{why} (ASYNCLI_REQUIRE_NGINX is set)", pytrace=False)
    pytest.skip(why)
