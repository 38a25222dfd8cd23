"""Changes the clocks of other processes for tests: as if the machine was suspended, or its wall clock set.

A library loaded with LD_PRELOAD adds two numbers from a file to the clocks. While a machine is suspended its monotonic clock stops
and the others continue; processes that were stopped, and whose monotonic clock is then set back by that time, see the same.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Nanoseconds: of the monotonic clock, of the wall clock. */
static volatile long long none[2], *skew = none;

__attribute__((constructor)) static void begin(void) {
    int fd = open(getenv("ASYNCLI_TEST_SKEW"), O_RDONLY | O_CLOEXEC);
    void *map = mmap(0, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) skew = map;
    close(fd);
}

static long long of(clockid_t id) {
    if (id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_RAW || id == CLOCK_MONOTONIC_COARSE) return skew[0];
    return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE ? skew[1] : 0;
}

static void add(struct timespec *t, long long more) {
    long long all = t->tv_sec * 1000000000LL + t->tv_nsec + more;
    t->tv_sec = all / 1000000000LL, t->tv_nsec = all % 1000000000LL;
}

int clock_gettime(clockid_t id, struct timespec *t) {
    long done = syscall(SYS_clock_gettime, id, t);
    if (!done) add(t, of(id));
    return done;
}

/* Deadlines are by the clocks that we show, the kernel's are by its own. Python's time.sleep has one, and so has a thread that waits for
   the interpreter's lock: without it threads take no turns, and a wake-up that glibc loses (its bug 25847) is lost for good. */
static struct timespec kernels(clockid_t id, const struct timespec *until) {
    struct timespec real = *until;
    add(&real, -of(id));
    return real;
}

#define THEIRS(name) static __typeof__(&name) theirs; if (!theirs) theirs = dlsym(RTLD_NEXT, #name)

int clock_nanosleep(clockid_t id, int flags, const struct timespec *until, struct timespec *left) {
    struct timespec real = flags & TIMER_ABSTIME ? kernels(id, until) : *until;
    return syscall(SYS_clock_nanosleep, id, flags, &real, left) ? errno : 0;
}

int sem_clockwait(sem_t *restrict sem, clockid_t id, const struct timespec *restrict until) {
    THEIRS(sem_clockwait);
    return theirs(sem, id, (struct timespec[]){kernels(id, until)});
}

int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, clockid_t id,
                           const struct timespec *restrict until) {
    THEIRS(pthread_cond_clockwait);
    return theirs(cond, mutex, id, (struct timespec[]){kernels(id, until)});
}

/* Its clock is an attribute of the condition; no machine has been up as long as it is since 1970. */
int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    THEIRS(pthread_cond_timedwait);
    return theirs(cond, mutex, (struct timespec[]){kernels(until->tv_sec < 1000000000 ? CLOCK_MONOTONIC : CLOCK_REALTIME, until)});
}
"""


class Skew:
    """The clocks of all processes started with :attr:`environment`."""

    def __init__(self, folder: Path) -> None:
        library, self._file = folder / "skew.so", folder / "skew"
        source = folder / "skew.c"
        source.write_text(_SOURCE)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self._numbers = [0, 0]
        self._file.write_bytes(bytes(16))
        self.environment = {"LD_PRELOAD": str(library), "ASYNCLI_TEST_SKEW": str(self._file)}

    def step_wall(self, seconds: float) -> None:
        """Move the wall clock."""
        self._add(1, round(seconds * 1e9))

    def ahead(self, seconds: float) -> None:
        """Move the monotonic clock, as if booted earlier; call it before anything is started."""
        self._add(0, round(seconds * 1e9))

    def suspend(self, pids: Callable[[], Iterable[int]], until: Callable[[], None]) -> float:
        """Stop these processes until ``until`` returns, and hide that time from their monotonic clock; returns it (s)."""
        stopped = list(pids())
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic_ns()
        try:
            until()
            slept = time.monotonic_ns() - begun
            self._add(0, -slept)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        return slept / 1e9

    def _add(self, clock: int, nanoseconds: int) -> None:
        self._numbers[clock] += nanoseconds
        with self._file.open("r+b") as file:
            file.write(struct.pack("qq", *self._numbers))
