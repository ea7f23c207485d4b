/* How many instructions of this process a kernel launch takes: stepped through one by one, so exact on any machine. */
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

enum { FEW = 20, MANY = 120, ROUNDS = 4, WARM = 10000 };

static void run(int launches) {
    raise(SIGSTOP);
    for (int i = 0; i < launches; i++) launch();
    raise(SIGSTOP);
}

static void stop_of(pid_t child, int signal) {
    int status;
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status) || WSTOPSIG(status) != signal) {
        fprintf(stderr, "the stepped process ended, status %d\n", status);
        exit(1);
    }
}

/* Instructions from one stop of the child's own to the next. */
static long steps(pid_t child) {
    stop_of(child, SIGSTOP);
    for (long count = 0;; count++) {
        int status;
        ptrace(PTRACE_SINGLESTEP, child, NULL, NULL);
        waitpid(child, &status, 0);
        if (WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP) {
            ptrace(PTRACE_CONT, child, NULL, NULL);
            return count;
        }
        if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP) exit(1);
    }
}

int main(void) {
    pid_t child = fork();
    if (!child) {
        start();
        /* The first ones look things up, and a gate learns what a launch takes: stepped, it would take a thousand times as long. */
        for (int i = 0; i < WARM; i++) launch();
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        for (int round = 0; round < ROUNDS; round++) {
            run(FEW);
            run(MANY);
        }
        return 0;
    }
    /* The least: a launch that had something else to do, as one in thousands has, is in some rounds only. */
    long few = steps(child), many = steps(child);
    for (int round = 1; round < ROUNDS; round++) {
        long again = steps(child);
        if (again < few) few = again;
        again = steps(child);
        if (again < many) many = again;
    }
    printf("launch_instructions %.1f\n", (double)(many - few) / (MANY - FEW));
    waitpid(child, NULL, 0);
    return 0;
}
