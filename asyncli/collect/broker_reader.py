"""Reads the $SYS topics of an MQTT broker as a page of metrics, over one kept connection.

Each reading is a PINGREQ: a broker answers in order, so what it has published by then has come with
the PINGRESP. Nothing is read between two readings.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
import time
from collections import deque

from asyncli.collect.broker_topics import BrokerTopics, topics_of
from asyncli.collect.http import reason
from asyncli.collect.locate import MetricsSource
from asyncli.collect.metric_rules import BROKER_UPTIME, NAMED_BROKER_UPTIME, Product
from asyncli.collect.metric_values import PageValues
from asyncli.collect.metrics_page import MetricsPage
from asyncli.collect.mqtt_packets import (
    CONNACK,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBLISH,
    SUBACK,
    BrokenMqttError,
    Packet,
    PacketReader,
    connect_packet,
    is_granted,
    publication_of,
    return_code,
    subscribe_packet,
)
from asyncli.collect.page_counts import ImpossibleCountsError, PageCounts
from asyncli.collect.probe_budget import SHORTEST_PERIOD_S
from asyncli.collect.risen_row import Scrapes
from asyncli.model.certificates import client_context
from asyncli.model.errors import PeerError, UntrustedPeerError
from asyncli.model.masks import masked_page
from asyncli.model.mqtt_values import REASONS
from asyncli.model.status_place import BrokerPlace, broker_place
from asyncli.model.text import oneline
from asyncli.model.values import TlsOptions

#: For one reading, connecting included.
TIMEOUT_S = 2.0
#: What came since an earlier reading may be of any instant since then.
_LONGEST_PAUSE_S = 2.0
# How long to wait for the first topics: brokers that publish each second do so within this.
_FIRST_TOPICS_S = 1.5
_FIRST_TOPICS_POLL_S = 0.1
# The broker ends a connection that was silent for 1.5 times this (MQTT 3.1.1, section 3.1.2.10).
_KEEP_ALIVE_S = 60
# A broker that counts less often is of no use.
_LONGEST_INTERVAL_S = 3600.0
# A broker has some ten bytes to say in each second.
_MOST_BYTES = 65_536
_READ_BYTES = 16_384
_CLOSE_S = 0.5
# MQTT 3.1.1, section 3.2.2.3: bad user name or password, not authorized.
_LOGIN_CODES = (4, 5)

_UNREACHED = (
    "see that the broker runs and --server-metrics names its host and port, or leave it out"
)
_NO_BROKER = "aim --server-metrics at a broker of MQTT 3.1.1, or leave it out"
_REFUSED = "see the broker's log"
_LOGIN = "write its login into --server-metrics (mqtt://USER:PASSWORD@HOST/)"
_MAY_NOT_READ = "let this login read $SYS/# in the broker's access list"
_NO_TOPICS = (
    "let this login read $SYS/#, and have the broker publish it (mosquitto, amqtt: sys_interval "
    "1), or name a topic with --metrics-map active=TOPIC"
)
_WRONG_COUNTS = "see what broker this is, or leave --server-metrics out"


class BrokerReader:
    """Reads one broker. For one event loop; close it.

    ``options``: for mqtts. Raises :class:`~asyncli.model.errors.HostError` if their files cannot be
    read.
    """

    def __init__(
        self, url: str, options: TlsOptions | None = None, mapped: Product | None = None
    ) -> None:
        self._place = broker_place(url)
        #: For display, without its login.
        self.url = masked_page(url)
        self._tls: ssl.SSLContext | None = None
        if self._place.target.secure:
            self._tls = client_context(options or TlsOptions(), offered=())
        self._pages = PageValues(mapped)
        self._counts = PageCounts(self._pages)
        self._topics = topics_of(self._pages.wanted.names)
        self._subscription: _Subscription | None = None
        self._connects = 0
        self._asked = 0
        self._answered = 0
        #: The broker's uptime when it last counted, and how long after the time before (s).
        self._uptime_s: float | None = None
        self._interval_s = SHORTEST_PERIOD_S
        #: Topics name what they count, so none is looked for.
        self.rows: dict[str, float] = {}
        #: Topics come when the broker publishes them.
        self.missing: dict[str, str] | None = None
        #: No broker publishes it as a page has it.
        self.started_s: float | None = None

    @property
    def source(self) -> MetricsSource:
        """What is read, for the run's environment; its interval is the broker's."""
        return self._pages.source_at(self.url, self._interval_s)

    @property
    def is_due(self) -> bool:
        """In each second: a publication that waits is of an unknown instant."""
        return True

    async def read(self) -> dict[str, float]:
        """What the broker has published since the last reading, as ``runtime.*`` and ``status.*``
        metrics; the counts include our own connection. Empty in most seconds.

        Raises :class:`PeerError` if it does not answer in time, refuses us, or has no topic that
        asyncli knows.
        """
        asked_s = time.monotonic()
        subscription = await self._ask()
        if not self._pages.products:
            subscription = await self._await_topics(subscription)
            asked_s = time.monotonic()
        pause_s = asked_s - subscription.read_s
        subscription.read_s = time.monotonic()
        self._recognise(subscription.topics.page())
        page = subscription.topics.page_of_now()
        if not page.families or pause_s > _LONGEST_PAUSE_S:
            return {}
        self._note_interval(page)
        return self._pages.runtime(page) | self._count(page, asked_s)

    async def close(self) -> None:
        if self._subscription is None:
            return
        subscription = self._subscription
        self._subscription = None
        await subscription.leave()

    async def _ask(self) -> _Subscription:
        """The subscription after an answer. One that failed in any way is given up."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                subscription = await self._ping()
        except BaseException as error:
            self._abort()
            explained = self._explained(error)
            if explained is None:
                raise
            raise explained from None
        self._answered += 1
        return subscription

    async def _await_topics(self, subscription: _Subscription) -> _Subscription:
        """Wait for what the broker publishes first: it may retain nothing (amqtt), or send what it
        retains a while after the SUBACK (aedes).
        """
        until_s = time.monotonic() + _FIRST_TOPICS_S
        while time.monotonic() < until_s and not subscription.topics.page().families:
            await asyncio.sleep(_FIRST_TOPICS_POLL_S)
            subscription = await self._ask()
        return subscription

    def _recognise(self, everything: MetricsPage) -> None:
        """Raise :class:`PeerError` if nothing that the broker has ever published is known."""
        self._pages.recognise(everything)
        if not self._pages.products:
            self._abort()
            raise self._error("publishes no topic that asyncli knows", _NO_TOPICS)
        # So it is known which topic counts, before the broker counts again.
        self._pages.page_counts(everything)

    def _count(self, page: MetricsPage, asked_s: float) -> dict[str, float]:
        scrapes = Scrapes(float(self._connects), float(self._asked), float(self._answered))
        try:
            return self._counts.of(page, asked_s, scrapes)
        except ImpossibleCountsError as error:
            complaint = f"has impossible counts, so it is not used: {error}"
            raise self._error(complaint, _WRONG_COUNTS) from None

    async def _ping(self) -> _Subscription:
        """The subscription, with all that the broker has published by now. A new one if there is
        none, or if it has ended.
        """
        if self._subscription is None:
            self._subscription = await self._connect()
        self._asked += 1
        await self._subscription.ask(PINGREQ, PINGRESP)
        return self._subscription

    async def _connect(self) -> _Subscription:
        target = self._place.target
        name = target.name if self._tls else None
        reader, writer = await asyncio.open_connection(
            target.host, target.port, ssl=self._tls, server_hostname=name
        )
        self._connects += 1
        subscription = _Subscription(reader, writer, BrokerTopics(self._topics))
        try:
            await subscription.begin(self._place, self._topics)
        except BaseException:
            subscription.abort()
            raise
        return subscription

    def _abort(self) -> None:
        if self._subscription is not None:
            self._subscription.abort()
            self._subscription = None

    def _note_interval(self, page: MetricsPage) -> None:
        """By the broker's clock: ours knows a publication to a second."""
        uptime = page.families.get(BROKER_UPTIME) or page.families.get(NAMED_BROKER_UPTIME)
        if uptime is None:
            return
        uptime_s = uptime.rows[0].value
        since_s = uptime_s - (self._uptime_s or 0.0)
        if self._uptime_s is not None and 0.0 < since_s <= _LONGEST_INTERVAL_S:
            self._interval_s = since_s
        self._uptime_s = uptime_s

    def _explained(self, error: BaseException) -> PeerError | None:
        """An error of a reading, with its remedy; None for one that is not the broker's."""
        if isinstance(error, TimeoutError):
            return self._error(f"no answer in {TIMEOUT_S:g} s", _UNREACHED)
        if isinstance(error, _RefusedByBrokerError):
            return self._error(str(error), error.remedy)
        if isinstance(error, BrokenMqttError):
            return self._error(str(error), _NO_BROKER)
        if isinstance(error, ssl.SSLCertVerificationError):
            remedy = "name its authority with --ca, and the host as the certificate does"
            return self._untrusted(f"its certificate is not trusted ({reason(error)})", remedy)
        if isinstance(error, ssl.SSLError):
            remedy = "write mqtt:// if it does not speak TLS"
            return self._untrusted(f"TLS fails ({reason(error)})", remedy)
        if isinstance(error, OSError):
            return self._error(f"cannot be read ({reason(error)})", _UNREACHED)
        return None

    def _untrusted(self, complaint: str, remedy: str) -> PeerError:
        return UntrustedPeerError(*self._error(complaint, remedy).args)

    def _error(self, complaint: str, remedy: str) -> PeerError:
        return PeerError(f"broker {self.url}: {oneline(complaint)}; {remedy}")


