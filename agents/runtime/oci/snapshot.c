/* `checkpoint --image-path D ID`: a container saved by CRIU while it stands still, and with it what it wrote to its root
 * file system. `resume ID` ends the standstill where whoever asked for the checkpoint was killed in between.
 *
 * Rules of component/ascend-docker-runtime/runtime/grus. The difference of the root file system comes from `ctr`, which
 * every containerd brings along. */
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NPU_ERROR "[npu-plugin fini-dump err]"
#define SOCKET "/run/containerd/containerd.sock"
#define LAYER "application/vnd.oci.image.layer.v1.tar"
#define MAX_STATE_TEXT (1u << 20)

/* -- programs */

static volatile sig_atomic_t child_of;

static void pass_on(int number)
{
    if (child_of > 0)
        kill(child_of, number);
}

static pid_t start(char *const *argv, int out)
{
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGTERM, SIG_DFL);
        signal(SIGINT, SIG_DFL);
        if (out >= 0)
            dup2(out, 1);
        execvp(argv[0], argv);
        _exit(127);
    }
    child_of = child;
    return child;
}

static int ended(pid_t child, char *const *argv, const char *verb)
{
    int status = 0;
    if (child < 0)
        return fail("fork: %s", strerror(errno));
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    child_of = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    return fail("%.200s %s failed (%d)", argv[0], verb, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static int run(const char *runc, const char *root, const char *verb, const char *id)
{
    char *argv[] = {(char *)runc, (char[]){"--root"}, (char *)root, (char *)verb, (char *)id, NULL};
    return ended(start(argv, -1), argv, verb);
}

/* What `program` prints, into `out` or, where that is NULL, into the file with a digest of it. */
static int capture(char *const *argv, const char *verb, struct buf *out, int file, struct digest *digest)
{
    int pipes[2], done = 0;
    unsigned char part[65536];
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return fail("pipe: %s", strerror(errno));
    pid_t child = start(argv, pipes[1]);
    close(pipes[1]);
    for (ssize_t got; done == 0 && (got = read(pipes[0], part, sizeof part)) != 0;) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            done = fail("%s: %s", verb, strerror(errno));
        else if (out && out->len + (size_t)got > MAX_STATE_TEXT)
            done = fail("%s answers with more than %u bytes", verb, MAX_STATE_TEXT);
        else if (out)
            buf_add(out, (char *)part, (size_t)got);
        else if (digest_add(digest, part, (size_t)got), write(file, part, (size_t)got) != got)
            done = fail("the difference cannot be written: %s", strerror(errno));
    }
    close(pipes[0]);
    if (done < 0) {
        char why[sizeof fault];
        memcpy(why, fault, sizeof why);
        if (child > 0)
            kill(child, SIGKILL);
        ended(child, argv, verb);
        memcpy(fault, why, sizeof fault);
        return -1;
    }
    return ended(child, argv, verb);
}

/* -- the container */

static int read_state(const char *runc, const char *root, const char *id, struct buf *status, struct buf *bundle)
{
    static const char *const at_status[] = {"status", NULL}, *const at_bundle[] = {"bundle", NULL};
    char *argv[] = {(char *)runc, (char[]){"--root"}, (char *)root, (char[]){"state"}, (char *)id, NULL};
    struct buf text = {0};
    struct json doc;
    if (capture(argv, "state", &text, -1, NULL) < 0 || json_parse(&doc, text.at ? text.at : "", text.len) < 0)
        return -1;
    int done = json_string(&doc, json_path(&doc, at_status), status) < 0 || json_string(&doc, json_path(&doc, at_bundle), bundle) < 0
                   ? fail("runc state names no status or no bundle")
                   : 0;
    json_free(&doc);
    buf_free(&text);
    return done;
}

/* The host folder behind /dev/shm; empty when it is the container's own. */
int snapshot_shared_memory(const char *bundle, struct buf *out)
{
    static const char *const mounts[] = {"mounts", NULL};
    struct buf path = {0}, text = {0}, name = {0};
    struct json doc;
    buf_add(out, "", 0);
    buf_format(&path, "%s/config.json", bundle);
    if (read_trusted(path.at, true, MAX_FILE, &text) < 0 || json_parse(&doc, text.at, text.len) < 0)
        return -1;
    int node = json_path(&doc, mounts);
    for (node = node < 0 ? -1 : doc.nodes[node].first; node >= 0; node = doc.nodes[node].next)
        if (json_string(&doc, json_member(&doc, node, "destination"), &name) == 0 && !strcmp(name.at, "/dev/shm") &&
            json_string(&doc, json_member(&doc, node, "source"), &name) == 0 && strchr(name.at, '/'))
            buf_text(out, name.at);
    json_free(&doc);
    return 0;
}

static int folder(const char *path)
{
    return mkdir(path, 0750) < 0 && errno != EEXIST ? fail("%.300s: %s", path, strerror(errno)) : 0;
}

/* The image's folder below those of its namespace and its instance set, which the first checkpoint makes. */
static int folders(const char *path)
{
    char above[PATH_MAX];
    for (const char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        snprintf(above, sizeof above, "%.*s", (int)(at - path), path);
        if (folder(above) < 0)
            return -1;
    }
    return folder(path);
}

static int npu_error(const char *file)
{
    char line[8192];
    FILE *log = fopen(file, "re");
    int done = 0;
    while (log && done == 0 && fgets(line, sizeof line, log))
        if (strstr(line, NPU_ERROR))
            done = fail("CRIU's log says: %s", NPU_ERROR);
    if (log)
        fclose(log);
    return done;
}

/* What CRIU is told, when it saves and when it brings back. */
void snapshot_environment(const char *level, const char *shm, const char *folder)
{
    char remap[PATH_MAX + 32];
    setenv("CRIU_CALL_BY_GRUS", "1", 1);
    setenv("CRIU_LOG_LEVEL", level && strlen(level) == 1 && strchr("01234", *level) ? level : "1", 1);
    if (!*shm)
        return;
    snprintf(remap, sizeof remap, "%s/" SNAPSHOT_SHARED, folder);
    setenv("SNAPSHOT_LINK_REMAP_SRC", shm, 1);
    setenv("SNAPSHOT_LINK_REMAP_DST", remap, 1);
}

static int dump(const char *runc, const char *root, const char *id, const char *to, const char *shm)
{
    char image[PATH_MAX], work[PATH_MAX + 8], log[PATH_MAX + 24];
    snprintf(image, sizeof image, "%s/image", to);
    snprintf(work, sizeof work, "%s/work", image);
    snprintf(log, sizeof log, "%s/dump.log", work);
    if (folders(to) < 0 || folder(image) < 0 || folder(work) < 0)
        return -1;
    snapshot_environment(getenv("CRIU_LOG_LEVEL"), shm, to);
    char *argv[] = {
        (char *)runc, (char[]){"--root"}, (char *)root, (char[]){"checkpoint"}, (char[]){"--image-path"}, image,
        (char[]){"--work-path"}, work, (char[]){"--leave-running"}, (char[]){"--ext-unix-sk"}, (char[]){"--file-locks"}, (char *)id, NULL,
    };
    return ended(start(argv, -1), argv, "checkpoint") < 0 ? -1 : npu_error(log);
}

static int put_file(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, mode);
    int done = fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) ? fail("%.300s: %s", path, strerror(errno)) : 0;
    if (fd >= 0)
        close(fd);
    return done;
}

