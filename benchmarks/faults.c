/* A file system that fails: preloaded into a process, fails the n-th call that changes files below a folder, or kills
 * the process before, halfway through (of a write) or after it.
 *
 * What to do stands in a file that every process of a run maps (FAULTS_CONTROL), so that calls are counted over all of
 * them, threads and children included. See `faults.py` for who writes it. Linux with glibc.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE, SYNC, RENAME, MKDIR, TRUNCATE, RESERVE, MAP, REMOVE };
enum { ONCE = 1, LASTING, SHORT, SHORT_THEN_FULL, KILL_BEFORE, KILL_HALFWAY, KILL_AFTER };
#define CALLS 20000
#define TAIL 110

struct control {
    _Atomic int armed;      /* 0: nothing is counted, 1: counted */
    int mode, error, only;  /* `only`: the kind whose calls may fail in mode LASTING (0: all) */
    long nth;               /* the call that fails, from 1; 0: none */
    _Atomic long calls, failed;
    char folder[400];
    struct { int kind; char path[TAIL + 1]; } log[CALLS];
};

static struct control *control;
static __thread int is_last_call; /* this thread's call is the one after which the process is killed */

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("FAULTS_CONTROL");
    int handle = file ? open(file, O_RDWR) : -1;
    if (handle < 0) return;
    void *map = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    close(handle);
    if (map != MAP_FAILED) control = map;
}

static int is_inside(const char *path) {
    size_t length = strlen(control->folder);
    return !strncmp(path, control->folder, length) && (path[length] == '/' || !path[length]);
}

/* Make a path absolute, by what the system says of the folder that it starts from. */
static const char *whole(int at, const char *path, char *room) {
    if (path[0] == '/') return path;
    char link[64];
    if (at == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t length = readlink(link, room, PATH_MAX - 1);
    if (length < 0) return path;
    snprintf(room + length, PATH_MAX - length, "/%s", path);
    return room;
}

static void die(void) {
    atomic_fetch_add(&control->failed, 1);
    kill(getpid(), SIGKILL);
}

/* Runs after each call. */
static void after(void) {
    if (is_last_call) die();
}

/* Count a call; return what it shall do: 0 go on, 1 fail with errno set, 2 do half, 3 do half and fail from then on. */
static int judge(int kind, const char *path) {
    if (!control || !control->armed || !is_inside(path)) return 0;
    long number = atomic_fetch_add(&control->calls, 1) + 1;
    if (number <= CALLS) {
        size_t length = strlen(path);
        control->log[number - 1].kind = kind;
        strcpy(control->log[number - 1].path, length > TAIL ? path + length - TAIL : path);
    }
    if (!control->nth || number < control->nth) return 0;
    int is_it = number == control->nth;
    if (control->mode >= KILL_BEFORE) {
        if (is_it && control->mode == KILL_BEFORE) die();
        is_last_call = is_it;
        return is_it && control->mode == KILL_HALFWAY && kind == WRITE ? 2 : 0;
    }
    int lasts = control->mode == LASTING || control->mode == SHORT_THEN_FULL;
    if (!is_it && !(lasts && (!control->only || control->only & 1 << kind))) return 0;
    if (is_it && control->mode == SHORT) { atomic_fetch_add(&control->failed, 1); return 2; }
    if (is_it && control->mode == SHORT_THEN_FULL && kind == WRITE) { atomic_fetch_add(&control->failed, 1); return 2; }
    atomic_fetch_add(&control->failed, 1);
    errno = control->error;
    return 1;
}

static int judge_at(int kind, int at, const char *path) {
    char room[PATH_MAX];
    if (!control || !control->armed || !path) return 0;
    return judge(kind, whole(at, path, room));
}

static int judge_handle(int kind, int handle) {
    char link[64], room[PATH_MAX];
    if (!control || !control->armed) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    int before = errno;
    ssize_t length = readlink(link, room, PATH_MAX - 1);
    errno = before;
    if (length < 0) return 0;
    room[length] = 0;
    return judge(kind, room);
}

#define REAL(name) ({ static __typeof__(name) *found; if (!found) found = dlsym(RTLD_NEXT, #name); found; })
#define DONE(call) ({ __typeof__(call) result = (call); int saved = errno; after(); errno = saved; result; })
#define WRITES(flags) (((flags) & O_ACCMODE) != O_RDONLY || ((flags) & (O_CREAT | O_TRUNC)))
#define MODE_OF(flags, mode) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    if (WRITES(flags) && judge_at(OPEN, AT_FDCWD, path) == 1) return -1;
    return DONE(REAL(open)(path, flags, mode));
}
int open64(const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    if (WRITES(flags) && judge_at(OPEN, AT_FDCWD, path) == 1) return -1;
    return DONE(REAL(open64)(path, flags, mode));
}
int openat(int at, const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    if (WRITES(flags) && judge_at(OPEN, at, path) == 1) return -1;
    return DONE(REAL(openat)(at, path, flags, mode));
}
int openat64(int at, const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    if (WRITES(flags) && judge_at(OPEN, at, path) == 1) return -1;
    return DONE(REAL(openat64)(at, path, flags, mode));
}
int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
FILE *fopen(const char *path, const char *how) {
    if (strpbrk(how, "wa+") && judge_at(OPEN, AT_FDCWD, path) == 1) return NULL;
    return DONE(REAL(fopen)(path, how));
}
FILE *fopen64(const char *path, const char *how) {
    if (strpbrk(how, "wa+") && judge_at(OPEN, AT_FDCWD, path) == 1) return NULL;
    return DONE(REAL(fopen64)(path, how));
}

