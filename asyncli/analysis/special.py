"""SciPy's distribution functions, without the parts of NumPy that they do not use.

``scipy.special`` runs ``from numpy import *``, which imports every submodule of NumPy: f2py,
testing, random and more take half of its import, in each command that reports. Here they become
lazy modules: whoever uses one still gets it, at its first use.
"""

from __future__ import annotations

import importlib.util
import sys

import numpy as np

_UNUSED = (
    "char",
    "ctypeslib",
    "f2py",
    "fft",
    "ma",
    "polynomial",
    "random",
    "rec",
    "strings",
    "testing",
    "typing",
)


def _import_lazily(name: str) -> None:
    """Put a submodule of NumPy in place, to be executed when its first attribute is read."""
    full_name = f"numpy.{name}"
    if full_name in sys.modules:
        return
    spec = importlib.util.find_spec(full_name)
    if spec is None or spec.loader is None:
        # Not in this version of NumPy.
        return
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[full_name] = module
    spec.loader.exec_module(module)
    vars(np)[name] = module


if "scipy.special" not in sys.modules:
    for _name in _UNUSED:
        _import_lazily(_name)

from scipy.special import chdtri, ndtri, stdtr, stdtrit  # noqa: E402

__all__ = ["chdtri", "ndtri", "stdtr", "stdtrit"]
