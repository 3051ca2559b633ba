/* The interface of the kernel: numbers, structures and system calls. No header of the system and no C library is used.
 * Sources: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h and the headers of each call. */
#ifndef CELLBLOCK_KERNEL_H
#define CELLBLOCK_KERNEL_H

#if defined(__x86_64__)
enum {
    SYS_read = 0, SYS_write = 1, SYS_close = 3, SYS_rt_sigaction = 13, SYS_rt_sigprocmask = 14, SYS_ioctl = 16,
    SYS_writev = 20, SYS_getpid = 39, SYS_socket = 41, SYS_sendmsg = 46, SYS_recvmsg = 47, SYS_bind = 49, SYS_listen
    = 50, SYS_clone = 56, SYS_execve = 59, SYS_wait4 = 61, SYS_fsync = 74, SYS_chdir = 80, SYS_getppid = 110,
    SYS_setsid = 112, SYS_getgroups = 115, SYS_setresuid = 117, SYS_getresuid = 118, SYS_setresgid = 119,
    SYS_getresgid = 120, SYS_capget = 125, SYS_capset = 126, SYS_prctl = 157, SYS_mount = 165, SYS_sched_setaffinity
    = 203, SYS_getdents64 = 217, SYS_exit_group = 231, SYS_openat = 257, SYS_ppoll = 271, SYS_unshare = 272,
    SYS_signalfd4 = 289, SYS_dup3 = 292, SYS_prlimit64 = 302, SYS_setns = 308, SYS_seccomp = 317, SYS_statx = 332
};
#elif defined(__aarch64__)
enum {
    SYS_read = 63, SYS_write = 64, SYS_close = 57, SYS_rt_sigaction = 134, SYS_rt_sigprocmask = 135, SYS_ioctl = 29,
    SYS_writev = 66, SYS_getpid = 172, SYS_socket = 198, SYS_sendmsg = 211, SYS_recvmsg = 212, SYS_bind = 200,
    SYS_listen = 201, SYS_clone = 220, SYS_execve = 221, SYS_wait4 = 260, SYS_fsync = 82, SYS_chdir = 49,
    SYS_getppid = 173, SYS_setsid = 157, SYS_getgroups = 158, SYS_setresuid = 147, SYS_getresuid = 148,
    SYS_setresgid = 149, SYS_getresgid = 150, SYS_capget = 90, SYS_capset = 91, SYS_prctl = 167, SYS_mount = 40,
    SYS_sched_setaffinity = 122, SYS_getdents64 = 61, SYS_exit_group = 94, SYS_openat = 56, SYS_ppoll = 73,
    SYS_unshare = 97, SYS_signalfd4 = 74, SYS_dup3 = 24, SYS_prlimit64 = 261, SYS_setns = 268, SYS_seccomp = 277,
    SYS_statx = 291
};
#else
#error "cellblock supports x86_64 and aarch64"
#endif
enum {
    SYS_close_range = 436, SYS_landlock_create_ruleset = 444, SYS_landlock_add_rule = 445,
    SYS_landlock_restrict_self = 446
};

enum { EPERM = 1, ENOENT = 2, EPROTO = 71 };
enum { O_RDONLY = 0, O_WRONLY = 1, O_CREAT = 0x40, O_CLOEXEC = 0x80000, O_PATH = 0x200000, AT_FDCWD = -100 };
enum { SIGKILL = 9, SIGCHLD = 17, SIG_BLOCK = 0, SIGNAL_SET_BYTES = 8, WNOHANG = 1, WAIT_ALL = 0x40000000 };
enum { POLLIN = 1, POLLNVAL = 32, STATX_NLINK = 4 };
enum {
    CLONE_VM = 0x100, CLONE_PIDFD = 0x1000, CLONE_VFORK = 0x4000, CLONE_NEWNS = 0x20000, CLONE_CHILD_CLEARTID =
    0x200000, CLONE_CHILD_SETTID = 0x1000000, CLONE_NEWCGROUP = 0x2000000, CLONE_NEWUTS = 0x4000000, CLONE_NEWIPC =
    0x8000000, CLONE_NEWUSER = 0x10000000, CLONE_NEWPID = 0x20000000, CLONE_NEWNET = 0x40000000
};
enum { MS_RDONLY = 1, MS_NOSUID = 2, MS_NODEV = 4, MS_NOEXEC = 8 };
enum {
    PR_SET_PDEATHSIG = 1, PR_SET_DUMPABLE = 4, PR_GET_SECCOMP = 21, PR_CAPBSET_READ = 23, PR_CAPBSET_DROP = 24,
    PR_SET_SECUREBITS = 28, PR_SET_NO_NEW_PRIVS = 38, PR_GET_NO_NEW_PRIVS = 39, PR_CAP_AMBIENT = 47,
    PR_CAP_AMBIENT_CLEAR_ALL = 4
};
enum {
    RLIMIT_FSIZE = 1, RLIMIT_STACK = 3, RLIMIT_CORE = 4, RLIMIT_NPROC = 6, RLIMIT_NOFILE = 7, RLIMIT_MEMLOCK = 8,
    RLIMIT_AS = 9, RLIMIT_SIGPENDING = 11, RLIMIT_MSGQUEUE = 12, RLIMIT_NICE = 13, RLIMIT_RTPRIO = 14, RLIMITS = 16
};
enum { SOL_SOCKET = 1, SCM_RIGHTS = 1, MSG_CTRUNC = 8, MSG_TRUNC = 0x20, MSG_CMSG_CLOEXEC = 0x40000000 };
enum { AF_INET = 2, SOCK_STREAM = 1, SIOCSIFFLAGS = 0x8914, IFF_UP = 1 };
enum {
    LANDLOCK_VERSION = 1, LANDLOCK_FOLDER = 1, LANDLOCK_PORT = 2, EXECUTE = 1, WRITE_FILE = 2, READ_FILE = 4,
    READ_FOLDER = 8, MAKE_DEVICES = (1 << 6) | (1 << 11), TRUNCATE = 1 << 14, CONNECT_TCP = 2, ALL_TCP = 3,
    ALL_SCOPES = 3
};
enum { SECCOMP_SET_MODE_FILTER = 1, CAPABILITY_VERSION = 0x20080522, LAST_CAPABILITY = 63 };

struct piece { const void *start; unsigned long length; };                 /* struct iovec */
struct message {                                                           /* struct msghdr */
    void *name; unsigned name_length; const struct piece *pieces; unsigned long count;
    void *control; unsigned long control_length; int flags;
};
struct rights { unsigned long length; int level, kind; int descriptors[16]; }; /* struct cmsghdr with SCM_RIGHTS */
struct poll { int descriptor; short events, revents; };
struct limit { unsigned long soft, hard; };
struct filter { unsigned short length; const void *code; };                /* struct sock_fprog */
struct beneath { unsigned long rights; int folder; } __attribute__((packed));
struct interface { char name[16]; unsigned short flags; char rest[22]; };  /* struct ifreq */
struct address { unsigned short family; unsigned char port[2], host[4], zero[8]; };
struct entry { unsigned long inode; long offset; unsigned short length; unsigned char kind; char name[]; }
    __attribute__((packed));                                               /* struct linux_dirent64 */

static inline long system_call(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#endif
}

/* Make a system call with up to six arguments. Return its result; a negative result is minus the errno. */
#define SYS(...) SYS_OF_7(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)
#define SYS_OF_7(number, a, b, c, d, e, f, ...) \
    system_call((number), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* Serve orders with the plan. Return 0 or AHEAD in pid 2 of a run, and a negative number in the zygote at the end. */
long cell_serve(const void *plan, long bytes);

#endif
