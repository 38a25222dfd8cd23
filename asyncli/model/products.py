"""Server products that asyncli knows by name: how their programs and Server headers call them, and
their status pages.
"""

from __future__ import annotations

import math

import msgspec

# Programs and labels, in small letters, by the product whose settings they have.
_CALLED = {
    "nginx": "nginx",
    "openresty": "nginx",
    "tengine": "nginx",
    "angie": "nginx",
    "freenginx": "nginx",
    "apache": "Apache",
    "apache2": "Apache",
    "httpd": "Apache",
    "haproxy": "HAProxy",
}
#: Programs that are nginx.
NGINXES = frozenset(name for name, product in _CALLED.items() if product == "nginx")
#: Servers whose status page is read, each with what ``--status-url`` must name there
#: (collect/status_pages.py parses them).
STATUS_PAGES = {"nginx": "stub_status", "Apache": "server-status?auto", "HAProxy": ";csv"}


class Frontend(msgspec.Struct, frozen=True):
    """A frontend of HAProxy: its open sessions (scur), and how many it may have (slim). Or all of
    them together: current conns, and the global maxconn.
    """

    open: int
    limit: int


class Backend(msgspec.Struct, frozen=True):
    """The servers of a backend of HAProxy together: their open sessions (scur), and how many these
    may have (slim); None: no limit, or not all of them have one. ``is_tcp``: it passes on whole
    connections (mode tcp), not requests.
    """

    open: int
    limit: int | None
    is_tcp: bool = False

    @property
    def room(self) -> float:
        """How many more sessions they may have; infinite without a limit."""
        if self.limit is None:
            return math.inf
        return max(0, self.limit - self.open)


def product_of(name: str) -> str:
    """The product of a program (``apache2``) or of a label (``openresty/1.25``); "" for one that is
    not known.
    """
    return _CALLED.get(name.partition("/")[0].lower(), "")
