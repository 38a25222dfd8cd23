/* The six classic models of a Linux server in one program, so that only the model differs between them.
 *
 *     models MODEL [--address A] [--port P] [--pool N] [--backlog N] [--stack BYTES]
 *
 * On one port it speaks two protocols, selected by a connection's first byte. A digit: a decimal number and "\n",
 * answered by that many bytes, repeatedly until the client closes. Anything else: HTTP/1.1 with keep-alive.
 *
 * It prints its port once it listens and its pool is ready. SIGTERM ends it with all its children.
 */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAD_MAX = 8192,            /* a longer request head is refused, as Apache and nginx do near this size */
    ASK_MAX = 16,               /* digits of a number of bytes, with leading zeros */
    MOST_BYTES = 1000000000,    /* in one request; more closes the connection */
    CHUNK = 65536,              /* bytes per send() */
    QUEUE = 1024,               /* accepted clients that wait for the pool */
    BACKOFF_MS = 50,            /* pause if accept() lacks a descriptor or memory: 20 tries a second cost nothing */
    LINGER_MS = 100,
    LINGER_ROUNDS = 32,
};

static const char *address = "127.0.0.1", *port = "0";
static int pool = 16, backlog = 4096;
static size_t stack_bytes;
static int listener;
static pid_t master;            /* the process that owns the others */
static bool forks;              /* it leads a process group of children */
static char bytes[CHUNK];       /* the answer to a request for bytes */

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static atomic_uint turned_away; /* clients closed because no process or thread could be made for them */

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    char line[512];
    va_list words;
    va_start(words, format);
    int length = vsnprintf(line, sizeof line - 1, format, words);
    va_end(words);
    if (length < 0)
        return;
    if ((size_t)length > sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    /* One write per line, so that lines of several processes do not mix. */
    if (write(STDERR_FILENO, line, (size_t)length) < 0)
        return;
}

#define fail(status, ...) (say(__VA_ARGS__), exit(status))

/* Print an error that may occur with every client once per process. */
static void say_once(atomic_flag *said, const char *what, int error)
{
    if (!atomic_flag_test_and_set(said))
        say("%s: %s (said once)", what, strerror(error));
}

static void turn_away(int client, const char *what, int error)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    close(client);
    atomic_fetch_add(&turned_away, 1);
    say_once(&said, what, error);
}

/* For a signal handler: snprintf() may not be used in one (signal-safety(7)). */
static void say_turned_away(unsigned count)
{
    char line[64], *at = line + sizeof line;
    static const char words[] = " clients were turned away\n";
    at -= sizeof words - 1;
    memcpy(at, words, sizeof words - 1);
    do
        *--at = (char)('0' + count % 10);
    while (count /= 10);
    if (write(STDERR_FILENO, at, (size_t)(line + sizeof line - at)) < 0)
        return;
}

/* ---- one connection ---------------------------------------------------------------------------------------------- */

struct connection {
    int fd;
    size_t at, end;             /* read but not yet processed: buffer[at] to buffer[end - 1] */
    char buffer[HEAD_MAX];
};

/* Read more into the buffer. False at the client's end, or if the buffer is full. */
static bool more(struct connection *c)
{
    if (c->at) {
        memmove(c->buffer, c->buffer + c->at, c->end - c->at);
        c->end -= c->at;
        c->at = 0;
    }
    if (c->end == sizeof c->buffer)
        return false;
    ssize_t got;
    do
        got = recv(c->fd, c->buffer + c->end, sizeof c->buffer - c->end, 0);
    while (got < 0 && errno == EINTR);
    if (got <= 0)
        return false;
    c->end += (size_t)got;
    return true;
}

