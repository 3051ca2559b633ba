/* The interface of the kernel: numbers, structures and system calls. No header of the system and no C library is used.
 * Sources: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h and the headers of each call. */
#pragma once

#if defined(__x86_64__)
#define CALL(name, x86_64, aarch64) SYS_##name = x86_64
#define FORK(flags, thread) SYS_clone, flags, 0, 0, thread, 0 /* the kernel writes the id of the child to `thread` */
#elif defined(__aarch64__)
#define CALL(name, x86_64, aarch64) SYS_##name = aarch64
#define FORK(flags, thread) SYS_clone, flags, 0, 0, 0, thread
#else
#error "cellblock supports x86_64 and aarch64"
#endif
enum { /* the number of each call on x86_64 and on aarch64 */
    CALL(read, 0, 63), CALL(write, 1, 64), CALL(close, 3, 57), CALL(rt_sigaction, 13, 134),
    CALL(rt_sigprocmask, 14, 135), CALL(ioctl, 16, 29), CALL(writev, 20, 66), CALL(getpid, 39, 172),
    CALL(socket, 41, 198), CALL(sendmsg, 46, 211), CALL(recvmsg, 47, 212), CALL(bind, 49, 200), CALL(listen, 50, 201),
    CALL(clone, 56, 220), CALL(execve, 59, 221), CALL(wait4, 61, 260), CALL(fsync, 74, 82), CALL(chdir, 80, 49),
    CALL(getppid, 110, 173), CALL(setsid, 112, 157), CALL(getgroups, 115, 158), CALL(setresuid, 117, 147),
    CALL(getresuid, 118, 148), CALL(setresgid, 119, 149), CALL(getresgid, 120, 150), CALL(capget, 125, 90),
    CALL(capset, 126, 91), CALL(prctl, 157, 167), CALL(mount, 165, 40), CALL(sched_setaffinity, 203, 122),
    CALL(getdents64, 217, 61), CALL(exit_group, 231, 94), CALL(openat, 257, 56), CALL(ppoll, 271, 73),
    CALL(unshare, 272, 97), CALL(signalfd4, 289, 74), CALL(dup3, 292, 24), CALL(prlimit64, 302, 261),
    CALL(setns, 308, 268), CALL(seccomp, 317, 277), CALL(statx, 332, 291), CALL(close_range, 436, 436),
    CALL(landlock_create_ruleset, 444, 444), CALL(landlock_add_rule, 445, 445), CALL(landlock_restrict_self, 446, 446)
};

enum { EPERM = 1, ENOENT = 2, EBADF = 9, EACCES = 13 };
enum { O_RDONLY = 0, O_WRONLY = 1, O_RDWR = 2, O_CREAT = 0x40, O_CLOEXEC = 0x80000, O_PATH = 0x200000 };
enum { SIGKILL = 9, SIGCHLD = 17, SIG_BLOCK = 0, SIGNAL_SET_BYTES = 8, WNOHANG = 1, WAIT_ALL = 0x40000000 };
enum { CLONE_VM = 0x100, CLONE_PIDFD = 0x1000, CLONE_VFORK = 0x4000, CLONE_NEWNS = 0x20000,
       CLONE_CHILD_CLEARTID = 0x200000, CLONE_CHILD_SETTID = 0x1000000, CLONE_NEWCGROUP = 0x2000000,
       CLONE_NEWUTS = 0x4000000, CLONE_NEWIPC = 0x8000000, CLONE_NEWUSER = 0x10000000, CLONE_NEWPID = 0x20000000,
       CLONE_NEWNET = 0x40000000 };
enum { AT_FDCWD = -100, STATX_NLINK = 4, MS_RDONLY = 1, MS_NOSUID = 2, MS_NODEV = 4, MS_NOEXEC = 8 };
enum { PR_SET_PDEATHSIG = 1, PR_SET_DUMPABLE = 4, PR_GET_SECCOMP = 21, PR_CAPBSET_READ = 23, PR_CAPBSET_DROP = 24,
       PR_SET_SECUREBITS = 28, PR_SET_NO_NEW_PRIVS = 38, PR_GET_NO_NEW_PRIVS = 39, PR_CAP_AMBIENT = 47,
       PR_CAP_AMBIENT_CLEAR_ALL = 4 };
enum { RLIMIT_FSIZE = 1, RLIMIT_STACK = 3, RLIMIT_CORE = 4, RLIMIT_NPROC = 6, RLIMIT_NOFILE = 7, RLIMIT_MEMLOCK = 8,
       RLIMIT_AS = 9, RLIMIT_SIGPENDING = 11, RLIMIT_MSGQUEUE = 12, RLIMIT_NICE = 13, RLIMIT_RTPRIO = 14 };
enum { SOL_SOCKET = 1, SCM_RIGHTS = 1, MSG_CTRUNC = 8, MSG_TRUNC = 0x20, MSG_CMSG_CLOEXEC = 0x40000000 };
enum { AF_INET = 2, SOCK_STREAM = 1, SIOCSIFFLAGS = 0x8914, IFF_UP = 1, POLLIN = 1, POLLNVAL = 32 };
enum { LANDLOCK_VERSION = 1, LANDLOCK_FOLDER = 1, LANDLOCK_PORT = 2, EXECUTE = 1, WRITE_FILE = 2, READ_FILE = 4,
       READ_FOLDER = 8, MAKE_DEVICES = 0x840, TRUNCATE = 1 << 14, CONNECT_TCP = 2, ALL_TCP = 3, ALL_SCOPES = 3 };
enum { SECCOMP_SET_MODE_FILTER = 1, CAPABILITY_VERSION = 0x20080522, LAST_CAPABILITY = 63, RLIMITS = 16 };

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
struct entry { long inode, offset; unsigned short length; char kind, name[]; } __attribute__((packed)); /* dirent64 */

static inline long system_call(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#endif
}

/* Make a system call with up to six arguments. Return its result; a negative result is minus the errno. */
#define SYS(...) SYS_OF_7(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)
#define SYS_OF_7(number, a, b, c, d, e, f, ...) \
    system_call((number), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define END(status) (SYS(SYS_exit_group, status), __builtin_unreachable())

/* Serve orders with the plan. Return 0 or AHEAD in pid 2 of a run, and a negative number in the zygote at the end. */
long cell_serve(const void *plan, long bytes);
