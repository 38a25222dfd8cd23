"""Reading a broker's topics: each value once, at its publication; what is wrong with a broker is said in one line."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from programs import serving, speaking
from test_mqtt_packets import CLIENTS, HEAP, publish

from asyncli.collect import broker_reader
from asyncli.collect.broker_reader import BrokerReader
from asyncli.collect.metric_rules import BROKER_UPTIME, Product
from asyncli.collect.metric_values import mapped_product
from asyncli.collect.metrics_reader import MetricsPages
from asyncli.lab.certificate import issue
from asyncli.model.errors import PeerError, UntrustedPeerError
from asyncli.model.metrics_map import mapped_metric
from asyncli.model.values import TlsOptions

Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ACCEPTED = b"\x20\x02\x00\x00"
PONG = b"\xd0\x00"
RETAINED = publish(BROKER_UPTIME, b"9 seconds", retained=True) + publish(CLIENTS, b"3", retained=True) + publish(HEAP, b"50000", retained=True)
SECRET = "tiger-4711"


async def packet(reader: asyncio.StreamReader) -> bytes:
    """The next packet of a client; b"" if it has gone."""
    head = await reader.read(2)
    if len(head) < 2:
        return b""
    size = head[1]
    if size >= 0x80:
        head += await reader.readexactly(1)
        size = size - 0x80 + 0x80 * head[2]
    return head + await reader.readexactly(size)


def granted(subscribe: bytes) -> bytes:
    """The SUBACK that grants all."""
    topics = 0
    at = 5 if subscribe[1] >= 0x80 else 4
    while at < len(subscribe):
        at += 3 + int.from_bytes(subscribe[at : at + 2])
        topics += 1
    return bytes((0x90, 2 + topics, 0, 1)) + b"\x00" * topics


def a_broker(*rounds: bytes, retained: bytes = RETAINED, heard: list[bytes] | None = None) -> Client:
    """A broker that sends the next of ``rounds`` before each PINGRESP but the first, and then goes on without."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting: Iterator[bytes] = iter((b"", *rounds))
        while request := await packet(reader):
            if heard is not None:
                heard.append(request)
            match request[0] >> 4:
                case 1:
                    writer.write(ACCEPTED)
                case 8:
                    writer.write(granted(request) + retained)
                case 12:
                    writer.write(next(waiting, b"") + PONG)
                case 14:
                    break
        writer.close()

    return client


