/* Preloaded into a server under test. The server's clock is ahead of the real one by the microseconds in a file.
   Lookups of names that end with ".silent.test" never end. Names that end with ".absent.test" do not exist. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t skew(void) {
    static const int64_t none;
    static const volatile int64_t *shared;
    if (!shared) {
        const char *path = getenv("XDB_TEST_CLOCK");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0)
            close(file);
        shared = page == MAP_FAILED ? &none : page;
    }
    return *shared;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t nanoseconds = now->tv_nsec + skew() % 1000000 * 1000 + 1000000000;
        now->tv_sec += skew() / 1000000 + nanoseconds / 1000000000 - 1;
        now->tv_nsec = nanoseconds % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    static const char silent[] = ".silent.test";
    static const char absent[] = ".absent.test";
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    size_t length = node ? strlen(node) : 0;
    if (length >= sizeof silent && strcmp(node + length - (sizeof silent - 1), silent) == 0) {
        sleep(60);
        return EAI_AGAIN;
    }
    if (length >= sizeof absent && strcmp(node + length - (sizeof absent - 1), absent) == 0)
        return EAI_NONAME;
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(node, service, hints, found);
}
