/* Let a process and all processes that it starts change a disk one system call at a time.
 *
 *     turns PID FOLDER
 *
 * attaches to PID, which still has one thread, and prints "attached". Then it prints one line on
 * stdout, "THREAD NAME RESULT", for every finished call that may have changed the file system of
 * FOLDER. That thread is held until a byte comes on stdin. A thread that reaches such a call in the
 * meantime is held before the call, in a queue. So while a line has no answer, no such call is
 * under way in any thread or child. No call is missed, as the kernel stops each thread separately
 * before and after each of its calls.
 *
 * Signals would not do: a SIGSTOP that strace injects stops the whole process, and the SIGCONT
 * that ends the stop of one thread discards the SIGSTOP that another one has pending.
 *
 * It ends when all of them have ended. If it ends earlier, the kernel kills them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPTIONS                                                                                \
    (PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC | PTRACE_O_TRACECLONE |    \
     PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK)
#define SYSCALL_STOP (SIGTRAP | 0x80)

/* How to tell whether a call may change the disk: always, by an open's flags, by its file. */
enum by { ANYWHERE, FLAGS, FILE_AT };

struct call {
    unsigned long number;
    const char *name;
    enum by by;
    int argument; /* the index of the flags or the descriptor */
};

#define CALL(name, by, argument) {SYS_##name, #name, by, argument}
static const struct call calls[] = {
    CALL(openat, FLAGS, 2),
    CALL(write, FILE_AT, 0),
    CALL(writev, FILE_AT, 0),
    CALL(pwrite64, FILE_AT, 0),
    CALL(pwritev, FILE_AT, 0),
    CALL(pwritev2, FILE_AT, 0),
    CALL(sendfile, FILE_AT, 0),
    CALL(copy_file_range, FILE_AT, 2),
    CALL(splice, FILE_AT, 2),
    CALL(ftruncate, FILE_AT, 0),
    CALL(fallocate, FILE_AT, 0),
    CALL(fsync, FILE_AT, 0),
    CALL(fdatasync, FILE_AT, 0),
    CALL(sync_file_range, FILE_AT, 0),
    CALL(syncfs, FILE_AT, 0),
    CALL(fchmod, FILE_AT, 0),
    CALL(fchown, FILE_AT, 0),
    CALL(sync, ANYWHERE, 0),
    CALL(truncate, ANYWHERE, 0),
    CALL(mkdirat, ANYWHERE, 0),
    CALL(mknodat, ANYWHERE, 0),
    CALL(renameat2, ANYWHERE, 0),
    CALL(linkat, ANYWHERE, 0),
    CALL(symlinkat, ANYWHERE, 0),
    CALL(unlinkat, ANYWHERE, 0),
    CALL(fchmodat, ANYWHERE, 0),
    CALL(fchownat, ANYWHERE, 0),
    CALL(utimensat, ANYWHERE, 0),
    CALL(openat2, ANYWHERE, 0),
#ifdef SYS_renameat
    CALL(renameat, ANYWHERE, 0),
#endif
#ifdef SYS_rename /* an architecture has all of these older ones or none */
    CALL(open, FLAGS, 1),
    CALL(creat, ANYWHERE, 0),
    CALL(mkdir, ANYWHERE, 0),
    CALL(rmdir, ANYWHERE, 0),
    CALL(mknod, ANYWHERE, 0),
    CALL(rename, ANYWHERE, 0),
    CALL(link, ANYWHERE, 0),
    CALL(symlink, ANYWHERE, 0),
    CALL(unlink, ANYWHERE, 0),
    CALL(chmod, ANYWHERE, 0),
    CALL(chown, ANYWHERE, 0),
    CALL(lchown, ANYWHERE, 0),
    CALL(utimes, ANYWHERE, 0),
#endif
};

struct thread {
    struct thread *next;
    pid_t id;
    const struct call *call; /* the call that it is before or in, if that may change the disk */
    unsigned long waits;     /* its place in the queue; 0 when it does not wait */
};

static struct thread *threads;
static struct thread *turn; /* the one thread that is in its call */
static unsigned long last_place;
static dev_t disk;

static struct thread *thread_of(pid_t id)
{
    struct thread *thread = threads;
    while (thread && thread->id != id)
        thread = thread->next;
    if (!thread) {
        thread = calloc(1, sizeof *thread);
        if (!thread)
            exit(1);
        thread->id = id;
        thread->next = threads;
        threads = thread;
    }
    return thread;
}

