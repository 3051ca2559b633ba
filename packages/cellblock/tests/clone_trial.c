/* The stacks of a run, without namespaces: a child on a separate stack forks, and its child returns from clone_onto. */
#include "cell.c"

static void fork_once(const struct run *run) {
    long child = SYS(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    int status = 0;
    (void)run;
    if (child == 0)
        return;
    SYS(SYS_wait4, child, &status, 0, 0);
    SYS(SYS_exit_group, status >> 8);
}

#if defined(__x86_64__)
__attribute__((force_align_arg_pointer))
#endif
void _start(void) {
    static char stack[STACK_BYTES] __attribute__((aligned(64)));
    volatile long kept = 0x1234567; /* on the first stack */
    int status = 0;
    long child = clone_onto(CLONE_VM | CLONE_VFORK | SIGCHLD, stack + STACK_BYTES, 0, fork_once, 0);
    if (child == 0)
        SYS(SYS_exit_group, kept == 0x1234567 ? 7 : 8);
    SYS(SYS_wait4, child, &status, 0, 0);
    SYS(SYS_exit_group, status >> 8);
    __builtin_unreachable();
}
