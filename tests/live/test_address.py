"""Where a server listens, what is said of that, and how it answers what is no request: of page and agent alike."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from programs import DEADLINE_S
from recording import write_run
from synthetic_run import a_run
from test_page_server import TOKEN, a_page

from asyncli.live import access
from asyncli.model.errors import AsyncliError
from asyncli.web.address import is_loopback, parse_address, url_of, warning_of_readers


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(a_run(200, hold_s=10.0), tmp_path_factory.mktemp("run") / "run.db")


@pytest.mark.parametrize(
    ("text", "place"),
    [("127.0.0.1:9166", ("127.0.0.1", 9166)), ("[::1]:0", ("::1", 0)), ("localhost:1", ("localhost", 1)), ("0.0.0.0:65535", ("0.0.0.0", 65535))],
)  # fmt: skip
def test_an_address_is_a_host_and_a_port(text: str, place: tuple[str, int]) -> None:
    assert parse_address("--web", text, "HOST:PORT") == place


@pytest.mark.parametrize("text", ["*:0", "*:9166", "::1", "::1:80", ":80", "host", "host:", "host:65536", "host:-1", "http://host:80/", "host:٣", ""])
def test_what_is_none_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(AsyncliError) as caught:
        parse_address("--web", text, "HOST:PORT")
    assert str(caught.value).startswith("--web: ")
    assert "\n" not in str(caught.value)


def test_all_addresses_are_told_by_name() -> None:
    assert url_of("0.0.0.0", 80, is_secure=False) == f"http://{socket.gethostname()}:80"
    assert url_of("::", 80, is_secure=True) == f"https://{socket.gethostname()}:80"
    assert url_of("::1", 80, is_secure=False) == "http://[::1]:80"
    assert url_of("10.0.0.8", 80, is_secure=False) == "http://10.0.0.8:80"


def test_a_name_is_loopback_if_all_its_addresses_are() -> None:
    assert is_loopback("--web", "localhost")
    assert is_loopback("--web", "127.3.2.1")
    assert is_loopback("--web", "::1")
    assert not is_loopback("--web", "0.0.0.0")
    with pytest.raises(AsyncliError, match="--web: "):
        is_loopback("--web", "no-such-host.invalid")


def test_a_token_that_others_can_read_is_told(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    assert warning_of_readers(str(file)) is None
    file.chmod(0o644)
    assert "chmod" in str(warning_of_readers(str(file)))


async def answer_to(port: int, request: bytes) -> bytes:
    """All that a server says until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(DEADLINE_S):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    "request_line", [b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n"]
)  # fmt: skip
async def test_what_is_no_request_is_answered_without_names(ended: Path, request_line: bytes) -> None:
    async with a_page(ended) as (server, _):
        answer = (await answer_to(server.port, request_line)).lower()
    assert b" 400 " in answer.partition(b"\r\n")[0]
    assert b"server: asyncli" in answer
    for name in (b"aiohttp", b"python", b"llhttp", b"parser"):
        assert name not in answer


async def test_a_mark_whose_text_never_comes_is_given_up(ended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_CHANGE_S", 0.5)
    async with a_page(ended) as (server, _):
        head = f"POST /mark HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 10\r\n\r\n"
        answer = await answer_to(server.port, head.encode() + b"dep")
        assert b" 408 " in answer.partition(b"\r\n")[0]
        async with asyncio.timeout(DEADLINE_S):
            while server.server.connections:
                await asyncio.sleep(0.05)
