"""Which of asyncli's dependencies are installed: ``asyncli-light`` and ``asyncli-agent`` have only
some.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from functools import cache

#: What costs, drift and comparisons are computed with.
NUMERIC = ("numpy", "scipy")
#: What the figures of a page are drawn with.
DRAWING = (*NUMERIC, "matplotlib", "jinja2")
#: What a soak and its report need (the extra "runner" of asyncli-light).
_RUNNER = ("aiohttp", "rich")
#: Distributions with the same import package as asyncli and fewer dependencies.
_SMALL = ("asyncli-light", "asyncli-agent")


@cache
def is_installed(module: str) -> bool:
    """Whether a module can be imported; it is not."""
    return importlib.util.find_spec(module) is not None


def missing(modules: Iterable[str]) -> list[str]:
    """Those of ``modules`` that are not installed."""
    return [module for module in modules if not is_installed(module)]


def can_compute() -> bool:
    """Whether costs and drift can be computed here."""
    return not missing(NUMERIC)


def has_pages() -> bool:
    """Whether live pages can be served here: asyncli-light has no files of them."""
    # Here: each start of asyncli imports this module, and the fewest serve pages.
    import importlib.resources

    return (importlib.resources.files("asyncli.live") / "assets").is_dir()


def needed_by(command: str) -> tuple[str, ...]:
    """The modules without which a command of the command line cannot run."""
    if command in ("agent", "completion"):
        return ()
    if command in ("compare", "experiment", "size", "storm"):
        return (*_RUNNER, *NUMERIC)
    return _RUNNER


def how_to_install(modules: Iterable[str] = NUMERIC) -> str:
    """The command that installs what has ``modules``."""
    if _is_distribution("asyncli-light") and not {*modules}.difference(_RUNNER):
        return "pip install 'asyncli-light[runner]'"
    for distribution in _SMALL:
        if _is_distribution(distribution):
            # Both own the same files: the one that is removed last would take the other's.
            return f"pip uninstall {distribution}, then pip install asyncli"
    return "pip install asyncli"


def _is_distribution(name: str) -> bool:
    # Here: it takes longer than all of --help.
    import importlib.metadata

    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
