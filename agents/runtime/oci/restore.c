/* A container that goes on where a checkpoint left it, instead of starting.
 *
 * Its environment names the folder: host_snapshot_path and, below it, the last number of pod_name. Where that folder
 * holds nothing, or no checkpoint that ended, the container starts afresh. Rules of
 * component/ascend-docker-runtime/runtime/grus (restore.go, start.go). */
#include "runtime.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FOLDER "host_snapshot_path"
#define POD "pod_name"
#define FLAG "GRUS_SNAPSHOT_RESTORED_FLAG"
#define ADDRESS "INETSK_LOCAL_IPV4_KEY"
#define POD_IP "POD_IP="
#define WORK "/var/log/ascend-docker-runtime/restore"
#define KEEP (7 * 86400) /* seconds that the logs of a restore stay */
#define MARK "ascend-restored"

/* -- is there anything to go on from? */

static void last_number(const char *text, char *out, size_t size)
{
    size_t end = strlen(text);
    while (end && !(text[end - 1] >= '0' && text[end - 1] <= '9'))
        end--;
    size_t from = end;
    while (from && text[from - 1] >= '0' && text[from - 1] <= '9')
        from--;
    snprintf(out, size, "%.*s", (int)(end - from), text + from);
}

static bool holds_anything(const char *folder)
{
    DIR *list = opendir(folder);
    bool found = false;
    for (struct dirent *one; list && !found && (one = readdir(list));)
        found = strcmp(one->d_name, ".") && strcmp(one->d_name, "..");
    if (list)
        closedir(list);
    return found;
}

void restore_find(const struct call *call, const struct env *env, struct restore *out)
{
    const char *above = env_first(env, FOLDER), *level = env_first(env, "CRIU_LOG_LEVEL");
    char number[32], digest[MAX_PATH + 32];
    struct stat status;
    *out = (struct restore){0};
    if (*above != '/')
        return;
    last_number(env_first(env, POD), number, sizeof number);
    if (!*number) {
        say("runtime", "WARN", "%.64s: " FOLDER " is set, but " POD " has no number: it starts afresh", call->id);
        return;
    }
    size_t len = strlen(above);
    while (len > 1 && above[len - 1] == '/')
        len--;
    if ((size_t)snprintf(out->folder, sizeof out->folder, "%.*s/%s", (int)len, above, number) >= sizeof out->folder - 64)
        return;
    if (stat(out->folder, &status) < 0 || !S_ISDIR(status.st_mode)) {
        say("runtime", "WARN", "%.64s: no folder %.300s: it starts afresh", call->id, out->folder);
        return;
    }
    if (!holds_anything(out->folder))
        return;
    snprintf(digest, sizeof digest, "%s/" SNAPSHOT_DIGEST, out->folder);
    if (stat(digest, &status) < 0) {
        say("runtime", "WARN", "%.64s: the checkpoint in %.300s did not end: it starts afresh", call->id, out->folder);
        return;
    }
    snprintf(out->level, sizeof out->level, "%.7s", level);
    out->flag = !strcasecmp(env_first(env, FLAG), "true");
    out->wanted = true;
}

/* -- the address of the pod, which is another one now */

static int first_address(const char *space, char out[INET_ADDRSTRLEN])
{
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), there = open(space, O_RDONLY | O_CLOEXEC);
    struct ifaddrs *all = NULL;
    int done = 0;
    *out = 0;
    if (home < 0 || there < 0 || setns(there, CLONE_NEWNET) < 0) {
        done = fail("the pod's network namespace %.300s: %s", space, strerror(errno));
    } else {
        if (getifaddrs(&all) < 0)
            done = fail("the pod's addresses: %s", strerror(errno));
        for (struct ifaddrs *it = all; it && !*out; it = it->ifa_next)
            if (it->ifa_addr && it->ifa_addr->sa_family == AF_INET) {
                const struct in_addr *address = &((struct sockaddr_in *)(void *)it->ifa_addr)->sin_addr;
                if (ntohl(address->s_addr) >> 24 != IN_LOOPBACKNET)
                    inet_ntop(AF_INET, address, out, INET_ADDRSTRLEN);
            }
        if (all)
            freeifaddrs(all);
        if (setns(home, CLONE_NEWNET) < 0)
            done = fail("back from the pod's network namespace: %s", strerror(errno));
    }
    if (home >= 0)
        close(home);
    if (there >= 0)
        close(there);
    return done;
}