#define HALF(size, verdict) ((verdict) == 2 && (size) > 1 ? (size) / 2 : (size))
ssize_t write(int handle, const void *data, size_t size) {
    int verdict = judge_handle(WRITE, handle);
    return verdict == 1 ? -1 : DONE(REAL(write)(handle, data, HALF(size, verdict)));
}
ssize_t pwrite(int handle, const void *data, size_t size, off_t place) {
    int verdict = judge_handle(WRITE, handle);
    return verdict == 1 ? -1 : DONE(REAL(pwrite)(handle, data, HALF(size, verdict), place));
}
ssize_t pwrite64(int handle, const void *data, size_t size, off64_t place) {
    int verdict = judge_handle(WRITE, handle);
    return verdict == 1 ? -1 : DONE(REAL(pwrite64)(handle, data, HALF(size, verdict), place));
}
ssize_t writev(int handle, const struct iovec *pieces, int count) {
    int verdict = judge_handle(WRITE, handle);
    if (verdict == 1) return -1;
    if (verdict == 2) return DONE(REAL(write)(handle, pieces[0].iov_base, HALF(pieces[0].iov_len, verdict)));
    return DONE(REAL(writev)(handle, pieces, count));
}
size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
    if (judge_handle(WRITE, fileno(file)) == 1) return 0;
    return DONE(REAL(fwrite)(data, size, count, file));
}
ssize_t copy_file_range(int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags) {
    return judge_handle(WRITE, to) == 1 ? -1 : DONE(REAL(copy_file_range)(from, a, to, b, size, flags));
}

int fsync(int handle) { return judge_handle(SYNC, handle) == 1 ? -1 : DONE(REAL(fsync)(handle)); }
int fdatasync(int handle) { return judge_handle(SYNC, handle) == 1 ? -1 : DONE(REAL(fdatasync)(handle)); }
int msync(void *start, size_t size, int flags) { return DONE(REAL(msync)(start, size, flags)); }

int rename(const char *from, const char *to) {
    return judge_at(RENAME, AT_FDCWD, to) == 1 ? -1 : DONE(REAL(rename)(from, to));
}
int renameat(int a, const char *from, int b, const char *to) {
    return judge_at(RENAME, b, to) == 1 ? -1 : DONE(REAL(renameat)(a, from, b, to));
}
int mkdir(const char *path, mode_t mode) { return judge_at(MKDIR, AT_FDCWD, path) == 1 ? -1 : DONE(REAL(mkdir)(path, mode)); }
int mkdirat(int at, const char *path, mode_t mode) {
    return judge_at(MKDIR, at, path) == 1 ? -1 : DONE(REAL(mkdirat)(at, path, mode));
}
int truncate(const char *path, off_t size) {
    return judge_at(TRUNCATE, AT_FDCWD, path) == 1 ? -1 : DONE(REAL(truncate)(path, size));
}
int ftruncate(int handle, off_t size) { return judge_handle(TRUNCATE, handle) == 1 ? -1 : DONE(REAL(ftruncate)(handle, size)); }
int ftruncate64(int handle, off64_t size) {
    return judge_handle(TRUNCATE, handle) == 1 ? -1 : DONE(REAL(ftruncate64)(handle, size));
}
int posix_fallocate(int handle, off_t start, off_t size) { /* It returns its error. */
    return judge_handle(RESERVE, handle) == 1 ? errno : DONE(REAL(posix_fallocate)(handle, start, size));
}
int posix_fallocate64(int handle, off64_t start, off64_t size) {
    return judge_handle(RESERVE, handle) == 1 ? errno : DONE(REAL(posix_fallocate64)(handle, start, size));
}
int fallocate(int handle, int mode, off_t start, off_t size) {
    return judge_handle(RESERVE, handle) == 1 ? -1 : DONE(REAL(fallocate)(handle, mode, start, size));
}
int fallocate64(int handle, int mode, off64_t start, off64_t size) {
    return judge_handle(RESERVE, handle) == 1 ? -1 : DONE(REAL(fallocate64)(handle, mode, start, size));
}
#define MAPS(handle, protection, flags) ((handle) >= 0 && ((protection) & PROT_WRITE) && ((flags) & MAP_SHARED))
void *mmap(void *start, size_t size, int protection, int flags, int handle, off_t place) {
    if (MAPS(handle, protection, flags) && judge_handle(MAP, handle) == 1) return MAP_FAILED;
    return DONE(REAL(mmap)(start, size, protection, flags, handle, place));
}
void *mmap64(void *start, size_t size, int protection, int flags, int handle, off64_t place) {
    if (MAPS(handle, protection, flags) && judge_handle(MAP, handle) == 1) return MAP_FAILED;
    return DONE(REAL(mmap64)(start, size, protection, flags, handle, place));
}
int unlink(const char *path) { return judge_at(REMOVE, AT_FDCWD, path) == 1 ? -1 : DONE(REAL(unlink)(path)); }
int unlinkat(int at, const char *path, int flags) {
    return judge_at(REMOVE, at, path) == 1 ? -1 : DONE(REAL(unlinkat)(at, path, flags));
}
int rmdir(const char *path) { return judge_at(REMOVE, AT_FDCWD, path) == 1 ? -1 : DONE(REAL(rmdir)(path)); }
