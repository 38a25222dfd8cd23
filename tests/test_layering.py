"""Imports go one way: which part of the package may know which, and what the lightest processes must never load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncli

PACKAGE = Path(asyncli.__file__).parent
# Each part, and the others it may import; its own modules it always may. "asyncli" is the package itself, for its version.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "units": set(),
    "text": set(),
    "trust": set(),
    "secret_variables": set(),
    "core": set(),
    "values": {"units"},
    "plan": {"core.ramp", "errors", "units"},
    "metrics": set(),
    "records": {"core.histogram", "text"},
    "findings": {"records", "units"},
    "samples": {"records"},
    "benchplan": {"errors", "plan", "records", "units"},
    "engine": {"secret_variables", "asyncli", "benchplan", "core", "plan", "records", "errors"},
    "engine.spread": set(),
    "agent": {"secret_variables", "asyncli", "errors", "text", "units", "plan", "records", "collect", "engine.spread", "environment", "preflight"},
    "collect": {"errors", "text", "units", "plan", "records", "trust"},
    "preflight": {"errors", "units", "plan", "records", "trust", "engine.spread"},
    "store": {"core.histogram", "errors", "text", "units", "plan", "records", "samples"},
    "analysis": {"benchplan", "core.histogram", "units", "plan", "records", "samples"},
    "report": {
        "asyncli", "benchplan", "core.histogram", "core.life", "errors", "text", "units", "plan", "records", "samples", "engine.spread", "store.reader",
        "analysis", "experiments.record",
    },
    "experiments": {
        "asyncli", "errors", "units", "plan", "records", "core.histogram", "app", "benchplan", "store.reader", "analysis.benched",
        "analysis.cost", "analysis.series", "analysis.totals", "collect.groups", "collect.kernel", "collect.pages", "collect.processes", "collect.procfs", "lab",
    },
    "experiments.server_models": {
        "errors", "findings", "experiments", "lab", "environment", "engine.spread", "preflight.limits",
    },
    "experiments.two_clients": {
        "errors", "records", "units", "experiments", "analysis.cost", "analysis.reconcile", "analysis.series", "analysis.totals",
        "lab", "store.reader",
    },
    "experiments.client_lost": {
        "errors", "units", "experiments", "analysis.reconcile", "analysis.series", "analysis.totals", "lab", "store.reader",
    },
    "experiments.cabled": {"errors", "records", "collect.kernel", "experiments", "lab"},
    "experiments.judging": {"experiments.record"},
    "experiments.models_compared": {"experiments.judging", "experiments.record", "lab.models"},
    "experiments.cputime": {"collect.processes", "collect.procfs"},
    "experiments.bytes_client": {"engine.spread"},
    "experiments.record": {"records"},
    "environment": {"asyncli", "collect.listening", "plan", "records", "text", "engine.resolve", "engine.spread", "preflight.limits"},
    "cluster": {
        "asyncli", "errors", "units", "plan", "records", "collect.probes", "collect.processes", "engine.fleet", "engine.generator", "engine.resolve", "engine.shard", "engine.spread",
        "environment", "preflight",
    },
    "lab": {"secret_variables", "asyncli", "errors", "trust"},
    # The jobs, each put together; the two doors to them; and what the package exports, when it is asked for.
    "app": {
        "agent", "analysis", "benchplan", "cluster", "collect", "engine", "environment", "errors", "plan", "preflight", "records",
        "report", "store", "units",
    },
    "cli": {
        "asyncli", "agent", "analysis", "app", "benchplan", "cluster", "errors", "experiments", "lab", "plan", "preflight", "records",
        "report", "secret_variables", "store", "text", "units",
    },
    "notebook": {"plan", "report"},
    "views": {"analysis", "app", "errors", "notebook", "plan", "records", "report"},
    "api": {"app", "cluster", "errors", "lab", "notebook", "plan", "report", "store", "units", "views"},
    "": {"api", "app", "plan"},
    "__main__": {"cli"},
}  # fmt: skip
# What a pure module has no business with: the world and its clock.
WORLD = {
    "asyncio",
    "socket",
    "os",
    "time",
    "select",
    "signal",
    "subprocess",
    "threading",
    "random",
    "secrets",
    "uvloop",
    "psutil",
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Each module's name below the package ("engine.table"), and its syntax tree."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if not parts[0].startswith("_configs"):
            yield ".".join(part for part in parts if part != "__init__"), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    """Every name that is imported anywhere in it, late imports and those for types included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            # `from asyncli import lab` names a module, `from asyncli.plan import Plan` a thing in one.
            whole = node.module in ("asyncli", "asyncli.lab", "asyncli.preflight")
            yield from (f"{node.module}.{alias.name}" for alias in node.names) if whole else [node.module or ""]


