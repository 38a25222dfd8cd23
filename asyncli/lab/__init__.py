"""Local servers to test against; :mod:`asyncli.lab.servers` has them by name."""

from __future__ import annotations

from asyncli.lab.servers import NAMES, choose, kind_of

__all__ = ["NAMES", "choose", "kind_of"]
