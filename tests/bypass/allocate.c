/* Fills the slice through one kind of allocation: allocate KIND LIMIT_BYTES. Exit code 4: this driver does not have it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "fill.h"

enum { NOT_SUPPORTED = 801, SMALL = 300 << 10 };

static void *find(const char *name) { return dlsym(RTLD_DEFAULT, name); }
#define DRIVER(name, ...) int (*name)(__VA_ARGS__) = need(find, #name)

struct location { int type, id; };
struct allocation_properties {
    int type, handle_types;
    struct location location;
    void *win32;
    unsigned char flags[8];
};
struct pool_properties {
    int type, handle_types;
    struct location location;
    void *win32;
    size_t max_size;
    unsigned char rest[56];
};
struct array { size_t width, height; int format; unsigned channels; };
struct array_3d { size_t width, height, depth; int format; unsigned channels, flags; };
struct allocation_node {
    struct pool_properties pool;
    const void *access;
    size_t access_count, bytes;
    address pointer;
};

static void *pool, *graph_stream;
static address reserved, mapped;

/* Each allocates about CHUNK bytes; the answer is the driver's. `*bytes` is what counts as granted. */
static int linear(size_t *bytes) {
    DRIVER(cuMemAlloc_v2, address *, size_t);
    address pointer;
    return cuMemAlloc_v2(&pointer, *bytes = CHUNK);
}

static int small(size_t *bytes) {
    DRIVER(cuMemAlloc_v2, address *, size_t);
    address pointer;
    return cuMemAlloc_v2(&pointer, *bytes = SMALL);
}

/* Small ones until there is no more; then all are freed but the first in each granule, which keeps the granule: nothing is free. */
static int fragments(size_t *bytes) {
    DRIVER(cuMemAlloc_v2, address *, size_t);
    DRIVER(cuMemFree_v2, address);
    static address *live;
    static size_t count, room;
    if (count == room && !(live = realloc(live, (room = 2 * room + 1024) * sizeof *live))) return -1;
    int status = cuMemAlloc_v2(&live[count], *bytes = SMALL);
    if (!status) return count++, 0;
    for (size_t i = 0; i < count; i++) {
        size_t first = 0;
        while (live[first] >> 21 != live[i] >> 21) first++;
        if (first != i && cuMemFree_v2(live[i])) return -1;
        if (first != i) live[i] = live[first];
    }
    count = 0;
    return linear(bytes);
}

static int odd(size_t *bytes) {
    /* Just over a granule: what is consumed is two. */
    DRIVER(cuMemAlloc_v2, address *, size_t);
    address pointer;
    *bytes = 4 << 20;
    return cuMemAlloc_v2(&pointer, (2 << 20) + 1);
}

static int pitch(size_t *bytes) {
    DRIVER(cuMemAllocPitch_v2, address *, size_t *, size_t, size_t, unsigned);
    address pointer;
    size_t row;
    int status = cuMemAllocPitch_v2(&pointer, &row, 1000, 65536, 4);
    *bytes = row * 65536;
    return status;
}

static int managed(size_t *bytes) {
    DRIVER(cuMemAllocManaged, address *, size_t, unsigned);
    DRIVER(cuMemPrefetchAsync, address, size_t, int, void *);
    address pointer;
    int status = cuMemAllocManaged(&pointer, *bytes = CHUNK, 1);
    /* Only then is it on the GPU, where the witness looks. */
    return status ? status : cuMemPrefetchAsync(pointer, CHUNK, 0, NULL);
}

static int async(size_t *bytes) {
    DRIVER(cuMemAllocAsync, address *, size_t, void *);
    address pointer;
    return cuMemAllocAsync(&pointer, *bytes = CHUNK, NULL);
}

static int async_odd(size_t *bytes) {
    /* Takes one slot of 512 bytes more than what is asked for fills. */
    DRIVER(cuMemAllocAsync, address *, size_t, void *);
    address pointer;
    *bytes = SMALL + 512;
    return cuMemAllocAsync(&pointer, SMALL + 1, NULL);
}

static int async_ptsz(size_t *bytes) {
    DRIVER(cuMemAllocAsync_ptsz, address *, size_t, void *);
    address pointer;
    return cuMemAllocAsync_ptsz(&pointer, *bytes = CHUNK, NULL);
}

static int from_own_pool(size_t *bytes) {
    DRIVER(cuMemPoolCreate, void **, struct pool_properties *);
    DRIVER(cuMemAllocFromPoolAsync, address *, size_t, void *, void *);
    struct pool_properties properties = {.type = 1, .location = {1, 0}};
    int status = pool ? 0 : cuMemPoolCreate(&pool, &properties);
    address pointer;
    *bytes = CHUNK;
    return status ? status : cuMemAllocFromPoolAsync(&pointer, CHUNK, pool, NULL);
}

