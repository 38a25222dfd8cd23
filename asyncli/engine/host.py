"""The host process: a zygote that forks the workers, merges their ticks and ends when its pipe closes.

``python -m asyncli.engine.host`` reads a :class:`Shard` and then orders on standard input, and writes events on standard
output, each a frame: four bytes of length, then msgpack. One thread, a plain poll loop, no asyncio and no sockets of the
test, so that forking stays safe at any time. It runs in a session of its own: a terminal's Ctrl-C reaches only the user's
process, which decides.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

import msgspec

from asyncli.engine.shard import (
    Adopt,
    Alive,
    Down,
    Drain,
    Failed,
    HostFinding,
    LoadShard,
    Ready,
    Shard,
    Start,
    Stop,
    Ticked,
    Up,
    WorkerBack,
    WorkerLost,
    WorkerReplaced,
    WorkerSilent,
)  # fmt: skip
from asyncli.engine.worker import MOST_MESSAGE, run_worker
from asyncli.records import Deaths, Tick

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# A turn of the host takes half a second at most, unless the host itself is stopped or starved; while a second's ticks are
# awaited it looks oftener.
_TURN_S, _AWAITING_S, _STALL_S = 0.5, 0.1, 1.0
# How long after its second a tick may come from a slow worker before the others' go on without it; its counts join the
# next one, so nothing is lost.
PATIENCE_S = 0.7
# A worker of a soak that ended is replaced; one that ends within so long of its start, so often in a row, ends of itself.
_SHORT_LIFE_S, _MOST_REPLACED = 10.0, 3
# A worker that lives and has missed this many seconds of ticks is stopped or stuck: what it holds is no longer known.
SILENCE_S = 5.0

_libc = ctypes.CDLL(None, use_errno=True)
_encode = msgspec.msgpack.Encoder().encode
# Ticks, and once, from a worker that fails, the last line of its traceback.
_decode_said: Callable[[bytes | memoryview], Tick | str] = msgspec.msgpack.Decoder(Tick | str).decode
_decode_down = msgspec.msgpack.Decoder(Down).decode


def die_with_parent() -> None:
    """Have the kernel end this process when the thread that forked it ends, also one that stands still by then."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class _Link:
    """The host's end of one worker."""

    def __init__(self, number: int, pid: int, sock: socket.socket, short_lives: int) -> None:
        self.number, self.pid, self.sock = number, pid, sock
        #: How many before it, in its place, ended soon after their start.
        self.short_lives = short_lives
        self.last = Tick()
        self.born = self.heard = time.monotonic()
        self.silent = False
        self.last_words = ""


