/* Resident memory of this process in KiB, with a context and 1000 live allocations.
 *
 * Not counted: the system's libraries, of which the kernel maps more or less at a time, and the slice's ledger, one for all of
 * its processes. */
#include <string.h>

#include "driver.h"

enum { LIVE = 1000 };

static int counts(const char *mapping) {
    /* The driver's, or the shim in its place, lies among the system's. */
    if (strstr(mapping, "/libcuda.so.")) return 1;
    return !strstr(mapping, "/lib/x86_64-linux-gnu/") && !strstr(mapping, "/lib64/") && !strstr(mapping, "/cantle/slice/usage");
}

int main(void) {
    start();
    launch();
    for (int i = 0; i < LIVE; i++) {
        address pointer;
        must(cuMemAlloc_v2(&pointer, 4096), "cuMemAlloc");
    }
    FILE *smaps = fopen("/proc/self/smaps", "r");
    char line[4096];
    long sum = 0, kib;
    int counted = 0;
    while (smaps && fgets(line, sizeof line, smaps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) counted = counts(line);
        if (counted && sscanf(line, "Rss: %ld", &kib) == 1) sum += kib;
    }
    printf("resident_kib %ld\n", sum);
    return sum == 0;
}
