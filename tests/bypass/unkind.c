/* A libcuda.so.1 over the simulated one that is as unkind as the real one: $UNKIND says where. INNER is the simulated one's path. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
static volatile int finished;

static void *inner(const char *name) {
    static void *library;
    if (!library) library = dlopen(INNER, RTLD_NOW);
    return dlsym(library, name);
}

static int is(const char *way) {
    const char *unkind = getenv("UNKIND");
    return unkind && !strcmp(unkind, way);
}
#define CALL(name, ...) ((int (*)())inner(name))(__VA_ARGS__)

/* A stream of a green context has no context to tell, and from CUDA 12.8 on a device. */
int cuStreamGetCtx(void *stream, void **context) {
    if (is("green_stream") || is("green_stream_old")) return 201;
    return CALL("cuStreamGetCtx", stream, context);
}

int cuStreamGetDevice(void *stream, int *device) {
    (void)stream;
    if (!is("green_stream")) return 801;
    *device = 0;
    return 0;
}

/* A profiler is called back at each call of the driver, by whomever. It asks and allocates, once at a time. */
static void (*callback)(void);
static __thread int is_inside;

void unkind_call_back(void (*function)(void)) { callback = function; }

static void called(void) {
    if (!callback || is_inside) return;
    is_inside = 1;
    callback();
    is_inside = 0;
}

#define CALLED_BACK(name, parameters, ...) \
    int name parameters { \
        called(); \
        int status = CALL(#name, __VA_ARGS__); \
        called(); \
        return status; \
    }
CALLED_BACK(cuMemAlloc_v2, (u64 *address, size_t bytes), address, bytes)
CALLED_BACK(cuMemFree_v2, (u64 address), address)
CALLED_BACK(cuMemGetInfo_v2, (size_t *free, size_t *total), free, total)
CALLED_BACK(cuMemMap, (u64 at, size_t bytes, size_t offset, u64 handle, u64 flags), at, bytes, offset, handle, flags)
CALLED_BACK(cuMemUnmap, (u64 at, size_t bytes), at, bytes)
CALLED_BACK(cuMemPoolDestroy, (void *pool), pool)
CALLED_BACK(cuMemPoolSetAttribute, (void *pool, int which, void *value), pool, which, value)
CALLED_BACK(cuDeviceGetMemPool, (void **pool, int device), pool, device)
CALLED_BACK(cuDeviceGetCount, (int *count), count)
CALLED_BACK(cuDeviceGetUuid_v2, (void *uuid, int device), uuid, device)
CALLED_BACK(cuCtxGetCurrent, (void **context), context)
CALLED_BACK(cuCtxGetDevice, (int *device), device)
CALLED_BACK(cuCtxCreate_v2, (void **context, unsigned flags, int device), context, flags, device)
CALLED_BACK(cuCtxDestroy_v2, (void *context), context)
CALLED_BACK(cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *active), device, flags, active)
CALLED_BACK(cuDevicePrimaryCtxRetain, (void **context, int device), context, device)
CALLED_BACK(cuThreadExchangeStreamCaptureMode, (int *mode), mode)
CALLED_BACK(cuStreamIsCapturing, (void *stream, int *state), stream, state)
CALLED_BACK(cuArrayCreate_v2, (void **array, const void *description), array, description)
CALLED_BACK(cuArray3DCreate_v2, (void **array, const void *description), array, description)
CALLED_BACK(cuArrayGetMemoryRequirements, (void *required, void *array, int device), required, array, device)
CALLED_BACK(cuArrayDestroy, (void *array), array)
CALLED_BACK(cuGraphGetNodes, (void *graph, void **nodes, size_t *count), graph, nodes, count)
CALLED_BACK(cuGraphNodeGetType, (void *node, int *type), node, type)
CALLED_BACK(cuGraphMemAllocNodeGetParams, (void *node, void *parameters), node, parameters)
CALLED_BACK(cuGraphInstantiateWithFlags, (void **made, void *graph, u64 flags), made, graph, flags)
CALLED_BACK(cuGraphLaunch, (void *executable, void *stream), executable, stream)
CALLED_BACK(cuGraphExecDestroy, (void *executable), executable)
CALLED_BACK(cuDeviceGetGraphMemAttribute, (int device, int which, void *value), device, which, value)
CALLED_BACK(cuDeviceGraphMemTrim, (int device), device)

struct properties { int type, handle_types, location, id; u64 rest[9]; };

