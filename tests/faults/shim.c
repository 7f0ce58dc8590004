/* Faults of a disk, below Python: preloaded into a process, this stands between it and the C library.

     fault_arm(root, log, mode, at)     counts every call that changes something below `root`; at the call number
                                        `at` (from 1) it does what `mode` says. Every call is written to `log` as
                                        kind, result, path and, for a rename or a link, the new path, with tabs between.

     RECORD   nothing, only count
     KILL     the process ends with SIGKILL before the call
     EIO      the call fails with EIO, once
     ENOSPC   the call fails with ENOSPC, and so does every later one that needs space
     SHORT    a write leaves its second half behind, once

   Python, Rust (tokenizers) and C++ (sentencepiece) all come through here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { RECORD, KILL, FAIL_EIO, FAIL_ENOSPC, SHORT };

static char root[PATH_MAX];
static size_t root_len;
static int mode, log_fd = -1;
static long at, calls;
static int is_full;

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void fault_arm(const char *directory, const char *log, int what, long when) {
    mode = what, at = when, calls = 0, is_full = 0;
    log_fd = NEXT(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    strncpy(root, directory, sizeof root - 1);
    root_len = strlen(root); /* last: from here on it counts */
}

static int below(const char *path) {
    return root_len && strncmp(path, root, root_len) == 0 && (path[root_len] == '/' || !path[root_len]);
}

static const char *of_fd(int fd, char *buffer) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, buffer, PATH_MAX - 1);
    buffer[length > 0 ? length : 0] = 0;
    return buffer;
}

/* Paths below a directory descriptor (shutil.rmtree uses them). */
static const char *at_fd(int dir, const char *path, char *buffer) {
    if (path[0] == '/' || dir == AT_FDCWD) return path;
    of_fd(dir, buffer);
    size_t used = strlen(buffer);
    snprintf(buffer + used, PATH_MAX - used, "/%s", path);
    return buffer;
}

static void note(const char *kind, const char *result, const char *path, const char *target) {
    char line[3 * PATH_MAX];
    int length = snprintf(line, sizeof line, "%s\t%s\t%s\t%s\n", kind, result, path, target);
    if (NEXT(write)(log_fd, line, (size_t)length) != length) _exit(97);
}

/* What the n-th call meets: 0 nothing, an errno, or -1 for a write that falls short. */
static int meet(const char *kind, const char *path, const char *target, int needs_space) {
    calls++;
    if (is_full && needs_space) {
        note(kind, "ENOSPC", path, target);
        return ENOSPC;
    }
    if (calls != at || mode == RECORD) {
        note(kind, "ok", path, target);
        return 0;
    }
    if (mode == KILL) {
        note(kind, "killed", path, target);
        raise(SIGKILL);
    }
    if (mode == FAIL_ENOSPC) {
        is_full = 1;
        note(kind, "ENOSPC", path, target);
        return ENOSPC;
    }
    note(kind, mode == SHORT ? "short" : "EIO", path, target);
    return mode == SHORT ? -1 : EIO;
}

/* No name of a caller's own: `int met = (met)` would read what was never set, and let the call pass. */
#define REFUSE(fault) do { int refused_ = (fault); if (refused_ > 0) { errno = refused_; return -1; } } while (0)

static int opened(const char *path, int flags) { return below(path) && (flags & (O_WRONLY | O_RDWR | O_CREAT)); }

#define OPEN(name)                                                                 \
    int name(const char *path, int flags, ...) {                                   \
        va_list rest; va_start(rest, flags); mode_t bits = va_arg(rest, int); va_end(rest); \
        if (opened(path, flags)) REFUSE(meet("open", path, "", 1));                \
        return NEXT(name)(path, flags, bits);                                      \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                               \
    int name(int dir, const char *path, int flags, ...) {                          \
        va_list rest; va_start(rest, flags); mode_t bits = va_arg(rest, int); va_end(rest); \
        char buffer[PATH_MAX];                                                     \
        const char *whole = root_len ? at_fd(dir, path, buffer) : path;            \
        if (opened(whole, flags)) REFUSE(meet("open", whole, "", 1));              \
        return NEXT(name)(dir, path, flags, bits);                                 \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *data, size_t size) {
    char path[PATH_MAX];
    if (root_len && fd != log_fd && size && below(of_fd(fd, path))) {
        int met = meet("write", path, "", 1);
        REFUSE(met);
        if (met < 0) size /= 2;
    }
    return NEXT(write)(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    if (root_len && below(of_fd(fd, path))) {
        int met = meet("write", path, "", 1);
        REFUSE(met);
        if (met < 0) return NEXT(write)(fd, parts[0].iov_base, parts[0].iov_len / 2);
    }
    return NEXT(writev)(fd, parts, count);
}

#define ON_FD(name, kind)                                                          \
    int name(int fd) {                                                             \
        char path[PATH_MAX];                                                       \
        if (root_len && below(of_fd(fd, path))) REFUSE(meet(kind, path, "", 0));   \
        return NEXT(name)(fd);                                                     \
    }
ON_FD(fsync, "fsync")
ON_FD(fdatasync, "fsync")

int rename(const char *from, const char *to) {
    if (below(to)) REFUSE(meet("rename", from, to, 1));
    return NEXT(rename)(from, to);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    char a[PATH_MAX], b[PATH_MAX];
    if (root_len && below(at_fd(to_dir, to, b))) REFUSE(meet("rename", at_fd(from_dir, from, a), at_fd(to_dir, to, b), 1));
    return NEXT(renameat)(from_dir, from, to_dir, to);
}

int link(const char *from, const char *to) {
    if (below(to)) REFUSE(meet("link", from, to, 1));
    return NEXT(link)(from, to);
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    char a[PATH_MAX], b[PATH_MAX];
    if (root_len && below(at_fd(to_dir, to, b))) REFUSE(meet("link", at_fd(from_dir, from, a), at_fd(to_dir, to, b), 1));
    return NEXT(linkat)(from_dir, from, to_dir, to, flags);
}

/* What is not there, or is there already, is no change: `missing_ok` and `exist_ok` ask for it all the time. */
static int exists(const char *path) {
    struct stat found;
    return lstat(path, &found) == 0;
}

int unlink(const char *path) {
    if (below(path) && exists(path)) REFUSE(meet("unlink", path, "", 0));
    return NEXT(unlink)(path);
}

int unlinkat(int dir, const char *path, int flags) {
    char buffer[PATH_MAX];
    if (root_len && below(at_fd(dir, path, buffer)))
        REFUSE(meet(flags & AT_REMOVEDIR ? "rmdir" : "unlink", at_fd(dir, path, buffer), "", 0));
    return NEXT(unlinkat)(dir, path, flags);
}

int rmdir(const char *path) {
    if (below(path)) REFUSE(meet("rmdir", path, "", 0));
    return NEXT(rmdir)(path);
}

int mkdir(const char *path, mode_t bits) {
    if (below(path) && !exists(path)) REFUSE(meet("mkdir", path, "", 1));
    return NEXT(mkdir)(path, bits);
}
