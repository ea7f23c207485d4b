/* Many processes fill the slice together: processes HOW_MANY LIMIT_BYTES. One of them reports for all. */
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <dlfcn.h>

#include "fill.h"

struct shared {
    atomic_ullong granted;
    atomic_int finished, refused, reporter;
};

static void *find(const char *name) { return dlsym(RTLD_DEFAULT, name); }

static void await(atomic_int *count, int at_least) {
    while (atomic_load(count) < at_least) usleep(1000);
}

/* Takes chunks while all together have less than twice the limit. A context may be refused like any other memory. */
static int take(struct shared *all, unsigned long long limit) {
    int (*init)(unsigned) = need(find, "cuInit");
    int (*create)(void **, unsigned, int) = need(find, "cuCtxCreate_v2");
    int (*allocate)(address *, size_t) = need(find, "cuMemAlloc_v2");
    void *context;
    address pointer;
    int status = init(0);
    if (!status) status = create(&context, 0, 0);
    int has_context = !status;
    while (!status && atomic_load(&all->granted) < 2 * limit)
        if (!(status = allocate(&pointer, CHUNK))) atomic_fetch_add(&all->granted, CHUNK);
    if (status) atomic_store(&all->refused, status);
    return has_context;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int processes = atoi(argv[1]);
    unsigned long long limit = strtoull(argv[2], NULL, 10);
    struct shared *all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < processes; i++) {
        if (fork()) continue;
        int has_context = take(all, limit);
        atomic_fetch_add(&all->finished, 1);
        await(&all->finished, processes);
        int nobody = 0;
        if (has_context && atomic_compare_exchange_strong(&all->reporter, &nobody, 1)) {
            report(find, atomic_load(&all->granted), atomic_load(&all->refused));
            /* The others have waited with what they hold until everybody had looked. */
            atomic_store(&all->reporter, 2);
        }
        await(&all->reporter, 2);
        return 0;
    }
    while (wait(NULL) > 0) {
    }
    return 0;
}