static bool send_all(int fd, const char *data, size_t length)
{
    while (length) {
        ssize_t sent = send(fd, data, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        data += sent;
        length -= (size_t)sent;
    }
    return true;
}

/* Closing a socket with unread bytes resets the connection, and the client may lose our last answer: shut down our side,
 * and read for a limited time what it still sends (RFC 9112 9.6). */
static void linger(struct connection *c)
{
    struct pollfd one = {.fd = c->fd, .events = POLLIN};
    shutdown(c->fd, SHUT_WR);
    for (int round = 0; round < LINGER_ROUNDS; round++)
        if (poll(&one, 1, LINGER_MS) <= 0 || recv(c->fd, c->buffer, sizeof c->buffer, 0) <= 0)
            return;
}

/* "4000\n" requests 4,000 bytes. A carriage return before the line feed is accepted. */
static void serve_bytes(struct connection *c)
{
    for (;;) {
        uint64_t wanted = 0;
        size_t digits = 0;
        char byte;
        for (size_t used = 0;; used++) {
            /* more() moves the rest to the front: count from c->at. */
            if (c->at + used == c->end && !more(c))
                return;
            byte = c->buffer[c->at + used];
            if (byte == '\n' && digits) {
                c->at += used + 1;
                break;
            }
            if (byte == '\r' && digits == used && digits)
                continue;
            if (digits != used || !isdigit((unsigned char)byte) || ++digits > ASK_MAX)
                return;
            wanted = wanted * 10 + (uint64_t)(byte - '0');
        }
        if (wanted > MOST_BYTES)
            return;
        for (; wanted > CHUNK; wanted -= CHUNK)
            if (!send_all(c->fd, bytes, CHUNK))
                return;
        if (!send_all(c->fd, bytes, wanted))
            return;
    }
}

/* ---- HTTP/1.1 ---------------------------------------------------------------------------------------------------- */

struct request {
    int status;                 /* the status for the head */
    bool head_only, keep, expects;
    uint64_t body;
};

struct text {
    const char *from, *to;
};

static bool is_token(char byte)
{
    return isalnum((unsigned char)byte) || (byte && strchr("!#$%&'*+-.^_`|~", byte));
}

static bool same(struct text text, const char *word)
{
    size_t length = (size_t)(text.to - text.from);
    return length == strlen(word) && !strncasecmp(text.from, word, length);
}

static struct text trimmed(struct text text)
{
    while (text.from < text.to && (*text.from == ' ' || *text.from == '\t'))
        text.from++;
    while (text.from < text.to && (text.to[-1] == ' ' || text.to[-1] == '\t'))
        text.to--;
    return text;
}

/* Whether a comma-separated list contains the word. */
static bool lists(struct text list, const char *word)
{
    while (list.from < list.to) {
        const char *comma = memchr(list.from, ',', (size_t)(list.to - list.from));
        struct text one = {list.from, comma ? comma : list.to};
        if (same(trimmed(one), word))
            return true;
        list.from = one.to + 1;
    }
    return false;
}

/* Parse a Content-Length; false if it is invalid or has too many digits. */
static bool number(struct text text, uint64_t *value)
{
    if (text.from == text.to || text.to - text.from > 18)
        return false;
    for (*value = 0; text.from < text.to; text.from++) {
        if (!isdigit((unsigned char)*text.from))
            return false;
        *value = *value * 10 + (uint64_t)(*text.from - '0');
    }
    return true;
}

/* The next line of a head without its end; a bare line feed ends a line too (RFC 9112 2.2). */
static struct text next_line(struct text *head)
{
    const char *feed = memchr(head->from, '\n', (size_t)(head->to - head->from));
    struct text line = {head->from, feed};
    if (line.from < line.to && line.to[-1] == '\r')
        line.to--;
    head->from = feed + 1;
    return line;
}

/* Parse the request line; returns its status. */
static int begin(struct text line, struct request *r, bool *old)
{
    const char *at = line.from;
    while (at < line.to && is_token(*at))
        at++;
    struct text method = {line.from, at};
    if (method.from == method.to || at == line.to || *at++ != ' ')
        return 400;
    const char *target = at;
    while (at < line.to && *at > ' ' && *at != 0x7f)
        at++;
    struct text version = {at + 1, line.to};
    if (at == target || at == line.to || *at != ' ' || version.to - version.from != 8 ||
        memcmp(version.from, "HTTP/", 5) || !isdigit((unsigned char)version.from[5]) || version.from[6] != '.' ||
        !isdigit((unsigned char)version.from[7]))
        return 400;
    if (version.from[5] != '1')
        return 505;
    *old = version.from[7] == '0';
    /* Methods are case-sensitive, unlike everything else. */
    r->head_only = method.to - method.from == 4 && !memcmp(method.from, "HEAD", 4);
    bool known = r->head_only || (method.to - method.from == 3 && !memcmp(method.from, "GET", 3)) ||
                 (method.to - method.from == 4 && !memcmp(method.from, "POST", 4)) ||
                 (method.to - method.from == 7 && !memcmp(method.from, "OPTIONS", 7));
    return known ? 200 : 405;
}

/* Parse a head with its final blank line, strictly, so that a client's mistake is noticed. */
static struct request parse_head(struct text head)
{
    struct request r = {0};
    bool old = false, close_asked = false, keep_asked = false, coded = false, sized = false;
    int hosts = 0;
    r.status = begin(next_line(&head), &r, &old);
    if (r.status != 200 && r.status != 405)
        return r;
    for (;;) {
        struct text line = next_line(&head);
        if (line.from == line.to)
            break;
        struct text name = {line.from, line.from};
        while (name.to < line.to && is_token(*name.to))
            name.to++;
        if (name.from == name.to || name.to == line.to || *name.to != ':' ||
            memchr(line.from, '\r', (size_t)(line.to - line.from)) || memchr(line.from, 0, (size_t)(line.to - line.from)))
            return (struct request){.status = 400};
        struct text value = trimmed((struct text){name.to + 1, line.to});
        if (same(name, "host")) {
            hosts++;
        } else if (same(name, "connection")) {
            close_asked |= lists(value, "close");
            keep_asked |= lists(value, "keep-alive");
        } else if (same(name, "content-length")) {
            uint64_t size;
            if (!number(value, &size) || (sized && size != r.body))
                return (struct request){.status = 400};
            r.body = size;
            sized = true;
        } else if (same(name, "transfer-encoding")) {
            coded = true;
        } else if (same(name, "expect")) {
            r.expects |= !old && same(value, "100-continue");
        }
    }
    if (hosts > 1 || (!hosts && !old))
        return (struct request){.status = 400};
    /* A chunked body is not read, so the next request could not be found. */
    if (coded)
        return (struct request){.status = 501};
    r.keep = !close_asked && (!old || keep_asked);
    return r;
}

#define BODY "ok\n"
/* No Date: a constant answer keeps the server's own work near nothing, so that the models can be compared. */
#define OK(connection) \
    "HTTP/1.1 200 OK\r\nServer: asyncli\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nConnection: " connection "\r\n\r\n"

static bool answer(int fd, const struct request *r)
{
    static const char keeps[] = OK("keep-alive") BODY, closes[] = OK("close") BODY;
    if (r->status == 200) {
        size_t length = (r->keep ? sizeof keeps : sizeof closes) - 1;
        return send_all(fd, r->keep ? keeps : closes, r->head_only ? length - (sizeof BODY - 1) : length);
    }
    const char *reason = r->status == 405   ? "Method Not Allowed"
                         : r->status == 431 ? "Request Header Fields Too Large"
                         : r->status == 501 ? "Not Implemented"
                         : r->status == 505 ? "HTTP Version Not Supported"
                                            : "Bad Request";
    char text[256];
    int length = snprintf(text, sizeof text, "HTTP/1.1 %d %s\r\nServer: asyncli\r\n%sContent-Length: 0\r\nConnection: %s\r\n\r\n",
                          r->status, reason, r->status == 405 ? "Allow: GET, HEAD, OPTIONS, POST\r\n" : "",
                          r->keep ? "keep-alive" : "close");
    return send_all(fd, text, (size_t)length);
}

/* The length of the head at c->at, reading as far as needed; 0 at the client's end. Without a valid head the negated
 * status. */
static ssize_t head_length(struct connection *c)
{
    bool line_seen = false;
    if (!is_token(c->buffer[c->at]))
        return -400;
    for (size_t used = 0;; used++) {
        if (c->at + used == c->end && !more(c))
            return c->end == sizeof c->buffer ? -431 : 0;
        const char *byte = c->buffer + c->at + used;
        if (!line_seen && *byte != '\r' && *byte != '\n' && (unsigned char)*byte < ' ')
            return -400;        /* binary: a line end may never come */
        if (*byte != '\n')
            continue;
        line_seen = true;
        if (used && (byte[-1] == '\n' || (byte[-1] == '\r' && used > 1 && byte[-2] == '\n')))
            return (ssize_t)used + 1;
    }
}

static bool drop(struct connection *c, uint64_t body)
{
    for (;;) {
        size_t there = c->end - c->at;
        if (there >= body) {
            c->at += body;
            return true;
        }
        body -= there;
        c->at = c->end;
        if (!more(c))
            return false;
    }
}

static void serve_http(struct connection *c)
{
    for (;;) {
        /* Empty lines before a request are skipped (RFC 9112 2.2). */
        for (;; c->at++) {
            if (c->at == c->end && !more(c))
                return;
            if (c->buffer[c->at] != '\r' && c->buffer[c->at] != '\n')
                break;
        }
        ssize_t length = head_length(c);
        if (!length)
            return;
        struct request r = {.status = (int)-length};
        if (length > 0) {
            r = parse_head((struct text){c->buffer + c->at, c->buffer + c->at + length});
            c->at += (size_t)length;
            if (r.expects && r.body > c->end - c->at && !send_all(c->fd, "HTTP/1.1 100 Continue\r\n\r\n", 25))
                return;
            if (!drop(c, r.body))
                return;
        }
        if (!answer(c->fd, &r))
            return;
        if (!r.keep) {
            if (r.status != 200 || c->at != c->end)
                linger(c);
            return;
        }
    }
}

/* Serve a connection until its end. */
static void serve(int client)
{
    struct connection c;
    c.fd = client;
    c.at = c.end = 0;
    if (more(&c)) {
        if (isdigit((unsigned char)c.buffer[0]))
            serve_bytes(&c);
        else
            serve_http(&c);
    }
    close(client);
}

/* Accept the next client, despite errors of networks and limits; an invalid listener ends the program. */
static int next_client(void)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client >= 0)
            return client;
        switch (errno) {
        case EINTR:
        case ECONNABORTED:
        /* Network errors of the new connection, which Linux returns from accept() (accept(2)). */
        case EPROTO:
        case ENETDOWN:
        case ENOPROTOOPT:
        case EHOSTDOWN:
        case ENONET:
        case EHOSTUNREACH:
        case ENETUNREACH:
            continue;
        case EBADF:
        case EINVAL:
        case ENOTSOCK:
        case EOPNOTSUPP:
            fail(1, "cannot accept: %s", strerror(errno));
        default:
            say_once(&said, "cannot accept for now", errno);
            nanosleep(&(struct timespec){.tv_nsec = BACKOFF_MS * 1000000L}, NULL);
        }
    }
}

