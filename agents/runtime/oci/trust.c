/* Files that only root could have put there: component/ascend-docker-runtime/mindxcheckutils. */
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_NAME 256

bool plain_path(const char *path)
{
    for (const char *c = path; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || strchr("-_./~+=:@", *c)))
            return false;
    return true;
}

static int text_of(const char *path)
{
    size_t len = strlen(path);
    const char *name = strrchr(path, '/');
    if (!len || len >= MAX_PATH)
        return fail("a path of %zu characters; 1 to %d are allowed", len, MAX_PATH - 1);
    if (!plain_path(path))
        return fail("%.200s: only letters, digits and -_./~+=:@ are allowed in paths", path);
    if (strstr(path, "..") || strstr(path, "./"))
        return fail("%.200s: '..' and './' are not allowed in paths", path);
    return strlen(name ? name + 1 : path) > MAX_NAME ? fail("%.200s: a name longer than %d characters", path, MAX_NAME) : 0;
}

static int guarded(const char *path, const struct stat *status, bool parent)
{
    if (status->st_uid != 0 && status->st_uid != geteuid())
        return fail("%.400s: belongs to user %u, not to root; chown it", path, status->st_uid);
    /* in a folder with the sticky bit nobody can put another file in the place of root's */
    if (status->st_mode & 022 && !(parent && status->st_mode & S_ISVTX))
        return fail("%.400s: mode %04o lets others write; chmod go-w it", path, status->st_mode & 07777);
    if (!parent && status->st_mode & (S_ISUID | S_ISGID) && S_ISREG(status->st_mode))
        return fail("%.400s: has the setuid or setgid bit", path);
    return 0;
}

int trusted(const char *path, bool allow_link)
{
    char real[PATH_MAX];
    struct stat status;
    if (text_of(path) < 0)
        return -1;
    if (lstat(path, &status) < 0)
        return fail("%.400s: %s", path, strerror(errno));
    if (S_ISLNK(status.st_mode) && !allow_link)
        return fail("%.400s: is a symbolic link", path);
    if (!realpath(path, real) || stat(real, &status) < 0)
        return fail("%.400s: %s", path, strerror(errno));
    if (S_ISREG(status.st_mode) && status.st_size > (off_t)MAX_FILE)
        return fail("%.400s: larger than %u MB", path, MAX_FILE >> 20);
    if (guarded(real, &status, false) < 0)
        return -1;
    for (int depth = 0; strcmp(real, "/"); depth++) {
        if (depth >= MAX_DEPTH)
            return fail("%.400s: more than %d folders deep", path, MAX_DEPTH);
        char *slash = strrchr(real, '/');
        slash[slash == real] = 0;
        if (stat(real, &status) < 0)
            return fail("%.400s: %s", real, strerror(errno));
        if (guarded(real, &status, true) < 0)
            return -1;
    }
    return 0;
}

int read_file(int fd, const char *name, size_t limit, struct buf *out)
{
    char part[16384];
    out->len = 0;
    buf_add(out, "", 0);
    for (;;) {
        ssize_t got = read(fd, part, sizeof part);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail("%.400s: %s", name, strerror(errno));
        if (got == 0)
            return 0;
        if (out->len + (size_t)got > limit)
            return fail("%.400s: larger than %zu bytes", name, limit);
        buf_add(out, part, (size_t)got);
    }
}

int read_trusted(const char *path, bool allow_link, size_t limit, struct buf *out)
{
    struct stat status;
    if (trusted(path, allow_link) < 0)
        return -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (allow_link ? 0 : O_NOFOLLOW));
    if (fd < 0)
        return fail("%.400s: %s", path, strerror(errno));
    int done = fstat(fd, &status) < 0 || !S_ISREG(status.st_mode) ? fail("%.400s: is not a regular file", path)
                                                                  : read_file(fd, path, limit, out);
    close(fd);
    return done;
}

int own_folder(char *out, size_t size)
{
    ssize_t len = readlink("/proc/self/exe", out, size - 1);
    if (len <= 0)
        return fail("/proc/self/exe: %s; is /proc mounted?", strerror(errno));
    out[len] = 0;
    char *slash = strrchr(out, '/');
    if (!slash)
        return fail("/proc/self/exe: %.200s is no path", out);
    slash[slash == out] = 0;
    return 0;
}
