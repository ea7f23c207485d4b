/* What calls of the driver cost this process: nanoseconds per call, the least of several rounds, one line per figure.
 *
 *   calls [ROUNDS] */
#include "driver.h"

/* A round is shorter than the time slice of a busy machine, so that some round runs undisturbed. */
enum { CALLS = 4000, RELEASE_THRESHOLD = 4 };

static void pair(size_t bytes) {
    address pointer;
    must(cuMemAlloc_v2(&pointer, bytes), "cuMemAlloc");
    must(cuMemFree_v2(pointer), "cuMemFree");
}

static void small_pair(void) { pair(4096); }
static void large_pair(void) { pair(2 << 20); }

static size_t async_bytes;

static void async_pair(void) {
    address pointer;
    must(cuMemAllocAsync(&pointer, async_bytes, NULL), "cuMemAllocAsync");
    must(cuMemFreeAsync(pointer, NULL), "cuMemFreeAsync");
}

static void synchronize(void) { must(cuStreamSynchronize(NULL), "cuStreamSynchronize"); }

static void info(void) {
    size_t free, total;
    must(cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
}

static double least_ns(void (*call)(void), int rounds) {
    double least = 1e18;
    for (int round = 0; round < rounds; round++) {
        double start = now_ns();
        for (int i = 0; i < CALLS; i++) call();
        double each = (now_ns() - start) / CALLS;
        if (each < least) least = each;
    }
    return least;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 35;
    start();

    printf("launch %.1f\n", least_ns(launch, rounds));
    printf("mem_get_info %.1f\n", least_ns(info, rounds));
    /* The pool keeps its memory, as PyTorch's. */
    unsigned long long all = ~0ull;
    void *pool;
    must(cuDeviceGetDefaultMemPool(&pool, 0), "cuDeviceGetDefaultMemPool");
    must(cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, &all), "cuMemPoolSetAttribute");
    const struct { const char *name; size_t bytes; } sizes[] = {
        {"1kib", 1 << 10}, {"64kib", 64 << 10}, {"128kib", 128 << 10}, {"1mib", 1 << 20}, {"16mib", 16 << 20}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        async_bytes = sizes[i].bytes;
        printf("pair_async_%s %.1f\n", sizes[i].name, least_ns(async_pair, rounds));
    }
    printf("stream_synchronize %.1f\n", least_ns(synchronize, rounds));
    int live = 0;
    const int steps[] = {0, 1000, 10000};
    for (int i = 0; i < 3; i++) {
        /* Alternately small and large, so that both kinds are among the live ones. */
        for (; live < steps[i]; live++) {
            address pointer;
            must(cuMemAlloc_v2(&pointer, live % 10 ? 4096 : 2 << 20), "cuMemAlloc");
        }
        printf("pair_2mib_%d_live %.1f\n", live, least_ns(large_pair, rounds));
        printf("pair_4kib_%d_live %.1f\n", live, least_ns(small_pair, rounds));
    }
    return 0;
}
