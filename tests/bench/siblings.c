/* What a call costs in a slice of many processes: nanoseconds, the least of several rounds.
 *
 *   siblings [ROUNDS] */
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

enum { SIBLINGS = 100, CALLS = 4000 };

/* One that is part of the slice until its input ends. There need not be memory for its context. */
static void hold(void) {
    void *context;
    char byte = 0;
    must(cuInit(0), "cuInit");
    cuCtxCreate_v2(&context, 0, 0);
    if (write(1, &byte, 1) != 1 || read(0, &byte, 1) != 0) exit(1);
    exit(0);
}

static void sibling(const char *self, int input[2], int output[2]) {
    char byte;
    if (fork() == 0) {
        dup2(input[0], 0);
        dup2(output[1], 1);
        close(input[1]);
        execl(self, self, "hold", "now", NULL);
        exit(1);
    }
    if (read(output[0], &byte, 1) != 1) exit(1);
}

int main(int argc, char **argv) {
    if (argc == 3) hold();
    int rounds = argc > 1 ? atoi(argv[1]) : 35, input[2], output[2];
    double least = 1e18;
    start();
    if (pipe(input) || pipe(output)) return 1;
    for (int i = 0; i < SIBLINGS; i++) sibling("/proc/self/exe", input, output);
    for (int round = 0; round < rounds; round++) {
        double start = now_ns();
        for (int i = 0; i < CALLS; i++) {
            size_t free, total;
            must(cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
        }
        double each = (now_ns() - start) / CALLS;
        if (each < least) least = each;
    }
    printf("mem_get_info_of_100 %.1f\n", least);
    close(input[1]);
    while (wait(NULL) > 0) {}
    return 0;
}
