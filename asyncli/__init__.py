"""asyncli: a long-connection soak tester that measures what one more connection costs, with an
error bar.

In Python and in notebooks: ``run = asyncli.load("run.db")``, or ``run = await
asyncli.soak("http://127.0.0.1:8080/")``; see asyncli/api.py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncli.api import Recorded, compare, lab_server, load, make_plan, soak
    from asyncli.app.soak import Soak
    from asyncli.model.plan import Plan

__version__: str
__all__ = [
    "Plan",
    "Recorded",
    "Soak",
    "__version__",
    "compare",
    "lab_server",
    "load",
    "make_plan",
    "soak",
]

# Imported on first use: the host process and `--help` import this package and need none of it.
_HOMES = {"Plan": "asyncli.model.plan", "Soak": "asyncli.app.soak"} | dict.fromkeys(
    ("Recorded", "compare", "lab_server", "load", "make_plan", "soak"), "asyncli.api"
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        found = importlib.import_module("asyncli.version").version()
        globals()[name] = found
        return found
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    blas = importlib.import_module("asyncli.model.blas")
    blas.use_one_thread()
    home = importlib.import_module(_HOMES[name])
    blas.leave_environment()
    return getattr(home, name)


def __dir__() -> list[str]:
    return __all__