def says(*answers: bytes, then: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None) -> Client:
    """A broker that answers so to each packet, and then closes the connection."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            request = await packet(reader)
            writer.write(granted(request) if answer == b"granted" else answer)
        if then is not None:
            await then(writer)
        writer.close()

    return client


async def readings(client: Client, count: int, mapped: Product | None = None) -> list[dict[str, float]]:
    with speaking(client) as at:
        reader = BrokerReader(f"mqtt://{at}/", mapped=mapped)
        try:
            values = [await reader.read() for _ in range(count)]
        finally:
            await reader.close()
        # The broker reads the DISCONNECT, and ends.
        await asyncio.sleep(0.2)
    return values


async def refusal(client: Client, login: str = "") -> str:
    with speaking(client) as at:
        reader = BrokerReader(f"mqtt://{login}{at}/")
        try:
            with pytest.raises(PeerError) as caught:
                await reader.read()
        finally:
            await reader.close()
    message = str(caught.value)
    assert message.startswith(f"broker mqtt://{'***@' if login else ''}{at}/: ")
    assert message.isprintable()
    assert len(message) < 400
    assert SECRET not in message
    return message


async def test_each_value_is_read_once_at_its_publication() -> None:
    heard: list[bytes] = []
    update = publish(BROKER_UPTIME, b"19 seconds") + publish(HEAP, b"60000")
    grown = publish(BROKER_UPTIME, b"29 seconds") + publish(CLIENTS, b"8") + publish(HEAP, b"61000")
    first, second, third, fourth, fifth = await readings(a_broker(update, b"", grown, heard=heard), 5)
    own = {"status.connects": 1, "status.unanswered": 0}
    assert first == third == fifth == {}
    assert second == {"runtime.allocated_bytes": 60000, "status.active": 3, "status.polls": 2, **own}
    assert fourth == {"runtime.allocated_bytes": 61000, "status.active": 8, "status.polls": 4, **own}
    assert [request[0] >> 4 for request in heard][:8] == [1, 8, 12, 12, 12, 12, 12, 14]


async def test_a_count_alone_is_of_now_and_the_others_are_not() -> None:
    _, second = await readings(a_broker(publish(CLIENTS, b"4")), 2)
    assert second["status.active"] == 4
    assert "runtime.allocated_bytes" not in second


async def test_what_reads_and_where_it_is_from() -> None:
    with speaking(a_broker(*(publish(BROKER_UPTIME, b"%d seconds" % uptime_s) for uptime_s in (19, 30)))) as at:
        reader = BrokerReader(f"mqtt://me:{SECRET}@{at}/")
        for _ in range(3):
            await reader.read()
        await reader.close()
    assert reader.source.url == f"mqtt://***@{at}/"
    assert reader.source.products == ("mosquitto",)
    assert reader.source.active_by == CLIENTS
    assert reader.source.interval_s == 11.0


async def test_a_broker_that_remembers_nothing_but_its_uptime() -> None:
    only_uptime = publish(BROKER_UPTIME, b"900 seconds", retained=True)
    update = publish(BROKER_UPTIME, b"911 seconds") + publish(CLIENTS, b"2") + publish(HEAP, b"60000")
    first, second = await readings(a_broker(update, retained=only_uptime), 2)
    assert first == {}
    assert second["status.active"] == 2


async def test_a_topic_that_the_user_names_has_our_connection_in_it() -> None:
    named = mapped_product([mapped_metric("active=stats/open")], counts_scrape=True)
    _, second = await readings(a_broker(publish("stats/open", b"12"), retained=publish("stats/open", b"1", retained=True)), 2, mapped=named)
    assert second["status.active"] == 12


async def test_what_came_in_a_long_pause_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(broker_reader.time, "monotonic", lambda: now_s[0])
    update = publish(BROKER_UPTIME, b"19 seconds") + publish(CLIENTS, b"8")
    with speaking(a_broker(update, update)) as at:
        reader = BrokerReader(f"mqtt://{at}/")
        await reader.read()
        now_s[0] = 1003.0
        assert await reader.read() == {}
        now_s[0] = 1004.0
        assert (await reader.read())["status.active"] == 8
        await reader.close()


async def test_a_connection_that_ends_is_an_outage_and_then_opened_again() -> None:
    opened: list[bytes] = []
    good = a_broker(publish(CLIENTS, b"8"))

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(b"")
        if len(opened) == 1:
            await says(ACCEPTED, b"granted", RETAINED + PONG)(reader, writer)
        else:
            await good(reader, writer)

    with speaking(client) as at:
        reader = BrokerReader(f"mqtt://{at}/")
        pages = MetricsPages([reader], has_status_page=False)
        (poll,) = pages.polls.values()
        await pages.open()
        with pytest.raises(PeerError, match="cannot be read"):
            await poll(False)
        # What it had before is of an unknown instant.
        assert (await poll(False)).values == {}
        values = (await poll(False)).values
        await pages.close()
    assert values["status.active"] == 8
    assert values["status.connects"] == 2
    assert values["status.unanswered"] == 1


async def test_a_broker_that_publishes_late_is_waited_for() -> None:
    """aedes sends what it retains a while after the SUBACK; amqtt retains nothing."""
    late = publish("$SYS/3f-a/uptime", b"7") + publish("$SYS/3f-a/clients/total", b"4")
    with speaking(a_broker(b"", late, retained=b"")) as at:
        reader = BrokerReader(f"mqtt://{at}/")
        try:
            values = await reader.read()
        finally:
            await reader.close()
    assert values["status.active"] == 4
    assert reader.source.products == ("aedes",)
    assert reader.source.active_by == "$SYS/+/clients/total"


@pytest.mark.parametrize(
    ("client", "why", "remedy"),
    [
        (says(b"\x20\x02\x00\x05"), "CONNACK 5: not authorized", "mqtt://USER:PASSWORD@HOST/"),
        (says(b"\x20\x02\x00\x04"), "CONNACK 4: bad user name or password", "mqtt://USER:PASSWORD@HOST/"),
        (says(b"\x20\x02\x00\x01"), "CONNACK 1: unacceptable protocol version", "the broker's log"),
        (says(b"\x20\x02\x00\x7f"), "CONNACK 127: a code that MQTT does not have", "the broker's log"),
        (says(b"\x20\x00"), "CONNACK that is malformed", "a broker of MQTT 3.1.1"),
        (says(b""), "it closed the connection", "the broker runs"),
        (says(PONG), "a packet of type 13 out of turn", "a broker of MQTT 3.1.1"),
        (says(ACCEPTED, b"\x90\x0b\x00\x01" + b"\x80" * 9), "SUBACK that does not answer", "a broker of MQTT 3.1.1"),
        (says(ACCEPTED, b"\x90\x0a\x00\x01" + b"\x80" * 8), "refuses the subscription", "access list"),
        (says(ACCEPTED, b"granted", *[PONG] * 20), "publishes no topic that asyncli knows", "sys_interval 1"),
        (says(ACCEPTED, b"granted", *[publish(CLIENTS, b"many") + PONG] * 20), "publishes no topic that asyncli knows", "--metrics-map active=TOPIC"),
        (says(ACCEPTED, b"granted", b"\x30\x02\x00\x09"), "a PUBLISH that ends in its topic", "a broker of MQTT 3.1.1"),
        (says(ACCEPTED, b"granted", b"\x32\x03\x00\x01a"), "begins with 0x32", "a broker of MQTT 3.1.1"),
        (says(ACCEPTED, b"granted", ACCEPTED), "a packet of type 2 out of turn", "a broker of MQTT 3.1.1"),
    ],
    ids=range(14),
)
async def test_a_broker_that_cannot_be_used_says_why(client: Client, why: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_reader, "_FIRST_TOPICS_S", 0.3)
    message = await refusal(client, f"me:{SECRET}@")
    assert why in message
    assert remedy in message


async def test_a_web_server_is_no_broker() -> None:
    with serving() as server:
        reader = BrokerReader(server.url.replace("http", "mqtt"))
        with pytest.raises(PeerError):
            await reader.read()
        await reader.close()


async def test_nothing_listens() -> None:
    reader = BrokerReader("mqtt://127.0.0.1:1/")
    with pytest.raises(PeerError, match="Connection refused"):
        await reader.read()
    await reader.close()


@pytest.mark.parametrize("begins", [(), (ACCEPTED,), (ACCEPTED, b"granted")], ids=["connect", "subscribe", "ping"])
async def test_a_silent_broker_is_given_up(monkeypatch: pytest.MonkeyPatch, begins: tuple[bytes, ...]) -> None:
    monkeypatch.setattr(broker_reader, "TIMEOUT_S", 0.3)

    async def wait(_: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    assert "0.3 s" in await refusal(says(*begins, then=wait))


@pytest.mark.parametrize("flood", [publish("a", b"1"), publish(CLIENTS, b"1"), b"\x30\xff\xff\x03" + b"a" * 65_535], ids=["small", "wanted", "long"])
async def test_gigabytes_are_cut_off(flood: bytes) -> None:
    sent = [0]

    async def pour(writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(flood * (65_536 // len(flood) + 1))
            sent[0] += 65_536
            await writer.drain()

    message = await refusal(says(ACCEPTED, b"granted", b"", then=pour))
    assert "sends " in message
    assert sent[0] < 100_000_000


async def test_a_trickle_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_reader, "TIMEOUT_S", 0.5)

    async def trickle(writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(publish(CLIENTS, b"1"))
            await writer.drain()
            await asyncio.sleep(0.02)

    assert "no answer" in await refusal(says(ACCEPTED, b"granted", then=trickle))


async def test_answers_that_nobody_asked_for_are_no_answers() -> None:
    with speaking(says(ACCEPTED, b"granted", RETAINED + PONG + PONG, PONG)) as at:
        reader = BrokerReader(f"mqtt://{at}/")
        await reader.read()
        with pytest.raises(PeerError, match="out of turn"):
            await reader.read()
        await reader.close()


async def test_impossible_counts_are_not_used() -> None:
    with speaking(a_broker(publish(CLIENTS, b"99999999999999"), publish(CLIENTS, b"nan"), publish(CLIENTS, b"5"))) as at:
        reader = BrokerReader(f"mqtt://{at}/")
        values = [await reader.read() for _ in range(4)]
        await reader.close()
    assert [reading.get("status.active") for reading in values] == [None, None, None, 5]


async def test_tls(tmp_path: Path) -> None:
    issued = issue("127.0.0.1")
    pem, authority = tmp_path / "server.pem", tmp_path / "authority.pem"
    pem.write_bytes(issued.key + issued.certificate)
    authority.write_bytes(issued.authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with speaking(a_broker(publish(CLIENTS, b"4")), context) as at:
        reader = BrokerReader(f"mqtts://{at}/", TlsOptions(ca=str(authority)))
        await reader.read()
        assert (await reader.read())["status.active"] == 4
        await reader.close()
        stranger = BrokerReader(f"mqtts://{at}/")
        with pytest.raises(UntrustedPeerError, match="--ca"):
            await stranger.read()
        await stranger.close()
    with speaking(a_broker()) as at:
        reader = BrokerReader(f"mqtts://{at}/", TlsOptions(ca=str(authority)))
        with pytest.raises(PeerError, match=r"mqtt://|no answer"):
            await reader.read()
        await reader.close()