class _RefusedByBrokerError(Exception):
    """The broker refuses us. Its text says what it refuses."""

    def __init__(self, complaint: str, remedy: str) -> None:
        super().__init__(complaint)
        self.remedy = remedy


class _Subscription:
    """One connection to the broker. ``read_s``: when it was last read (s on the monotonic
    clock).
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, topics: BrokerTopics
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._packet_reader = PacketReader()
        self._waiting: deque[Packet] = deque()
        self.topics = topics
        self.read_s = time.monotonic()

    async def begin(self, place: BrokerPlace, topics: list[str]) -> None:
        """Log in, and subscribe. Raises :class:`_RefusedByBrokerError`."""
        # At most 23 letters and digits, which each broker accepts (section 3.1.3.1).
        client_id = f"asyncli{secrets.token_hex(6)}"
        connect = connect_packet(client_id, _KEEP_ALIVE_S, place.user, place.password)
        code = return_code(await self.ask(connect, CONNACK))
        if code:
            why = REASONS.get(code, "a code that MQTT does not have")
            remedy = _LOGIN if code in _LOGIN_CODES else _REFUSED
            raise _RefusedByBrokerError(f"refuses the connection (CONNACK {code}: {why})", remedy)
        suback = await self.ask(subscribe_packet(topics), SUBACK)
        if not is_granted(suback, len(topics)):
            raise _RefusedByBrokerError(
                "refuses the subscription to its $SYS topics", _MAY_NOT_READ
            )

    async def ask(self, request: bytes, answer: int) -> bytes:
        """Send a packet and return the body of its answer. What is published before the answer is
        taken into :attr:`topics`.

        Raises :class:`BrokenMqttError` if it sends something else, or too much.
        """
        while self._waiting:
            self._take(self._waiting.popleft())
        self._writer.write(request)
        await self._writer.drain()
        left = _MOST_BYTES
        while True:
            while self._waiting:
                packet = self._waiting.popleft()
                if packet.kind == answer:
                    return packet.body
                self._take(packet)
            data = await self._reader.read(_READ_BYTES)
            if not data:
                raise ConnectionResetError("it closed the connection")
            left -= len(data)
            if left < 0:
                raise BrokenMqttError(f"sends more than {_MOST_BYTES:,} bytes between two PINGREQs")
            self._waiting.extend(self._packet_reader.feed(data))

    def _take(self, packet: Packet) -> None:
        """A publication: it may also come before the SUBACK (section 3.8.4)."""
        if packet.kind != PUBLISH:
            raise BrokenMqttError(f"sends a packet of type {packet.kind} out of turn")
        self.topics.take(publication_of(packet))

    async def leave(self) -> None:
        """Send DISCONNECT (section 3.14) and close, within a bounded time."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                self._writer.write(DISCONNECT)
                await self._writer.drain()
                self._writer.close()
                await self._writer.wait_closed()
        self.abort()

    def abort(self) -> None:
        self._writer.transport.abort()