/* What the container wrote, against its image. */
static int difference(const char *root, const char *id, const char *to)
{
    struct digest digest;
    char path[PATH_MAX], text[72];
    const char *space = strrchr(root, '/');
    char *argv[] = {
        (char[]){"ctr"}, (char[]){"--address"}, (char[]){SOCKET}, (char[]){"--namespace"}, (char *)(space ? space + 1 : root),
        (char[]){"snapshots"}, (char[]){"diff"}, (char[]){"--media-type"}, (char[]){LAYER}, (char *)id, NULL,
    };
    snprintf(path, sizeof path, "%s/" SNAPSHOT_DIFF, to);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        return fail("%.300s: %s", path, strerror(errno));
    digest_begin(&digest);
    int done = capture(argv, "snapshots diff", NULL, file, &digest);
    if (done == 0 && fsync(file) < 0)
        done = fail("%.300s: %s", path, strerror(errno));
    close(file);
    if (done < 0)
        return -1;
    digest_text(&digest, text);
    snprintf(path, sizeof path, "%s/" SNAPSHOT_DIGEST, to);
    return put_file(path, text, 0640);
}

int snapshot_checkpoint(const char *runc, const char *root, const char *id, const char *to)
{
    struct buf status = {0}, bundle = {0}, shm = {0};
    struct sigaction action = {.sa_handler = pass_on};
    char digest[PATH_MAX];
    if (*to != '/' || strlen(to) > PATH_MAX - 64)
        return fail("--image-path: %.200s is not an absolute path", to);
    if (read_state(runc, root, id, &status, &bundle) < 0 || snapshot_shared_memory(bundle.at, &shm) < 0)
        return -1;
    /* whoever ends this must not leave the container standing still */
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    umask(022);
    /* an earlier checkpoint in this folder has not ended any more once its files are written over */
    snprintf(digest, sizeof digest, "%s/" SNAPSHOT_DIGEST, to);
    if (unlink(digest) < 0 && errno != ENOENT)
        return fail("%.300s: %s", digest, strerror(errno));
    if (run(runc, root, "pause", id) < 0)
        return -1;
    int done = dump(runc, root, id, to, shm.at);
    if (done == 0)
        done = difference(root, id, to);
    char why[sizeof fault];
    memcpy(why, fault, sizeof why);
    if (run(runc, root, "resume", id) < 0) {
        if (done < 0)
            return fail_in("%.400s; and ", why);
        say("runtime", "ERROR", "%.64s: %.800s", id, fault);
    }
    memcpy(fault, why, sizeof fault);
    return done;
}

bool snapshot_stands(const char *runc, const char *root, const char *id)
{
    struct buf status = {0}, bundle = {0};
    bool known = read_state(runc, root, id, &status, &bundle) == 0;
    return !known || !strcmp(status.at, "paused"); /* runc itself says what is wrong with one it does not know */
}
