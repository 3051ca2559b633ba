/* The module `_cell` for the interpreter of the zygote. It keeps the interpreter's lock during all calls. */
#include "kernel.h"
#include "python.h"

static Object *after_fork(long result, int is_child) {
    is_child ? PyOS_AfterFork_Child() : PyOS_AfterFork_Parent();
    return PyLong_FromLong(result);
}

/* Serve orders with the plan, a bytes object. Return the result of cell_serve. */
static Object *serve(Object *module __attribute__((unused)), Object *plan) {
    char *bytes; long length;
    if (PyBytes_AsStringAndSize(plan, &bytes, &length) < 0)
        return 0;
    PyOS_BeforeFork();
    long result = cell_serve(bytes, length);
    return after_fork(result, result >= 0);
}

/* Make a system call: its number and up to six arguments, integers or buffers, which are passed by their address.
 * Return its result; a negative result is minus the errno. After clone, both processes can use the interpreter. */
static Object *syscall(Object *module __attribute__((unused)), Object *const *arguments, long count) {
    long words[7] = {-1, 0, 0, 0, 0, 0, 0};
    for (long index = 0; index < count && index < 7; index++) {
        View view;
        if (!PyObject_CheckBuffer(arguments[index]))
            words[index] = (long)PyLong_AsUnsignedLongMask(arguments[index]);
        else if (PyObject_GetBuffer(arguments[index], &view, 0) == 0) {
            words[index] = (long)view.start;
            PyBuffer_Release(&view); /* the caller still has the object */
        }
    }
    if (PyErr_Occurred())
        return 0;
    if (words[0] == SYS_clone)
        PyOS_BeforeFork();
    long result = SYS(words[0], words[1], words[2], words[3], words[4], words[5], words[6]);
    return words[0] == SYS_clone ? after_fork(result, result == 0) : PyLong_FromLong(result);
}

static const Method methods[] = {{"serve", serve, METH_O, "Serve orders with this plan."},
                                 {"syscall", syscall, METH_FASTCALL, "Make a system call."}, {0, 0, 0, 0}};
static Module definition = {1, 0, 0, 0, 0, "_cell", "Forks runs without the interpreter.", -1, methods, 0, 0, 0, 0};

__attribute__((visibility("default"))) Object *PyInit__cell(void) {
    return PyModule_Create2(&definition, STABLE_ABI);
}
