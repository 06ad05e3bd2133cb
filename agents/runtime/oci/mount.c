/* The mounter: read-only binds of host paths into a container that is being made, inside its mount namespace.
 *
 * The image may hold any link: names below the root are walked one by one, links resolved inside the root. */
#include "runtime.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MAX_ARGUMENTS 1024
#define MAX_LINKS 40
#define MAX_WALK 256
#define MAX_TREE 200000 /* entries of a folder that are looked at before it is mounted */

struct order {
    bool allow_link, no_driver;
    long pid;
    const char *rootfs;
    const char *file[MAX_MOUNTS], *folder[MAX_MOUNTS];
    size_t files, folders;
};

/* -- the source */

static int own(const char *path, bool allow_link, struct stat *status)
{
    if (lstat(path, status) < 0)
        return fail("%.300s: %s", path, strerror(errno));
    if (S_ISLNK(status->st_mode) && !allow_link)
        return fail("%.300s: is a symbolic link; ASCEND_ALLOW_LINK=True allows them", path);
    if (status->st_uid)
        return fail("%.300s: belongs to user %u, not to root", path, status->st_uid);
    if (!S_ISLNK(status->st_mode) && status->st_mode & 022)
        return fail("%.300s: mode %04o lets others write", path, status->st_mode & 07777);
    return 0;
}

static int tree(const char *folder, bool allow_link, int depth, size_t *seen)
{
    char path[MAX_PATH];
    struct stat status;
    DIR *open = depth > MAX_DEPTH ? NULL : opendir(folder);
    if (!open)
        return fail("%.300s: %s", folder, depth > MAX_DEPTH ? "too many folders deep" : strerror(errno));
    int done = 0;
    for (struct dirent *entry; done == 0 && (entry = readdir(open));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (++*seen > MAX_TREE)
            done = fail("%.300s: more than %d entries", folder, MAX_TREE);
        else if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) >= sizeof path)
            done = fail("%.300s: a path is too long", folder);
        else if ((done = own(path, allow_link, &status)) == 0 && S_ISDIR(status.st_mode))
            done = tree(path, allow_link, depth + 1, seen);
    }
    closedir(open);
    return done;
}

static int check_source(const char *path, bool folder, bool allow_link)
{
    struct stat status;
    size_t seen = 0;
    if (!plain_path(path) || *path != '/' || strstr(path, "/../"))
        return fail("%.300s: no plain absolute path", path);
    if (own(path, allow_link, &status) < 0)
        return -1;
    if (S_ISLNK(status.st_mode) && (stat(path, &status) < 0 || status.st_uid || status.st_mode & 022))
        return fail("%.300s: what the link leads to is not root's alone", path);
    if (folder ? !S_ISDIR(status.st_mode) : !S_ISREG(status.st_mode))
        return fail("%.300s: is no %s", path, folder ? "folder" : "regular file");
    return folder ? tree(path, allow_link, 0, &seen) : 0;
}

/* -- the destination */

struct walk {
    int fd[MAX_WALK];
    int depth; /* of fd[], the root included */
    char rest[2 * MAX_PATH];
};

static void leave(struct walk *walk, int keep)
{
    while (walk->depth > keep)
        close(walk->fd[--walk->depth]);
}

static int follow(struct walk *walk, int link, const char *name)
{
    char target[MAX_PATH], rest[2 * MAX_PATH];
    ssize_t len = readlinkat(link, "", target, sizeof target - 1);
    if (len <= 0)
        return fail("%.200s: %s", name, len ? strerror(errno) : "an empty link");
    target[len] = 0;
    if (*target == '/')
        leave(walk, 1);
    snprintf(rest, sizeof rest, "%s", walk->rest);
    return (size_t)snprintf(walk->rest, sizeof walk->rest, "%s/%s", target, rest) < sizeof walk->rest
               ? 0
               : fail("%.200s: links lead to a path that is too long", name);
}

/* Opens `path` below walk->fd[0], making what is missing, and returns its descriptor or -1. `name` gets the last name; walk ends
   with its folder on top. */