/* The file of the network namespace; empty for the host's network and for a namespace that runc makes. */
static int network_of(const struct buf *spec, struct buf *out)
{
    static const char *const spaces[] = {"linux", "namespaces", NULL};
    struct buf text = {0};
    struct json doc;
    buf_add(out, "", 0);
    if (json_parse(&doc, spec->at, spec->len) < 0)
        return -1;
    int node = json_path(&doc, spaces);
    for (node = node < 0 ? -1 : doc.nodes[node].first; node >= 0; node = doc.nodes[node].next)
        if (json_string(&doc, json_member(&doc, node, "type"), &text) == 0 && !strcmp(text.at, "network") &&
            json_string(&doc, json_member(&doc, node, "path"), &text) == 0) {
            out->len = 0;
            buf_text(out, text.at);
        }
    json_free(&doc);
    buf_free(&text);
    return 0;
}

int restore_edit(const struct restore *it, const struct env *env, struct buf *spec)
{
    struct buf space = {0}, item = {0};
    char address[INET_ADDRSTRLEN] = "", line[sizeof POD_IP + INET_ADDRSTRLEN];
    if (!it->wanted)
        return 0;
    if (network_of(spec, &space) < 0 || (*space.at && first_address(space.at, address) < 0))
        return -1;
    buf_free(&space);
    if (!*address)
        return 0;
    setenv(ADDRESS, address, 1);
    snprintf(line, sizeof line, POD_IP "%s", address);
    for (size_t i = 0; i < env->count; i++)
        if (!strncmp(env->line[i], POD_IP, sizeof POD_IP - 1)) {
            buf_json(&item, line);
            int done = json_replace(spec, SPEC_ENV, i, item.at);
            buf_free(&item);
            return done;
        }
    return spec_append(spec, SPEC_ENV, line);
}

/* -- what the container had written */

static int root_of(const struct buf *spec, const char *bundle, char *out, size_t size)
{
    static const char *const path[] = {"root", "path", NULL};
    struct buf text = {0};
    struct json doc;
    if (json_parse(&doc, spec->at, spec->len) < 0)
        return -1;
    int done = json_string(&doc, json_path(&doc, path), &text) < 0 || !*text.at ? fail("config.json names no root.path") : 0;
    if (done == 0)
        snprintf(out, size, "%s%s%s", *text.at == '/' ? "" : bundle, *text.at == '/' ? "" : "/", text.at);
    json_free(&doc);
    buf_free(&text);
    return done;
}

/* A file that only root could have put there, of any size. */
static int open_image(const char *folder, const char *name)
{
    char path[MAX_PATH + 32];
    struct stat status;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0)
        return fail("%.300s: %s", path, strerror(errno));
    if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && !status.st_uid && !(status.st_mode & 022))
        return file;
    close(file);
    return fail("%.300s: is not a file that root alone can write", path);
}