/* ---- processes and threads --------------------------------------------------------------------------------------- */

static void ready(void)
{
    struct sockaddr_storage name = {0};
    socklen_t size = sizeof name;
    char number[NI_MAXSERV];
    if (getsockname(listener, (struct sockaddr *)&name, &size) ||
        getnameinfo((struct sockaddr *)&name, size, NULL, 0, number, sizeof number, NI_NUMERICSERV))
        fail(1, "cannot tell the port: %s", strerror(errno));
    if (dprintf(STDOUT_FILENO, "%s\n", number) < 0)
        exit(1);
}

/* Exit here: a flag would be checked only after accept() returns, which may never happen. */
static void finish(int number)
{
    (void)number;
    if (getpid() != master)
        _exit(0);               /* a child that has not set its own handlers yet */
    signal(SIGTERM, SIG_IGN);
    if (forks) {
        kill(0, SIGTERM);
        while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
            ;
    }
    unsigned count = atomic_load(&turned_away);
    if (count)
        say_turned_away(count);
    _exit(0);
}

static void handle(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | SA_NOCLDSTOP};
    sigaction(number, &action, NULL);
}

/* The children are in its process group, so that one kill() reaches all; a session leader already leads a group. */
static void lead(void)
{
    setpgid(0, 0);
    forks = getpgrp() == master;
}

