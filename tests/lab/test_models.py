"""The server models: their protocols, that each is the model of its name, and their behaviour with faults."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
import socket
import struct
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import h11
import pytest
from lab_clients import GET, HEAD, Client, alive, eventually, group
from programs import DEADLINE_S

from asyncli import lab
from asyncli.lab import compiler, wire
from asyncli.lab.models import MODELS, LabModel
from asyncli.model.errors import HostError, PlanError

SOURCE = Path(compiler.__file__).with_name("models.c")
POOLS = ("prefork", "thread-pool", "thread-queue")


def of(*names: str) -> pytest.MarkDecorator:
    """Parametrize with these models; those in C need a compiler."""
    return pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name == "asyncio" else pytest.mark.compiler) for name in names])


every = of(*MODELS)
# The six C models are one program with the same protocol code.
either = of("thread-pool", "asyncio")


async def bytes_of(client: Client, count: int) -> bytes:
    """Request bytes and return the answer."""
    client.writer.write(b"%d\n" % count)
    return await asyncio.wait_for(client.reader.readexactly(count), DEADLINE_S)


async def said_to(url: str, sent: bytes) -> bytes:
    """Send these bytes and an end, and return everything that the server answers."""
    client = await Client.to(url)
    client.writer.write(sent)
    client.writer.write_eof()
    try:
        return await client.ended()
    finally:
        client.writer.close()


def stat_of(pid: int) -> list[str]:
    """The fields of proc(5)'s stat from the third on."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def children_of(pid: int) -> list[int]:
    return [one for one in group(pid) if one != pid]


@every
async def test_as_many_bytes_as_were_asked_for(name: str) -> None:
    async with LabModel(name, workers=2) as server:
        for size in (0, 1, 4, 10_000, 1_000_000):
            assert await said_to(server.url, b"%d\n" % size) == b"x" * size
        client = await Client.to(server.url)
        for size in (1, 1_000_000, 65_536, 65_537, 0, 4):
            assert await bytes_of(client, size) == b"x" * size
        # Two asks in one segment, a third in two, leading zeros, and a carriage return.
        client.writer.write(b"4\n10\n1")
        assert await client.reader.readexactly(14) == b"x" * 14
        client.writer.write(b"2\n000003\r\n")
        assert await client.reader.readexactly(15) == b"x" * 15
        client.writer.write_eof()
        assert await client.ended() == b""
        await client.close()
        assert server.complaints == ()


@either
async def test_what_is_no_number_of_bytes_is_closed_without_an_answer(name: str) -> None:
    async with LabModel(name, workers=2) as server:
        for wrong in (b"12x\n", b"1 2\n", b"99999999999\n", b"1" * 17, b"5\r5\n", b"7\n-1\n"):
            client = await Client.to(server.url)
            client.writer.write(wrong)
            # No end of ours: the server must close by itself, and at once.
            assert await client.ended() == (b"x" * 7 if wrong.startswith(b"7") else b"")
            await client.close()
        # A number that never ends in a line feed is nothing.
        assert await said_to(server.url, b"12") == b""


@either
async def test_keep_alive_as_h11_reads_it(name: str) -> None:
    async with LabModel(name, workers=2) as server:
        client, oracle = await Client.to(server.url), h11.Connection(h11.CLIENT)
        rounds = [("GET", b""), ("HEAD", b""), ("POST", b"p" * 100_000), ("POST", b"GET / HTTP/1.1\r\n\r\n"), ("PUT", b"abc"), ("GET", b"")]
        for method, body in rounds:
            response, got = await client.exchange(method, "/", oracle, body)
            assert response.status_code == (405 if method == "PUT" else 200)
            assert got == (b"ok\n" if response.status_code == 200 and method != "HEAD" else b"")
            oracle.start_next_cycle()
        assert (await client.exchange("GET", "/", oracle, Connection="Close"))[1] == b"ok\n"
        assert oracle.their_state is h11.MUST_CLOSE
        assert await client.ended() == b""
        await client.close()
        assert server.complaints == ()


