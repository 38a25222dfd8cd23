/* A line between two TUN devices: in each direction a rate, a queue in front of it, a delay, and random packet loss.

   line FD FD DELAY_US BITS_PER_S QUEUE_US LOST_PER_MILLION SEED; it ends with a signal or with a device. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PACKETS = 8192, MOST = 2048 };

struct packet {
    int64_t due_ns;
    ssize_t length;
    char bytes[MOST];
};

/* A direction: a ring of packets, and when the line has sent all of them. */
static struct way {
    struct packet ring[PACKETS];
    unsigned head, tail;
    int64_t free_ns;
} ways[2];

static int64_t now_ns(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

/* xorshift64 (Marsaglia, 2003). */
static uint64_t state;
static uint64_t random_bits(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

int main(int argc, char **argv)
{
    if (argc != 8)
        return 2;
    struct pollfd ends[2] = {{atoi(argv[1]), POLLIN, 0}, {atoi(argv[2]), POLLIN, 0}};
    int64_t delay_ns = atoll(argv[3]) * 1000, bits = atoll(argv[4]), queue_ns = atoll(argv[5]) * 1000;
    uint64_t lost = strtoull(argv[6], NULL, 10);
    state = strtoull(argv[7], NULL, 10) * 2 + 1;
    for (;;) {
        int64_t now = now_ns(), wait_ns = -1;
        for (int side = 0; side < 2; side++) {
            struct way *way = &ways[side];
            for (; way->head != way->tail; way->head++) {
                struct packet *first = &way->ring[way->head % PACKETS];
                if (first->due_ns > now) {
                    if (wait_ns < 0 || first->due_ns - now < wait_ns)
                        wait_ns = first->due_ns - now;
                    break;
                }
                if (write(ends[!side].fd, first->bytes, first->length) < 0 && errno != EAGAIN && errno != ENOBUFS)
                    return 1;
            }
        }
        struct timespec wait = {wait_ns / 1000000000, wait_ns % 1000000000};
        if (ppoll(ends, 2, wait_ns < 0 ? NULL : &wait, NULL) < 0 && errno != EINTR)
            return 1;
        now = now_ns();
        for (int side = 0; side < 2; side++) {
            struct way *way = &ways[side];
            char spare[MOST];
            for (;;) {
                struct packet *next = &way->ring[way->tail % PACKETS];
                int full = way->tail - way->head == PACKETS;
                ssize_t length = read(ends[side].fd, full ? spare : next->bytes, MOST);
                if (length < 0 && errno != EAGAIN)
                    return 1;
                if (length <= 0)
                    break;
                int64_t begins = way->free_ns > now ? way->free_ns : now;
                if (full || begins - now > queue_ns || random_bits() % 1000000 < lost)
                    continue;
                way->free_ns = begins + length * 8 * 1000000000LL / bits;
                next->due_ns = way->free_ns + delay_ns;
                next->length = length;
                way->tail++;
            }
        }
    }
}
