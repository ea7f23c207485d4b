/* Eight processes that allocate and free at random, and end at random, three of four by SIGKILL: churn ENDS FREE_BYTES. Prints, when
 * all are gone, what a newcomer sees, as soon as it sees so much free memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "fill.h"

enum { PROCESSES = 8, LIVE = 64 };

static volatile unsigned long *progress;
static volatile sig_atomic_t asked_to_end;
static void end(int signal) { asked_to_end = signal; }
static void *find(const char *name) { return dlsym(RTLD_DEFAULT, name); }

static unsigned long long state;
static unsigned below(unsigned end) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(state >> 33) % end;
}

/* Holds up to LIVE allocations of several kinds, replaces them at random, and now and then forks a child that does nothing. */
static void worker(int index, unsigned long long seed) {
    void *context;
    address held[LIVE] = {0};
    unsigned long long physical[LIVE] = {0};
    struct { int type, handle_types, location_type, location_id; void *win32; unsigned char flags[8]; } properties = {1, 0, 1, 0, 0, {0}};
    int (*allocate)(address *, size_t) = need(find, "cuMemAlloc_v2"), (*release)(address) = need(find, "cuMemFree_v2");
    int (*allocate_async)(address *, size_t, void *) = need(find, "cuMemAllocAsync");
    int (*create)(unsigned long long *, size_t, void *, unsigned long long) = need(find, "cuMemCreate");
    int (*drop)(unsigned long long) = need(find, "cuMemRelease");
    int (*init)(unsigned) = need(find, "cuInit"), (*make)(void **, unsigned, int) = need(find, "cuCtxCreate_v2");
    state = seed;
    signal(SIGTERM, end);
    init(0);
    /* No room for a context: try again. */
    while (make(&context, 0, 0) && !asked_to_end) progress[index]++;
    while (!asked_to_end) {
        int at = below(LIVE);
        size_t bytes = below(3) ? below(64) << 20 : below(1 << 20);
        if (held[at]) release(held[at]);
        if (physical[at]) drop(physical[at]);
        held[at] = physical[at] = 0;
        switch (below(4)) {
        case 0: if (allocate_async(&held[at], bytes + 1, NULL)) held[at] = 0; break;
        case 1: if (create(&physical[at], (bytes | 1) + (2 << 20) & ~((2ul << 20) - 1), &properties, 0)) physical[at] = 0; break;
        default: if (allocate(&held[at], bytes + 1)) held[at] = 0;
        }
        if (!below(2000) && !fork()) _exit(0);
        progress[index]++;
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
    exit(0);
}

/* The watchdog compares several times a second what is charged with what the driver has, charges the difference, and corrects it at its
 * next look. What it saw amid the dying is to be corrected before anybody asks; a charge that stays, stays. */
static void let_it_settle(size_t expected) {
    int (*info)(size_t *, size_t *) = need(find, "cuMemGetInfo_v2");
    size_t free = 0, total = 0;
    for (int tenths = 0; tenths < 600 && free != expected; tenths++) {
        usleep(100000);
        info(&free, &total);
    }
}

static pid_t begin(int index, unsigned long long seed) {
    pid_t child = fork();
    if (!child) worker(index, seed);
    return child;
}

int main(int argc, char **argv) {
    int ends = argc > 1 ? atoi(argv[1]) : 100, hung = 0;
    pid_t children[PROCESSES];
    unsigned long before[PROCESSES];
    progress = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < PROCESSES; i++) children[i] = begin(i, i);
    state = 42;
    for (int i = 0; i < ends; i++) {
        usleep(below(4000));
        int victim = below(PROCESSES);
        kill(children[victim], below(4) ? SIGKILL : SIGTERM);
        alarm(60); /* who does not end hangs: the alarm ends this program */
        waitpid(children[victim], NULL, 0);
        alarm(0);
        children[victim] = begin(victim, i + 100);
    }
    for (int i = 0; i < PROCESSES; i++) before[i] = progress[i];
    for (int tenths = 0; tenths < 600; tenths++) {
        hung = 0;
        for (int i = 0; i < PROCESSES; i++) hung += progress[i] == before[i];
        if (!hung) break;
        usleep(100000);
    }
    for (int i = 0; i < PROCESSES; i++) kill(children[i], SIGKILL);
    while (wait(NULL) > 0) {
    }
    if (hung) {
        fprintf(stderr, "%d of the processes hang\n", hung);
        return 1;
    }
    void *context;
    start(find, &context);
    let_it_settle(argc > 2 ? strtoull(argv[2], NULL, 10) : 0);
    report(find, 0, 0);
    return 0;
}
