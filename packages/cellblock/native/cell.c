/* From an order of the server to a locked process: the loop of the zygote, pid 1 of a run, and the self-check of pid 2.
 * Nothing here reads a byte that a run has written. No interpreter runs before the self-check: after a fork, the
 * kernel copies each page of memory that changes, and reading an object changes its reference count.
 * Pid 1 shares the memory of the zygote until it executes init, and the zygote stops for this time (vfork). So the
 * kernel copies the page table only for pid 2. Pid 1 has a copy too in runs of a preloaded zygote, where it waits for
 * the server, and in runs with little memory: when memory is short, the kernel ends all processes that share it. */
#include "kernel.h"

enum { CHANNEL = 3, CONTROL = 204, SLOTS_FROM = 300 }; /* an order brings descriptors between the first two */
enum { VERSION = 1, SLOTS = 64, INSIDE = 1000, UNMAPPED = 65534, BACKLOG = 128, SECUREBITS = 0xEF };
enum { GONE = -1, MISFIT = -2, THREADS = -3, CROWDED = -1 }; /* results of cell_serve, and a status in an answer */
enum { IDS_BYTES = 24, RIGHTS_BYTES = 16, ONE_THREAD = 3, STACK_BYTES = 64 * 1024, MOST_GROUPS = 65536 };
enum { NAMESPACES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET };
enum { TMPFS = MS_NOSUID | MS_NODEV, PROC = MS_NOSUID | MS_NODEV | MS_NOEXEC };

enum { ROOT = 1, PRELOADED = 2, KEEPS_GROUPS = 4, WITHOUT_LANDLOCK = 8 };
enum { USUAL, NETWORK, LOOPBACK, LOOPBACK_AND_UNIX, FILTERS };
struct plan { /* equal for all runs of a zygote; the system call filters follow it */
    unsigned version, flags;
    int link;                      /* the socket to the server */
    long server, thread_id;        /* the pid of the server, and the address of the C library's record of the thread */
    unsigned long ceilings[RLIMITS]; /* the hard limits of the zygote */
    unsigned filter_bytes[FILTERS];
};

enum { CONTROL_END, CHANNEL_END, LOG_END, GROUP_FILES }; /* the received descriptors of an order, in their order */
enum { AHEAD = 1, SHARES_MEMORY = 2, IS_BOUND = 4 }; /* IS_BOUND: to the processors of `affinity` */
struct order { /* from the server, in one packet with the descriptors */
    unsigned version, flags;
    long number;
    char ids[IDS_BYTES];           /* the text of the id maps */
    long gid, uid, slot;           /* the slot is -1 for a new net namespace */
    unsigned port, filter;         /* the port of the proxy inside the run, or 0; the filter decides about sockets */
    unsigned long processes, descriptors, file_bytes, address_bytes, address_ceiling;
    unsigned long disk_bytes, disk_files, tmp_bytes, shm_bytes, affinity[16];
};
_Static_assert(sizeof(struct order) == 272, "the format of orders has changed");

struct run {
    const struct plan *plan;
    const struct order *order;
    const int *received;           /* `count` descriptors */
    long count, landlock, capabilities; /* `landlock` is a version, `capabilities` the number that the kernel has */
};

/* -- steps: each result is checked, and the first failed step ends the process ------------------------------------- */

static int zygote_link; /* the zygote has no CONTROL */

/* Write the step and its result to the server, and end. */
static __attribute__((noreturn, noinline)) void fail(const char *step, long result) {
    struct piece pieces[2] = {{step, 0}, {&result, sizeof result}};
    while (step[pieces[0].length])
        pieces[0].length++;
    if (SYS(SYS_writev, CONTROL, pieces, 2) == -EBADF)
        SYS(SYS_writev, zygote_link, pieces, 2);
    END(1);
}

static long must(const char *step, long result) {
    if (result < 0)
        fail(step, result);
    return result;
}

static void exactly(const char *step, long wanted, long result) {
    if (result != wanted)
        fail(step, result);
}