/* fork() a child that ends when its parent ends for any reason. */
static pid_t fork_tied(void)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != master)
        _exit(0);
    handle(SIGTERM, SIG_DFL);
    handle(SIGINT, SIG_IGN);    /* the parent handles Ctrl-C */
    handle(SIGHUP, SIG_IGN);
    handle(SIGCHLD, SIG_DFL);
    return 0;
}

/* Reap children instead of ignoring them (SA_NOCLDWAIT): only then the kernel adds their CPU time to the parent's
 * children (getrusage(2)). One signal may be for several. */
static void reap(int number)
{
    (void)number;
    int saved = errno;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
    errno = saved;
}

static int new_thread(void *(*life)(void *), void *argument)
{
    pthread_attr_t attributes;
    pthread_t thread;
    int error = pthread_attr_init(&attributes);
    if (error)
        return error;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (stack_bytes)
        error = pthread_attr_setstacksize(&attributes, stack_bytes);
    if (!error)
        error = pthread_create(&thread, &attributes, life, argument);
    pthread_attr_destroy(&attributes);
    return error;
}

/* ---- the models -------------------------------------------------------------------------------------------------- */

static void iterative(void)
{
    ready();
    for (;;)
        serve(next_client());
}

static void fork_per_client(void)
{
    lead();
    handle(SIGCHLD, reap);
    ready();
    for (;;) {
        int client = next_client();
        pid_t pid = fork_tied();
        if (!pid) {
            close(listener);
            serve(client);
            _exit(0);
        }
        if (pid < 0)
            turn_away(client, "cannot fork for a client", errno);
        else
            close(client);
    }
}

