/* Fills the slice through one way of getting at the driver: access WAY LIMIT_BYTES LIBCUDA_PATH PLUGIN_DIR */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

#include "fill.h"

extern char **environ;
static void *library;
static const char *path, *plugins;

static void *by_dlsym(const char *name) { return dlsym(library, name); }
static void *by_default(const char *name) { return dlsym(RTLD_DEFAULT, name); }
static void *by_next(const char *name) { return dlsym(RTLD_NEXT, name); }

static void *by_dlsym_of_dlsym(const char *name) {
    void *(*find)(void *, const char *) = dlsym(RTLD_DEFAULT, "dlsym");
    return find(library, name);
}

/* The C library's own dlsym, which a preloaded one does not stand in front of. */
static void *by_dlsym_of_a_version(const char *name) {
    void *(*find)(void *, const char *) = dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.34");
    if (!find) find = dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5");
    return find ? find(library, name) : NULL;
}

/* The driver's functions have no versions to ask for. */
static void *by_dlvsym(const char *name) { return dlvsym(library, name, "libcuda.so.1"); }

static const char *base(const char *name) {
    /* The driver's look-up wants names without version; it finds the newest that the version asked for has. */
    static char text[64];
    strcpy(text, name);
    char *suffix = strstr(text, "_v2");
    if (suffix) *suffix = 0;
    return text;
}

static void *by_get_proc_address(const char *name) {
    int (*get)(const char *, void **, int, unsigned long long) = dlsym(library, "cuGetProcAddress");
    void *found = NULL;
    get(base(name), &found, 11030, 0);
    return found;
}

static void *by_get_proc_address_v2(const char *name) {
    int (*get)(const char *, void **, int, unsigned long long, int *) = dlsym(library, "cuGetProcAddress_v2");
    void *found = NULL;
    int status;
    get(base(name), &found, 11030, 2, &status);
    return found;
}

/* cuGetProcAddress, asked for itself, and then asked. */
static void *by_get_proc_address_of_itself(const char *name) {
    int (*get)(const char *, void **, int, unsigned long long, int *) = by_get_proc_address_v2("cuGetProcAddress");
    void *found = NULL;
    int status;
    get(base(name), &found, 11030, 0, &status);
    return found;
}

/* How many symbols there are, in the newer kind of hash table: the last chain of the buckets ends with the last symbol. */
static unsigned count_of_gnu_hash(const unsigned *table) {
    unsigned buckets = table[0], first = table[1], words = table[2], last = 0;
    const unsigned *bucket = table + 4 + words * (sizeof(ElfW(Addr)) / sizeof *table), *chain = bucket + buckets;
    for (unsigned i = 0; i < buckets; i++)
        if (bucket[i] > last) last = bucket[i];
    if (last < first) return first;
    while (!(chain[last - first] & 1)) last++;
    return last + 1;
}

/* Walks the dynamic symbol table of the object behind `library`, as loaders of other languages do. */
static void *by_own_walk(const char *name) {
    struct link_map *map = library;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const unsigned *hash = NULL, *gnu_hash = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) symbols = (void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) strings = (void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_HASH) hash = (void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_GNU_HASH) gnu_hash = (void *)entry->d_un.d_ptr;
    }
    unsigned count = hash ? hash[1] : gnu_hash ? count_of_gnu_hash(gnu_hash) : 0;
    for (unsigned i = 0; i < count; i++)
        if (symbols[i].st_shndx != SHN_UNDEF && !strcmp(strings + symbols[i].st_name, name))
            return (char *)map->l_addr + symbols[i].st_value;
    /* A filter defines only some names; the others are in what it needs. */
    return dlsym(library, name);
}

static void *(*plugin_find)(const char *);
static void *by_plugin(const char *name) { return plugin_find(name); }

static void plugin(const char *file, int flags, int new_namespace) {
    char full[4096];
    snprintf(full, sizeof full, "%s/%s", plugins, file);
    void *handle = new_namespace ? dlmopen(LM_ID_NEWLM, full, flags) : dlopen(full, flags);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    plugin_find = dlsym(handle, "find");
}

struct job { lookup find; unsigned long long limit, granted; int status; };

/* One of 64 threads that fill the slice together. */
static void *thread(void *argument) {
    struct job *job = argument;
    int (*set)(void *) = need(job->find, "cuCtxSetCurrent");
    int (*allocate)(address *, size_t) = need(job->find, "cuMemAlloc_v2");
    address pointer;
    set(library);
    while (job->granted < job->limit / 32 && !(job->status = allocate(&pointer, 2 << 20))) job->granted += 2 << 20;
    return NULL;
}

