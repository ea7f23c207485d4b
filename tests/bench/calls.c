/* What calls of the driver cost this process: nanoseconds per call, the least of several rounds, one line per figure.
 *
 *   calls [ROUNDS]
 *
 * Linked with libcuda.so.1: which one it is, and what lies between, is up to the loader. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef unsigned long long address;
int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuCtxCreate_v2(void **context, unsigned flags, int device);
int cuMemAlloc_v2(address *pointer, size_t bytes);
int cuMemFree_v2(address pointer);
int cuMemGetInfo_v2(size_t *free, size_t *total);
int cuLaunchKernel(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                   void **);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);

/* A round is shorter than the time slice of a busy machine, so that some round runs undisturbed. */
enum { CALLS = 4000 };
static void *kernel;

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void must(int status, const char *what) {
    if (status != 0) {
        fprintf(stderr, "%s: CUDA error %d\n", what, status);
        exit(1);
    }
}

static void pair(size_t bytes) {
    address pointer;
    must(cuMemAlloc_v2(&pointer, bytes), "cuMemAlloc");
    must(cuMemFree_v2(pointer), "cuMemFree");
}

static void small_pair(void) { pair(4096); }
static void large_pair(void) { pair(2 << 20); }

static void info(void) {
    size_t free, total;
    must(cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
}

static void launch(void) {
    must(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
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
    int rounds = argc > 1 ? atoi(argv[1]) : 35, device;
    void *context, *module;
    must(cuInit(0), "cuInit");
    must(cuDeviceGet(&device, 0), "cuDeviceGet");
    must(cuCtxCreate_v2(&context, 0, device), "cuCtxCreate");
    must(cuModuleLoadData(&module, "\n"), "cuModuleLoadData");
    must(cuModuleGetFunction(&kernel, module, "k"), "cuModuleGetFunction");

    printf("launch %.1f\n", least_ns(launch, rounds));
    printf("mem_get_info %.1f\n", least_ns(info, rounds));
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
