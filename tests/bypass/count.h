/* A libcuda.so.1 over the real one of the machine that counts calls of the functions in the list below it: COUNT(name)…. INNER is
   the real one's path. All arguments of CUDA's are integers or pointers, so they go on as they came, eight of them. */
#define _GNU_SOURCE
#include <dlfcn.h>

static unsigned long long calls;

static void *inner(const char *name) {
    static void *library;
    if (!library) library = dlopen(INNER, RTLD_NOW);
    return dlsym(library, name);
}

unsigned long long counted(void) { return __atomic_load_n(&calls, __ATOMIC_RELAXED); }

#define COUNT(name)                                                                                        \
    long name(long a, long b, long c, long d, long e, long f, long g, long h) {                            \
        static long (*real)(long, long, long, long, long, long, long, long);                               \
        if (!real) real = inner(#name);                                                                    \
        __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);                                                   \
        return real(a, b, c, d, e, f, g, h);                                                               \
    }
