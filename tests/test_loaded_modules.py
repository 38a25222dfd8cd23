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
        # The rest of the package of SciPy's functions takes three times as long as they do.
        ("import asyncli.analysis.special", "scipy.special scipy.special._support_alternative_backends scipy.stats numpy.ma numpy.f2py numpy.testing"),
    ],
)
def test_light_processes_do_not_load(statement: str, heavy: str) -> None:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    assert set(heavy.split()).isdisjoint(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_package_of_its_functions_is_whole_for_who_imports_it_later() -> None:
    code = """
import asyncli.analysis.special as ours
import scipy.special
import scipy.stats
print(scipy.special.stdtrit is ours.stdtrit, scipy.special.gamma(5), scipy.stats.binomtest(3, 10).pvalue)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["True", "24.0", "0.34375"]
