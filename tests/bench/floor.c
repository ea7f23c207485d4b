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

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned x, unsigned y, unsigned z,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    static int (*next)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    if (!next) next = real("cuLaunchKernel");
    return next(function, grid_x, grid_y, grid_z, x, y, z, shared, stream, parameters, extra);
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    static int (*next)(size_t *, int);
    if (!next) next = real("cuDeviceTotalMem_v2");
    return next(bytes, device);
}