def answer(status: int, *, head_only: bool, keep: bool) -> bytes:
    return wire.answer(status, b"ok\n" if status == 200 else b"", head_only=head_only, keep=keep)


OK, CLOSES = answer(200, head_only=False, keep=True), answer(200, head_only=False, keep=False)
OK_HEAD = answer(200, head_only=True, keep=True)


@either
async def test_what_is_pipelined_is_answered_in_order(name: str) -> None:
    async with LabModel(name, workers=2) as server:
        put = b"PUT / HTTP/1.1\r\nHost: lab\r\nContent-Length: 3\r\n\r\nabc"
        refused = answer(405, head_only=False, keep=True)
        expected = (OK + OK_HEAD + refused) * 300 + CLOSES
        client = await Client.to(server.url)
        # What comes after the last request is not answered, and must not cost the answers that came before.
        client.writer.write((GET + HEAD + put) * 300 + b"GET / HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n" + GET * 3)
        assert await client.ended() == expected
        await client.close()


@either
async def test_requests_in_pieces_of_any_size(name: str) -> None:
    async with LabModel(name, workers=2) as server:
        for piece in (1, 2, 3, 7, 50):
            client = await Client.to(server.url)
            sent = b"\r\n" + GET + b"POST / HTTP/1.1\r\nHost: lab\r\nContent-Length: 5\r\n\r\nhello" + HEAD.replace(b"\r\n", b"\n")
            for at in range(0, len(sent), piece):
                client.writer.write(sent[at : at + piece])
                await client.writer.drain()
                await asyncio.sleep(0)
            assert await asyncio.wait_for(client.reader.readexactly(len(OK * 2 + OK_HEAD)), DEADLINE_S) == OK * 2 + OK_HEAD
            await client.close()
        client = await Client.to(server.url)
        for byte in b"4000\n":
            client.writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        assert len(await client.reader.readexactly(4000)) == 4000
        await client.close()


