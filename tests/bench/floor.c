/* The floor of any filter over the driver: the same functions, handed on and nothing else. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes) {
    static int (*next)(unsigned long long *, size_t);
    if (!next) next = real("cuMemAlloc_v2");
    return next(pointer, bytes);
}

int cuMemFree_v2(unsigned long long pointer) {
    static int (*next)(unsigned long long);
    if (!next) next = real("cuMemFree_v2");
    return next(pointer);
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    static int (*next)(size_t *, size_t *);
    if (!next) next = real("cuMemGetInfo_v2");
    return next(free, total);
}
