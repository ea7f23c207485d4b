/* What the programs here use of the driver. Linked with libcuda.so.1: which one it is, and what lies between, is up to the loader. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef unsigned long long address;
int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuDeviceTotalMem_v2(size_t *bytes, int device);
int cuCtxCreate_v2(void **context, unsigned flags, int device);
int cuMemAlloc_v2(address *pointer, size_t bytes);
int cuMemFree_v2(address pointer);
int cuMemAllocAsync(address *pointer, size_t bytes, void *stream);
int cuMemFreeAsync(address pointer, void *stream);
int cuStreamSynchronize(void *stream);
int cuDeviceGetDefaultMemPool(void **pool, int device);
int cuMemPoolSetAttribute(void *pool, int which, void *value);
int cuMemGetInfo_v2(size_t *free, size_t *total);
int cuLaunchKernel(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                   void **);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);

static void *kernel;

static inline double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static inline void must(int status, const char *what) {
    if (status != 0) {
        fprintf(stderr, "%s: CUDA error %d\n", what, status);
        exit(1);
    }
}

/* A context, and a kernel to launch. */
static inline void start(void) {
    int device;
    void *context, *module;
    must(cuInit(0), "cuInit");
    must(cuDeviceGet(&device, 0), "cuDeviceGet");
    must(cuCtxCreate_v2(&context, 0, device), "cuCtxCreate");
    must(cuModuleLoadData(&module, ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry k() { ret; }\n"), "cuModuleLoadData");
    must(cuModuleGetFunction(&kernel, module, "k"), "cuModuleGetFunction");
}

static inline void launch(void) {
    must(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}
