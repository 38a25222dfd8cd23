"""What light processes must not load."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        # It is forked for each worker, up to sixty times, with everything that it loads.
        ("import asyncli.engine.host, asyncli.engine.worker", "numpy scipy aiohttp click rich psutil sqlite3 crossplane matplotlib"),
        ("import asyncli.cli.soak_terminal, asyncli.cli.soak, asyncli.api, asyncli.app.soak", "dask distributed"),
        # --help takes less than a tenth of a second.
        ("import asyncli.cli.main", "asyncio msgspec rich numpy importlib.metadata difflib email tomllib asyncli.cli.soak asyncli.model.plan"),
        ("import asyncli", "asyncio msgspec asyncli.api asyncli.model asyncli.version"),
    ],
)
def test_light_processes_do_not_load(statement: str, heavy: str) -> None:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    assert set(heavy.split()).isdisjoint(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
