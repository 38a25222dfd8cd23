"""The host process: a zygote that forks the workers, merges their ticks and ends when its pipe
closes.

``python -m asyncli.engine.host`` reads a :class:`Shard` and then orders on standard input, and
writes messages to stdout, each a frame: four bytes of length, then msgpack. One thread, a plain
poll loop, no asyncio and no sockets of the test, so that forking is always safe. It has its own
terminal session: Ctrl-C reaches only the user's process.
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
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

import msgspec

from asyncli.engine.shard import (
    Adopt,
    Alive,
    CommandLasts,
    Down,
    Drain,
    Failed,
    HoldBegun,
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
    frame,
)  # fmt: skip
from asyncli.engine.ticks import away_by_event, count_away_as_lost, without_held
from asyncli.engine.worker import MOST_MESSAGE, run_worker
from asyncli.model.records import Deaths, Tick

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# The longest wait of a turn, and while a second's ticks are awaited; after a longer turn the host
# itself was stopped or starved.
_TURN_S, _AWAITING_S, _STALL_S = 0.5, 0.1, 1.0
# How long after its second a slow worker's tick is awaited; the counts of a later one are added to
# the next second.
PATIENCE_S = 0.7
# A lost worker of a soak is replaced, unless its predecessors ended this soon after their start,
# this often in a row.
_SHORT_LIFE_S, _MOST_REPLACED = 10.0, 3
# A running worker without a tick for this long is stopped or stuck: its connections are no longer
# known.
SILENCE_S = 5.0

_libc = ctypes.CDLL(None, use_errno=True)
_encode = msgspec.msgpack.Encoder().encode
# Ticks; from a failing worker, the last line of its traceback.
_decode_tick: Callable[[bytes | memoryview], Tick | str] = msgspec.msgpack.Decoder(
    Tick | str
).decode
_decode_down = msgspec.msgpack.Decoder(Down).decode


def die_with_parent() -> None:
    """Have the kernel kill this process, even a stopped one, when the thread that forked it
    ends.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class _Link:
    """The host's end of one worker."""

    def __init__(self, number: int, pid: int, sock: socket.socket, short_lives: int) -> None:
        self.number, self.pid, self.sock = number, pid, sock
        #: Workers of this number that ended soon after their start, in a row.
        self.short_lives = short_lives
        self.last = Tick()
        #: By the number of an event of the plan: whom it ended here, and who is not back yet.
        self.away: Counter[int] = Counter()
        self.started = self.heard_at = time.monotonic()
        self.silent = False
        self.error = ""


