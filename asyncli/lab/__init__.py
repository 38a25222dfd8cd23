"""Local servers to aim at; :mod:`asyncli.lab.servers` knows them by name."""

from __future__ import annotations

from asyncli.lab.servers import NAMES, LabServer, choose, kind_of, url_of

__all__ = ["NAMES", "LabServer", "choose", "kind_of", "url_of"]