/* A pool of managed memory, whose pages are on the GPU as soon as it touches them. */
int cuMemPoolCreate(void **pool, const struct properties *properties) {
    struct properties changed = *properties;
    if (properties->type == 2) changed.type = 1, changed.location = 1, changed.id = 0;
    return CALL("cuMemPoolCreate", pool, &changed);
}

/* An upload as part of making a graph executable. The simulated driver takes the memory at the launch only. */
int cuGraphInstantiateWithParams(void **executable, void *graph, u64 *parameters) {
    int status = CALL("cuGraphInstantiateWithParams", executable, graph, parameters);
    if (!status && parameters[0] & 2) status = CALL("cuGraphLaunch", *executable, (void *)parameters[1]);
    return status;
}

/* A pool that must grow waits for work of the GPU, which waits for another thread of the program. */
void unkind_finish(void) { finished = 1; }

/* A pool grows in steps of 32 MiB, no allocation lies in two, and it shrinks only when the stream has reached the release. An H100 does this. */
enum { STEP = 32 << 20, SLOT = (300 << 10) + 512, SLOTS = STEP / SLOT, HOLE = STEP - SLOTS * SLOT, USED = 7 };
static int slots_left, is_released;
static u64 holes;

static int next_step(void *stream) {
    u64 step;
    int status = CALL("cuMemAllocAsync", &step, (size_t)STEP, stream);
    if (status) return status;
    CALL("cuMemFreeAsync", step, stream);
    slots_left = SLOTS;
    return 0;
}

/* Nothing fits into the end of a step, but the pool calls it unused. */
static void end_step(void *stream) {
    u64 hole;
    CALL("cuMemAllocAsync", &hole, (size_t)HOLE, stream);
    holes += HOLE;
}

int cuMemFreeAsync(u64 address, void *stream) {
    is_released = 0;
    called();
    return CALL("cuMemFreeAsync", address, stream);
}

int cuStreamSynchronize(void *stream) {
    is_released = 1;
    called();
    return CALL("cuStreamSynchronize", stream);
}

int cuMemPoolTrimTo(void *pool, size_t keep) {
    called();
    return is("pool_in_steps") && !is_released ? 0 : CALL("cuMemPoolTrimTo", pool, keep);
}

int cuMemAllocAsync(u64 *address, size_t bytes, void *stream) {
    if (is("pool_in_steps")) {
        int status = slots_left ? 0 : next_step(stream);
        if (status) return status;
        status = CALL("cuMemAllocAsync", address, bytes, stream);
        if (!status && !--slots_left) end_step(stream);
        return status;
    }
    called();
    while (is("growth_waits") && bytes > 64 << 20 && !finished) usleep(1000);
    return CALL("cuMemAllocAsync", address, bytes, stream);
}

/* A reset takes the program's pools along; asked about one of them, the driver crashes. */
static int is_reset;

int cuDevicePrimaryCtxReset_v2(int device) {
    is_reset = 1;
    return CALL("cuDevicePrimaryCtxReset_v2", device);
}

int cuMemPoolGetAttribute(void *pool, int which, void *value) {
    if (is("reset_takes_pools") && is_reset) abort();
    called();
    int status = CALL("cuMemPoolGetAttribute", pool, which, value);
    if (!status && which == USED) *(u64 *)value -= holes;
    return status;
}

/* Memory lives as long as a file descriptor that it was exported as, also when its handle is released. */
static u64 exported[64];

int cuMemExportToShareableHandle(void *shared, u64 handle, int kind, u64 flags) {
    static int count;
    if (is("exported") && count < 64) exported[count++] = handle;
    return CALL("cuMemExportToShareableHandle", shared, handle, kind, flags);
}

/* The value of a released handle is given out again before the release returns; the other thread has all the time that it needs. */
static volatile u64 free_value;
static u64 reused_value, reused_handle;

int unkind_has_released(void) { return free_value != 0; }

int cuMemRelease(u64 handle) {
    called();
    for (int i = 0; i < 64; i++)
        if (handle && exported[i] == handle) return 0;
    int status = CALL("cuMemRelease", handle == reused_value ? reused_handle : handle);
    if (is("handles_reused") && !status) free_value = handle;
    while (is("handles_reused") && !finished) usleep(1000);
    return status;
}

int cuMemCreate(u64 *handle, size_t bytes, const void *properties, u64 flags) {
    called();
    int status = CALL("cuMemCreate", handle, bytes, properties, flags);
    if (free_value && !status) {
        reused_handle = *handle;
        *handle = reused_value = free_value;
        free_value = 0;
    }
    return status;
}
