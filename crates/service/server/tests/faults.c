/* Makes writes of a process to files below $FAULT_DIR fail, as a full or broken disk does. What fails is said in the file
 * $FAULT_CONTROL, which is mapped by both sides: see `Faults` in faults.rs. Preloaded by faults.rs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct control {
    int64_t until;  /* this many writes go well first */
    int64_t error;  /* errno of what fails; 0: nothing does */
    int64_t lasts;  /* not one write fails but all from then on */
    int64_t failed; /* how many did */
};

static volatile struct control *control;
static const char *dir;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("FAULT_CONTROL");
    dir = getenv("FAULT_DIR");
    int fd = path ? open(path, O_RDWR) : -1;
    if (fd < 0 || !dir) return;
    void *map = mmap(0, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED) control = map;
}

static int fails(void) {
    if (__atomic_fetch_sub(&control->until, 1, __ATOMIC_SEQ_CST) > 0) return 0;
    int error = (int)control->error;
    if (!error) return 0;
    if (!control->lasts) control->error = 0;
    __atomic_fetch_add(&control->failed, 1, __ATOMIC_SEQ_CST);
    errno = error;
    return 1;
}

static int is_below(const char *path) { return strncmp(path, dir, strlen(dir)) == 0; }

static int fd_fails(int fd) {
    if (!control || !control->error) return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_below(path) && fails();
}

static int path_fails(const char *path) { return control && control->error && is_below(path) && fails(); }

#define REAL(name) ((typeof(name) *)dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *b, size_t n) { return fd_fails(fd) ? -1 : REAL(write)(fd, b, n); }
ssize_t pwrite(int fd, const void *b, size_t n, off_t o) { return fd_fails(fd) ? -1 : REAL(pwrite)(fd, b, n, o); }
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t o) { return fd_fails(fd) ? -1 : REAL(pwrite64)(fd, b, n, o); }
int fsync(int fd) { return fd_fails(fd) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fd_fails(fd) ? -1 : REAL(fdatasync)(fd); }
int ftruncate(int fd, off_t n) { return fd_fails(fd) ? -1 : REAL(ftruncate)(fd, n); }
int ftruncate64(int fd, off64_t n) { return fd_fails(fd) ? -1 : REAL(ftruncate64)(fd, n); }
int rename(const char *a, const char *b) { return path_fails(b) ? -1 : REAL(rename)(a, b); }
int mkdir(const char *p, mode_t m) { return path_fails(p) ? -1 : REAL(mkdir)(p, m); }
