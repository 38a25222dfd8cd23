"""HTTP servers that hold their connections' memory in strange places: python holding_server.py MODE BYTES [SOCKET]

``plain``: in the process that listens. ``handover``: in another process, which gets the sockets, and may have so many
descriptors open: BYTES [DESCRIPTORS]. ``twice_forked``: in a child of a
child for each connection. ``shared_memory``: in a file in memory, which nobody maps. ``helper``: in the process that listens,
and as much again in a daemon of the server's that has no socket of theirs and is told of each through a pipe. ``backend``: a
WebSocket application at the Unix socket SOCKET. It prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import array
import asyncio
import base64
import contextlib
import hashlib
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path

MODE, BYTES = sys.argv[1], int(sys.argv[2])
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
kept: list[object] = []
# Open as long as the process.
in_memory = tempfile.TemporaryFile(dir="/dev/shm") if MODE == "shared_memory" else None  # noqa: SIM115
told, tell = os.pipe()


def take_memory() -> None:
    if MODE == "helper":
        os.write(tell, b"x")
    if in_memory is not None:
        in_memory.write(os.urandom(BYTES))
        in_memory.flush()
    else:
        kept.append(os.urandom(BYTES))


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    take_memory()
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(ANSWER)
    writer.close()


async def upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    kept.append(os.urandom(BYTES))
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        head = await reader.readuntil(b"\r\n\r\n")
        key = next(line[19:].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key: "))
        accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
        writer.write(b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        while frame := await reader.readexactly(6):
            payload = bytes(byte ^ frame[2 + place % 4] for place, byte in enumerate(await reader.readexactly(frame[1] & 127)))
            if frame[0] & 15 == 8:
                break
            writer.write(bytes((0x8A, len(payload))) + payload)
    writer.close()


def rename(name: str) -> None:
    Path("/proc/self/comm").write_text(name)


def end_with_stdin(*pids: int) -> None:
    def wait() -> None:
        sys.stdin.read()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


async def listen() -> None:
    if MODE == "backend":
        rename("backend")
        server = await asyncio.start_unix_server(upgrade, sys.argv[3], backlog=1024)
        Path(sys.argv[3]).chmod(0o777)
        print("ready", flush=True)
    else:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def hold(sent: socket.socket) -> None:
    """Serve the sockets that come over ``sent``."""
    sent.setblocking(False)

    async def serve_one(connection: socket.socket) -> None:
        await serve(*await asyncio.open_connection(sock=connection))

    def receive() -> None:
        data, ancillary, _, _ = sent.recvmsg(1, socket.CMSG_LEN(4))
        if not data:
            os._exit(0)
        if not ancillary:
            # It may open no more: the kernel closed the socket.
            return
        connection = socket.socket(fileno=array.array("i", ancillary[0][2])[0])
        connection.setblocking(False)
        kept.append(asyncio.ensure_future(serve_one(connection)))

    asyncio.get_running_loop().add_reader(sent, receive)
    await asyncio.Event().wait()


def orphan() -> bool:
    """Fork twice; whether this is the grandchild, which init adopts."""
    if child := os.fork():
        os.waitpid(child, 0)
        return False
    if os.fork():
        os._exit(0)
    os.setsid()
    return True


def take_when_told() -> None:
    """Take memory for each byte from the pipe, until the server ends."""
    os.close(tell)
    rename("helper")
    while connections := os.read(told, 4096):
        kept.extend(os.urandom(BYTES) for _ in connections)
    os._exit(0)


def accept_for_others() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    here, there = socket.socketpair()
    if MODE == "handover" and orphan():
        here.close()
        listener.close()
        rename("holder")
        if len(sys.argv) > 3:
            descriptors = int(sys.argv[3])
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
        asyncio.run(hold(there))
    there.close()
    end_with_stdin()
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        if MODE == "handover":
            here.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [connection.fileno()]))])
        elif orphan():
            listener.close()
            here.close()
            rename("forked-twice")
            kept.append(os.urandom(BYTES))
            while connection.recv(4096):
                connection.sendall(ANSWER)
            os._exit(0)
        connection.close()


if MODE in ("handover", "twice_forked"):
    accept_for_others()
else:
    if MODE == "helper" and orphan():
        take_when_told()
    end_with_stdin()
    asyncio.run(listen())
