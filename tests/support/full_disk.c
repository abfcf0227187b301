/* A disk that is full on demand: while the file FULL_DISK names exists, a write that would make a file longer finds no
 * room, as on a real one; what lies within a file is written. A server that waits a minute for room waits a second. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_full(int fd, off_t end) {
    const char *flag = getenv("FULL_DISK");
    struct stat now;
    if (fd <= 2 || flag == NULL || access(flag, F_OK) != 0) return 0;
    return fstat(fd, &now) == 0 && S_ISREG(now.st_mode) && end > now.st_size;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    if (is_full(fd, lseek(fd, 0, SEEK_CUR) + (off_t)count)) {
        errno = ENOSPC;
        return -1;
    }
    return NEXT(write)(fd, bytes, count);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
    if (is_full(fd, at + (off_t)count)) {
        errno = ENOSPC;
        return -1;
    }
    return NEXT(pwrite)(fd, bytes, count, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
    return pwrite(fd, bytes, count, at);
}

int posix_fallocate(int fd, off_t at, off_t count) {
    return is_full(fd, at + count) ? ENOSPC : NEXT(posix_fallocate)(fd, at, count);
}

int posix_fallocate64(int fd, off64_t at, off64_t count) {
    return posix_fallocate(fd, at, count);
}

int fallocate(int fd, int mode, off_t at, off_t count) {
    if (is_full(fd, at + count)) {
        errno = ENOSPC;
        return -1;
    }
    return ((int (*)(int, int, off_t, off_t))dlsym(RTLD_NEXT, "fallocate"))(fd, mode, at, count);
}

int fallocate64(int fd, int mode, off64_t at, off64_t count) {
    return fallocate(fd, mode, at, count);
}

unsigned sleep(unsigned seconds) {
    usleep(seconds * 1000000 / 60);
    return 0;
}