static int from_own_pool_ptsz(size_t *bytes) {
    DRIVER(cuMemAllocFromPoolAsync_ptsz, address *, size_t, void *, void *);
    address pointer;
    /* The pool is made by the first. */
    return pool ? cuMemAllocFromPoolAsync_ptsz(&pointer, *bytes = CHUNK, pool, NULL) : from_own_pool(bytes);
}

static int from_default_pool(size_t *bytes) {
    DRIVER(cuDeviceGetDefaultMemPool, void **, int);
    DRIVER(cuMemAllocFromPoolAsync, address *, size_t, void *, void *);
    int status = pool ? 0 : cuDeviceGetDefaultMemPool(&pool, 0);
    address pointer;
    *bytes = CHUNK;
    return status ? status : cuMemAllocFromPoolAsync(&pointer, CHUNK, pool, NULL);
}

enum { ON_DEVICE = 1, ON_HOST_NODE = 3, IN_LOCALITY_DOMAIN = 6 };

static int create(unsigned long long *handle, int location) {
    DRIVER(cuMemCreate, unsigned long long *, size_t, struct allocation_properties *, unsigned long long);
    struct allocation_properties properties = {.type = 1, .location = {location, 0}};
    return cuMemCreate(handle, CHUNK, &properties, 0);
}

/* The first part of the first GPU's memory, which on most GPUs is all of it. */
static int physical_local(size_t *bytes) {
    unsigned long long handle;
    *bytes = CHUNK;
    return create(&handle, IN_LOCALITY_DOMAIN);
}

static int pool_local(size_t *bytes) {
    DRIVER(cuMemPoolCreate, void **, struct pool_properties *);
    DRIVER(cuMemAllocFromPoolAsync, address *, size_t, void *, void *);
    struct pool_properties properties = {.type = 1, .location = {IN_LOCALITY_DOMAIN, 0}};
    int status = pool ? 0 : cuMemPoolCreate(&pool, &properties);
    address pointer;
    *bytes = CHUNK;
    return status ? status : cuMemAllocFromPoolAsync(&pointer, CHUNK, pool, NULL);
}

static int physical(size_t *bytes) {
    unsigned long long handle;
    *bytes = CHUNK;
    return create(&handle, ON_DEVICE);
}

/* The handle goes, the mapping stays: PyTorch's expandable segments do this. */
static int physical_mapped(size_t *bytes) {
    DRIVER(cuMemAddressReserve, address *, size_t, size_t, address, unsigned long long);
    DRIVER(cuMemMap, address, size_t, size_t, unsigned long long, unsigned long long);
    DRIVER(cuMemRelease, unsigned long long);
    unsigned long long handle;
    int status = reserved ? 0 : cuMemAddressReserve(&reserved, 64ull << 30, 0, 0, 0);
    if (!status) status = create(&handle, ON_DEVICE);
    if (status) return status;
    status = cuMemMap(reserved + mapped, CHUNK, 0, handle, 0);
    mapped += CHUNK;
    *bytes = CHUNK;
    return status ? status : cuMemRelease(handle);
}

static int array(size_t *bytes) {
    DRIVER(cuArrayCreate_v2, void **, struct array *);
    struct array description = {4096, 4096, 0x20, 1};
    void *made;
    *bytes = CHUNK;
    return cuArrayCreate_v2(&made, &description);
}

static int array_3d(size_t *bytes) {
    DRIVER(cuArray3DCreate_v2, void **, struct array_3d *);
    struct array_3d description = {256, 256, 256, 0x20, 1, 0};
    void *made;
    *bytes = CHUNK;
    return cuArray3DCreate_v2(&made, &description);
}

static int mipmapped(size_t *bytes) {
    DRIVER(cuMipmappedArrayCreate, void **, struct array_3d *, unsigned);
    struct array_3d description = {4096, 4096, 0, 0x20, 1, 0};
    void *made;
    *bytes = CHUNK;
    return cuMipmappedArrayCreate(&made, &description, 3);
}

/* A graph with one allocation, launched. */
static int graph_in(int location, size_t *bytes) {
    DRIVER(cuGraphCreate, void **, unsigned);
    DRIVER(cuGraphAddMemAllocNode, void **, void *, void *, size_t, struct allocation_node *);
    DRIVER(cuGraphInstantiateWithFlags, void **, void *, unsigned long long);
    DRIVER(cuGraphLaunch, void *, void *);
    void *made, *node, *executable;
    struct allocation_node parameters = {.pool = {.type = 1, .location = {location, 0}}, .bytes = CHUNK};
    int status = cuGraphCreate(&made, 0);
    if (!status) status = cuGraphAddMemAllocNode(&node, made, NULL, 0, &parameters);
    if (!status) status = cuGraphInstantiateWithFlags(&executable, made, 0);
    if (!status) status = cuGraphLaunch(executable, graph_stream);
    *bytes = CHUNK;
    return status;
}

static int graph(size_t *bytes) { return graph_in(ON_DEVICE, bytes); }
static int graph_local(size_t *bytes) { return graph_in(IN_LOCALITY_DOMAIN, bytes); }