/* Errors are ignored: a thread that was killed meanwhile is reported by waitpid. */
static void go_on(const struct thread *thread, int signal_number)
{
    ptrace(PTRACE_SYSCALL, thread->id, 0, signal_number);
}

/* Let the thread that has waited longest make its call. */
static void next_turn(void)
{
    turn = NULL;
    for (struct thread *each = threads; each; each = each->next)
        if (each->waits && (!turn || each->waits < turn->waits))
            turn = each;
    if (turn) {
        turn->waits = 0;
        go_on(turn, 0);
    }
}

/* The thread's call has ended or will not happen: let the next one begin. */
static void leave(struct thread *thread)
{
    thread->call = NULL;
    thread->waits = 0;
    if (turn == thread)
        next_turn();
}

static void forget(struct thread *thread)
{
    leave(thread);
    struct thread **link = &threads;
    while (*link != thread)
        link = &(*link)->next;
    *link = thread->next;
    free(thread);
}

static bool on_the_disk(pid_t thread, int descriptor)
{
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", thread, descriptor);
    return stat(path, &status) == 0 && status.st_dev == disk;
}

static bool may_change(const struct call *call, pid_t thread, const uint64_t *arguments)
{
    uint64_t argument = arguments[call->argument];
    if (call->by == FILE_AT)
        return on_the_disk(thread, (int)argument);
    return call->by == ANYWHERE || argument & (O_CREAT | O_TRUNC) ||
           (argument & O_TMPFILE) == O_TMPFILE;
}

static void before_a_call(struct thread *thread, uint64_t number, const uint64_t *arguments)
{
    thread->call = NULL;
    for (size_t at = 0; at < sizeof calls / sizeof *calls; at++)
        if (calls[at].number == number && may_change(&calls[at], thread->id, arguments))
            thread->call = &calls[at];
    /* Another thread is in its call: hold this one by not resuming it. */
    if (thread->call && turn) {
        thread->waits = ++last_place;
        return;
    }
    if (thread->call)
        turn = thread;
    go_on(thread, 0);
}

static void after_a_call(struct thread *thread, long long result)
{
    char answer;
    if (thread->call) {
        dprintf(STDOUT_FILENO, "%d %s %lld\n", thread->id, thread->call->name, result);
        /* The reader looks at the disk now; only this process could let a thread go on. */
        if (read(STDIN_FILENO, &answer, 1) != 1)
            exit(1);
        leave(thread);
    }
    go_on(thread, 0);
}

static void at_a_call(struct thread *thread)
{
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread->id, sizeof info, &info) < 0)
        return; /* killed */
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY)
        before_a_call(thread, info.entry.nr, info.entry.args);
    else
        after_a_call(thread, info.exit.rval);
}

/* After an exec, one thread is left and has the process's id: forget its old id. */
static void executed(struct thread *thread)
{
    unsigned long before = 0;
    ptrace(PTRACE_GETEVENTMSG, thread->id, 0, &before);
    if (before && (pid_t)before != thread->id)
        forget(thread_of((pid_t)before));
    leave(thread);
}

static bool stops(int signal_number)
{
    return signal_number == SIGSTOP || signal_number == SIGTSTP || signal_number == SIGTTIN ||
           signal_number == SIGTTOU;
}

static void stopped(struct thread *thread, int status)
{
    int signal_number = WSTOPSIG(status);
    int event = status >> 16;
    if (signal_number == SYSCALL_STOP) {
        at_a_call(thread);
    } else if (event == PTRACE_EVENT_STOP && stops(signal_number)) {
        ptrace(PTRACE_LISTEN, thread->id, 0, 0); /* a real stop: leave it stopped */
    } else {
        if (event == PTRACE_EVENT_EXEC)
            executed(thread);
        go_on(thread, event ? 0 : signal_number);
    }
}

int main(int count, char **arguments)
{
    struct stat status;
    int how;
    if (count != 3 || stat(arguments[2], &status) < 0)
        return 2;
    disk = status.st_dev;
    pid_t first = atoi(arguments[1]);
    if (ptrace(PTRACE_SEIZE, first, 0, OPTIONS) < 0 || ptrace(PTRACE_INTERRUPT, first, 0, 0) < 0) {
        perror("ptrace");
        return 2;
    }
    dprintf(STDOUT_FILENO, "attached\n");
    for (;;) {
        pid_t id = waitpid(-1, &how, __WALL);
        if (id < 0 && errno != EINTR)
            return errno == ECHILD ? 0 : 1;
        if (id < 0)
            continue;
        if (WIFSTOPPED(how))
            stopped(thread_of(id), how);
        else
            forget(thread_of(id));
    }
}
