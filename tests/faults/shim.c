/* Faults of a disk, below Python: preloaded into a process, this stands between it and the C library.

     fault_arm(root, log, mode, at)     counts every call that changes something below `root`; at the call number
                                        `at` (from 1) it does what `mode` says. Every call is written to `log` as
                                        kind, result, path and, for a rename or a link, the new path, with tabs between.

     RECORD   nothing, only count
     KILL     the process ends with SIGKILL before the call
     EIO      the call fails with EIO, once
     ENOSPC   the call fails with ENOSPC, and so does every later one that needs space
     SHORT    a write leaves its second half behind, once
     SHADOW   nothing; but every file that is created keeps a second name, `log`.d/<inode>, so that what is removed later
              can still be read. Calls are written down when they have succeeded, with the inode where `target` is empty
              and the bytes of a write

   The modes of reading count calls that read, open to read, map or ask for the size of a file below `root` instead:

     READS    nothing, only count
     R_EIO    the call fails with EIO, once             R_STUCK   … and so does every later read of that file
     R_EINTR  it fails with EINTR, once
     R_ENOMEM it fails with ENOMEM, once
     R_SHORT  a read returns the first half, once
     R_FLIP   a read returns one bit that is not the one on disk, once

   Python, Arrow, Rust (tokenizers) and C++ (sentencepiece) all come through here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { RECORD, KILL, FAIL_EIO, FAIL_ENOSPC, SHORT, SHADOW, READS, R_EIO, R_STUCK, R_EINTR, R_ENOMEM, R_SHORT, R_FLIP };

static char root[PATH_MAX], shadow[PATH_MAX], stuck[PATH_MAX];
static size_t root_len;
static int mode, log_fd = -1;
static long at, calls;
static int is_full;

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void fault_arm(const char *directory, const char *log, int what, long when) {
    mode = what, at = when, calls = 0, is_full = 0;
    log_fd = NEXT(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    snprintf(shadow, sizeof shadow, "%s.d", log);
    stuck[0] = 0;
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
    if (mode >= SHADOW) return 0;
    calls++;
    if (is_full && needs_space) {
        note(kind, "ENOSPC", path, target);
        return ENOSPC;
    }
    /* Threads may have put another call in its place: the next one that can fail like this does. */
    if (calls == at && ((mode == SHORT && strcmp(kind, "write") != 0) || (mode == FAIL_ENOSPC && !needs_space))) at++;
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

static const char *spelled(int fault) { return fault == EIO ? "EIO" : fault == EINTR ? "EINTR" : "ENOMEM"; }

/* Which calls can fail like this: a look at a file is not interrupted, and only what reads bytes falls short. */
static int can_meet(const char *kind) {
    static const char *const kinds[] = {[R_EIO] = "read open stat", [R_STUCK] = "read open", [R_EINTR] = "read open", [R_ENOMEM] = "read open mmap", [R_SHORT] = "read", [R_FLIP] = "read"};
    return mode == READS || strstr(kinds[mode], kind) != NULL;
}

/* The same for what reads; -1 for a read that falls short, or has a bit that is another. */
static int meet_reading(const char *kind, const char *path) {
    if (mode <= SHADOW) return 0;
    static const int faults[] = {[R_EIO] = EIO, [R_STUCK] = EIO, [R_EINTR] = EINTR, [R_ENOMEM] = ENOMEM, [R_SHORT] = -1, [R_FLIP] = -1};
    if (stuck[0] && *kind != 's' && strcmp(stuck, path) == 0) {
        note(kind, "EIO", path, "");
        return EIO;
    }
    if (++calls == at && !can_meet(kind)) at++; /* as above: threads */
    if (calls != at || mode == READS) {
        note(kind, "ok", path, "");
        return 0;
    }
    note(kind, faults[mode] < 0 ? "other" : spelled(faults[mode]), path, "");
    if (mode == R_STUCK) strncpy(stuck, path, sizeof stuck - 1);
    return faults[mode];
}

/* What has succeeded, for whoever asks what a disk without power would still have. */
static int did(int result, const char *kind, const char *path, const char *target) {
    if (result >= 0 && mode == SHADOW) {
        int before = errno;
        note(kind, "ok", path, target);
        errno = before;
    }
    return result;
}

static const char *inode(int fd, char *buffer) {
    struct stat found;
    memset(&found, 0, sizeof found);
    NEXT(fstat)(fd, &found);
    sprintf(buffer, "%lu", (unsigned long)found.st_ino);
    return buffer;
}

static int keep(int fd, const char *path, int flags) {
    if (fd < 0 || mode != SHADOW || !(flags & O_CREAT)) return fd;
    char number[32], second[PATH_MAX + 64], size[64];
    struct stat found;
    NEXT(fstat)(fd, &found);
    snprintf(second, sizeof second, "%s/%s", shadow, inode(fd, number));
    NEXT(link)(path, second); /* there already: opened again */
    snprintf(size, sizeof size, "%s %ld", number, (long)found.st_size);
    return did(fd, "create", path, size);
}

