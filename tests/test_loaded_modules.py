"""What light processes must not load."""

from __future__ import annotations

import subprocess
import sys


def loaded_by(statement: str) -> set[str]:
    """The modules loaded in a fresh interpreter after ``statement``."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_host_process_is_light() -> None:
    # It is forked for each worker, up to sixty times, with everything that it loads.
    heavy = {"numpy", "scipy", "aiohttp", "click", "rich", "psutil", "sqlite3", "crossplane", "matplotlib"}
    assert loaded_by("import asyncli, asyncli.engine.host, asyncli.engine.worker") & heavy == set()


def test_only_a_cluster_loads_dask() -> None:
    assert loaded_by("import asyncli.cli.soak_terminal, asyncli.cli.soak, asyncli.api, asyncli.app.soak") & {"dask", "distributed"} == set()


def test_importing_the_package_loads_nothing_of_it() -> None:
    loaded = loaded_by("import asyncli")
    assert {name for name in loaded if name.startswith("asyncli")} == {"asyncli"}
    assert loaded & {"asyncio", "msgspec"} == set()
