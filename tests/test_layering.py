"""Imports go one way: which part of the package may import which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import asyncli

PACKAGE = Path(asyncli.__file__).parent
#: What every part may import besides its own modules.
SHARED = {"asyncli", "core.adding", "core.histogram", "findings", "model", "version"}
#: Part -> other parts that it may import besides SHARED and its own modules; those of FIRST import nothing else.
MAY_IMPORT: dict[str, set[str]] = {
    "version": set(),
    "core": set(),
    "model": {"core.adding", "core.events", "core.histogram", "core.ramp"},
    "findings": {"model"},
    "protocols": set(),
    "engine": {"core", "protocols"},
    "engine.spread": set(),
    "collect": set(),
    "preflight": {"collect.holders", "collect.locate", "collect.procfs", "collect.server_limits", "engine.spread"},
    "environment": {"collect.listening", "collect.procfs", "engine.resolve", "engine.spread", "preflight.host_limits"},
    "web": set(),
    "agent": {"collect", "environment", "preflight", "web"},
    "cluster": {"collect", "engine", "environment", "preflight"},
    "store": set(),
    "analysis": {"core.events", "core.storm"},
    "report": {"analysis", "core.life", "engine.spread", "experiments.record", "store.reader"},
    "lab": set(),
    "app": {"agent", "analysis", "cluster", "collect", "core.events", "engine", "environment", "preflight", "report", "store"},
    "live": {"analysis", "app", "core.life", "report", "store", "web"},
    "experiments": {"analysis", "app", "collect", "engine.spread", "lab", "store.reader"},
    "experiments.record": set(),
    "cli": {"agent", "analysis.bench_result", "app", "cluster", "experiments", "lab", "live", "preflight", "report", "store", "web"},
    "notebook": {"report"},
    "api": {"analysis", "app", "cluster", "lab", "notebook", "report", "store"},
    "": {"api", "app"},
    "__main__": {"cli"},
}  # fmt: skip
FIRST = {"version", "core", "model", "findings"}
# Modules that pure modules must not import: I/O and clocks.
WORLD = {"asyncio", "socket", "os", "time", "select", "signal", "subprocess", "threading", "random", "secrets", "uvloop", "psutil"}


Modules = dict[str, list[str]]


@pytest.fixture(scope="module")
def modules() -> Modules:
    """Module name below the package ("engine.held_table") -> the names that it imports."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if not parts[0].startswith("_configs"):
            found[".".join(part for part in parts if part != "__init__")] = list(imported(ast.parse(path.read_text(encoding="utf-8"))))
    return found


def imported(tree: ast.Module) -> Iterator[str]:
    """Every name that a module imports, also in functions and for types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            # `from asyncli import lab` imports a module, `from asyncli.model.plan import Plan` a name in one.
            whole = node.module in ("asyncli", "asyncli.collect", "asyncli.lab", "asyncli.preflight")
            yield from (f"{node.module}.{alias.name}" for alias in node.names) if whole else [node.module or ""]


def ours(name: str) -> str | None:
    """The imported module below the package; "asyncli" for the package itself, None for an external one."""
    first, _, rest = name.partition(".")
    if first != "asyncli":
        return None
    top = rest.partition(".")[0]
    return rest if top and ((PACKAGE / top).is_dir() or (PACKAGE / f"{top}.py").is_file()) else "asyncli"


def row_of(module: str) -> str:
    return module if module in MAY_IMPORT else module.partition(".")[0]


def test_a_module_imports_only_what_its_layer_may(modules: Modules) -> None:
    for module, names in modules.items():
        row = row_of(module)
        assert row in MAY_IMPORT, f"{module} is not in the table of layers"
        allowed = MAY_IMPORT[row] if row in FIRST else MAY_IMPORT[row] | SHARED
        for name in names:
            target = ours(name)
            if target is None or (row and (target == row or target.startswith(f"{row}."))):
                continue
            assert any(target == one or target.startswith(f"{one}.") for one in allowed), f"{module} imports {name}"


def test_no_row_of_the_table_allows_what_is_not_used(modules: Modules) -> None:
    used: dict[str, set[str]] = {}
    for module, names in modules.items():
        used.setdefault(row_of(module), set()).update(target for name in names if (target := ours(name)) is not None)
    for row, allowed in MAY_IMPORT.items():
        idle = {one for one in allowed if not any(target == one or target.startswith(f"{one}.") for target in used[row])}
        assert not idle, f"{row} may import {idle}, and does not: make the table stricter"


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
        module = ".".join(part for part in path.relative_to(PACKAGE).with_suffix("").parts if part != "__init__")
        graph[module] = {target for name in imported(tree) if (target := ours(name)) is not None and target != module}
    TopologicalSorter(graph).prepare()


def test_core_and_protocols_know_neither_the_world_nor_its_clock(modules: Modules) -> None:
    for module, names in modules.items():
        if module.startswith(("core", "protocols")):
            assert {name.partition(".")[0] for name in names} & WORLD == set(), module


def test_only_the_cluster_knows_dask(modules: Modules) -> None:
    known = {module for module, names in modules.items() if any(name.split(".")[0] in ("dask", "distributed") for name in names)}
    assert known == {"cluster.link", "cluster.actor"}


def test_the_package_exports_what_it_says() -> None:
    assert asyncli.__all__ == ["Plan", "Recorded", "Soak", "__version__", "compare", "lab_server", "load", "make_plan", "soak"]
    assert set(asyncli.__all__) == set(dir(asyncli))
    for name in asyncli.__all__:
        assert getattr(asyncli, name) is not None
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = asyncli.nonesuch