static int opened(const char *path, int flags) { return below(path) && (flags & (O_WRONLY | O_RDWR | O_CREAT)); }

#define OPEN(name)                                                                 \
    int name(const char *path, int flags, ...) {                                   \
        va_list rest; va_start(rest, flags); mode_t bits = va_arg(rest, int); va_end(rest); \
        if (opened(path, flags)) REFUSE(meet("open", path, "", 1));                \
        else if (below(path)) REFUSE(meet_reading("open", path));                  \
        int fd = NEXT(name)(path, flags, bits);                                    \
        return opened(path, flags) ? keep(fd, path, flags) : fd;                   \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                               \
    int name(int dir, const char *path, int flags, ...) {                          \
        va_list rest; va_start(rest, flags); mode_t bits = va_arg(rest, int); va_end(rest); \
        char buffer[PATH_MAX];                                                     \
        const char *whole = root_len ? at_fd(dir, path, buffer) : path;            \
        if (opened(whole, flags)) REFUSE(meet("open", whole, "", 1));              \
        else if (below(whole)) REFUSE(meet_reading("open", whole));                \
        int fd = NEXT(name)(dir, path, flags, bits);                               \
        return opened(whole, flags) ? keep(fd, whole, flags) : fd;                 \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *data, size_t size) {
    char path[PATH_MAX];
    if (root_len && fd != log_fd && size && below(of_fd(fd, path))) {
        int met = meet("write", path, "", 1);
        REFUSE(met);
        if (met < 0) size /= 2;
        ssize_t written = NEXT(write)(fd, data, size);
        if (mode == SHADOW && written > 0) {
            char number[32], both[64];
            snprintf(both, sizeof both, "%s %ld", inode(fd, number), (long)written);
            did(0, "write", path, both);
        }
        return written;
    }
    return NEXT(write)(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    if (root_len && below(of_fd(fd, path))) {
        int met = meet("write", path, "", 1);
        REFUSE(met);
        if (met < 0) return NEXT(write)(fd, parts[0].iov_base, parts[0].iov_len / 2);
        if (mode == SHADOW) { fputs("writev is not shadowed\n", stderr); abort(); }
    }
    return NEXT(writev)(fd, parts, count);
}

#define ON_FD(name, kind)                                                          \
    int name(int fd) {                                                             \
        char path[PATH_MAX];                                                       \
        if (!root_len || !below(of_fd(fd, path))) return NEXT(name)(fd);           \
        REFUSE(meet(kind, path, "", 0));                                           \
        char number[32];                                                           \
        return did(NEXT(name)(fd), kind, path, inode(fd, number));                 \
    }
ON_FD(fsync, "fsync")
ON_FD(fdatasync, "fsync")

int rename(const char *from, const char *to) {
    if (!below(to)) return NEXT(rename)(from, to);
    REFUSE(meet("rename", from, to, 1));
    return did(NEXT(rename)(from, to), "rename", from, to);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    char a[PATH_MAX], b[PATH_MAX];
    if (!root_len || !below(at_fd(to_dir, to, b))) return NEXT(renameat)(from_dir, from, to_dir, to);
    const char *was = at_fd(from_dir, from, a), *is = at_fd(to_dir, to, b);
    REFUSE(meet("rename", was, is, 1));
    return did(NEXT(renameat)(from_dir, from, to_dir, to), "rename", was, is);
}

int link(const char *from, const char *to) {
    if (!below(to)) return NEXT(link)(from, to);
    REFUSE(meet("link", from, to, 1));
    return did(NEXT(link)(from, to), "link", from, to);
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    char a[PATH_MAX], b[PATH_MAX];
    if (!root_len || !below(at_fd(to_dir, to, b))) return NEXT(linkat)(from_dir, from, to_dir, to, flags);
    const char *was = at_fd(from_dir, from, a), *is = at_fd(to_dir, to, b);
    REFUSE(meet("link", was, is, 1));
    return did(NEXT(linkat)(from_dir, from, to_dir, to, flags), "link", was, is);
}

/* What is not there, or is there already, is no change: `missing_ok` and `exist_ok` ask for it all the time. */
static int exists(const char *path) {
    struct stat found;
    return NEXT(lstat)(path, &found) == 0;
}

int unlink(const char *path) {
    if (!below(path) || !exists(path)) return NEXT(unlink)(path);
    REFUSE(meet("unlink", path, "", 0));
    return did(NEXT(unlink)(path), "unlink", path, "");
}

int unlinkat(int dir, const char *path, int flags) {
    char buffer[PATH_MAX];
    const char *kind = flags & AT_REMOVEDIR ? "rmdir" : "unlink";
    if (!root_len || !below(at_fd(dir, path, buffer))) return NEXT(unlinkat)(dir, path, flags);
    const char *whole = at_fd(dir, path, buffer);
    REFUSE(meet(kind, whole, "", 0));
    return did(NEXT(unlinkat)(dir, path, flags), kind, whole, "");
}

int rmdir(const char *path) {
    if (!below(path)) return NEXT(rmdir)(path);
    REFUSE(meet("rmdir", path, "", 0));
    return did(NEXT(rmdir)(path), "rmdir", path, "");
}

int mkdir(const char *path, mode_t bits) {
    if (!below(path) || exists(path)) return NEXT(mkdir)(path, bits);
    REFUSE(meet("mkdir", path, "", 1));
    return did(NEXT(mkdir)(path, bits), "mkdir", path, "");
}

/* Reading. A map is one call, whatever is touched in it later. So is fread: its read(2) is inside the C library. */

static int is_read(int fd) {
    char path[PATH_MAX];
    return root_len && mode > SHADOW && below(of_fd(fd, path)) ? meet_reading("read", path) : 0;
}

static void flip(void *data, ssize_t size) {
    if (mode == R_FLIP && size > 0) ((unsigned char *)data)[size / 2] ^= 4;
}

ssize_t read(int fd, void *data, size_t size) {
    int met = is_read(fd);
    REFUSE(met);
    ssize_t got = NEXT(read)(fd, data, met < 0 && mode == R_SHORT ? (size + 1) / 2 : size);
    if (met < 0) flip(data, got);
    return got;
}

#define PREAD(name, offset_type)                                                   \
    ssize_t name(int fd, void *data, size_t size, offset_type from) {              \
        int met = is_read(fd);                                                     \
        REFUSE(met);                                                               \
        ssize_t got = NEXT(name)(fd, data, met < 0 && mode == R_SHORT ? (size + 1) / 2 : size, from); \
        if (met < 0) flip(data, got);                                              \
        return got;                                                                \
    }
PREAD(pread, off_t)
PREAD(pread64, off64_t)

/* A vector of several parts falls short after half of the first. */
static ssize_t scattered(int fd, const struct iovec *parts, int count, off64_t from, int flags) {
    int met = is_read(fd);
    REFUSE(met);
    if (met < 0 && mode == R_SHORT) return NEXT(pread64)(fd, parts[0].iov_base, (parts[0].iov_len + 1) / 2, from);
    ssize_t got = NEXT(preadv64v2)(fd, parts, count, from, flags);
    if (met < 0) flip(parts[0].iov_base, got < (ssize_t)parts[0].iov_len ? got : (ssize_t)parts[0].iov_len);
    return got;
}
ssize_t preadv(int fd, const struct iovec *parts, int count, off_t from) { return scattered(fd, parts, count, from, 0); }
ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t from) { return scattered(fd, parts, count, from, 0); }
ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t from, int flags) { return scattered(fd, parts, count, from, flags); }
ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t from, int flags) { return scattered(fd, parts, count, from, flags); }

