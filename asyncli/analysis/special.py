"""SciPy's distribution functions, without the parts of SciPy that they do not use.

They are in one compiled module. Its package, ``scipy.special``, also reads and rewrites the
documentation of a hundred functions and imports all of NumPy: three quarters of its import, in each
command that reports. Here the module is imported while its package is in place but not executed;
whoever imports the package later gets all of it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from types import ModuleType

__all__ = ["chdtri", "ndtri", "stdtr", "stdtrit"]

_PACKAGE = "scipy.special"


def _functions() -> ModuleType:
    """The module that has the functions: the compiled one, or the package, if that is imported
    already or if another version of SciPy has the functions elsewhere.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or _PACKAGE in sys.modules:
        return importlib.import_module(_PACKAGE)
    sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    compiled = None
    with contextlib.suppress(ImportError):
        compiled = importlib.import_module(f"{_PACKAGE}._ufuncs")
    # So that the next import of the package executes it.
    del sys.modules[_PACKAGE]
    if compiled is not None and all(hasattr(compiled, name) for name in __all__):
        return compiled
    return importlib.import_module(_PACKAGE)


_scipy = _functions()
chdtri = _scipy.chdtri
ndtri = _scipy.ndtri
stdtr = _scipy.stdtr
stdtrit = _scipy.stdtrit
