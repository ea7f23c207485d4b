/* A library of somebody else's that finds the driver on its own: looks_up.so by name, is_linked.so because it is linked with it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#ifdef LINKED
int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuMemAlloc_v2(unsigned long long *, unsigned long),
    cuMemGetInfo_v2(unsigned long *, unsigned long *);

void *find(const char *name) {
    if (!strcmp(name, "cuInit")) return cuInit;
    if (!strcmp(name, "cuCtxCreate_v2")) return cuCtxCreate_v2;
    if (!strcmp(name, "cuMemAlloc_v2")) return cuMemAlloc_v2;
    if (!strcmp(name, "cuMemGetInfo_v2")) return cuMemGetInfo_v2;
    return 0;
}
#else
void *find(const char *name) {
    static void *library;
    if (!library) library = dlopen("libcuda.so.1", RTLD_NOW);
    return dlsym(library, name);
}
#endif
