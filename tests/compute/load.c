// A tenant: launches work in one of several ways until its time is over, then prints what it did as one line of JSON.
//   load MODE MICROSECONDS SECONDS [NUMBER [GROUP FILE]]
// MODE: async (NUMBER streams in turn), sync (a synchronization per launch), event (an event per launch), graph (20 kernels each),
//       burst (NUMBER launches every 50 ms: how long the first one takes more than its kernel), threads (NUMBER threads, each async),
//       rank (until NUMBER iterations of a collective operation are done: a kernel, then one that waits for that of the other rank, on any GPU;
//       it begins when FILE exists),
//       persistent (one kernel), cost (kernels that take no time: nanoseconds per launch), change (streams and events come and go),
//       extended (async by cuLaunchKernelEx, as Triton and thread block clusters are launched).
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef void *Handle;
int cuInit(unsigned);
int cuCtxCreate_v2(Handle *, unsigned, int);
int cuCtxSetCurrent(Handle);
int cuCtxSynchronize(void);
int cuModuleLoadData(Handle *, const void *);
int cuModuleGetFunction(Handle *, Handle, const char *);
int cuStreamCreate(Handle *, unsigned);
int cuStreamDestroy_v2(Handle);
int cuStreamSynchronize(Handle);
int cuStreamBeginCapture_v2(Handle, int);
int cuStreamEndCapture(Handle, Handle *);
int cuGraphInstantiateWithFlags(Handle *, Handle, unsigned long long);
int cuGraphLaunch(Handle, Handle);
int cuEventCreate(Handle *, unsigned);
int cuEventRecord(Handle, Handle);
int cuEventSynchronize(Handle);
int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, Handle *, Handle *);


typedef struct {
    unsigned grid[3], block[3], shared;
    Handle stream, attributes;
    unsigned attribute_count;
} Configuration;
int cuLaunchKernelEx(const Configuration *, Handle, Handle *, Handle *);

static Handle context, module;
static double until;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void ok(int code, const char *what) {
    if (code != 0) {
        fprintf(stderr, "%s: %d\n", what, code);
        exit(1);
    }
}
#define OK(call) ok(call, #call)

static Handle kernel(const char *name) {
    Handle function;
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

static Handle stream(void) {
    Handle made;
    OK(cuStreamCreate(&made, 1));
    return made;
}

static void launch(Handle function, Handle on) {
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, on, NULL, NULL));
}

static long asynchronous(Handle function, int streams) {
    Handle on[64];
    long count = 0;
    for (int each = 0; each < streams; each++) on[each] = stream();
    for (; now() < until; count++) launch(function, on[count % streams]);
    return count;
}

static void *thread(void *function) {
    OK(cuCtxSetCurrent(context));
    asynchronous(function, 1);
    return NULL;
}

static int by_size(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static void bursts(Handle function, double us, int number) {
    static double late_ms[100000];
    int count = 0;
    Handle on = stream();
    struct timespec pause = {0, 50000000};
    for (; now() < until; count++) {
        double began = now();
        launch(function, on);
        OK(cuStreamSynchronize(on));
        late_ms[count] = (now() - began) * 1e3 - us * 1e-3;
        for (int each = 1; each < number; each++) launch(function, on);
        OK(cuStreamSynchronize(on));
        nanosleep(&pause, NULL);
    }
    qsort(late_ms, count, sizeof *late_ms, by_size);
    printf("{\"count\": %d, \"p50_ms\": %.3f, \"p99_ms\": %.3f}\n", count, late_ms[count / 2], late_ms[count * 99 / 100]);
}

// What training on two GPUs does: compute, and a collective operation that ends when both ranks are in it. Each job has a group of its
// own.
static long rank(Handle function, int iterations, unsigned group) {
    Handle on = stream(), together = kernel("cantle_sim_spin_until_2");
    for (int each = 0; each < iterations; each++) {
        launch(function, on);
        OK(cuLaunchKernel(together, group, 1, 1, 1, 1, 1, 0, on, NULL, NULL));
        if (each % 10 == 9) OK(cuStreamSynchronize(on));
    }
    OK(cuStreamSynchronize(on));
    return iterations;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    const char *mode = argv[1];
    double us = atof(argv[2]);
    int number = argc > 4 ? atoi(argv[4]) : 1;
    char name[64] = "kernel";
    if (us > 0) snprintf(name, sizeof name, "cantle_sim_busy_us_%.0f", us);
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuModuleLoadData(&module, "image"));
    Handle function = kernel(name);
    printf("ready\n");
    fflush(stdout);
    until = now() + atof(argv[3]);
    long count = 0;
    if (!strcmp(mode, "async")) {
        count = asynchronous(function, number);
    } else if (!strcmp(mode, "extended")) {
        Configuration how = {{1, 1, 1}, {1, 1, 1}, 0, stream(), NULL, 0};
        ok(cuLaunchKernelEx(NULL, function, NULL, NULL) != 1, "a launch without a configuration is refused by the driver");
        for (; now() < until; count++) OK(cuLaunchKernelEx(&how, function, NULL, NULL));
    } else if (!strcmp(mode, "sync") || !strcmp(mode, "event")) {
        Handle on = stream(), event;
        OK(cuEventCreate(&event, 0));
        for (; now() < until; count++) {
            launch(function, on);
            if (*mode == 's') OK(cuStreamSynchronize(on));
            else OK(cuEventRecord(event, on)), OK(cuEventSynchronize(event));
        }
    } else if (!strcmp(mode, "graph")) {
        Handle on = stream(), graph, executable;
        OK(cuStreamBeginCapture_v2(on, 0));
        for (int each = 0; each < 20; each++) launch(function, on);
        OK(cuStreamEndCapture(on, &graph));
        OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
        for (; now() < until; count++) OK(cuGraphLaunch(executable, on));
    } else if (!strcmp(mode, "threads")) {
        pthread_t threads[64];
        for (int each = 0; each < number; each++) pthread_create(&threads[each], NULL, thread, function);
        for (int each = 0; each < number; each++) pthread_join(threads[each], NULL);
    } else if (!strcmp(mode, "change")) {
        for (; now() < until; count++) {
            Handle on = stream();
            for (int each = 0; each < 10; each++) launch(function, on);
            OK(cuStreamSynchronize(on));
            OK(cuStreamDestroy_v2(on));
        }
    } else if (!strcmp(mode, "burst")) {
        bursts(function, us, number);
        return 0;
    } else if (!strcmp(mode, "rank")) {
        if (argc < 7) return 2;
        while (access(argv[6], F_OK) != 0) usleep(1000);
        double began = now();
        count = rank(function, number, atoi(argv[5]));
        printf("{\"launches\": %ld, \"seconds\": %.3f}\n", count, now() - began);
        fflush(stdout);
        _Exit(0);
    } else if (!strcmp(mode, "persistent")) {
        launch(kernel("cantle_sim_busy_us_1000000000000"), stream());
        OK(cuCtxSynchronize());
    } else if (!strcmp(mode, "cost")) {
        Handle on = stream();
        double best = 1e9;
        while (now() < until) {
            double began = now();
            for (int each = 0; each < 20000; each++, count++) launch(function, on);
            double ns = (now() - began) / 20000 * 1e9;
            if (ns < best) best = ns;
        }
        printf("{\"launches\": %ld, \"ns\": %.1f}\n", count, best);
        return 0;
    } else {
        return 2;
    }
    printf("{\"launches\": %ld}\n", count);
    fflush(stdout);
    // What is queued ends with the process, not with the measurement.
    _Exit(0);
}