LINE = b"GET / HTTP/1.1\r\n"
HOST = b"Host: lab\r\n"
#: The bytes sent, the expected status, and whether the connection stays open.
HEADS = [
    (b"GET / HTTP/1.0\r\n\r\n", 200, False),
    (b"GET / HTTP/1.0\r\nConnection: foo, Keep-Alive\r\n\r\n", 200, True),
    (b"GET / HTTP/1.1\r\nHost: lab\r\nConnection: keep-alive , close\r\n\r\n", 200, False),
    (LINE + HOST + b"X: " + b"x" * (8192 - 34) + b"\r\n\r\n", 200, True),
    (LINE + HOST + b"X: " + b"x" * (8192 - 33) + b"\r\n\r\n", 431, False),
    (b"GET /" + b"x" * 20_000, 431, False),
    (LINE + b"\r\n", 400, False),
    (LINE + HOST + HOST + b"\r\n", 400, False),
    (LINE + HOST + b" folded: yes\r\n\r\n", 400, False),
    (LINE + HOST + b"Name : value\r\n\r\n", 400, False),
    (LINE + HOST + b"X: a\rb\r\n\r\n", 400, False),
    (LINE + HOST + b"X: a\0b\r\n\r\n", 400, False),
    (LINE + HOST + b"Content-Length: -1\r\n\r\n", 400, False),
    (LINE + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400, False),
    (LINE + HOST + b"Content-Length: 9999999999999999999\r\n\r\n", 400, False),
    (LINE + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 501, False),
    (b"GET / HTTP/2.0\r\n\r\n", 505, False),
    (b"GET  / HTTP/1.1\r\nHost: lab\r\n\r\n", 400, False),
    (b"GET /\r\n\r\n", 400, False),
    (b"GET / HTTP/1.1 \r\nHost: lab\r\n\r\n", 400, False),
    (b"nonsense\n\n", 400, False),
    (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", 400, False),
    (b"GET \x01", 400, False),
    (b"\xff" * 9_000, 400, False),
    (b":" * 10, 400, False),
    (b"get / HTTP/1.1\r\nHost: lab\r\n\r\n", 405, True),
    (b"DELETE / HTTP/1.1\r\nHost: lab\r\n\r\n", 405, True),
]


@either
async def test_heads_right_and_wrong(name: str) -> None:
    async with LabModel(name, workers=2) as server:
        for sent, status, keep in HEADS:
            client = await Client.to(server.url)
            client.writer.write(sent)
            expected = answer(status, head_only=False, keep=keep)
            got = await asyncio.wait_for(client.reader.readexactly(len(expected)), DEADLINE_S)
            assert got == expected, sent[:60]
            if keep:
                client.writer.write(GET)
                assert await asyncio.wait_for(client.reader.readexactly(len(OK)), DEADLINE_S) == OK
            else:
                assert await client.ended() == b"", sent[:60]
            await client.close()
        assert server.complaints == ()


@either
async def test_a_body_is_awaited_by_whoever_expects_it(name: str) -> None:
    async with LabModel(name, workers=2) as server:
        client = await Client.to(server.url)
        client.writer.write(b"POST / HTTP/1.1\r\nHost: lab\r\nExpect: 100-Continue\r\nContent-Length: 4\r\n\r\n")
        assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(b"body")
        assert await asyncio.wait_for(client.reader.readexactly(len(OK)), DEADLINE_S) == OK
        await client.close()


@every
async def test_a_client_that_leaves_is_only_itself_gone(name: str) -> None:
    async with LabModel(name, workers=2) as server:
        leaving = (b"500000000\n", b"500000000\n", b"GET / HT", b"12", b"", b"POST / HTTP/1.1\r\nHost: lab\r\nContent-Length: 100\r\n\r\nhalf", GET * 50_000)
        for turn, sent in enumerate(leaving * 2):
            client = await Client.to(server.url)
            client.writer.write(sent)
            # A reset after an end is a broken pipe to the server (SIGPIPE), before it a reset one.
            if turn % 2:
                client.writer.write_eof()
            if sent.endswith(b"0\n"):
                await client.reader.readexactly(100_000)
            # With a reset, in the middle of whatever it is doing.
            sock = client.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.writer.transport.abort()
        assert await said_to(server.url, GET + HEAD) == OK + OK_HEAD
        assert alive(server.pid)
        assert server.complaints == ()


async def test_a_client_that_does_not_read_does_not_fill_the_asyncio_server() -> None:
    async with LabModel("asyncio") as server:
        client = await Client.to(server.url)
        client.writer.write(b"1000000000\n")
        await client.reader.readexactly(1_000_000)
        # Stopped by what fits into the sockets, and not by a gigabyte in memory.
        pages = int(Path(f"/proc/{server.pid}/statm").read_text(encoding="ascii").split()[1])
        assert pages * resource.getpagesize() < 150_000_000
        client.writer.transport.abort()
        other = await Client.to(server.url)
        assert await bytes_of(other, 4) == b"xxxx"
        await other.close()


@of("fork", "prefork", "thread", "thread-pool", "thread-queue", "asyncio")
async def test_clients_are_served_beside_each_other(name: str) -> None:
    async with LabModel(name, connections=4) as server:
        clients = [await Client.to(server.url) for _ in range(4)]
        for client in (*clients, *reversed(clients)):
            assert await bytes_of(client, 5) == b"x" * 5
        if name == "fork":
            assert len(children_of(server.pid)) == 4
        if name == "thread":
            assert len(os.listdir(f"/proc/{server.pid}/task")) == 5
        for client in clients:
            await client.close()
        if name == "fork":
            await eventually(lambda: not children_of(server.pid))
        if name == "thread":
            await eventually(lambda: len(os.listdir(f"/proc/{server.pid}/task")) == 1)


@of("iterative", *POOLS)
async def test_a_client_too_many_waits(name: str) -> None:
    async with LabModel(name, workers=2) as server:
        assert server.at_once == (1 if name == "iterative" else 2)
        served = [await Client.to(server.url) for _ in range(server.at_once)]
        for client in served:
            await bytes_of(client, 1)
        waiting = await Client.to(server.url)
        waiting.writer.write(GET)
        answered = asyncio.ensure_future(waiting.reader.readexactly(len(OK)))
        for _ in range(100):
            for client in served:
                await bytes_of(client, 1)
        assert not answered.done()
        await served[0].close()
        assert await asyncio.wait_for(answered, DEADLINE_S) == OK
        for client in (*served[1:], waiting):
            await client.close()


@of(*POOLS)
@pytest.mark.parametrize("members", [1, 7])
async def test_a_pool_has_as_many_members_as_asked_for(name: str, members: int) -> None:
    async with LabModel(name, workers=members) as server:
        assert server.workers == server.at_once == members
        found = len(children_of(server.pid)) if name == "prefork" else len(os.listdir(f"/proc/{server.pid}/task")) - 1
        assert found == members


def test_the_size_of_a_pool_follows_the_connections() -> None:
    assert [LabModel("prefork", connections=count).workers for count in (1, 40, 100_000)] == [1, 40, 1_000]
    assert LabModel("prefork", connections=40, workers=3).workers == 3
    assert [LabModel(name, workers=3).workers for name in ("iterative", "fork", "thread", "asyncio")] == [1, 1, 1, 1]
    assert [LabModel(name).at_once for name in ("iterative", "fork", "thread", "asyncio")] == [1, None, None, None]


@of("fork", "prefork")
async def test_children_end_with_a_server_that_is_killed(name: str) -> None:
    async with LabModel(name, workers=3) as server:
        clients = [await Client.to(server.url) for _ in range(3)]
        for client in clients:
            await bytes_of(client, 1)
        children = children_of(server.pid)
        assert len(children) == 3
        os.kill(server.pid, signal.SIGKILL)
        await eventually(lambda: not any(map(alive, children)))
        for client in clients:
            client.writer.close()


@pytest.mark.compiler
async def test_a_pool_that_loses_a_member_ends() -> None:
    async with LabModel("prefork", workers=3) as server:
        process, children = server._process, children_of(server.pid)
        os.kill(children[1], signal.SIGKILL)
        await eventually(lambda: process.poll() is not None)
        assert process.returncode == 1
        assert server.complaints == (f"process {children[1]} of the pool died",)
        await eventually(lambda: not any(map(alive, children)))


@pytest.mark.compiler
async def test_without_descriptors_it_says_so_once_and_waits() -> None:
    async with LabModel("thread") as server:
        open_now = len(os.listdir(f"/proc/{server.pid}/fd"))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (open_now + 2, open_now + 2))
        clients = [await Client.to(server.url) for _ in range(5)]
        for client in clients:
            client.writer.write(b"4\n")
        assert await clients[0].reader.readexactly(4) == b"xxxx"
        assert await clients[1].reader.readexactly(4) == b"xxxx"
        await eventually(lambda: len(server.complaints) == 1)
        # It looks again and again, at next to no cost: each look is a switch of context that it asked for.
        used, looks = sum(map(int, stat_of(server.pid)[11:13])), switches(server.pid)
        await eventually(lambda: switches(server.pid) >= looks + 4)
        assert sum(map(int, stat_of(server.pid)[11:13])) - used <= 2
        # The others are served as soon as there is room.
        for client in clients:
            await client.close() if client in clients[:2] else None
        for client in clients[2:]:
            assert await asyncio.wait_for(client.reader.readexactly(4), DEADLINE_S) == b"xxxx"
            await client.close()
        assert server.complaints == ("cannot accept for now: Too many open files (said once)",)


