/* How many instructions of this process a kernel launch takes: stepped through one by one, so exact on any machine. */
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

enum { FEW = 20, MANY = 120 };

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
        launch(); /* the first looks things up */
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        run(FEW);
        run(MANY);
        return 0;
    }
    long few = steps(child), many = steps(child);
    printf("launch_instructions %.1f\n", (double)(many - few) / (MANY - FEW));
    waitpid(child, NULL, 0);
    return 0;
}
