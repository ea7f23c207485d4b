/* Fills the slice through NVIDIA's own CUDA runtime library, shared or inside the program: runtime LIMIT_BYTES.
 *
 * The runtime asks the driver for a private table that proves it is NVIDIA's, which the simulated driver can't give; so its own
 * calls fail. But first it looks up every function that it will call. This program stands in its way with a `dlsym` of its own,
 * keeps what the runtime was given, and fills the slice by calling just that. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "fill.h"

typedef int (*get_address)(const char *, void **, int, unsigned long long, int *);
typedef void *(*finder)(void *, const char *);

enum { MOST = 1024, NAME = 64 };
static struct { char name[NAME]; void *function; } given[MOST];
static int count;
static get_address driver_get_address;

static int get_and_note(const char *name, void **function, int version, unsigned long long flags, int *status) {
    int result = driver_get_address(name, function, version, flags, status);
    if (result || !*function) return result;
    if (!strcmp(name, "cuGetProcAddress")) {
        /* It asks for this one by its other form, and goes on with what it gets. */
        if (version >= 12000) driver_get_address = (get_address)*function, *function = get_and_note;
        return result;
    }
    if (count < MOST && strlen(name) < NAME) {
        strcpy(given[count].name, name);
        given[count++].function = *function;
    }
    return result;
}

/* The runtime is a library of its own, or part of this program. What others look up is theirs. */
static int is_runtime(const void *caller) {
    Dl_info its, ours;
    if (!dladdr(caller, &its) || !dladdr((void *)is_runtime, &ours)) return 0;
    return its.dli_fbase == ours.dli_fbase || strstr(its.dli_fname, "libcudart");
}

/* Found by the runtime before the C library's. */
void *dlsym(void *handle, const char *name) {
    finder real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *found = real(handle, name);
    if (!found || strcmp(name, "cuGetProcAddress_v2") || !is_runtime(__builtin_return_address(0))) return found;
    driver_get_address = found;
    return get_and_note;
}

/* What the runtime was given for the newest version of a function. */
static void *as_the_runtime(const char *name) {
    char base[NAME];
    strcpy(base, name);
    char *suffix = strstr(base, "_v2");
    if (suffix) *suffix = 0;
    void *found = NULL;
    for (int i = 0; i < count; i++)
        if (!strcmp(given[i].name, base)) found = given[i].function;
    return found;
}

int cudaFree(void *pointer);

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    /* When its calls fail, the runtime closes the driver; what it was given must stay. */
    if (!dlopen("libcuda.so.1", RTLD_NOW)) return 3;
    cudaFree(NULL);
    if (count < 300) {
        fprintf(stderr, "the runtime looked up %d functions only: this shows nothing\n", count);
        return 3;
    }
    fill(as_the_runtime, strtoull(argv[1], NULL, 10));
    return 0;
}