def switches(pid: int) -> int:
    """The voluntary context switches of its first thread."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@pytest.mark.compiler
async def test_without_a_thread_the_client_is_turned_away() -> None:
    async with LabModel("thread") as server:
        # Less than a stack more than it has.
        most = int(stat_of(server.pid)[20]) + (1 << 20)
        resource.prlimit(server.pid, resource.RLIMIT_AS, (most, most))
        for _ in range(3):
            assert await said_to(server.url, b"") == b""
    assert server.complaints == ("cannot make a thread for a client: Resource temporarily unavailable (said once)", "3 clients were turned away")


def test_what_cannot_be_is_refused_before_the_start() -> None:
    with pytest.raises(PlanError, match=r"unknown server model 'threads'; write iterative, .* or asyncio"):
        LabModel("threads")
    with pytest.raises(PlanError, match="0 workers"):
        LabModel("prefork", workers=0)
    with pytest.raises(HostError, match="'localhost' is not an IP address"):
        LabModel("prefork", address="localhost")


@pytest.mark.compiler
def test_the_program_refuses_what_it_does_not_know() -> None:
    program = compiler.build(SOURCE)
    for words in ([], ["nginx"], ["fork", "more"], ["fork", "--port=70000"], ["fork", "--pool=0"], ["fork", "--address=x"], ["fork", "--x"]):
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), words


def broken(source: random.Random) -> bytes:
    """A valid request sequence with random changes."""
    pieces = [*(sent for sent, _, _ in HEADS if len(sent) < 1_000), GET, HEAD, b"4\n", b"1000\n", b"\r\n", b"0", b" ", b":", b"\0", b"\xff"]
    text = bytearray(b"".join(source.choices(pieces, k=source.randint(1, 5))))
    for _ in range(source.choice((0, 1, 1, 3, 10))):
        at = source.randrange(len(text) + 1)
        what = source.randrange(3)
        if what == 0:
            text[at:at] = source.choice(pieces)
        elif what == 1:
            del text[at : at + source.randint(1, 8)]
        else:
            text[at : at + 1] = bytes((source.randrange(256),))
    return bytes(text)


@contextlib.asynccontextmanager
async def sanitized(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LabModel]:
    """A server with address and undefined-behaviour sanitizers, if the compiler supports them."""
    with monkeypatch.context() as patch:
        patch.setenv("CC", "cc -g -fsanitize=address,undefined -fno-sanitize-recover=all")
        with contextlib.suppress(HostError):
            program = compiler.build.__wrapped__(SOURCE)
            patch.setattr(compiler, "build", lambda _: program)
        async with LabModel("iterative") as server:
            yield server


@pytest.mark.compiler
async def test_chance_breaks_none_and_both_programs_answer_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(20)
    async with sanitized(monkeypatch) as ours, LabModel("asyncio") as other:
        for _ in range(400):
            sent = broken(chance)
            assert await said_to(ours.url, sent) == await said_to(other.url, sent), sent
        assert alive(ours.pid)
        assert ours.complaints == other.complaints == ()


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small C source, and no CC variable."""
    monkeypatch.delenv("CC", raising=False)
    source = tmp_path / "small.c"
    source.write_text("int main(void)\n{\n    return 7;\n}\n", encoding="ascii")
    return source


@pytest.mark.parametrize(
    ("given", "words"),
    [("nonesuch -m64", "nonesuch on this host (CC names it)"), ("cc 'half", "is no command"), ("false", "exit status 1;"),
     # A compiler that succeeds without building anything.
     ("true", "exit status 0;"), pytest.param("cc -include /nonesuch.h", "nonesuch.h", marks=pytest.mark.compiler)],
)  # fmt: skip
def test_without_a_compiler_that_works_one_line_says_so(given: str, words: str, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", given)
    with pytest.raises(HostError) as caught:
        compiler.build(small)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.compiler
def test_a_program_is_built_once_in_a_process(small: Path) -> None:
    program = compiler.build(small)
    assert subprocess.run([program], check=False).returncode == 7
    small.unlink()
    assert compiler.build(small) == program


@pytest.mark.compiler
def test_the_models_compile_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -Werror -Wconversion -Wshadow -Wpedantic")
    assert compiler.build.__wrapped__(SOURCE).is_file()


def test_the_lab_knows_every_model_by_its_name() -> None:
    assert set(MODELS) <= set(lab.NAMES)
    assert [lab.choose(name, connections=40).connections for name in MODELS] == [1, 40, 40, 40, 40, 40, 40]