static int settle(struct walk *walk, const char *path, bool folder, char name[NAME_MAX + 1])
{
    int links = 0;
    snprintf(walk->rest, sizeof walk->rest, "%s", path);
    for (;;) {
        char *part = walk->rest + strspn(walk->rest, "/"), *end = part + strcspn(part, "/");
        bool last = !end[strspn(end, "/")];
        size_t len = (size_t)(end - part);
        int top = walk->fd[walk->depth - 1];
        if (!len)
            return fail("%.200s: leads to the root of the container", path);
        if (len > NAME_MAX)
            return fail("%.200s: a name is too long", path);
        memcpy(name, part, len);
        name[len] = 0;
        memmove(walk->rest, end, strlen(end) + 1);
        if (!strcmp(name, ".") && !last)
            continue;
        if (!strcmp(name, "..") && !last) {
            leave(walk, walk->depth > 1 ? walk->depth - 1 : 1);
            continue;
        }
        if (!strcmp(name, ".") || !strcmp(name, ".."))
            return fail("%.200s: a link in the image ends in '%s'", path, name);
        int fd = openat(top, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT) {
            if (last && !folder) {
                int made = openat(top, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
                if (made >= 0)
                    close(made);
            } else {
                (void)!mkdirat(top, name, 0755);
            }
            fd = openat(top, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        }
        if (fd < 0)
            return fail("%.200s: '%s' cannot be made in the container: %s", path, name, strerror(errno));
        struct stat status;
        if (fstat(fd, &status) < 0)
            status.st_mode = 0;
        if (S_ISLNK(status.st_mode)) {
            int done = ++links > MAX_LINKS ? fail("%.200s: too many links in the image", path) : follow(walk, fd, path);
            close(fd);
            if (done < 0)
                return -1;
            continue;
        }
        if (last) {
            if (S_ISDIR(status.st_mode) == folder)
                return fd;
            close(fd);
            return fail("%.200s: is no %s in the container", path, folder ? "folder" : "file");
        }
        if (!S_ISDIR(status.st_mode) || walk->depth == MAX_WALK) {
            close(fd);
            return fail("%.200s: '%s' is not a folder in the container", path, name);
        }
        walk->fd[walk->depth++] = fd;
    }
}

/* Make read-only what was just mounted at a name: the same file as the source, or another process put something there. */
static int make_read_only(int top, const char *name, const char *source)
{
    char place[64];
    struct stat there, wanted;
    struct statvfs flags;
    int fd = openat(top, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return fail("%.300s: cannot be made read-only: %s", source, strerror(errno));

    int done = 0;
    if (fstat(fd, &there) < 0 || stat(source, &wanted) < 0 || there.st_dev != wanted.st_dev || there.st_ino != wanted.st_ino)
        done = fail("%.300s: was moved in the container while it was mounted", source);

    unsigned long kept = MS_RDONLY | MS_NOSUID;
    if (statvfs(source, &flags) == 0)
        kept |= (flags.f_flag & ST_NODEV ? MS_NODEV : 0) | (flags.f_flag & ST_NOEXEC ? MS_NOEXEC : 0);
    snprintf(place, sizeof place, "/proc/self/fd/%d", fd);
    if (done == 0 && mount(NULL, place, NULL, MS_BIND | MS_REMOUNT | kept, NULL) < 0)
        done = fail("%.300s: cannot be made read-only: %s", source, strerror(errno));
    close(fd);
    return done;
}

static int bind_one(int root, const char *source, bool folder)
{
    static struct walk walk;
    char name[NAME_MAX + 1], place[64];
    walk.depth = 1;
    walk.fd[0] = root;
    int target = settle(&walk, source, folder, name);
    int done = target < 0 ? -1 : 0;
    if (done == 0) {
        /* on the descriptor that was checked: a link put at its name meanwhile leads nowhere */
        snprintf(place, sizeof place, "/proc/self/fd/%d", target);
        if (mount(source, place, NULL, MS_BIND, NULL) < 0)
            done = fail("%.300s: cannot be mounted: %s", source, strerror(errno));
        else
            done = make_read_only(walk.fd[walk.depth - 1], name, source);
        close(target);
    }
    leave(&walk, 1);
    return done;
}

static int bind_all(const struct order *order)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/ns/mnt", order->pid);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0)
        return fail("%s: %s", path, strerror(errno));
    int done = setns(space, CLONE_NEWNS) < 0 ? fail("%s: %s", path, strerror(errno)) : 0;
    close(space);
    if (done < 0)
        return -1;
    int root = open(order->rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return fail("%.300s: %s", order->rootfs, strerror(errno));
    for (size_t i = 0; i < order->files && done == 0; i++)
        done = bind_one(root, order->file[i], false);
    for (size_t i = 0; i < order->folders && done == 0; i++)
        done = bind_one(root, order->folder[i], true);
    close(root);
    return done;
}

/* -- the command line */

static int take(struct order *out, const char *name, const char *value)
{
    if (!strcmp(name, "--allow-link")) {
        out->allow_link = !strcmp(value, "True");
        return out->allow_link || !strcmp(value, "False") ? 0 : fail("--allow-link: want True or False");
    }
    if (!strcmp(name, "--pid")) {
        char *end;
        out->pid = strtol(value, &end, 10);
        return *end || out->pid <= 0 || out->pid > 4194304 ? fail("--pid: '%.32s' is no process", value) : 0;
    }
    if (!strcmp(name, "--rootfs")) {
        out->rootfs = value;
        return *value == '/' && plain_path(value) && strlen(value) < MAX_PATH ? 0 : fail("--rootfs: '%.200s' is not a plain absolute path", value);
    }
    if (!strcmp(name, "--options")) {
        out->no_driver = strcmp(value, "VIRTUAL") != 0;
        return !out->no_driver || !strcmp(value, "NODRV") || !strcmp(value, "NODRV,VIRTUAL") ? 0 : fail("--options: want NODRV, VIRTUAL or both");
    }
    bool folder = !strcmp(name, "--mount-dir");
    if (!folder && strcmp(name, "--mount-file"))
        return fail("unknown option '%.32s'", name);
    if ((folder ? out->folders : out->files) >= MAX_MOUNTS)
        return fail("more than %d times %s", MAX_MOUNTS, name);
    if (folder)
        out->folder[out->folders++] = value;
    else
        out->file[out->files++] = value;
    return 0;
}

int role_mount(int argc, char **argv)
{
    static struct order order;
    int done = argc > MAX_ARGUMENTS ? fail("%d mount arguments; at most %d", argc, MAX_ARGUMENTS) : 0;
    for (int i = 1; i < argc && done == 0; i += 2)
        done = i + 1 < argc ? take(&order, argv[i], argv[i + 1]) : fail("option %.32s needs a value", argv[i]);
    if (done == 0 && (!order.pid || !order.rootfs))
        done = fail("--pid and --rootfs are needed");
    if (done == 0 && order.no_driver)
        return 0;
    for (size_t i = 0; i < order.files && done == 0; i++)
        done = check_source(order.file[i], false, order.allow_link);
    for (size_t i = 0; i < order.folders && done == 0; i++)
        done = check_source(order.folder[i], true, order.allow_link);
    umask(022);
    if (done == 0)
        done = bind_all(&order);
    return done == 0 ? 0 : 1;
}
