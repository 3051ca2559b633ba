/* The part of CPython's stable ABI (3.11 and later) that module.c uses: its headers are not needed. */
typedef struct object Object;
typedef struct { const char *name; Object *(*function)(Object *, Object *); int flags; const char *doc; } Method;
typedef struct {
    long references; void *type, *initialize; long index; void *copy; /* PyModuleDef_Base */
    const char *name, *doc; long bytes; const Method *methods; void *slots, *traverse, *clear, *free;
} Module;
enum { METH_O = 8, STABLE_ABI = 3 };

Object *PyModule_Create2(Module *, int);
Object *PyLong_FromLong(long);
int PyBytes_AsStringAndSize(Object *, char **, long *);
void PyOS_BeforeFork(void);
void PyOS_AfterFork_Parent(void);
void PyOS_AfterFork_Child(void);
