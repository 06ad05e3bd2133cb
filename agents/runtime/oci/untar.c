/* A layer (a tar file with whiteouts) applied to a root file system.
 *
 * A child does it with that file system as its root, so that no link and no name in the layer leads out of it.
 * Whiteouts: github.com/opencontainers/image-spec layer.md. */
#include "tar.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define XATTR "SCHILY.xattr."
#define WHITEOUT ".wh."
#define OPAQUE ".wh..wh..opq"
#define FLAG "root/.grusflag"

struct folder_time {
    char *name;
    struct timespec time;
};

/* -- writing */

int remove_tree(int folder, const char *name)
{
    if (unlinkat(folder, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return fail("%.300s: %s", name, strerror(errno));
    int below = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *list = below < 0 ? NULL : fdopendir(below);
    int done = list ? 0 : fail("%.300s: %s", name, strerror(errno));
    for (struct dirent *one; done == 0 && (one = readdir(list));)
        if (strcmp(one->d_name, ".") && strcmp(one->d_name, ".."))
            done = remove_tree(below, one->d_name);
    if (list)
        closedir(list);
    else if (below >= 0)
        close(below);
    if (done == 0 && unlinkat(folder, name, AT_REMOVEDIR) < 0)
        done = fail("%.300s: %s", name, strerror(errno));
    return done;
}

/* The name without what leads nowhere; false for one that climbs. */
static bool clean(char *name)
{
    char out[PATH_MAX] = "", *rest = name, *part;
    size_t len = 0;
    while ((part = strsep(&rest, "/"))) {
        if (!*part || !strcmp(part, "."))
            continue;
        if (!strcmp(part, ".."))
            return false;
        len += (size_t)snprintf(out + len, sizeof out - len, "%s%s", len ? "/" : "", part);
    }
    memcpy(name, out, len + 1);
    return true;
}

static int parents(char *name)
{
    for (char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int made = mkdir(name, 0755);
        int wrong = errno;
        if (made < 0 && wrong != EEXIST)
            return fail("%.300s: %s", name, strerror(wrong));
        *slash = '/';
    }
    return 0;
}

static int empty(const char *folder)
{
    int at = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *list = at < 0 ? NULL : fdopendir(at);
    int done = 0;
    if (!list)
        return errno == ENOENT ? 0 : fail("%.300s: %s", folder, strerror(errno));
    for (struct dirent *one; done == 0 && (one = readdir(list));)
        if (strcmp(one->d_name, ".") && strcmp(one->d_name, ".."))
            done = remove_tree(at, one->d_name);
    closedir(list);
    return done;
}

static int whiteout(char *name, char *base)
{
    if (!strcmp(base, OPAQUE)) {
        *base = 0;
        return empty(*name ? name : ".");
    }
    if (!strncmp(base, WHITEOUT WHITEOUT, 2 * sizeof WHITEOUT - 2))
        return 0; /* bookkeeping of AUFS */
    memmove(base, base + sizeof WHITEOUT - 1, strlen(base + sizeof WHITEOUT - 1) + 1);
    if (!strcmp(base, ".") || !strcmp(base, "..")) /* would take away what is above it, up to the whole root */
        return fail("%.300s: a whiteout in the layer leads upwards", name);
    return *base ? remove_tree(AT_FDCWD, name) : 0;
}

static int content(int tar, const struct entry *it)
{
    char part[65536];
    int file = open(it->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600), done = 0;
    if (file < 0)
        return fail("%.300s: %s", it->name, strerror(errno));
    uint64_t left = it->size;
    for (size_t now; done == 0 && left; left -= now) {
        now = left < sizeof part ? (size_t)left : sizeof part;
        done = tar_take(tar, part, now, false) < 0 ? -1 : 0;
        for (size_t put = 0; done == 0 && put < now;) {
            ssize_t wrote = write(file, part + put, now - put);
            if (wrote < 0 && errno != EINTR)
                done = fail("%.300s: %s", it->name, strerror(errno));
            put += wrote > 0 ? (size_t)wrote : 0;
        }
    }
    close(file);
    return done;
}

static int make(int tar, const struct entry *it)
{
    int kind = it->type == '3' ? S_IFCHR : it->type == '4' ? S_IFBLK : S_IFIFO, made;
    switch (it->type) {
    case '0':
    case '7':
        return content(tar, it);
    case '1':
        made = link(*it->link == '/' ? it->link + 1 : it->link, it->name);
        break;
    case '2':
        made = symlink(it->link, it->name);
        break;
    case '3':
    case '4':
    case '6':
        made = mknod(it->name, (mode_t)kind | 0600, makedev(it->major, it->minor));
        break;
    case '5':
        made = mkdir(it->name, 0700);
        if (made < 0 && errno == EEXIST)
            made = 0;
        break;
    default:
        return fail("%.300s: an entry of the unknown type '%c'", it->name, it->type);
    }
    return made < 0 ? fail("%.300s: %s", it->name, strerror(errno)) : 0;
}

static int attributes(const struct entry *it)
{
    const char *key, *value;
    size_t at = 0, key_len, len;
    int more;
    while ((more = tar_record(&it->pax, &at, &key, &key_len, &value, &len)) > 0) {
        char name[XATTR_NAME_MAX + 1];
        size_t prefix = sizeof XATTR - 1;
        if (key_len <= prefix || key_len - prefix > XATTR_NAME_MAX || memcmp(key, XATTR, prefix))
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(key_len - prefix), key + prefix);
        /* file systems without attributes lose them, as with containerd */
        if (lsetxattr(it->name, name, value, len, 0) < 0 && errno != ENOTSUP && !(errno == EPERM && !strncmp(name, "user.", 5)))
            return fail("%.200s: attribute %.64s: %s", it->name, name, strerror(errno));
    }
    return more;
}

static int owned(const struct entry *it)
{
    if (lchown(it->name, it->uid, it->gid) < 0)
        return fail("%.300s: %s", it->name, strerror(errno));
    if (it->type != '2' && chmod(it->name, it->mode) < 0) /* after chown, which takes setuid away */
        return fail("%.300s: %s", it->name, strerror(errno));
    struct timespec both[2] = {it->time, it->time};
    if (attributes(it) < 0)
        return -1;
    return utimensat(AT_FDCWD, it->name, both, AT_SYMLINK_NOFOLLOW) < 0 ? fail("%.300s: %s", it->name, strerror(errno)) : 0;
}

static int one(int tar, struct entry *it)
{
    struct stat there;
    bool file = it->type == '0' || it->type == '7';
    char shown[PATH_MAX];
    memcpy(shown, it->name, sizeof shown);
    if (!clean(it->name) || (it->type == '1' && !clean(it->link)))
        return fail("%.300s: a name in the layer leads upwards", shown);
    if (!*it->name) /* the root itself */
        snprintf(it->name, sizeof it->name, ".");
    char *slash = strrchr(it->name, '/'), *base = slash ? slash + 1 : it->name;
    if (parents(it->name) < 0)
        return -1;
    if (!strncmp(base, WHITEOUT, sizeof WHITEOUT - 1))
        return whiteout(it->name, base) < 0 ? -1 : tar_skip(tar, it->size + tar_padding(it->size));
    if (lstat(it->name, &there) == 0 && !(S_ISDIR(there.st_mode) && it->type == '5') && remove_tree(AT_FDCWD, it->name) < 0)
        return -1;
    if (make(tar, it) < 0 || (it->type != '1' && owned(it) < 0))
        return -1;
    return tar_skip(tar, file ? tar_padding(it->size) : it->size + tar_padding(it->size));
}

static int all(int tar)
{
    struct entry it = {0};
    struct folder_time *folders = NULL;
    size_t count = 0;
    int more;
    while ((more = tar_next(tar, &it)) > 0) {
        if (one(tar, &it) < 0)
            return -1;
        if (it.type != '5')
            continue;
        if ((count & (count - 1)) == 0)
            folders = want(realloc(folders, (count ? 2 * count : 1) * sizeof *folders));
        folders[count++] = (struct folder_time){copy_text(it.name), it.time};
    }
    /* what was put into a folder has changed its time */
    for (size_t i = 0; i < count; i++) {
        struct timespec both[2] = {folders[i].time, folders[i].time};
        utimensat(AT_FDCWD, folders[i].name, both, AT_SYMLINK_NOFOLLOW);
        free(folders[i].name);
    }
    free(folders);
    buf_free(&it.pax);
    return more;
}

static int flag_file(void)
{
    if (mkdir("root", 0750) < 0 && errno != EEXIST)
        return fail("/root: %s", strerror(errno));
    int file = open(FLAG, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0640);
    int done = file < 0 || fchown(file, 0, 0) < 0 ? fail("/" FLAG ": %s", strerror(errno)) : 0;
    if (file >= 0)
        close(file);
    return done;
}

int untar(int tar, const char *root, bool flag)
{
    int pipes[2], status = 0;
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return fail("pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        umask(0);
        int done = chdir(root) < 0 || chroot(".") < 0 ? fail("%.300s: %s", root, strerror(errno)) : all(tar);
        if (done == 0 && flag)
            done = flag_file();
        if (done < 0)
            (void)!write(pipes[1], fault, strlen(fault));
        _exit(done < 0);
    }
    close(pipes[1]);
    if (child < 0) {
        close(pipes[0]);
        return fail("fork: %s", strerror(errno));
    }
    char why[sizeof fault] = "";
    size_t len = 0;
    for (ssize_t got; len < sizeof why - 1 && (got = read(pipes[0], why + len, sizeof why - 1 - len)) != 0;)
        if (got > 0)
            len += (size_t)got;
        else if (errno != EINTR)
            break;
    close(pipes[0]);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    return fail("%s", *why ? why : "the layer's reader was killed");
}
