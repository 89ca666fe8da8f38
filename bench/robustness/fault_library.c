/* An LD_PRELOAD library that makes a chosen call of one process fail. Only calls on files below a folder count.

   FAULT_FOLDER  the folder (and FAULT_ALSO, an additional path prefix)
   FAULT_MARK    a file that the first process creates: only that process gets the fault, not its children
   FAULT_LOG     a file for a log of the calls: one line per call, with its name and its path
   FAULT         "write 7 28 1": 1 write fails with error 28, starting with the 7th (0: all writes from then on);
                 error -1: the call writes only half of the bytes. "any" as the name counts all calls. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pid_t owner;
static int log_handle = -1;
static char folder[4096], also[4096], wanted[32];
static long nth, error_number, times, seen;

static void copy(char *to, const char *name, size_t size) {
    const char *value = getenv(name);
    snprintf(to, size, "%s", value ? value : "");
}

__attribute__((constructor)) static void begin(void) {
    const char *mark = getenv("FAULT_MARK"), *fault = getenv("FAULT"), *log = getenv("FAULT_LOG");
    if (!mark) return;
    long made = syscall(SYS_openat, AT_FDCWD, mark, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (made < 0) return;
    syscall(SYS_close, made);
    copy(folder, "FAULT_FOLDER", sizeof folder);
    copy(also, "FAULT_ALSO", sizeof also);
    if (fault) sscanf(fault, "%31s %ld %ld %ld", wanted, &nth, &error_number, &times);
    if (log) log_handle = (int)syscall(SYS_openat, AT_FDCWD, log, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600);
    owner = getpid();
}

static int below(const char *path) {
    return (folder[0] && strncmp(path, folder, strlen(folder)) == 0) || (also[0] && strncmp(path, also, strlen(also)) == 0);
}

/* Returns 0 to let the call pass, an error number, or -1 to write half of the bytes. */
static long fault_for(const char *name, const char *path) {
    if (!owner || getpid() != owner || !path || !below(path)) return 0;
    if (log_handle >= 0) {
        char line[4300];
        int length = snprintf(line, sizeof line, "%s %s\n", name, path);
        syscall(SYS_write, log_handle, line, length);
    }
    if (!wanted[0] || (strcmp(wanted, name) != 0 && strcmp(wanted, "any") != 0)) return 0;
    seen++;
    if (seen < nth || (times && seen >= nth + times)) return 0;
    return error_number;
}

static long fault_of(const char *name, int handle) {
    char link[64], path[4096];
    if (!owner || handle < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fault_for(name, path);
}

static long fault_at(const char *name, int where, const char *path) {
    char whole[8200], here[4096];
    if (!owner || !path) return 0;
    if (path[0] == '/') return fault_for(name, path);
    if (where == AT_FDCWD) {
        if (!getcwd(here, sizeof here)) return 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", where);
        ssize_t length = readlink(link, here, sizeof here - 1);
        if (length < 0) return 0;
        here[length] = 0;
    }
    snprintf(whole, sizeof whole, "%s/%s", here, path);
    return fault_for(name, whole);
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)
#define FAIL(result) do { errno = (int)(fault > 0 ? fault : EIO); return result; } while (0)

ssize_t write(int handle, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    long fault = fault_of("write", handle);
    if (fault == -1) return real(handle, data, size / 2 ? size / 2 : size);
    if (fault) FAIL(-1);
    return real(handle, data, size);
}

#define PWRITE(name)                                                              \
    ssize_t name(int handle, const void *data, size_t size, off_t at) {           \
        REAL(ssize_t, #name, int, const void *, size_t, off_t);                   \
        long fault = fault_of("pwrite", handle);                                  \
        if (fault == -1) return real(handle, data, size / 2 ? size / 2 : size, at); \
        if (fault) FAIL(-1);                                                      \
        return real(handle, data, size, at);                                      \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define SYNC(name)                              \
    int name(int handle) {                      \
        REAL(int, #name, int);                  \
        long fault = fault_of("fsync", handle); \
        if (fault) FAIL(-1);                    \
        return real(handle);                    \
    }
SYNC(fsync)
SYNC(fdatasync)

#define TRUNCATE(name)                              \
    int name(int handle, off_t size) {              \
        REAL(int, #name, int, off_t);               \
        long fault = fault_of("ftruncate", handle); \
        if (fault) FAIL(-1);                        \
        return real(handle, size);                  \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define OPEN(name)                                                     \
    int name(const char *path, int flags, ...) {                       \
        REAL(int, #name, const char *, int, ...);                      \
        va_list rest;                                                  \
        va_start(rest, flags);                                         \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                  \
        long fault = fault_at("open", AT_FDCWD, path);                 \
        if (fault) FAIL(-1);                                           \
        return real(path, flags, mode);                                \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                   \
    int name(int where, const char *path, int flags, ...) {            \
        REAL(int, #name, int, const char *, int, ...);                 \
        va_list rest;                                                  \
        va_start(rest, flags);                                         \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                  \
        long fault = fault_at("open", where, path);                    \
        if (fault) FAIL(-1);                                           \
        return real(where, path, flags, mode);                         \
    }
OPENAT(openat)
OPENAT(openat64)

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    long fault = fault_at("rename", AT_FDCWD, to);
    if (fault) FAIL(-1);
    return real(from, to);
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    long fault = fault_at("mkdir", AT_FDCWD, path);
    if (fault) FAIL(-1);
    return real(path, mode);
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    long fault = fault_at("unlink", AT_FDCWD, path);
    if (fault) FAIL(-1);
    return real(path);
}

#define MAP(name)                                                                   \
    void *name(void *at, size_t size, int protection, int flags, int handle, off_t offset) { \
        REAL(void *, #name, void *, size_t, int, int, int, off_t);                  \
        long fault = handle >= 0 ? fault_of("mmap", handle) : 0;                    \
        if (fault) FAIL(MAP_FAILED);                                                \
        return real(at, size, protection, flags, handle, offset);                   \
    }
MAP(mmap)
MAP(mmap64)
