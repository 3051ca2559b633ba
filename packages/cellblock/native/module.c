/* The module `_cell` for the interpreter of the zygote. It keeps the interpreter's lock during all calls. */
#include "kernel.h"
#include "python.h"

/* Serve orders with the plan, a bytes object. Return 0 or 1 (the order is ahead of its run) in pid 2 of a run, and a
 * negative number in the zygote: -1 the server has gone, -2 the plan or an order does not fit, -3 there is a thread. */
static Object *serve(Object *module, Object *plan) {
    char *bytes;
    long length;
    (void)module;
    if (PyBytes_AsStringAndSize(plan, &bytes, &length) < 0)
        return 0;
    PyOS_BeforeFork();
    long result = cell_serve(bytes, length);
    if (result >= 0)
        PyOS_AfterFork_Child();
    else
        PyOS_AfterFork_Parent();
    return PyLong_FromLong(result);
}

static const Method methods[] = {{"serve", serve, METH_O, "Serve orders with this plan."}, {0, 0, 0, 0}};
static Module definition = {1, 0, 0, 0, 0, "_cell", "Forks runs without the interpreter.", -1, methods, 0, 0, 0, 0};

__attribute__((visibility("default"))) Object *PyInit__cell(void) {
    return PyModule_Create2(&definition, STABLE_ABI);
}
