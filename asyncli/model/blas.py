"""NumPy's library of linear algebra, OpenBLAS, has a thread and a buffer for each CPU unless the
environment says otherwise when it is loaded. asyncli's matrices are small.
"""

from __future__ import annotations

import os

_VARIABLE = "OPENBLAS_NUM_THREADS"
# The variable, while asyncli has set it.
_ours: set[str] = set()


def use_one_thread() -> None:
    """Before NumPy is imported; a value that the user has set stays."""
    if _VARIABLE not in os.environ:
        os.environ[_VARIABLE] = "1"
        _ours.add(_VARIABLE)


def leave_environment() -> None:
    """After that: programs that asyncli starts shall not inherit it."""
    if _VARIABLE in _ours:
        os.environ.pop(_VARIABLE, None)
        _ours.clear()