class WorkerHost:
    """Forks ``shard``'s workers, passes orders to them and merged ticks to the session."""

    def __init__(self, shard: Shard | LoadShard) -> None:
        self._shard = shard
        self._links: dict[int, _Link] = {}
        self._t0: float | None = None
        self._hold: HoldBegun | None = None
        self._draining = False
        self._last_turn = math.inf
        # The second that is being merged, and the workers that have reported it. One at a time:
        # when a worker reports the next second, this one is overdue.
        self._gathered: Tick | None = None
        self._closed: set[int] = set()
        self._sent_second = 0
        self._carried = Tick()
        self._lost = 0
        # CPU time of ended workers, and what they held when the drain began: later gauges lack
        # both.
        self._spent = Tick()
        self._buffer = b""
        # Takes no memory until written; a buffer for each message would be mapped and unmapped each
        # time.
        self._inbox = bytearray(MOST_MESSAGE)

    def run(self) -> None:
        mine = None
        if isinstance(self._shard, Shard):
            mine = self._shard.mine
            self._shard.new_protocol(int)  # loads modules once for all workers
        for number in range(self._shard.workers) if mine is None else mine:
            self._fork(number)
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        for fd in self._links:
            self._poll.register(fd, select.POLLIN)
        self._emit(Ready(host=os.getpid(), workers=[link.pid for link in self._links.values()]))
        while True:
            for fd, _ in self._poll.poll(
                1000 * (_TURN_S if self._gathered is None else _AWAITING_S)
            ):
                if fd == 0:
                    if not self._read_orders():
                        return
                else:
                    self._read_link(self._links[fd])
            self._forward(time.monotonic())

    def _fork(self, number: int, replaces: bool = False, short_lives: int = 0) -> _Link:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MOST_MESSAGE)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_MESSAGE)
        parent = os.getpid()
        # All workers share the objects that exist now; frozen, the collector never touches (and so
        # copies) their pages.
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                die_with_parent()
                if os.getppid() != parent:  # it has ended already
                    os._exit(1)
                ours.close()
                for link in self._links.values():
                    link.sock.close()
                # A worker that kept the host's pipes open would hide the host's end from the
                # session.
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, 0)
                os.dup2(null, 1)
                os.close(null)
                # A worker builds no reference cycles in its steady state; collecting would only
                # copy shared pages.
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

    def _read_orders(self) -> bool:
        """Read orders; False when the session is gone or sends Stop."""
        data = os.read(0, 65536)
        if not data:
            return False
        self._buffer += data
        while len(self._buffer) >= 4 and len(self._buffer) >= 4 + (
            size := int.from_bytes(self._buffer[:4], "little")
        ):
            message, self._buffer = self._buffer[4 : 4 + size], self._buffer[4 + size :]
            order = _decode_down(message)
            if isinstance(order, Alive):
                # The kernel's timer: it ends this process even while it waits for room in a pipe;
                # the workers follow.
                signal.alarm(order.leash_s)
            elif isinstance(order, Adopt):
                if isinstance(self._shard, Shard):
                    self._shard = msgspec.structs.replace(
                        self._shard, crowded=self._shard.crowded or order.crowded
                    )
                for number in order.workers:
                    self._adopt(number)
            else:
                self._pass_on(order, message)
                if isinstance(order, Stop):
                    return False
        return True

    def _pass_on(
        self, order: Start | HoldBegun | CommandLasts | Drain | Stop, message: bytes
    ) -> None:
        """Send an order to every worker."""
        if isinstance(order, Start):
            self._t0 = order.t0
        elif isinstance(order, HoldBegun):
            self._hold = order
        self._draining |= isinstance(order, Drain)
        for link in self._links.values():
            if isinstance(order, Start):
                link.heard_at = max(time.monotonic(), order.t0)
            with contextlib.suppress(OSError):
                link.sock.send(message)

    def _read_link(self, link: _Link) -> None:
        size = 0
        with contextlib.suppress(OSError):
            try:
                size = link.sock.recv_into(self._inbox)
            except ConnectionResetError:
                # It ended with an order unread, which is reported first; its messages can still be
                # read.
                size = link.sock.recv_into(self._inbox)
        if not size:
            self._handle_exit(link)
            return
        tick = _decode_tick(memoryview(self._inbox)[:size])
        if isinstance(tick, str):
            link.error = tick
            return
        if self._gathered is not None and tick.second > self._gathered.second:
            # Before link.last changes: these gauges are of a later second than the gathered counts.
            self._send(self._gathered)
        link.last = tick
        link.away.update(away_by_event(tick))
        now = time.monotonic()
        if link.silent:
            self._emit(WorkerBack(worker=link.number, pid=link.pid, silent_s=now - link.heard_at))
        link.heard_at, link.silent = now, False
        if self._gathered is None:
            self._gathered = Tick(second=max(tick.second, self._sent_second + 1))
        self._gathered.merge_counts(tick)
        # A late tick counts for the next second, but does not close it.
        if tick.second >= self._gathered.second:
            self._closed.add(link.number)

    def _handle_exit(self, link: _Link) -> None:
        """Handle a worker that failed or was killed: its connections are the generator's loss, not
        the server's.
        """
        self._poll.unregister(link.sock.fileno())
        del self._links[link.sock.fileno()]
        link.sock.close()
        _, status, usage = os.wait4(link.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"exited with status {code}"
        )
        if link.error:
            how += f" ({link.error})"
        self._spent.cpu_user_s += usage.ru_utime
        self._spent.cpu_system_s += usage.ru_stime
        other = None
        try:
            other = self._replace(link)
        except OSError as error:
            how += f" (and no process can be started in its place: {error.strerror})"
        held, at_drain = link.last.held, link.last.held_at_drain
        if self._t0 is not None or other is None:
            # Reported with a count of 0 too: it may have opened some since its last tick, or its
            # share stays unopened. Once the drain has begun, only unanswered connections are lost.
            self._carried.deaths.setdefault("generator_lost", Deaths()).count += (
                link.last.awaiting if at_drain else held
            )
        if at_drain:
            self._carried.unanswered += link.last.awaiting
        self._carried.beats_failed += link.last.awaiting
        self._carried.coming_back_lost += link.last.coming_back
        self._spent.held_at_drain += at_drain
        count_away_as_lost(self._carried, link.away)
        self._emit(WorkerLost(worker=link.number, pid=link.pid, how=how, held=held))
        if other is not None:
            self._emit(WorkerReplaced(worker=other.number, pid=other.pid))
            return
        self._lost += 1
        if not self._links:
            # The last tick: what has come in, and what the workers lost.
            if self._t0 is not None:
                self._send(self._gathered or Tick(second=self._sent_second + 1))
            self._emit(Failed(why="every worker of asyncli has ended"))

    def _replace(self, lost: _Link) -> _Link | None:
        """Start a replacement for a lost worker of a soak; None if the drain has begun or its
        replacements keep failing.
        """
        short_lives = lost.short_lives + 1 if time.monotonic() - lost.started < _SHORT_LIFE_S else 0
        if not isinstance(self._shard, Shard) or self._draining or short_lives > _MOST_REPLACED:
            return None
        return self._start_replacement(lost.number, short_lives)

    def _adopt(self, number: int) -> None:
        """Run a worker of a lost host."""
        try:
            link = self._start_replacement(number)
        except OSError as error:
            self._lost += 1
            from asyncli.findings.generator import worker_not_started

            self._emit(HostFinding(worker_not_started(number, str(error.strerror))))
        else:
            self._emit(WorkerReplaced(worker=number, pid=link.pid))

    def _start_replacement(self, number: int, short_lives: int = 0) -> _Link:
        link = self._fork(number, replaces=self._t0 is not None, short_lives=short_lives)
        self._poll.register(link.sock.fileno(), select.POLLIN)
        if self._t0 is not None:
            with contextlib.suppress(OSError):
                link.sock.send(_encode(Start(self._t0)))
                if self._hold is not None:
                    link.sock.send(_encode(self._hold))
        return link

    def _forward(self, now: float) -> None:
        """Send the gathered second if every worker has reported it, or it is overdue."""
        if self._t0 is None:
            return
        self._watch_silence(now)
        gathered = self._gathered
        if gathered is None and self._links and all(link.silent for link in self._links.values()):
            # All workers are silent: still send a tick a second, without their connections.
            unheard = Tick(second=math.floor(now - self._t0 - PATIENCE_S))
            gathered = unheard if unheard.second > self._sent_second else None
        if gathered is None:
            return
        all_reported = all(link.number in self._closed for link in self._links.values())
        if all_reported or now >= self._t0 + gathered.second + PATIENCE_S:
            self._send(gathered)

    def _watch_silence(self, now: float) -> None:
        """Report each worker that has sent no tick for long."""
        turn_s, self._last_turn = now - self._last_turn, now
        for link in self._links.values():
            if turn_s > _STALL_S:
                # The host stalled, and read nothing meanwhile.
                link.heard_at += turn_s
            if not link.silent and now - link.heard_at > SILENCE_S:
                self._report_silence(link, now)

    def _report_silence(self, link: _Link, now: float) -> None:
        link.silent = True
        self._emit(
            WorkerSilent(
                link.number,
                link.pid,
                link.last.held,
                link.last.awaiting,
                silent_s=now - link.heard_at,
            )
        )

    def _send(self, gathered: Tick) -> None:
        """Send a second: its counts, and gauges summed over the workers' latest."""
        self._gathered, self._sent_second = None, gathered.second
        self._closed.clear()
        gathered.merge_counts(self._carried)
        self._carried = Tick()
        for link in self._links.values():
            gathered.merge_gauges(without_held(link.last) if link.silent else link.last)
        gathered.merge_gauges(self._spent)
        # Lost workers count as ramped and drained.
        gathered.ramped += self._lost
        gathered.drained += self._lost
        self._emit(Ticked(gathered))

    def _emit(self, message: Up) -> None:
        data = frame(message)
        while data:
            data = data[os.write(1, data) :]

    def end(self) -> None:
        """Close the links, so that the workers end; kill those that still run after 2 s."""
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


def main() -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.setsid()
    die_with_parent()  # if the parent has ended already, so has its end of the pipe
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    size = int.from_bytes(_read_exactly(4), "little")
    shard = msgspec.msgpack.decode(_read_exactly(size), type=Shard | LoadShard)
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
        piece = os.read(0, min(65_536, count - len(data)))
        if not piece:
            sys.exit(0)
        data += piece
    return bytes(data)


if __name__ == "__main__":
    main()