/* As the runtime's programs do. */
static int in_primary_context(size_t *bytes) {
    DRIVER(cuDevicePrimaryCtxRetain, void **, int);
    DRIVER(cuCtxSetCurrent, void *);
    void *context;
    int status = cuDevicePrimaryCtxRetain(&context, 0);
    if (!status) status = cuCtxSetCurrent(context);
    return status ? status : linear(bytes);
}

/* Not GPU memory: must not be charged, so it is never refused. */
static int physical_on_host(size_t *bytes) {
    DRIVER(cuMemRelease, unsigned long long);
    static int created;
    unsigned long long handle;
    *bytes = CHUNK;
    int status = create(&handle, ON_HOST_NODE);
    /* Half of it stays. */
    return status || created++ % 2 ? status : cuMemRelease(handle);
}

static int host(size_t *bytes) {
    DRIVER(cuMemHostAlloc, void **, size_t, unsigned);
    DRIVER(cuMemFreeHost, void *);
    void *pointer;
    *bytes = CHUNK;
    int status = cuMemHostAlloc(&pointer, CHUNK, 0);
    if (!status) cuMemFreeHost(pointer);
    return status;
}

/* Taken one way and given back the other, over and over: nothing may stay charged. */
static int crosswise(size_t *bytes) {
    DRIVER(cuMemAlloc_v2, address *, size_t);
    DRIVER(cuMemFree_v2, address);
    DRIVER(cuMemAllocAsync, address *, size_t, void *);
    DRIVER(cuMemFreeAsync, address, void *);
    DRIVER(cuStreamSynchronize, void *);
    address one, other;
    *bytes = 2 * CHUNK;
    int status = cuMemAlloc_v2(&one, CHUNK);
    if (!status) status = cuMemAllocAsync(&other, CHUNK, NULL);
    if (!status) status = cuMemFreeAsync(one, NULL);
    if (!status) status = cuMemFree_v2(other);
    return status ? status : cuStreamSynchronize(NULL);
}

/* Everything goes with its context, and can be taken again in the next. */
static int context_after_context(size_t *bytes) {
    DRIVER(cuCtxCreate_v2, void **, unsigned, int);
    DRIVER(cuCtxDestroy_v2, void *);
    void *context;
    size_t each;
    *bytes = 0;
    int status = cuCtxCreate_v2(&context, 0, 0);
    for (int i = 0; i < 16 && !status; i++) {
        status = i % 2 ? linear(&each) : pitch(&each);
        *bytes += each;
    }
    return status ? status : cuCtxDestroy_v2(context);
}

/* The runtime's context: reset gives everything back. */
static int primary_context_reset(size_t *bytes) {
    DRIVER(cuDevicePrimaryCtxRetain, void **, int);
    DRIVER(cuDevicePrimaryCtxReset_v2, int);
    DRIVER(cuCtxPushCurrent_v2, void *);
    DRIVER(cuCtxPopCurrent_v2, void **);
    void *context;
    size_t each;
    *bytes = 0;
    int status = cuDevicePrimaryCtxRetain(&context, 0);
    if (!status) status = cuCtxPushCurrent_v2(context);
    for (int i = 0; i < 16 && !status; i++) {
        status = linear(&each);
        *bytes += each;
    }
    if (!status) status = cuCtxPopCurrent_v2(&context);
    return status ? status : cuDevicePrimaryCtxReset_v2(0);
}

static const struct { const char *name; int (*allocate)(size_t *); } kinds[] = {
    {"linear", linear}, {"small", small}, {"fragments", fragments}, {"odd", odd}, {"pitch", pitch}, {"managed", managed}, {"async", async},
    {"async_odd", async_odd}, {"async_ptsz", async_ptsz}, {"from_own_pool", from_own_pool}, {"from_own_pool_ptsz", from_own_pool_ptsz}, {"from_default_pool", from_default_pool},
    {"physical", physical}, {"physical_mapped", physical_mapped}, {"array", array}, {"array_3d", array_3d},
    {"physical_local", physical_local}, {"pool_local", pool_local}, {"graph_local", graph_local},
    {"mipmapped", mipmapped}, {"graph", graph}, {"in_primary_context", in_primary_context}, {"host", host}, {"physical_on_host", physical_on_host}, {"crosswise", crosswise},
    {"context_after_context", context_after_context}, {"primary_context_reset", primary_context_reset},
};

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    unsigned long long limit = strtoull(argv[2], NULL, 10), granted = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(argv[1], kinds[i].name)) continue;
        void *context;
        start(find, &context);
        DRIVER(cuStreamCreate, void **, unsigned);
        cuStreamCreate(&graph_stream, 0);
        int status = 0;
        while (granted < 2 * limit && !status) {
            size_t bytes = 0;
            status = kinds[i].allocate(&bytes);
            if (!status) granted += bytes;
        }
        if (status == NOT_SUPPORTED && !granted) return 4;
        report(find, granted, status);
        return 0;
    }
    return 2;
}
