"""The header of the PROXY protocol (haproxy.org, doc/proxy-protocol.txt): a proxy sends the server
the client's address.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address

# Reserved for benchmarks: no host of the Internet has such an address (RFC 2544, RFC 5180).
_FIRST: dict[int, IPv4Address | IPv6Address] = {
    4: IPv4Address("198.18.0.0"),
    6: IPv6Address("2001:2::"),
}
# The addresses of 198.18.0.0/15 without its first and last, and as many of 2001:2::/48; beyond that
# the port differs.
_ADDRESSES, _FIRST_PORT, _PORTS = 2**17 - 2, 1024, 2**16 - 1024
_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_PROXIED, _STREAM_OF = 0x21, {4: 0x11, 6: 0x21}


class ProxyHeader:
    """Headers of connections to ``address`` and ``port``; ``version`` "v1" is text, "v2" binary.
    For a Unix socket (no port) the destination is 127.0.0.1, as if a proxy on its host had accepted
    the connection there.
    """

    def __init__(self, version: str, address: str, port: int) -> None:
        self._text, self._port = version == "v1", port
        self._to: IPv4Address | IPv6Address
        address = address if port else "127.0.0.1"
        self._to = (
            IPv6Address(address.partition("%")[0]) if ":" in address else IPv4Address(address)
        )

    def of(self, n: int) -> bytes:
        """The header of connection ``n``: its source is 198.18.0.1 + n, or 2001:2::1 + n, port
        1024.
        """
        turn, place = divmod(n, _ADDRESSES)
        to, port = self._to, _FIRST_PORT + turn % _PORTS
        source = _FIRST[to.version] + 1 + place
        if self._text:
            return f"PROXY TCP{to.version} {source} {to} {port} {self._port}\r\n".encode()
        ends = source.packed + to.packed + struct.pack(">HH", port, self._port)
        return _SIGNATURE + struct.pack(">BBH", _PROXIED, _STREAM_OF[to.version], len(ends)) + ends
