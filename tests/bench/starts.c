/* 256 processes start the driver at once: the slowest cuInit, and the slowest with a first look at the
 * memory, in milliseconds. A process that another program of the machine interrupts is late by a time slice. */
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

enum { PROCESSES = 256 };

struct took { double init_ns, look_ns; };
struct shared { atomic_int ready; struct took took[PROCESSES]; };

static void measure(struct took *took) {
    size_t bytes;
    double began = now_ns();
    must(cuInit(0), "cuInit");
    took->init_ns = now_ns() - began;
    must(cuDeviceTotalMem_v2(&bytes, 0), "cuDeviceTotalMem");
    took->look_ns = now_ns() - began;
}

int main(void) {
    struct shared *all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int gate[2], failed = 0;
    if (all == MAP_FAILED || pipe(gate)) return 1;
    for (int i = 0; i < PROCESSES; i++) {
        if (fork()) continue;
        char byte;
        close(gate[1]);
        atomic_fetch_add(&all->ready, 1);
        /* Ends for all of them together, when the last writer is gone. */
        if (read(gate[0], &byte, 1)) return 1;
        measure(&all->took[i]);
        return 0;
    }
    while (atomic_load(&all->ready) < PROCESSES) usleep(1000);
    usleep(10000);
    close(gate[1]);
    for (int status; wait(&status) > 0;) failed |= status;
    struct took slowest = {0, 0};
    for (int i = 0; i < PROCESSES; i++) {
        if (all->took[i].init_ns > slowest.init_ns) slowest.init_ns = all->took[i].init_ns;
        if (all->took[i].look_ns > slowest.look_ns) slowest.look_ns = all->took[i].look_ns;
    }
    printf("slowest_init_ms %.3f\nslowest_look_ms %.3f\n", slowest.init_ns / 1e6, slowest.look_ns / 1e6);
    return failed != 0;
}
