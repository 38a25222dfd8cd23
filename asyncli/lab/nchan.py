"""A private nginx with the Nchan module, which holds WebSockets and event streams by itself, without a backend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from asyncli.errors import HostError
from asyncli.lab.base import quoted
from asyncli.lab.nginx import LabNginx

MODULE = "ngx_nchan_module.so"


class LabNchan(LabNginx):
    """As :class:`LabNginx`, but each path is a subscription to one channel, by WebSocket or as server-sent events: who asks
    says which, and ``scheme`` what its URL says. What is posted to ``/publish`` beside the status page goes to all subscribers.
    """

    name = "nchan"
    speaks_http2 = False
    scheme, also = "ws", "http"

    @property
    def label(self) -> str:
        """For example ``nginx/1.22.1 (Nchan)``."""
        return f"{super().label} (Nchan)"

    async def _prepare(self) -> None:
        await super()._prepare()
        assert self._binary is not None
        self._module = Path(self._binary.modules, MODULE)
        if not self._module.is_file():
            raise HostError("this host's nginx has no Nchan module; install it (apt-get install libnginx-mod-nchan)")

    def _values(self) -> Mapping[str, object]:
        return {
            **super()._values(),
            "modules": f"load_module {quoted(self._module)};",
            # It pings nobody: heartbeats are the client's.
            "answer": "nchan_subscriber websocket eventsource;\n            nchan_channel_id soak;",
            "beside_status": "location = /publish {\n            nchan_publisher;\n            nchan_channel_id soak;\n        }",
        }
