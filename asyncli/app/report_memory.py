"""What a report needs is imported before the run: with too little memory the run is refused, and no
verdict is lost after it.

NumPy and SciPy map OpenBLAS, which takes memory for each CPU, and ends the process or spins where
it gets none.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import subprocess
import sys

from asyncli.model.blas import leave_environment, use_one_thread
from asyncli.model.errors import HostError
from asyncli.model.installed import can_compute
from asyncli.model.secret_variables import for_child
from asyncli.model.units import format_bytes

# With what they import: most of asyncli.
_MODULES = ("asyncli.app.soak", "asyncli.app.results")
_OF_COSTS = ("asyncli.analysis.special",)
_OF_A_PAGE = ("asyncli.report.figures.pictures", "matplotlib.backends.backend_svg")
# What the run and its report take beyond the imports: threads' stacks, records, figures. Measured:
# 90 MB.
_SPARE_BYTES = 160 << 20
# An import takes a second, on a busy machine several.
_PATIENCE_S = 60.0
# mallopt(3): M_ARENA_MAX.
_ARENA_MAX = -8


def require_memory(*, page: bool = False) -> None:
    """Raise :class:`HostError` if a limit of this process (``ulimit -v`` or ``-d``) leaves too
    little memory for a report; ``page``: and its page.
    """
    # Runs are read on machines without it.
    import resource

    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    limited = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    if limited:
        _try_in_a_child(min(limited), _modules(page))
        # Each thread would reserve 64 MiB of addresses for its allocations.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def import_report(*, page: bool = False) -> None:
    """Import what a report needs; ``page``: and its page.

    Raises :class:`HostError` if it cannot be loaded.
    """
    use_one_thread()
    try:
        for name in _modules(page):
            importlib.import_module(name)
    except (ImportError, MemoryError, OSError) as error:
        why = " ".join(str(error).split())[:200]
        remedy = "see that asyncli is whole, and how much memory this process may have (ulimit -v)"
        raise HostError(f"what a report needs cannot be loaded ({why}); {remedy}") from None
    leave_environment()


def _modules(page: bool) -> tuple[str, ...]:
    modules: tuple[str, ...] = _MODULES
    if can_compute():
        modules += _OF_COSTS
    if page:
        modules += _OF_A_PAGE
    return modules


def _try_in_a_child(limit: int, modules: tuple[str, ...]) -> None:
    """The same imports in a process that may fail, or hang, in place of this one."""
    code = f"import {', '.join(modules)}, mmap; mmap.mmap(-1, {_SPARE_BYTES})"
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env=for_child(),
            timeout=_PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        fits = ended.returncode == 0
    except (subprocess.TimeoutExpired, OSError):
        fits = False
    if not fits:
        raise HostError(
            f"this process may have {format_bytes(limit)} of memory (ulimit -v or -d), "
            "too little for the report of a run; raise the limit, for example: ulimit -v 1000000"
        )
