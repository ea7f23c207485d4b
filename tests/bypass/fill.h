/* Takes memory in chunks until the driver refuses or twice the limit is reached, and prints what happened as JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef unsigned long long address;
typedef void *(*lookup)(const char *name);

enum { CHUNK = 64 << 20 };

/* Called with a function of the driver by name; a driver without it ends the test. */
static void *need(lookup find, const char *name) {
    void *found = find(name);
    if (!found) {
        fprintf(stderr, "%s is nowhere\n", name);
        exit(3);
    }
    return found;
}

static void start(lookup find, void **context) {
    int (*init)(unsigned) = need(find, "cuInit");
    int (*create)(void **, unsigned, int) = need(find, "cuCtxCreate_v2");
    int status = init(0);
    if (!status) status = create(context, 0, 0);
    if (status) {
        fprintf(stderr, "no context: CUDA error %d\n", status);
        exit(3);
    }
}

/* Prints one line and, if stdin is a pipe that stays open, waits for its end so that others can look. */
static void report(lookup find, unsigned long long granted, int refused) {
    int (*info)(size_t *, size_t *) = need(find, "cuMemGetInfo_v2");
    size_t free = 0, total = 0;
    info(&free, &total);
    printf("{\"pid\": %d, \"granted\": %llu, \"refused\": %d, \"free\": %zu, \"total\": %zu}\n", getpid(), granted, refused,
           free, total);
    fflush(stdout);
    while (getchar() != EOF) {
    }
}

static void fill(lookup find, unsigned long long limit) {
    void *context;
    start(find, &context);
    int (*allocate)(address *, size_t) = need(find, "cuMemAlloc_v2");
    unsigned long long granted = 0;
    int status = 0;
    while (granted < 2 * limit) {
        address pointer;
        status = allocate(&pointer, CHUNK);
        if (status) break;
        granted += CHUNK;
    }
    report(find, granted, status);
}