static void threads(unsigned long long limit) {
    pthread_t all[64];
    struct job jobs[64];
    unsigned long long granted = 0;
    int status = 0;
    void *context;
    start(by_default, &context);
    library = context;
    for (int i = 0; i < 64; i++) {
        jobs[i] = (struct job){by_default, limit, 0, 0};
        pthread_create(&all[i], NULL, thread, &jobs[i]);
    }
    for (int i = 0; i < 64; i++) {
        pthread_join(all[i], NULL);
        granted += jobs[i].granted;
        if (jobs[i].status) status = jobs[i].status;
    }
    report(by_default, granted, status);
}

static void open_library(const char *file, int flags) {
    library = dlopen(file, flags);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    const char *way = argv[1];
    unsigned long long limit = strtoull(argv[2], NULL, 10);
    path = argv[3];
    plugins = argv[4];
#define WAY(name) if (!strcmp(way, name))
    WAY("linked") { fill(by_default, limit); return 0; }
    WAY("next") { fill(by_next, limit); return 0; }
    WAY("threads") { threads(limit); return 0; }
    WAY("fork") {
        pid_t child = fork();
        if (!child) { fill(by_default, limit); return 0; }
        waitpid(child, NULL, 0);
        return 0;
    }
    WAY("fork_after_use") {
        /* The parent attaches and ends its context; the child must account for itself. */
        void *context;
        start(by_default, &context);
        int (*destroy)(void *) = need(by_default, "cuCtxDestroy_v2");
        destroy(context);
        if (fork()) { wait(NULL); return 0; }
        char *again[] = {argv[0], "linked", argv[2], argv[3], argv[4], NULL};
        execv(argv[0], again);
        return 3;
    }
    WAY("exec") {
        /* What the process held before is gone, and not charged any more. */
        void *context;
        address pointer;
        start(by_default, &context);
        int (*allocate)(address *, size_t) = need(by_default, "cuMemAlloc_v2");
        if (allocate(&pointer, CHUNK)) return 3;
        char *again[] = {argv[0], "linked", argv[2], argv[3], argv[4], NULL};
        execv(argv[0], again);
        return 3;
    }
    WAY("spawn") {
        pid_t child;
        char *again[] = {argv[0], "linked", argv[2], argv[3], argv[4], NULL};
        posix_spawn(&child, argv[0], NULL, NULL, again, environ);
        waitpid(child, NULL, 0);
        return 0;
    }
    WAY("deepbind_plugin_dlsym") { plugin("looks_up.so", RTLD_NOW | RTLD_DEEPBIND, 0); fill(by_plugin, limit); return 0; }
    WAY("deepbind_plugin_linked") { plugin("is_linked.so", RTLD_NOW | RTLD_DEEPBIND, 0); fill(by_plugin, limit); return 0; }
    WAY("namespace_plugin_dlsym") { plugin("looks_up.so", RTLD_NOW, 1); fill(by_plugin, limit); return 0; }
    WAY("namespace_plugin_linked") { plugin("is_linked.so", RTLD_NOW, 1); fill(by_plugin, limit); return 0; }
    WAY("namespace") {
        library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
        if (!library) { fprintf(stderr, "%s\n", dlerror()); return 3; }
        fill(by_dlsym, limit);
        return 0;
    }
    WAY("full_path") { open_library(path, RTLD_NOW); fill(by_dlsym, limit); return 0; }
    WAY("full_path_deepbind") { open_library(path, RTLD_NOW | RTLD_DEEPBIND); fill(by_dlsym, limit); return 0; }
    open_library("libcuda.so.1", RTLD_NOW);
    WAY("dlopen") fill(by_dlsym, limit);
    WAY("dlsym_of_dlsym") fill(by_dlsym_of_dlsym, limit);
    WAY("dlsym_of_a_version") fill(by_dlsym_of_a_version, limit);
    WAY("dlvsym") fill(by_dlvsym, limit);
    WAY("get_proc_address") fill(by_get_proc_address, limit);
    WAY("get_proc_address_v2") fill(by_get_proc_address_v2, limit);
    WAY("get_proc_address_of_itself") fill(by_get_proc_address_of_itself, limit);
    WAY("own_elf_walk") fill(by_own_walk, limit);
    return 0;
}
