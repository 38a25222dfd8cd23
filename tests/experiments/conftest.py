"""A fixture for experiments in network namespaces."""

from __future__ import annotations

import pytest

from asyncli.lab.executables import find_nginx
from asyncli.lab.network import Network
from asyncli.model.errors import HostError


@pytest.fixture
def in_namespaces() -> None:
    """Skip unless nginx is installed and namespaces can be made."""
    if find_nginx() is None:
        pytest.skip("no nginx")
    try:
        with Network({"a": "10.0.0.1/24"}):
            pass
    except HostError as error:
        pytest.skip(str(error))
