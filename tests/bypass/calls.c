/* Is linked inside of a slice. Calls functions that the filter does not define, and takes memory by one that it does. */
#include <stdio.h>
#include <stdlib.h>

#include "fill.h"

int cuInit(unsigned), cuDriverGetVersion(int *), cuCtxCreate_v2(void **, unsigned, int), cuMemAlloc_v2(address *, size_t);
int cuMemGetInfo_v2(size_t *, size_t *);

/* As a library with no hooked name in it, for a linker that drops what it thinks is not needed. */
int version(void) {
    int version = 0;
    return cuDriverGetVersion(&version) ? 0 : version;
}

#ifndef LIBRARY
static void *by_name(const char *name) { return name[3] == 'e' && name[4] == 'm' ? (void *)cuMemGetInfo_v2 : NULL; }

int main(int argc, char **argv) {
    unsigned long long limit = argc > 1 ? strtoull(argv[1], NULL, 10) : 0, granted = 0;
    address pointer;
    void *context;
    int status = cuInit(0);
    if (!status) status = cuCtxCreate_v2(&context, 0, 0);
    if (status || !version()) return 3;
    while (granted < 2 * limit && !(status = cuMemAlloc_v2(&pointer, CHUNK))) granted += CHUNK;
    report(by_name, granted, status);
    return 0;
}
#endif