static int digest_matches(int layer, const char *folder)
{
    unsigned char part[65536];
    char text[72], want_text[72] = "";
    struct digest digest;
    int file = open_image(folder, SNAPSHOT_DIGEST);
    ssize_t got = file < 0 ? -1 : read(file, want_text, sizeof want_text - 1);
    if (file < 0)
        return -1;
    close(file);
    digest_begin(&digest);
    while ((got = read(layer, part, sizeof part)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail("%.300s/" SNAPSHOT_DIFF ": %s", folder, strerror(errno));
        digest_add(&digest, part, (size_t)got);
    }
    digest_text(&digest, text);
    want_text[strcspn(want_text, "\r\n ")] = 0;
    if (strcmp(text, want_text))
        return fail("%.300s/" SNAPSHOT_DIFF " is damaged: its digest is not the one in " SNAPSHOT_DIGEST, folder);
    return lseek(layer, 0, SEEK_SET) < 0 ? fail("lseek: %s", strerror(errno)) : 0;
}

/* -- the folder that CRIU works in */

static void forget_old(void)
{
    struct stat status;
    int folder = open(WORK, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *list = folder < 0 ? NULL : fdopendir(folder);
    for (struct dirent *one; list && (one = readdir(list));)
        if (*one->d_name != '.' && fstatat(folder, one->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
            status.st_mtime < time(NULL) - KEEP && remove_tree(folder, one->d_name) < 0)
            say("runtime", "WARN", "old logs of a restore stay: %.300s", fault);
    if (list)
        closedir(list);
}

static int work_folder(const struct call *call, char *out, size_t size)
{
    char root[MAX_PATH], above[MAX_PATH];
    call_root(call, root, sizeof root);
    const char *space = strrchr(root, '/');
    mkdir("/var/log/ascend-docker-runtime", 0750);
    mkdir(WORK, 0750);
    forget_old();
    snprintf(above, sizeof above, WORK "/%.64s_%.256s", space ? space + 1 : root, call->id);
    if ((size_t)snprintf(out, size, "%s/work", above) >= size)
        return fail("the container's id is too long");
    if ((mkdir(above, 0750) < 0 && errno != EEXIST) || (mkdir(out, 0750) < 0 && errno != EEXIST))
        return fail("%.300s: %s", out, strerror(errno));
    return 0;
}

int restore_prepare(struct restore *it, const struct call *call, const char *bundle, const struct buf *spec)
{
    struct buf shm = {0};
    if (trusted(it->folder, false) < 0 || root_of(spec, bundle, it->rootfs, sizeof it->rootfs) < 0 ||
        snapshot_shared_memory(bundle, &shm) < 0 || work_folder(call, it->work, sizeof it->work) < 0)
        return -1;
    int layer = open_image(it->folder, SNAPSHOT_DIFF);
    int done = layer < 0 || digest_matches(layer, it->folder) < 0 ? -1 : untar(layer, it->rootfs, it->flag);
    if (layer >= 0)
        close(layer);
    if (done == 0) {
        snapshot_environment(it->level, shm.at, it->folder);
        setenv("CRIU_FAULT", "130", 1); /* no hardware breakpoints: faster */
    }
    buf_free(&shm);
    return done;
}

/* -- runc */

void restore_call(const struct restore *it, const struct call *call, struct call *out)
{
    char *image = want(malloc(strlen(it->folder) + 8));
    char **argv = want(calloc((size_t)call->argc + 9, sizeof *argv));
    static char verb_text[] = "restore";
    int count = 0;
    bool verb = false;
    sprintf(image, "%s/image", it->folder);
    for (int i = 0; i < call->argc - 1; i++) {
        if (!verb && call->argv[i] == call->verb) {
            argv[count++] = verb_text;
            verb = true;
        } else if (verb && !strcmp(call->argv[i], "--no-new-keyring")) {
            continue; /* options of create that restore does not know */
        } else if (verb && !strcmp(call->argv[i], "--preserve-fds")) {
            i++;
        } else if (!verb || strncmp(call->argv[i], "--preserve-fds=", 15)) {
            argv[count++] = call->argv[i];
        }
    }
    char *const more[] = {"--detach", "--ext-unix-sk", "--file-locks", "--image-path", image, "--work-path", (char *)it->work, (char *)call->id};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        argv[count++] = more[i];
    *out = *call;
    out->argv = argv, out->argc = count, out->verb = "restore";
}

static void mark_of(const struct call *call, char *out, size_t size)
{
    char root[MAX_PATH];
    call_root(call, root, sizeof root);
    snprintf(out, size, "%s/%s/" MARK, root, call->id); /* goes with runc's state */
}

void restore_mark(const struct restore *it, const struct call *call)
{
    char path[2 * MAX_PATH];
    mark_of(call, path, sizeof path);
    int file = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        say("runtime", "ERROR", "%.64s: %.300s: %s", call->id, path, strerror(errno));
    else
        close(file);
    say("runtime", "INFO", "%.64s: goes on from the checkpoint in %.300s", call->id, it->folder);
}

bool restore_marked(const struct call *call)
{
    char path[2 * MAX_PATH];
    struct stat status;
    mark_of(call, path, sizeof path);
    return lstat(path, &status) == 0 && S_ISREG(status.st_mode);
}
