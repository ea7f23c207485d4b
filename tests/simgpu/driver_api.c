/* A driver-API program as C users write them: two GPUs' worth of the usual calls, every code checked. Prints one line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream, *CUevent;
CUresult cuInit(unsigned), cuDriverGetVersion(int *), cuDeviceGetCount(int *), cuDeviceGet(CUdevice *, int);
CUresult cuDeviceGetName(char *, int, CUdevice), cuDeviceTotalMem_v2(size_t *, CUdevice);
CUresult cuDeviceGetAttribute(int *, int, CUdevice), cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
CUresult cuCtxDestroy_v2(CUcontext), cuCtxSynchronize(void), cuCtxGetCurrent(CUcontext *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t), cuMemFree_v2(CUdeviceptr), cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t), cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
CUresult cuMemsetD8_v2(CUdeviceptr, unsigned char, size_t), cuMemAllocHost_v2(void **, size_t), cuMemFreeHost(void *);
CUresult cuModuleLoadData(CUmodule *, const void *), cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuModuleUnload(CUmodule), cuStreamCreate(CUstream *, unsigned), cuStreamSynchronize(CUstream);
CUresult cuStreamDestroy_v2(CUstream), cuEventCreate(CUevent *, unsigned), cuEventRecord(CUevent, CUstream);
CUresult cuEventSynchronize(CUevent), cuEventDestroy_v2(CUevent), cuGetErrorName(CUresult, const char **);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void **, void **);

static void check(CUresult code, const char *call) {
    const char *name = "?";
    if (code == 0)
        return;
    cuGetErrorName(code, &name);
    fprintf(stderr, "%s: %s\n", call, name);
    exit(1);
}
#define CHECK(call) check(call, #call)

int main(void) {
    int version, count, major;
    CUdevice device;
    CUcontext context, current;
    CUmodule module;
    CUfunction function;
    CUstream stream;
    CUevent event;
    CUdeviceptr linear, pitched;
    size_t total, free_bytes, pitch;
    void *host;
    char name[96];

    CHECK(cuInit(0));
    CHECK(cuDriverGetVersion(&version));
    CHECK(cuDeviceGetCount(&count));
    CHECK(cuDeviceGet(&device, count - 1));
    CHECK(cuDeviceGetName(name, sizeof name, device));
    CHECK(cuDeviceTotalMem_v2(&total, device));
    CHECK(cuDeviceGetAttribute(&major, 75, device));
    CHECK(cuCtxCreate_v2(&context, 0, device));
    CHECK(cuCtxGetCurrent(&current));
    if (current != context)
        return 2;
    CHECK(cuMemAlloc_v2(&linear, 1 << 30));
    CHECK(cuMemAllocPitch_v2(&pitched, &pitch, 1000, 4096, 4));
    CHECK(cuMemAllocHost_v2(&host, 1 << 20));
    memset(host, 1, 1 << 20);
    CHECK(cuMemcpyHtoD_v2(linear, host, 1 << 20));
    CHECK(cuMemsetD8_v2(linear, 0, 1 << 30));
    CHECK(cuMemcpyDtoH_v2(host, linear, 1 << 20));
    CHECK(cuModuleLoadData(&module, "any image"));
    CHECK(cuModuleGetFunction(&function, module, "kernel"));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    CHECK(cuEventRecord(event, stream));
    CHECK(cuEventSynchronize(event));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemGetInfo_v2(&free_bytes, &total));
    printf("%d %d %s %d %zu %zu %zu\n", version, count, name, major, total, free_bytes, pitch);
    CHECK(cuEventDestroy_v2(event));
    CHECK(cuStreamDestroy_v2(stream));
    CHECK(cuModuleUnload(module));
    CHECK(cuMemFreeHost(host));
    CHECK(cuMemFree_v2(pitched));
    CHECK(cuMemFree_v2(linear));
    CHECK(cuCtxSynchronize());
    CHECK(cuCtxDestroy_v2(context));
    return cuMemFree_v2(linear) == 0 ? 3 : 0;
}
