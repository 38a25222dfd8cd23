"""Local servers to aim at; :mod:`asyncli.lab.servers` knows them by name."""

from __future__ import annotations

from asyncli.lab.servers import NAMES, choose, kind_of

__all__ = ["NAMES", "choose", "kind_of"]