size_t fread(void *data, size_t size, size_t count, FILE *file) {
    int met = is_read(fileno(file));
    if (met > 0) { errno = met; return 0; }
    if (met < 0 && mode == R_SHORT) met = 0; /* fread itself goes on after a short read(2) */
    size_t got = NEXT(fread)(data, size, count, file);
    if (met < 0) flip(data, (ssize_t)(got * size));
    return got;
}

#define MAP(name, offset_type)                                                     \
    void *name(void *where, size_t size, int rights, int flags, int fd, offset_type from) { \
        char path[PATH_MAX];                                                       \
        if (root_len && fd >= 0 && mode > SHADOW && below(of_fd(fd, path))) {      \
            int met = meet_reading("mmap", path);                                  \
            if (met > 0) { errno = met; return MAP_FAILED; }                       \
        }                                                                          \
        return NEXT(name)(where, size, rights, flags, fd, from);                   \
    }
MAP(mmap, off_t)
MAP(mmap64, off64_t)

#define STAT(name, type)                                                           \
    int name(const char *path, type *found) {                                      \
        if (below(path)) REFUSE(meet_reading("stat", path));                       \
        return NEXT(name)(path, found);                                            \
    }
STAT(stat, struct stat)
STAT(stat64, struct stat64)
STAT(lstat, struct stat)
STAT(lstat64, struct stat64)

#define FSTAT(name, type)                                                          \
    int name(int fd, type *found) {                                                \
        char path[PATH_MAX];                                                       \
        if (root_len && mode > SHADOW && below(of_fd(fd, path))) REFUSE(meet_reading("stat", path)); \
        return NEXT(name)(fd, found);                                              \
    }
FSTAT(fstat, struct stat)
FSTAT(fstat64, struct stat64)
