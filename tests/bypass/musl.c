/* A program of another C library tries to reach the driver: musl PATH_OF_LIBCUDA. Exit code 3: there is no way. */
#include <dlfcn.h>

#include "fill.h"

static void *library;

static void *find(const char *name) { return dlsym(library, name); }

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    library = dlopen(argv[1], RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    fill(find, 40ull << 30);
    return 0;
}
