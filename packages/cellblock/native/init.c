/* Pid 1 of a run after its set-up: wait until pid 2 has ended, send its wait status to the server, and end.
 * Descriptor 0 is the socket to the server, descriptor 1 a signalfd for the blocked signal SIGCHLD. Descriptors 2 to 4
 * stay open and unused. The program reaps orphans, and also ends when the server closes its end of the socket. It has
 * no writable memory but its stack. */
#include "kernel.h"

enum { SERVER = 0, SIGNALS = 1, CODE = 2 };

#if defined(__x86_64__)
__attribute__((force_align_arg_pointer))
#endif
__attribute__((noreturn)) void _start(void) {
    struct poll ends[2] = {{SERVER, 0, 0}, {SIGNALS, POLLIN, 0}}; /* of SERVER, only its closing is reported */
    char signals[128];
    int status, ended;
    for (;;) {
        while ((ended = (int)SYS(SYS_wait4, -1, &status, WNOHANG | WAIT_ALL, 0)) > 0 && ended != CODE)
            ;
        if (ended == CODE) {
            SYS(SYS_write, SERVER, &status, sizeof status);
            break;
        }
        while ((int)SYS(SYS_ppoll, ends, 2, 0, 0, 0) <= 0)
            ;
        if (ends[0].revents)
            break;
        SYS(SYS_read, SIGNALS, signals, sizeof signals); /* their contents say less than wait4 */
    }
    END(0);
}
