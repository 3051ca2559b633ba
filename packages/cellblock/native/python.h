/* The part of CPython's stable ABI (3.11 and later) that module.c uses: its headers are not needed. */
typedef struct object Object;
typedef struct { const char *name; void *function; int flags; const char *doc; } Method;
typedef struct {
    long references; void *type, *initialize; long index; void *copy; /* PyModuleDef_Base */
    const char *name, *doc; long bytes; const Method *methods; void *slots, *traverse, *clear, *free;
} Module;
typedef struct { /* Py_buffer */
    void *start; Object *object; long length, item_bytes; int is_read_only, dimensions;
    void *format, *shape, *strides, *suboffsets, *internal;
} View;
enum { METH_O = 8, METH_FASTCALL = 128, STABLE_ABI = 3 };

Object *PyModule_Create2(Module *, int), *PyLong_FromLong(long), *PyErr_Occurred(void);
unsigned long PyLong_AsUnsignedLongMask(Object *);
int PyBytes_AsStringAndSize(Object *, char **, long *);
int PyObject_CheckBuffer(Object *), PyObject_GetBuffer(Object *, View *, int);
void PyBuffer_Release(View *);
void PyOS_BeforeFork(void), PyOS_AfterFork_Parent(void), PyOS_AfterFork_Child(void);
