/* The floor: a small C client that does what one worker of asyncli does, and nothing else.
 *
 * It connects N sockets in batches, from spread loopback sources, sends each a HEAD after a uniform sleep in
 * [1, keepalive/2] s, reads the answer, and sleeps again. One process, one epoll set, a binary heap of due times, no
 * statistics but counts. It looks at an answer's first bytes only. Prints one line of JSON: CPU per connect and per heartbeat.
 *
 * A connect counts once it is known to have succeeded: on EPOLLOUT, by SO_ERROR. With a last argument "assume" it counts when
 * the call returns, whatever became of it: cheaper than any client can be that tells what happened.
 *
 *   cc -O2 -o epoll_client epoll_client.c
 *   ./epoll_client PORT CONNECTIONS BATCH INTERVAL_US KEEPALIVE_S HOLD_S SOURCES [assume]
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

static const char request[] = "HEAD / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: floor\r\n\r\n";

struct due { double at; int row; };
static struct due *heap;
static int heap_size;
static int *fd_of, *row_of;
static char *waiting;
static uint64_t seed = 88172645463325252ull;

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec + ts.tv_nsec * 1e-9;
}

static double uniform(void) { /* xorshift64 */
    seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
    return (seed >> 11) * (1.0 / 9007199254740992.0);
}

static void push(double at, int row) {
    int i = heap_size++;
    while (i && heap[(i - 1) / 2].at > at) { heap[i] = heap[(i - 1) / 2]; i = (i - 1) / 2; }
    heap[i].at = at; heap[i].row = row;
}

static int pop(void) {
    int row = heap[0].row;
    struct due last = heap[--heap_size];
    int i = 0, child;
    while ((child = 2 * i + 1) < heap_size) {
        if (child + 1 < heap_size && heap[child + 1].at < heap[child].at) child++;
        if (heap[child].at >= last.at) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return row;
}

static void cpu(double *user, double *system) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    *user = usage.ru_utime.tv_sec + usage.ru_utime.tv_usec * 1e-6;
    *system = usage.ru_stime.tv_sec + usage.ru_stime.tv_usec * 1e-6;
}

int main(int argc, char **argv) {
    if (argc != 8 && argc != 9) { fprintf(stderr, "usage: %s PORT CONNECTIONS BATCH INTERVAL_US KEEPALIVE_S HOLD_S SOURCES [assume]\n", argv[0]); return 2; }
    int assume = argc == 9, established = 0;
    int port = atoi(argv[1]), n = atoi(argv[2]), batch = atoi(argv[3]), sources = atoi(argv[7]);
    double interval = atof(argv[4]) * 1e-6, keepalive = atof(argv[5]), hold = atof(argv[6]);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    heap = calloc(n, sizeof *heap); fd_of = calloc(n, sizeof *fd_of); row_of = calloc(n + 4096, sizeof *row_of); waiting = calloc(n, 1);
    int ep = epoll_create1(0), opened = 0, failed = 0;
    long sent = 0, answered = 0, lost = 0;
    struct epoll_event events[256];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)}, from = {.sin_family = AF_INET};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    static char buffer[8192];
    double t0 = now(), end = 0, ramped = 0, user0 = 0, system0 = 0, user1 = 0, system1 = 0, user, system;
    long sent0 = 0, answered0 = 0;
    cpu(&user0, &system0);
    for (;;) {
        double t = now();
        while (opened + failed < n && t0 + (opened + failed) / batch * interval <= t) {
            int i = opened + failed, one = 1;
            int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
            setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
            int s = i % sources;
            from.sin_addr.s_addr = htonl((127u << 24) + (1 << 16) + (s / 250 << 8) + s % 250 + 1);
            if (fd < 0 || bind(fd, (struct sockaddr *)&from, sizeof from)) { failed++; if (fd >= 0) close(fd); continue; }
            if (connect(fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS) { failed++; close(fd); continue; }
            struct epoll_event e = {.events = assume ? EPOLLIN : EPOLLIN | EPOLLOUT, .data.fd = fd};
            epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
            fd_of[i] = fd; row_of[fd] = i;
            opened++;
            if (assume) {
                push(t + 1 + uniform() * (keepalive / 2 - 1), i);
                established++;
            }
        }
        if (established + failed == n && !ramped) {
            cpu(&user1, &system1);
            ramped = t; end = t + hold; sent0 = sent; answered0 = answered;
        }
        if (ramped && t >= end) break;
        while (heap_size && heap[0].at <= t) {
            int row = pop();
            if (write(fd_of[row], request, sizeof request - 1) != (ssize_t)sizeof request - 1) { lost++; close(fd_of[row]); continue; }
            sent++;
            waiting[row] = 1;
        }
        double next = ramped ? end : opened + failed == n ? t + 0.1 : t0 + (opened + failed) / batch * interval;
        if (heap_size && heap[0].at < next) next = heap[0].at;
        double left = next - now();
        struct timespec wait = {0};
        if (left > 0) { wait.tv_sec = left; wait.tv_nsec = (left - wait.tv_sec) * 1e9; }
        int ready = epoll_pwait2(ep, events, 256, &wait, NULL);
        t = now();
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd, row = row_of[fd];
            if (events[i].events & EPOLLOUT) {
                int error = 0;
                socklen_t size = sizeof error;
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
                if (error) { failed++; opened--; close(fd); continue; }
                struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
                epoll_ctl(ep, EPOLL_CTL_MOD, fd, &e);
                push(t + 1 + uniform() * (keepalive / 2 - 1), row);
                established++;
                continue;
            }
            ssize_t got = read(fd, buffer, sizeof buffer);
            if (got <= 0) { lost++; close(fd); continue; }
            if (memcmp(buffer, "HTTP/1.", 7) || !waiting[row]) { lost++; close(fd); continue; }
            waiting[row] = 0;
            answered++;
            push(t + 1 + uniform() * (keepalive / 2 - 1), row);
        }
    }
    cpu(&user, &system);
    long beats = answered - answered0;
    printf("{\"opened\": %d, \"failed\": %d, \"lost\": %ld, \"ramp_s\": %.3f, \"ramp_beats\": %ld, \"connect_user_us\": %.3f, "
           "\"connect_system_us\": %.3f, \"beats\": %ld, \"beat_user_us\": %.3f, \"beat_system_us\": %.3f}\n",
           opened, failed, lost, ramped - t0, sent0, (user1 - user0) / n * 1e6, (system1 - system0) / n * 1e6, beats,
           beats ? (user - user1) / beats * 1e6 : 0, beats ? (system - system1) / beats * 1e6 : 0);
    struct linger reset = {1, 0};
    for (int i = 0; i < opened; i++) { setsockopt(fd_of[i], SOL_SOCKET, SO_LINGER, &reset, sizeof reset); close(fd_of[i]); }
    return 0;
}
