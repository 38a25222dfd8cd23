"""A real nginx for each test that asks for one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asyncli.lab.nginx import LabNginx

# What it asserts of every soak shows its numbers, as a test's own assertions do.
pytest.register_assert_rewrite("provoked")


@pytest.fixture
def start_nginx() -> Iterator[Callable[..., LabNginx]]:
    """``start_nginx(**options)`` starts a :class:`LabNginx`; all of them end with the test."""
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:

        def start(**options: Any) -> LabNginx:
            server = LabNginx(**{"connections": 1000, "workers": 2, **options})
            stack.callback(lambda: runner.run(server.stop()))
            runner.run(server.start())
            return server

        yield start


@pytest.fixture
def nginx(start_nginx: Callable[..., LabNginx]) -> LabNginx:
    return start_nginx()