static void prefork(void)
{
    int tell[2];
    char byte = '.';
    lead();
    if (pipe(tell))
        fail(1, "cannot make a pipe: %s", strerror(errno));
    for (int number = 1; number <= pool; number++) {
        pid_t pid = fork_tied();
        if (!pid) {
            if (write(tell[1], &byte, 1) != 1)
                _exit(1);
            close(tell[0]);
            close(tell[1]);
            for (;;)
                serve(next_client());
        }
        if (pid < 0)
            fail(1, "cannot fork process %d of the pool of %d: %s; ask for a smaller pool", number, pool, strerror(errno));
    }
    close(tell[1]);
    for (int number = 0; number < pool; number++) {
        ssize_t got;
        do
            got = read(tell[0], &byte, 1);
        while (got < 0 && errno == EINTR);
        if (got != 1)
            fail(1, "a process of the pool died at its start");
    }
    close(tell[0]);
    ready();
    /* A smaller pool would falsify measurements. Its other members end with us. */
    pid_t pid;
    do
        pid = waitpid(-1, NULL, 0);
    while (pid < 0 && errno == EINTR);
    fail(1, "process %d of the pool died", (int)pid);
}

static void *one_client(void *client)
{
    serve((int)(intptr_t)client);
    return NULL;
}

static void thread_per_client(void)
{
    ready();
    for (;;) {
        int client = next_client();
        int error = new_thread(one_client, (void *)(intptr_t)client);
        if (error)
            turn_away(client, "cannot make a thread for a client", error);
    }
}

static pthread_barrier_t all_there;

static void start_threads(void *(*life)(void *))
{
    int error = pthread_barrier_init(&all_there, NULL, (unsigned)pool + 1);
    for (int number = 1; !error && number <= pool; number++)
        if ((error = new_thread(life, NULL)))
            fail(1, "cannot make thread %d of the pool of %d: %s; ask for a smaller pool or stack", number, pool,
                 strerror(error));
    if (error)
        fail(1, "cannot make the pool: %s", strerror(error));
    pthread_barrier_wait(&all_there);
}

static void *accepting(void *nothing)
{
    (void)nothing;
    pthread_barrier_wait(&all_there);
    for (;;)
        serve(next_client());
    return NULL;
}