def ours(name: str) -> str | None:
    """The imported module below the package; "asyncli" for the package itself, None for a foreign one."""
    first, _, rest = name.partition(".")
    if first != "asyncli":
        return None
    top = rest.partition(".")[0]
    return rest if top and ((PACKAGE / top).is_dir() or (PACKAGE / f"{top}.py").is_file()) else "asyncli"


def row_of(module: str) -> str:
    return module if module in MAY_IMPORT else module.partition(".")[0]


@pytest.mark.parametrize(("module", "tree"), [pytest.param(*one, id=one[0] or "asyncli") for one in modules()])
def test_a_module_imports_only_what_its_layer_may(module: str, tree: ast.Module) -> None:
    row = row_of(module)
    assert row in MAY_IMPORT, f"{module} is not in the table of layers"
    # Names of metrics are everybody's; whoever may make a finding may name it, and who knows the plan knows its values.
    allowed = MAY_IMPORT[row] | {"metrics"} | ({"findings"} if "records" in MAY_IMPORT[row] else set())
    allowed |= {"values"} if row == "plan" or "plan" in allowed else set()
    for name in imported(tree):
        target = ours(name)
        if target is None or (row and (target == row or target.startswith(f"{row}."))):
            continue
        assert any(target == one or target.startswith(f"{one}.") for one in allowed), f"{module} imports {name}"


def test_no_row_of_the_table_allows_what_is_not_used() -> None:
    used: dict[str, set[str]] = {row: set() for row in MAY_IMPORT}
    for module, tree in modules():
        used[row_of(module)] |= {target for name in imported(tree) if (target := ours(name)) is not None}
    for row, allowed in MAY_IMPORT.items():
        idle = {one for one in allowed if not any(target == one or target.startswith(f"{one}.") for target in used[row])}
        assert not idle, f"{row} may import {idle}, and does not: make the table stricter"


@pytest.mark.parametrize(("module", "tree"), [pytest.param(*one, id=one[0]) for one in modules() if one[0].startswith("core")])
def test_the_core_knows_neither_the_world_nor_its_clock(module: str, tree: ast.Module) -> None:
    assert {name.partition(".")[0] for name in imported(tree)} & WORLD == set(), module


def loaded_by(statement: str) -> set[str]:
    """The names of all modules in a fresh interpreter after ``statement``."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "statement", ["import asyncli.engine.host", "import asyncli, asyncli.engine.host, asyncli.engine.worker"]
)
def test_the_host_process_is_light(statement: str) -> None:
    # It is forked once for each worker: what it loads is paid for sixty times.
    heavy = {"numpy", "scipy", "aiohttp", "click", "rich", "psutil", "sqlite3", "crossplane", "matplotlib"}
    assert loaded_by(statement) & heavy == set()


def test_only_the_cluster_knows_dask() -> None:
    """Without the extra everything else works, and with it nothing else pays for it."""
    known = {module for module, tree in modules() if any(name.split(".")[0] in ("dask", "distributed") for name in imported(tree))}
    assert known == {"cluster.link", "cluster.actor"}
    assert loaded_by("import asyncli.cli.run, asyncli.cli.soak, asyncli.api, asyncli.app.soak") & {"dask", "distributed"} == set()


def test_importing_the_package_loads_nothing_of_it() -> None:
    loaded = loaded_by("import asyncli")
    assert {name for name in loaded if name.startswith("asyncli")} == {"asyncli"}
    assert loaded & {"asyncio", "msgspec"} == set()


def test_the_package_exports_what_it_says() -> None:
    assert asyncli.__all__ == ["Plan", "Recorded", "Soak", "__version__", "compare", "lab_server", "load", "make_plan", "soak"]
    assert set(asyncli.__all__) == set(dir(asyncli))
    for name in asyncli.__all__:
        assert getattr(asyncli, name) is not None
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = asyncli.nonesuch
