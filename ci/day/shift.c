/* A calendar that is SHIFT seconds from this machine's, for every process that preloads this.

   ci/at compiles it. The tests' clock is not enough for that: this also moves what no test can
   replace, such as TLS libraries, git, nginx and python-tuf. libfaketime does more and costs more:
   it reads files while a program runs, which tests about single system calls would see.

   Seconds that only count (CLOCK_MONOTONIC) stay as they are. Times of files are shifted, too, so
   that a new file is as old as it is; the disk keeps the real ones. A program that calls the kernel
   without the C library, such as one written in Go, sees the real day. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <utime.h>

#ifndef SHIFT
#error "compile with -DSHIFT=SECONDS"
#endif

/* Calendar times are above this in every test, and seconds since the start of a machine are below:
   some functions take either, and do not say which. */
#define CALENDAR 1000000000

/* The next library's function of the same name. Two threads that look it up find the same. */
#define REAL(name)                                                                                 \
    static __typeof__(&name) real;                                                                 \
    if (!real)                                                                                     \
    real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* --- reading the clock --------------------------------------------------------------------- */

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int failed = real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += SHIFT;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    REAL(gettimeofday);
    int failed = real(now, zone);
    if (!failed)
        now->tv_sec += SHIFT;
    return failed;
}

time_t time(time_t *kept) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (kept)
        *kept = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
    REAL(timespec_get);
    int done = real(now, base);
    if (done == TIME_UTC)
        now->tv_sec += SHIFT;
    return done;
}

/* --- waiting until a time ------------------------------------------------------------------ */

static const struct timespec *unshifted(const struct timespec *until, struct timespec *room) {
    if (!until || until->tv_sec < CALENDAR)
        return until;
    *room = *until;
    room->tv_sec -= SHIFT;
    return room;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict lock,
                           const struct timespec *restrict until) {
    REAL(pthread_cond_timedwait);
    struct timespec room;
    return real(condition, lock, unshifted(until, &room));
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict lock, const struct timespec *restrict until) {
    REAL(pthread_mutex_timedlock);
    struct timespec room;
    return real(lock, unshifted(until, &room));
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    REAL(sem_timedwait);
    struct timespec room;
    return real(semaphore, unshifted(until, &room));
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *rest) {
    REAL(clock_nanosleep);
    struct timespec room;
    return real(clock, flags, flags & TIMER_ABSTIME ? unshifted(until, &room) : until, rest);
}

int timerfd_settime(int timer, int flags, const struct itimerspec *given, struct itimerspec *old) {
    REAL(timerfd_settime);
    struct itimerspec room = *given;
    if (flags & TFD_TIMER_ABSTIME && room.it_value.tv_sec >= CALENDAR)
        room.it_value.tv_sec -= SHIFT;
    return real(timer, flags, &room, old);
}

/* --- times of files ------------------------------------------------------------------------ */

#define SHIFTED(status)                                                                            \
    ((status)->st_atim.tv_sec += SHIFT, (status)->st_mtim.tv_sec += SHIFT,                         \
     (status)->st_ctim.tv_sec += SHIFT)

#define READS(name, parameters, ...)                                                               \
    int name parameters {                                                                          \
        REAL(name);                                                                                \
        int failed = real(__VA_ARGS__);                                                            \
        if (!failed)                                                                               \
            SHIFTED(status);                                                                       \
        return failed;                                                                             \
    }

#define FAMILY(end)                                                                                \
    READS(stat##end, (const char *restrict path, struct stat##end *restrict status), path,         \
          status)                                                                                  \
    READS(lstat##end, (const char *restrict path, struct stat##end *restrict status), path,        \
          status)                                                                                  \
    READS(fstat##end, (int file, struct stat##end *status), file, status)                          \
    READS(fstatat##end,                                                                            \
          (int folder, const char *restrict path, struct stat##end *restrict status, int flags),   \
          folder, path, status, flags)                                                             \
    /* Programs that were compiled before glibc 2.33 have these. */                                \
    int __xstat##end(int, const char *, struct stat##end *);                                       \
    int __lxstat##end(int, const char *, struct stat##end *);                                      \
    int __fxstat##end(int, int, struct stat##end *);                                               \
    int __fxstatat##end(int, int, const char *, struct stat##end *, int);                          \
    READS(__xstat##end, (int version, const char *path, struct stat##end *status), version,        \
          path, status)                                                                            \
    READS(__lxstat##end, (int version, const char *path, struct stat##end *status), version,       \
          path, status)                                                                            \
    READS(__fxstat##end, (int version, int file, struct stat##end *status), version, file,         \
          status)                                                                                  \
    READS(__fxstatat##end,                                                                         \
          (int version, int folder, const char *path, struct stat##end *status, int flags),        \
          version, folder, path, status, flags)

FAMILY()
FAMILY(64)

int statx(int folder, const char *restrict path, int flags, unsigned mask,
          struct statx *restrict status) {
    REAL(statx);
    int failed = real(folder, path, flags, mask, status);
    if (!failed) {
        status->stx_atime.tv_sec += SHIFT;
        status->stx_btime.tv_sec += SHIFT;
        status->stx_ctime.tv_sec += SHIFT;
        status->stx_mtime.tv_sec += SHIFT;
    }
    return failed;
}

/* All other ways to set a time come here. */
int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    REAL(utimensat);
    struct timespec real_times[2];
    for (int each = 0; times && each < 2; each++) {
        real_times[each] = times[each];
        if (times[each].tv_nsec != UTIME_NOW && times[each].tv_nsec != UTIME_OMIT)
            real_times[each].tv_sec -= SHIFT;
    }
    return real(folder, path, times ? real_times : NULL, flags);
}

int futimens(int file, const struct timespec times[2]) {
    REAL(futimens);
    struct timespec real_times[2];
    for (int each = 0; times && each < 2; each++) {
        real_times[each] = times[each];
        if (times[each].tv_nsec != UTIME_NOW && times[each].tv_nsec != UTIME_OMIT)
            real_times[each].tv_sec -= SHIFT;
    }
    return real(file, times ? real_times : NULL);
}

static const struct timespec *nanoseconds(const struct timeval times[2], struct timespec room[2]) {
    for (int each = 0; times && each < 2; each++) {
        room[each].tv_sec = times[each].tv_sec;
        room[each].tv_nsec = times[each].tv_usec * 1000;
    }
    return times ? room : NULL;
}

int utimes(const char *path, const struct timeval times[2]) {
    struct timespec room[2];
    return utimensat(AT_FDCWD, path, nanoseconds(times, room), 0);
}

int lutimes(const char *path, const struct timeval times[2]) {
    struct timespec room[2];
    return utimensat(AT_FDCWD, path, nanoseconds(times, room), AT_SYMLINK_NOFOLLOW);
}

int futimesat(int folder, const char *path, const struct timeval times[2]) {
    struct timespec room[2];
    return utimensat(folder, path, nanoseconds(times, room), 0);
}

int futimes(int file, const struct timeval times[2]) {
    struct timespec room[2];
    return futimens(file, nanoseconds(times, room));
}

int utime(const char *path, const struct utimbuf *times) {
    if (!times)
        return utimensat(AT_FDCWD, path, NULL, 0);
    struct timespec room[2] = {{times->actime, 0}, {times->modtime, 0}};
    return utimensat(AT_FDCWD, path, room, 0);
}
