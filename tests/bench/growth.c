/* What calls cost when a program holds much: one line per figure, the least of several rounds.
 *
 *   growth [ROUNDS] */
#include "driver.h"

int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxReset_v2(int device);
int cuCtxSetCurrent(void *context);
int cuMemAddressReserve(address *pointer, size_t bytes, size_t alignment, address at, unsigned long long flags);
int cuMemCreate(unsigned long long *handle, size_t bytes, const void *properties, unsigned long long flags);
int cuMemMap(address pointer, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags);
int cuMemUnmap(address pointer, size_t bytes);

enum { LIVE = 400000, SMALL = 512, PAGE = 2 << 20, CALLS = 200 };

/* Of this thread: what takes longer than a time slice of a busy machine would show the others' time, too. */
static double cpu_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

/* Milliseconds that the end of a context takes, with so many live allocations. */
static double reset_ms(int live) {
    void *context;
    must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (int i = 0; i < live; i++) {
        address pointer;
        must(cuMemAlloc_v2(&pointer, SMALL), "cuMemAlloc");
    }
    double start = cpu_ms();
    must(cuDevicePrimaryCtxReset_v2(0), "cuDevicePrimaryCtxReset");
    return cpu_ms() - start;
}

static address space;
static int mapped;

/* All of them are of the same memory, so that any number fits. */
static void map_until(int count, unsigned long long handle) {
    for (; mapped < count; mapped++) must(cuMemMap(space + (address)mapped * PAGE, PAGE, 0, handle, 0), "cuMemMap");
}

/* Nanoseconds to unmap one of so many mappings. */
static double unmap_ns(int count, unsigned long long handle) {
    map_until(count, handle);
    double spent = 0;
    for (int i = 0; i < CALLS; i++) {
        address at = space + (address)(i * (count / CALLS)) * PAGE;
        double start = now_ns();
        must(cuMemUnmap(at, PAGE), "cuMemUnmap");
        spent += now_ns() - start;
        must(cuMemMap(at, PAGE, 0, handle, 0), "cuMemMap");
    }
    return spent / CALLS;
}

static double least(double value, double other) { return value < other ? value : other; }

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 5;
    struct { int type, handle_types, location, id; unsigned long long rest[2]; } properties = {1, 0, 1, 0, {0}};
    unsigned long long handle;
    double few = 1e18, many = 1e18, reset = 1e18;
    must(cuInit(0), "cuInit");
    for (int round = 0; round < 3; round++) reset = least(reset, reset_ms(LIVE));
    start();
    must(cuMemAddressReserve(&space, 40000ull * PAGE, 0, 0, 0), "cuMemAddressReserve");
    must(cuMemCreate(&handle, PAGE, &properties, 0), "cuMemCreate");
    for (int round = 0; round < rounds; round++) few = least(few, unmap_ns(1000, handle));
    for (int round = 0; round < rounds; round++) many = least(many, unmap_ns(40000, handle));
    printf("reset_400000_live_ms %.1f\n", reset);
    printf("unmap_of_1000 %.1f\n", few);
    printf("unmap_of_40000 %.1f\n", many);
    return 0;
}