#define MUST(step, ...) must(step, SYS(__VA_ARGS__))
#define EXACTLY(step, wanted, ...) exactly(step, wanted, SYS(__VA_ARGS__))
#define PRCTL(step, option, value, third) MUST(step, SYS_prctl, option, value, third, 0, 0)
#define CLOSE(descriptor) SYS(SYS_close, descriptor) /* frees the number even if it fails */

/* -- pid 1 --------------------------------------------------------------------------------------------------------- */

/* In pid 2, 0 is /dev/null, 1 and 2 are the log, and 3 is the channel. All others are closed here, but CONTROL, which
 * init has as 0. No other run has this open file of /dev/null: each could read the flags that another one has set. */
static void arrange_descriptors(const struct run *run) {
    int null = (int)MUST("descriptors", SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
    const int kept[] = {null, run->received[LOG_END], run->received[LOG_END], run->received[CHANNEL_END]};
    for (long number = 0; number <= CHANNEL; number++)
        EXACTLY("descriptors", number, SYS_dup3, kept[number], number, 0);
    MUST("close_range", SYS_close_range, CHANNEL + 1, CONTROL - 1, 0);
    MUST("close_range", SYS_close_range, CONTROL + 1, 0xFFFFFFFFL, 0);
}

static void write_file(const char *step, const char *path, const char *text, long length) {
    long file = MUST(step, SYS_openat, AT_FDCWD, path, O_WRONLY);
    EXACTLY(step, length, SYS_write, file, text, length);
    CLOSE(file);
}

/* Map uid and gid 1000 of the new user namespace to the effective id in the zygote's (1000 for an ordinary user). */
static void map_ids(const struct run *run) {
    const char *ids = run->plan->flags & ROOT ? run->order->ids : "1000 1000 1             ";
    /* A change of ids makes a process undumpable, and its files below /proc then belong to root. */
    PRCTL("dumpable", PR_SET_DUMPABLE, 1, 0);
    write_file("write setgroups", "/proc/self/setgroups", "deny", 4);
    write_file("write uid_map", "/proc/self/uid_map", ids, IDS_BYTES);
    write_file("write gid_map", "/proc/self/gid_map", ids, IDS_BYTES);
}

/* Send bytes, with a descriptor unless it is -1. */
static long send(long socket, const void *bytes, unsigned long length, long descriptor) {
    if (descriptor < 0)
        return SYS(SYS_write, socket, bytes, length); /* before Linux 6.16, the filter of runs refuses sendmsg */
    struct rights rights = {RIGHTS_BYTES + sizeof(int), SOL_SOCKET, SCM_RIGHTS, {(int)descriptor}};
    struct piece piece = {bytes, length};
    struct message message = {0, 0, &piece, 1, &rights, RIGHTS_BYTES + 8, 0};
    return SYS(SYS_sendmsg, socket, &message, 0);
}

/* Give the server the mount namespace, for the files of the run. It could not open the namespace later: pid 1 becomes
 * undumpable. From runs of a preloaded zygote, the server accepts no descriptor. With their byte, the kernel passes the
 * pid (SO_PASSCRED, host/packets.py), and pid 1 waits until the server has opened the namespace. */
static void meet_server(const struct run *run) {
    char answer;
    if (run->plan->flags & PRELOADED) {
        EXACTLY("greeting", 1, SYS_write, CONTROL, "h", 1);
        EXACTLY("greeting", 1, SYS_read, CONTROL, &answer, 1);
        return;
    }
    long mounts = MUST("mounts", SYS_openat, AT_FDCWD, "/proc/self/ns/mnt", O_RDONLY);
    exactly("mounts", 1, send(CONTROL, "d", 1, mounts));
    CLOSE(mounts);
}

static char *put(char *at, const char *text) {
    while ((*at = *text++))
        at++;
    return at;
}

static char *put_number(char *at, unsigned long number) {
    char digits[24], *first = digits + sizeof digits - 1;
    for (*first = 0; number || !*first; number /= 10)
        *--first = (char)('0' + number % 10);
    return put(at, first);
}

static void mount_tmpfs(const char *step, const char *target, long flags, const char *mode, unsigned long bytes,
                        unsigned long files) {
    char options[96];
    put_number(put(put_number(put(put(options, mode), ",size="), bytes), ",nr_inodes="), files);
    MUST(step, SYS_mount, "tmpfs", target, "tmpfs", flags, options);
}

static void mount_own(const struct order *order) {
    mount_tmpfs("mount tmpfs /workspace", "/workspace", TMPFS, "mode=0755", order->disk_bytes, order->disk_files + 1);
    mount_tmpfs("mount tmpfs /tmp", "/tmp", TMPFS, "mode=1777", order->tmp_bytes, 4096);
    mount_tmpfs("mount tmpfs /dev/shm", "/dev/shm", TMPFS | MS_NOEXEC, "mode=1777", order->shm_bytes, 1024);
    /* Some containers refuse a new procfs. The host's procfs must stay hidden, so an empty folder covers it. */
    long proc = SYS(SYS_mount, "proc", "/proc", "proc", PROC, "hidepid=2,subset=pid");
    if (must("mount proc /proc", proc == -EPERM || proc == -EACCES ? 1 : proc))
        MUST("mount tmpfs /proc", SYS_mount, "none", "/proc", "tmpfs", PROC | MS_RDONLY, "size=4k,mode=0555");
    MUST("chdir", SYS_chdir, "/workspace");
}

/* First make buffers and queues small, if the run may have servers: no cgroup of version 1 counts the memory of TCP.
 * Then raise `lo`, which gets 127.0.0.1 automatically. The net namespace has no other device and no route. */
static void set_up_loopback(int serves) {
    static const char step[] = "loopback", *const settings[][2] = { /* with values of 16 bytes */
        {"/proc/sys/net/ipv4/tcp_rmem", "4096 16384 32768"}, {"/proc/sys/net/ipv4/tcp_wmem", "4096 16384 32768"},
        {"/proc/sys/net/core/somaxconn", "128             "},
        {"/proc/sys/net/ipv4/ip_unprivileged_port_start", "0               "}};
    struct interface lo = {"lo", IFF_UP, ""};
    for (int index = 0; serves && index < 4; index++)
        write_file(step, settings[index][0], settings[index][1], 16);
    long any = MUST(step, SYS_socket, AF_INET, SOCK_STREAM, 0);
    MUST(step, SYS_ioctl, any, SIOCSIFFLAGS, &lo);
    CLOSE(any);
}

/* Send the server a socket that listens on the port of the proxy. The run can connect to it, but not accept on it. */
static void hand_over_listener(unsigned port) {
    static const char step[] = "the way to the network";
    struct address address = {AF_INET, {(unsigned char)(port >> 8), (unsigned char)port}, {127, 0, 0, 1}, ""};
    long listener = MUST(step, SYS_socket, AF_INET, SOCK_STREAM, 0);
    MUST(step, SYS_bind, listener, &address, sizeof address);
    MUST(step, SYS_listen, listener, BACKLOG);
    must(step, send(CHANNEL, "d", 1, listener));
    CLOSE(listener);
}

/* Make it impossible to gain a capability. The present ones stay until `lock`: these calls need CAP_SETPCAP. */
static void close_bounds(const struct run *run) {
    PRCTL("securebits", PR_SET_SECUREBITS, SECUREBITS, 0); /* no uid gives capabilities, none is ambient, for good */
    PRCTL("ambient capabilities", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0);
    for (long capability = 0; capability < run->capabilities; capability++)
        PRCTL("bounding set", PR_CAPBSET_DROP, capability, 0);
}

static void allow(long ruleset, const char *folder, unsigned long rights) {
    long descriptor = MUST("open", SYS_openat, AT_FDCWD, folder, O_PATH | O_CLOEXEC, 0);
    struct beneath rule = {rights, (int)descriptor};
    MUST("landlock rule", SYS_landlock_add_rule, ruleset, LANDLOCK_FOLDER, &rule, 0);
    CLOSE(descriptor);
}

/* Return rules: read all files, write below three folders and to devices, and use no TCP except to the proxy. Landlock
 * before version 4 does not restrict TCP. */
static long landlock_rules(const struct run *run) {
    static const unsigned char rights_of[] = {13, 14, 15, 15, 16}; /* the number of rights by version */
    long version = run->landlock;
    unsigned long every = (1UL << rights_of[(version < 5 ? version : 5) - 1]) - 1;
    int serves = run->order->filter >= LOOPBACK; /* then no rule is needed: nothing but the proxy is reachable */
    unsigned long wanted[3] = {every, serves ? 0 : ALL_TCP, ALL_SCOPES};
    long ruleset = MUST("landlock", SYS_landlock_create_ruleset, wanted, version < 4 ? 8 : version < 6 ? 16 : 24, 0);
    allow(ruleset, "/", EXECUTE | READ_FILE | READ_FOLDER);
    allow(ruleset, "/dev", (EXECUTE | READ_FILE | READ_FOLDER | WRITE_FILE | TRUNCATE) & every);
    allow(ruleset, "/workspace", every & ~(unsigned long)MAKE_DEVICES);
    allow(ruleset, "/tmp", every & ~(unsigned long)MAKE_DEVICES);
    allow(ruleset, "/dev/shm", every & ~(unsigned long)MAKE_DEVICES);
    if (run->order->port && !serves && version >= 4) {
        unsigned long rule[2] = {CONNECT_TCP, run->order->port};
        MUST("landlock rule for the port", SYS_landlock_add_rule, ruleset, LANDLOCK_PORT, rule, 0);
    }
    return ruleset;
}

/* Limit each process of the run. The cgroup, or the watchdog of the server, limits all of them together. */
static void set_limits(const struct run *run) {
    const struct order *order = run->order;
    const struct { int name; unsigned long soft, hard; } limits[] = {
        {RLIMIT_CORE, 1, 1}, /* a kernel that pipes core dumps to a program ignores 0, and no dump fits into 1 */
        {RLIMIT_NPROC, order->processes + 1, order->processes + 1}, /* and pid 1 */
        {RLIMIT_NOFILE, order->descriptors, order->descriptors}, {RLIMIT_FSIZE, order->file_bytes, order->file_bytes},
        {RLIMIT_STACK, 8 << 20, 8 << 20}, {RLIMIT_MEMLOCK, 0, 0}, {RLIMIT_MSGQUEUE, 0, 0},
        {RLIMIT_AS, order->address_bytes, order->address_ceiling},
        {RLIMIT_RTPRIO, 0, 0}, {RLIMIT_NICE, 0, 0}, {RLIMIT_SIGPENDING, 1024, 1024},
    };
    for (unsigned index = 0; index < sizeof limits / sizeof *limits; index++) {
        unsigned long soft = limits[index].soft, hard = limits[index].hard;
        unsigned long most = run->plan->ceilings[limits[index].name];
        struct limit limit = {soft < most ? soft : most, hard < most ? hard : most};
        MUST("limits", SYS_prlimit64, 0, limits[index].name, &limit, 0);
    }
}

/* Restrict this process and its children to what a run may do. First drop the capabilities: without them, the kernel
 * refuses Landlock and seccomp if no_new_privs is missing. This flag protects only execve, and none comes before. Load
 * the filter last: it refuses calls of the set-up, and `fork_pid_2` makes only calls that every run may make. */
static void lock(const struct run *run, long ruleset) {
    const struct plan *plan = run->plan;
    unsigned chosen = run->order->filter;
    const char *code = (const char *)(plan + 1);
    for (unsigned index = 0; index < chosen; index++)
        code += plan->filter_bytes[index];
    struct filter filter = {(unsigned short)(plan->filter_bytes[chosen] / 8), code};
    unsigned header[2] = {CAPABILITY_VERSION, 0}, none[6] = {0, 0, 0, 0, 0, 0};
    MUST("capset", SYS_capset, header, none);
    PRCTL("no_new_privs", PR_SET_NO_NEW_PRIVS, 1, 0);
    if (ruleset >= 0) {
        MUST("landlock_restrict_self", SYS_landlock_restrict_self, ruleset, 0);
        CLOSE(ruleset);
    }
    MUST("seccomp", SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter);
}

/* Fork pid 2, which returns with its own copy of the memory. Pid 1 becomes init, and never returns. */
static void fork_pid_2(const struct run *run) {
    static const char *const arguments[] = {"init", 0}, *const environment[] = {0};
    static const unsigned long child = 1UL << (SIGCHLD - 1), nothing[4] = {0, 0, 0, 0};
    long thread = run->plan->thread_id, flags = CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD;
    /* The zygote ignores SIGCHLD, so that the kernel reaps its children. Pid 1 waits for its own children. */
    MUST("signal", SYS_rt_sigaction, SIGCHLD, nothing, 0, SIGNAL_SET_BYTES);
    if (MUST("pid 2", FORK(flags, thread)) == 0)
        return; /* before SIGCHLD is blocked: pid 2 must not inherit that. `init` waits once before it polls */
    MUST("signals", SYS_rt_sigprocmask, SIG_BLOCK, &child, 0, SIGNAL_SET_BYTES);
    EXACTLY("descriptors", 0, SYS_dup3, CONTROL, 0, 0);
    long signals = MUST("signalfd", SYS_signalfd4, -1, &child, SIGNAL_SET_BYTES, 0);
    EXACTLY("descriptors", 1, SYS_dup3, signals, 1, 0);
    fail("init", SYS(SYS_execve, "/run/cellblock/init", arguments, environment));
}

/* Make all steps of pid 1. Return only in pid 2. Fixed are: cgroups, then their namespace, whose root is the cgroup of
 * its maker; descriptors; maps, then ids; loopback, which needs the old /proc; mounts, then Landlock rules, which
 * belong to inodes. The listener (after loopback) and `close_bounds` (needs CAP_SETPCAP) come before `lock`, and all
 * before pid 2. The affinity, the bounds, the rules and the limits may change places. */
static void be_pid_1(const struct run *run) {
    EXACTLY("descriptors", CONTROL, SYS_dup3, run->received[CONTROL_END], CONTROL, O_CLOEXEC);
    for (long index = GROUP_FILES; index < run->count; index++)
        EXACTLY("cgroup", 1, SYS_write, run->received[index], "0", 1);
    MUST("unshare", SYS_unshare, CLONE_NEWCGROUP);
    arrange_descriptors(run);
    map_ids(run);
    meet_server(run);
    /* Until pid 1 is init, it has the memory of the zygote. With the ids of an ordinary user, nothing else prevents
     * pid 2 from reading it; and a process of the host with the uid of the run owns the user namespace. */
    PRCTL("dumpable", PR_SET_DUMPABLE, 0, 0);
    /* No other ids exist here. Only a process that leaves uid 0 loses its capabilities, so pid 1 keeps all that a user
     * namespace gives its first process. The real uid was that of the zygote: RLIMIT_NPROC counts by it. */
    MUST("gid", SYS_setresgid, INSIDE, INSIDE, INSIDE);
    MUST("uid", SYS_setresuid, INSIDE, INSIDE, INSIDE);
    if (run->order->filter != USUAL)
        set_up_loopback(run->order->filter >= LOOPBACK); /* before the /proc of the run, which has no settings */
    mount_own(run->order);
    if (run->order->flags & IS_BOUND)
        MUST("affinity", SYS_sched_setaffinity, 0, sizeof run->order->affinity, run->order->affinity);
    if (run->order->port)
        hand_over_listener(run->order->port);
    close_bounds(run);
    long ruleset = run->landlock > 0 ? landlock_rules(run) : -1;
    set_limits(run);
    lock(run, ruleset);
    fork_pid_2(run);
}

/* -- pid 2: its state must be as expected, before the first line of Python ----------------------------------------- */

/* Return what is wrong with the rights of this process, or 0. Ambient capabilities are a subset of permitted ones. */
static const char *rights_fault(const struct run *run) {
    unsigned header[2] = {CAPABILITY_VERSION, 0}, sets[6] = {0};
    long left = SYS(SYS_capget, header, sets) | sets[0] | sets[1] | sets[2] | sets[3] | sets[4] | sets[5];
    for (long capability = 0; capability < run->capabilities; capability++)
        left |= SYS(SYS_prctl, PR_CAPBSET_READ, capability, 0, 0, 0);
    return left ? "capabilities are left"
         : SYS(SYS_prctl, PR_GET_SECCOMP, 0, 0, 0, 0) != 2 ? "the system call filter is missing"
         : SYS(SYS_prctl, PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1 ? "no_new_privs is not set" : 0;
}

/* An ordinary user cannot drop groups in a user namespace. They arrive unmapped and open nothing inside. */
static int groups_are_left(const struct plan *plan) {
    static unsigned groups[MOST_GROUPS];
    long count = SYS(SYS_getgroups, MOST_GROUPS, groups);
    long left = count < 0 || (count > 0 && !(plan->flags & KEEPS_GROUPS));
    for (long index = 0; index < count; index++)
        left |= groups[index] != INSIDE && groups[index] != UNMAPPED;
    return (int)left;
}

/* Return whether a descriptor besides the streams and the channel is open. Without a /proc, test the lowest 256. */
static int descriptors_are_left(void) {
    static const long at_once[2] = {0, 0};
    char names[2048];
    struct poll polled[256];
    long size, left = 0, listing = SYS(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_CLOEXEC);
    if (listing == -ENOENT) {
        for (int number = 0; number < 256; number++)
            polled[number] = (struct poll){number, 0, 0};
        left = SYS(SYS_ppoll, polled, 256, at_once, 0, SIGNAL_SET_BYTES) < 0;
        for (int number = CHANNEL + 1; number < 256; number++)
            left |= !(polled[number].revents & POLLNVAL);
        return (int)left;
    }
    while ((size = SYS(SYS_getdents64, listing, names, sizeof names)) > 0)
        for (long at = 0; at < size; at += ((struct entry *)(names + at))->length) {
            long number = 0;
            for (const char *name = ((struct entry *)(names + at))->name; *name; name++)
                number = *name == '.' ? 0 : 10 * number + *name - '0';
            left |= number > CHANNEL && number != listing;
        }
    CLOSE(listing);
    return left || size < 0;
}

static int ids_differ(void) {
    unsigned ids[6] = {0};
    long differ = SYS(SYS_getresuid, ids, ids + 1, ids + 2) | SYS(SYS_getresgid, ids + 3, ids + 4, ids + 5);
    for (int index = 0; index < 6; index++)
        differ |= ids[index] != INSIDE;
    return differ != 0;
}

/* Return the first deviation from the expected state, or 0. */
static const char *fault(const struct run *run) {
    const char *wrong = rights_fault(run);
    return wrong ? wrong
        : ids_differ() ? "uids or gids are not 1000"
        : groups_are_left(run->plan) ? "supplementary groups are left"
        : SYS(SYS_getpid) == 1 ? "the code would be pid 1"
        : run->landlock <= 0 && !(run->plan->flags & WITHOUT_LANDLOCK) ? "Landlock is missing"
        : run->landlock > 0 && SYS(SYS_openat, AT_FDCWD, "/proc/self/comm", O_WRONLY) >= 0 ? "Landlock is not in force"
        : SYS(SYS_openat, AT_FDCWD, "/usr/.posture", O_WRONLY | O_CREAT, 0600) >= 0
            || SYS(SYS_openat, AT_FDCWD, "/etc/shadow", O_PATH, 0600) >= 0 ? "a forbidden file could be opened"
        /* The filter of the run refuses the first call, and the filter of the zygote answers 0 to the second one. */
        : SYS(SYS_unshare, CLONE_NEWUSER) != -EPERM
            || SYS(SYS_fsync, -1) != 0 ? "a forbidden system call was let through"
        : descriptors_are_left() ? "descriptors are open" : 0;
}

/* Send the server a message as the runtime does: two lengths, and a JSON object. Then end. */
static __attribute__((noreturn)) void broken(const char *text) {
    char frame[256] = {0}, *start = frame + 12;
    char *end = put(put(put(start, "{\"op\": \"broken\", \"message\": \"posture: "), text), "\"}");
    frame[3] = (char)(end - start);
    SYS(SYS_write, CHANNEL, frame, end - frame);
    END(1);
}

/* Start a session without a terminal, and check the state of the locked process. */
static void be_pid_2(const struct run *run) {
    CLOSE(CONTROL);
    const char *wrong = SYS(SYS_setsid) < 0 || SYS(SYS_prctl, PR_SET_DUMPABLE, 1) < 0 ? "no session" : fault(run);
    if (wrong)
        broken(wrong);
}

/* -- the zygote ---------------------------------------------------------------------------------------------------- */

/* Fork with these flags. In the child, call `function` on a separate stack; if it returns, return 0 from here on the
 * stack of the caller. In the parent, return the pid or minus the errno. The kernel writes the pidfd, and keeps the
 * registers with the function, its argument and the stack of the caller. `function` keeps all others. */
__attribute__((visibility("hidden"))) long clone_onto(
    long flags, void *stack, int *pidfd, void (*function)(const struct run *), const struct run *run);
__asm__(".text\n.hidden clone_onto\n.globl clone_onto\n.type clone_onto, %function\nclone_onto:\n"
#if defined(__x86_64__)
        "push %rbp\n push %r12\n push %r13\n mov %rsp, %rbp\n mov %rcx, %r12\n mov %r8, %r13\n xor %r10d, %r10d\n"
        "xor %r8d, %r8d\n mov $56, %eax\n syscall\n test %rax, %rax\n jnz 1f\n"
        "mov %r13, %rdi\n call *%r12\n mov %rbp, %rsp\n xor %eax, %eax\n" /* pid 2 */
        "1: pop %r13\n pop %r12\n pop %rbp\n ret\n"
#else
        "stp x29, x30, [sp, #-32]!\n stp x19, x20, [sp, #16]\n mov x29, sp\n mov x19, x3\n mov x20, x4\n mov x3, #0\n"
        "mov x4, #0\n mov x8, #220\n svc #0\n cbnz x0, 1f\n"
        "mov x0, x20\n blr x19\n mov sp, x29\n mov x0, #0\n" /* pid 2 */
        "1: ldp x19, x20, [sp, #16]\n ldp x29, x30, [sp], #32\n ret\n"
#endif
        ".size clone_onto, . - clone_onto\n");

/* Receive an order. Return the number of its descriptors, GONE if the server has closed the link, or MISFIT. */
static long receive(int link, struct order *order, struct rights *rights) {
    struct piece piece = {order, sizeof *order};
    struct message message = {0, 0, &piece, 1, rights, sizeof *rights, 0};
    long size = SYS(SYS_recvmsg, link, &message, MSG_CMSG_CLOEXEC);
    if (size <= 0)
        return GONE;
    if (size != sizeof *order || message.flags & (MSG_TRUNC | MSG_CTRUNC) || message.control_length < RIGHTS_BYTES)
        return MISFIT;
    long count = (long)((rights->length - RIGHTS_BYTES) / sizeof(int));
    for (long index = 0; index < count; index++)
        if (rights->descriptors[index] <= CHANNEL || rights->descriptors[index] >= CONTROL)
            return MISFIT; /* pid 1 would overwrite it */
    int known = order->version == VERSION && order->flags < 2 * IS_BOUND && order->filter < FILTERS;
    int fits = order->slot >= -1 && order->slot < SLOTS && order->port <= 0xFFFF && count >= 3;
    return known && fits ? count : MISFIT;
}

/* Return whether this process has exactly one thread: a fork copies one thread, but the locks of all threads. */
static int is_alone(void) {
    unsigned found[64] = {0};
    MUST("threads", SYS_statx, AT_FDCWD, "/proc/self/task", 0, STATX_NLINK, found);
    return found[4] == ONE_THREAD; /* the links of a folder with one subfolder */
}

/* Enter the empty net namespace of a slot, for the fork. It is made at its first use, and then reused by one run at a
 * time. `last` is the descriptor of the namespace that was made last. */
static void enter_slot(long slot, long *last) {
    for (; *last < SLOTS_FROM + slot; ++*last) {
        MUST("net namespace", SYS_unshare, CLONE_NEWNET);
        long namespace = MUST("net namespace", SYS_openat, AT_FDCWD, "/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        EXACTLY("net namespace", *last + 1, SYS_dup3, namespace, *last + 1, O_CLOEXEC);
        CLOSE(namespace);
    }
    MUST("net namespace", SYS_setns, SLOTS_FROM + slot, CLONE_NEWNET);
}

/* Fork pid 1 of a run. Return 0 in pid 2, and the result of the clone call in the zygote. */
static long fork_run(const struct run *run, int *pidfd, long *last) {
    static char stack[STACK_BYTES] __attribute__((aligned(64)));
    const struct order *order = run->order;
    unsigned is_root = run->plan->flags & ROOT;
    long flags = CLONE_PIDFD | NAMESPACES | SIGCHLD;
    if (order->slot >= 0) {
        enter_slot(order->slot, last); /* before the change of uid, which takes the capability that setns needs */
        flags &= ~(long)CLONE_NEWNET;
    }
    /* With its uid, pid 1 may write its own maps; the stopped zygote could not. So this uid owns the user namespace. */
    if (is_root) {
        MUST("gid", SYS_setresgid, -1, order->gid, -1);
        MUST("uid", SYS_setresuid, -1, order->uid, -1);
    }
    if (order->flags & SHARES_MEMORY && !(run->plan->flags & PRELOADED))
        flags |= CLONE_VM | CLONE_VFORK;
    long pid = clone_onto(flags, stack + STACK_BYTES, pidfd, be_pid_1, run);
    if (pid != 0 && is_root) {
        MUST("uid", SYS_setresuid, -1, 0, -1);
        MUST("gid", SYS_setresgid, -1, 0, -1);
        /* A change of ids makes the kernel forget this. The server may have ended before it is set again. */
        PRCTL("parent death signal", PR_SET_PDEATHSIG, SIGKILL, 0);
        EXACTLY("parent", run->plan->server, SYS_getppid);
    }
    return pid;
}

/* Answer an order. A preloaded zygote sends no descriptor: the server must not accept one from it. */
static void answer(const struct run *run, long pid, int pidfd) {
    struct { long number, status; } content = {run->order->number, pid > 0 ? 0 : CROWDED};
    int trusted = !(run->plan->flags & PRELOADED);
    if (trusted)
        must("new namespaces", pid);
    must("answer", send(run->plan->link, &content, sizeof content, trusted ? pidfd : -1));
    for (long index = 0; index < run->count; index++)
        CLOSE(run->received[index]);
    if (pid > 0)
        CLOSE(pidfd);
}

long cell_serve(const void *bytes, long length) {
    static const char ready[] = "{\"ready\": true}";
    const struct plan *plan = bytes;
    long last = SLOTS_FROM - 1;
    if (length < (long)sizeof *plan || plan->version != VERSION)
        return MISFIT;
    for (int index = 0; index < FILTERS; index++)
        length -= plan->filter_bytes[index];
    if (length != sizeof *plan)
        return MISFIT;
    struct order order; struct rights rights; int pidfd = -1;
    struct run run = {plan, &order, rights.descriptors, 0, SYS(SYS_landlock_create_ruleset, 0, 0, LANDLOCK_VERSION), 0};
    while (run.capabilities <= LAST_CAPABILITY && SYS(SYS_prctl, PR_CAPBSET_READ, run.capabilities, 0, 0, 0) >= 0)
        run.capabilities++; /* up to the kernel's last capability */
    zygote_link = plan->link;
    if (SYS(SYS_write, plan->link, ready, sizeof ready - 1) < 0)
        return GONE;
    for (;;) {
        run.count = receive(plan->link, &order, &rights);
        if (run.count < 0)
            return run.count;
        if (!is_alone())
            return THREADS;
        long pid = fork_run(&run, &pidfd, &last);
        if (pid == 0) {
            be_pid_2(&run);
            return order.flags & AHEAD;
        }
        answer(&run, pid, pidfd);
    }
}