class WorkerHost:
    """Forks ``shard``'s workers and passes orders down and merged ticks up."""

    def __init__(self, shard: Shard | LoadShard) -> None:
        self._shard = shard
        self._links: dict[int, _Link] = {}
        self._t0: float | None = None
        self._draining = False
        self._turned = math.inf
        # The second that is gathered, and who has closed it; one at a time, since a worker that closes the next one says that
        # this one is overdue.
        self._gathered: Tick | None = None
        self._closed: set[int] = set()
        self._sent_second = 0
        self._carried = Tick()
        self._lost = 0
        # CPU of workers that are no more, and what they held when the drain began, which the gauges would forget.
        self._spent = Tick()
        self._buffer = b""
        # Zeros without pages until they are written; a buffer for each message would be mapped and unmapped each time.
        self._inbox = bytearray(MOST_MESSAGE)

    def run(self) -> None:
        mine = None
        if isinstance(self._shard, Shard):
            mine = self._shard.mine
            self._shard.new_protocol(int)  # loads what its workers then share
        for number in range(self._shard.workers) if mine is None else mine:
            self._fork(number)
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        for fd in self._links:
            self._poll.register(fd, select.POLLIN)
        self._say(Ready(host=os.getpid(), workers=[link.pid for link in self._links.values()]))
        while True:
            for fd, _ in self._poll.poll(1000 * (_TURN_S if self._gathered is None else _AWAITING_S)):
                if fd == 0:
                    if not self._told():
                        return
                else:
                    self._heard(self._links[fd])
            self._forward(time.monotonic())

    def _fork(self, number: int, replaces: bool = False, short_lives: int = 0) -> _Link:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MOST_MESSAGE)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_MESSAGE)
        parent = os.getpid()
        # What stands now is shared by all workers; frozen, the collector never touches (and so copies) its pages.
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                die_with_parent()
                if os.getppid() != parent:  # it was gone already
                    os._exit(1)
                ours.close()
                for link in self._links.values():
                    link.sock.close()
                # The host's pipes are not ours: kept, they would hide its end from the session.
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, 0)
                os.dup2(null, 1)
                os.close(null)
                # A worker builds no reference cycles in its steady state; collecting would only copy shared pages.
                gc.disable()
                run_worker(self._shard, number, theirs, replaces=replaces)
                status = 0
            except BaseException as error:
                traceback.print_exc()
                with contextlib.suppress(OSError):
                    theirs.send(_encode(traceback.format_exception_only(error)[-1].strip()))
            finally:
                os._exit(status)
        theirs.close()
        link = self._links[ours.fileno()] = _Link(number, pid, ours, short_lives)
        return link

    def _told(self) -> bool:
        """Read orders; False when the session is gone or says stop."""
        data = os.read(0, 65536)
        if not data:
            return False
        self._buffer += data
        while len(self._buffer) >= 4 and len(self._buffer) >= 4 + (size := struct.unpack("<I", self._buffer[:4])[0]):
            message, self._buffer = self._buffer[4 : 4 + size], self._buffer[4 + size :]
            order = _decode_down(message)
            if isinstance(order, Alive):
                # The kernel's own clock: it ends us also where we wait for room in a pipe that nobody reads; the workers follow.
                signal.alarm(order.leash_s)
            elif isinstance(order, Adopt):
                if isinstance(self._shard, Shard):
                    self._shard = msgspec.structs.replace(self._shard, crowded=self._shard.crowded or order.crowded)
                for number in order.workers:
                    self._adopt(number)
            else:
                self._pass_on(order, message)
                if isinstance(order, Stop):
                    return False
        return True

    def _pass_on(self, order: Start | Drain | Stop, message: bytes) -> None:
        """An order for every worker."""
        if isinstance(order, Start):
            self._t0 = order.t0
        self._draining |= isinstance(order, Drain)
        for link in self._links.values():
            if isinstance(order, Start):
                link.heard = max(time.monotonic(), order.t0)
            with contextlib.suppress(OSError):
                link.sock.send(message)

    def _heard(self, link: _Link) -> None:
        size = 0
        with contextlib.suppress(OSError):
            try:
                size = link.sock.recv_into(self._inbox)
            except ConnectionResetError:
                # It ended with an order unread, which is told first; what it had said is still there.
                size = link.sock.recv_into(self._inbox)
        if not size:
            self._bury(link)
            return
        tick = _decode_said(memoryview(self._inbox)[:size])
        if isinstance(tick, str):
            link.last_words = tick
            return
        if self._gathered is not None and tick.second > self._gathered.second:
            # Before its gauges are known: they are of a later second than the counts.
            self._send(self._gathered)
        link.last = tick
        now = time.monotonic()
        if link.silent:
            self._say(WorkerBack(worker=link.number, pid=link.pid, silent_s=now - link.heard))
        link.heard, link.silent = now, False
        if self._gathered is None:
            self._gathered = Tick(second=max(tick.second, self._sent_second + 1))
        self._gathered.merge_counts(tick)
        # One that is late for a second joins the next, and is yet to close that.
        if tick.second >= self._gathered.second:
            self._closed.add(link.number)

    def _bury(self, link: _Link) -> None:
        """A worker ended by itself or by a stranger's hand: its connections are the generator's loss, not the server's."""
        self._poll.unregister(link.sock.fileno())
        del self._links[link.sock.fileno()]
        link.sock.close()
        _, status, usage = os.wait4(link.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        if link.last_words:
            how += f" ({link.last_words})"
        self._spent.cpu_user_s += usage.ru_utime
        self._spent.cpu_system_s += usage.ru_stime
        other = None
        try:
            other = self._put_another(link)
        except OSError as error:
            how += f" (and no process can be started in its place: {error.strerror})"
        held, at_drain = link.last.held, link.last.held_at_drain
        if self._t0 is not None or other is None:
            # Named with a count of 0 too: it may have opened some since its last word, or it leaves its share unopened. From the
            # drain on only those are lost that owe an answer.
            self._carried.deaths.setdefault("generator_lost", Deaths()).count += link.last.awaiting if at_drain else held
        if at_drain:
            self._carried.unanswered += link.last.awaiting
        self._carried.beats_failed += link.last.awaiting
        self._spent.held_at_drain += at_drain
        self._say(WorkerLost(worker=link.number, pid=link.pid, how=how, held=held))
        if other is not None:
            self._say(WorkerReplaced(worker=other.number, pid=other.pid))
            return
        self._lost += 1
        if not self._links:
            self._flush()
            self._say(Failed(why="every worker of the generator has ended"))

    def _put_another(self, lost: _Link) -> _Link | None:
        """A worker in the place of a lost one of a soak; None where that would be too late, or in vain."""
        short_lives = lost.short_lives + 1 if time.monotonic() - lost.born < _SHORT_LIFE_S else 0
        if not isinstance(self._shard, Shard) or self._draining or short_lives > _MOST_REPLACED:
            return None
        return self._stand_in(lost.number, short_lives)

    def _adopt(self, number: int) -> None:
        """Be a worker of a host that is lost."""
        try:
            link = self._stand_in(number)
        except OSError as error:
            self._lost += 1
            from asyncli.findings.generator import worker_not_started

            self._say(HostFinding(worker_not_started(number, str(error.strerror))))
        else:
            self._say(WorkerReplaced(worker=number, pid=link.pid))

    def _stand_in(self, number: int, short_lives: int = 0) -> _Link:
        link = self._fork(number, replaces=self._t0 is not None, short_lives=short_lives)
        self._poll.register(link.sock.fileno(), select.POLLIN)
        if self._t0 is not None:
            with contextlib.suppress(OSError):
                link.sock.send(_encode(Start(self._t0)))
        return link

    def _flush(self) -> None:
        """With nobody left to report, what has come in and what died with the workers makes the last tick."""
        if self._t0 is not None:
            self._send(self._gathered or Tick(second=self._sent_second + 1))

    def _forward(self, now: float) -> None:
        """Send the second that all have closed, or that is overdue."""
        if self._t0 is None:
            return
        stood_still_s, self._turned = now - self._turned, now
        for link in self._links.values():
            if stood_still_s > _STALL_S:
                # Nobody was here to hear them.
                link.heard += stood_still_s
            if not link.silent and now - link.heard > SILENCE_S:
                link.silent = True
                held, awaiting = link.last.held, link.last.awaiting
                self._say(WorkerSilent(link.number, link.pid, held, awaiting, silent_s=now - link.heard))
        gathered = self._gathered
        if gathered is None and self._links and all(link.silent for link in self._links.values()):
            # Nobody speaks who would close a second: each is told all the same, without what they hold.
            unheard = Tick(second=math.floor(now - self._t0 - PATIENCE_S))
            gathered = unheard if unheard.second > self._sent_second else None
        if gathered is not None and (
            now >= self._t0 + gathered.second + PATIENCE_S or all(one.number in self._closed for one in self._links.values())
        ):
            self._send(gathered)

    def _send(self, gathered: Tick) -> None:
        """Send a second: its counts, and gauges summed over the workers' latest."""
        self._gathered, self._sent_second = None, gathered.second
        self._closed.clear()
        gathered.merge_counts(self._carried)
        self._carried = Tick()
        for link in self._links.values():
            gathered.merge_gauges(_unknown(link.last) if link.silent else link.last)
        gathered.merge_gauges(self._spent)
        # The dead keep nobody waiting.
        gathered.ramped += self._lost
        gathered.drained += self._lost
        self._say(Ticked(gathered))

    def _say(self, message: Up) -> None:
        payload = _encode(message)
        frame = struct.pack("<I", len(payload)) + payload
        while frame:
            frame = frame[os.write(1, frame) :]

    def end(self) -> None:
        """Let the workers go: their links close, and they end by themselves; those that do not are ended."""
        for link in self._links.values():
            link.sock.close()
        deadline = time.monotonic() + 2.0
        for link in self._links.values():
            while os.waitpid(link.pid, os.WNOHANG)[0] == 0:
                if time.monotonic() > deadline:
                    os.kill(link.pid, signal.SIGKILL)
                    os.waitpid(link.pid, 0)
                    break
                time.sleep(0.005)


def _unknown(last: Tick) -> Tick:
    """The gauges of a worker that has fallen silent: its connections may live or not, and nobody vouches for them."""
    return msgspec.structs.replace(last, held=0, connecting=0, awaiting=0, longest_wait_s=0.0)


def main() -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.setsid()
    die_with_parent()  # where it has gone already, its end of the pipe has too
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    head = _read_exactly(4)
    shard = msgspec.msgpack.decode(_read_exactly(struct.unpack("<I", head)[0]), type=Shard | LoadShard)
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: F401  (loaded once here, shared by every worker)
    host = WorkerHost(shard)
    try:
        host.run()
    except BrokenPipeError:
        pass
    finally:
        host.end()
    sys.exit(0)


def _read_exactly(count: int) -> bytes:
    # The rows of a plan's data may be many megabytes, and a pipe gives 64 kB at once.
    data = bytearray()
    while len(data) < count:
        more = os.read(0, min(65_536, count - len(data)))
        if not more:
            sys.exit(0)
        data += more
    return bytes(data)


if __name__ == "__main__":
    main()