static void thread_pool(void)
{
    start_threads(accepting);
    ready();
    for (;;)
        pause();
}

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t filled, emptied;
    int clients[QUEUE];
    unsigned put, taken;        /* never reset: put - taken are waiting */
} queue = {.mutex = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER, .emptied = PTHREAD_COND_INITIALIZER};

static void *taking(void *nothing)
{
    (void)nothing;
    pthread_barrier_wait(&all_there);
    for (;;) {
        pthread_mutex_lock(&queue.mutex);
        while (queue.put == queue.taken)
            pthread_cond_wait(&queue.filled, &queue.mutex);
        int client = queue.clients[queue.taken++ % QUEUE];
        pthread_cond_signal(&queue.emptied);
        pthread_mutex_unlock(&queue.mutex);
        serve(client);
    }
    return NULL;
}

static void thread_queue(void)
{
    start_threads(taking);
    ready();
    for (;;) {
        int client = next_client();
        pthread_mutex_lock(&queue.mutex);
        while (queue.put - queue.taken == QUEUE)
            pthread_cond_wait(&queue.emptied, &queue.mutex);
        queue.clients[queue.put++ % QUEUE] = client;
        pthread_cond_signal(&queue.filled);
        pthread_mutex_unlock(&queue.mutex);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} models[] = {
    {"iterative", iterative},       {"fork", fork_per_client},    {"prefork", prefork},
    {"thread", thread_per_client},  {"thread-pool", thread_pool}, {"thread-queue", thread_queue},
};

/* ---- the command line -------------------------------------------------------------------------------------------- */

static long option_number(const char *name, const char *text, long least, long most)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most)
        fail(2, "--%s: %s is not a number from %ld to %ld", name, text, least, most);
    return value;
}

static void open_listener(void)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE}, *found;
    int one = 1, error = getaddrinfo(address, port, &hints, &found);
    if (error)
        fail(2, "--address: %s is not an IP address (%s)", address, gai_strerror(error));
    listener = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0)
        fail(1, "cannot make a socket: %s", strerror(errno));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    /* Accepted sockets inherit it without a further call: the last part of a long answer does not wait for an ACK. */
    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    /* The kernel truncates the backlog to net.core.somaxconn. */
    if (bind(listener, found->ai_addr, found->ai_addrlen) || listen(listener, backlog))
        fail(1, "cannot listen on %s port %s: %s", address, port, strerror(errno));
    freeaddrinfo(found);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"address", required_argument, NULL, 'a'}, {"port", required_argument, NULL, 'p'},
        {"pool", required_argument, NULL, 'n'},    {"backlog", required_argument, NULL, 'b'},
        {"stack", required_argument, NULL, 's'},   {0},
    };
    void (*run)(void) = NULL;
    struct rlimit files;

    for (int letter; (letter = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (letter) {
        case 'a':
            address = optarg;
            break;
        case 'p':
            option_number("port", optarg, 0, 65535);
            port = optarg;
            break;
        case 'n':
            pool = (int)option_number("pool", optarg, 1, 100000);
            break;
        case 'b':
            backlog = (int)option_number("backlog", optarg, 1, 1 << 20);
            break;
        case 's':
            /* A connection's buffer and a handler's frame, in addition to what any thread needs. */
            stack_bytes = (size_t)option_number("stack", optarg, sysconf(_SC_THREAD_STACK_MIN) + 4L * HEAD_MAX, 1L << 40);
            break;
        default:
            return 2;
        }
    for (size_t i = 0; optind == argc - 1 && i < sizeof models / sizeof *models; i++)
        if (!strcmp(argv[optind], models[i].name))
            run = models[i].run;
    if (!run)
        fail(2, "usage: models iterative|fork|prefork|thread|thread-pool|thread-queue "
                "[--address A] [--port P] [--pool N] [--backlog N] [--stack BYTES]");

    master = getpid();
    memset(bytes, 'x', sizeof bytes);
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    signal(SIGPIPE, SIG_IGN);
    handle(SIGTERM, finish);
    handle(SIGINT, finish);
    handle(SIGHUP, finish);
    open_listener();
    run();
    return 1;
}
