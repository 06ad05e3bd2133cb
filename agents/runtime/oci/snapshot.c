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

/* -- SHA-256 (FIPS 180-4) */

struct digest {
    uint32_t state[8];
    uint64_t length;
    unsigned char block[64];
};

static uint32_t turn(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void digest_block(struct digest *it)
{
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
        0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
        0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
        0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
        0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
        0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
    };
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)it->block[4 * i] << 24 | (uint32_t)it->block[4 * i + 1] << 16 | (uint32_t)it->block[4 * i + 2] << 8 | it->block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3) +
               (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(v, it->state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t one = v[7] + (turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
        uint32_t two = (turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        it->state[i] += v[i];
}

static void digest_add(struct digest *it, const unsigned char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        it->block[it->length++ % 64] = bytes[i];
        if (it->length % 64 == 0)
            digest_block(it);
    }
}

static void digest_text(struct digest *it, char out[65])
{
    uint64_t bits = it->length * 8;
    digest_add(it, (const unsigned char *)"\x80", 1);
    while (it->length % 64 != 56)
        digest_add(it, (const unsigned char *)"", 1);
    for (int i = 7; i >= 0; i--)
        digest_add(it, (const unsigned char[]){(unsigned char)(bits >> (8 * i))}, 1);
    for (int i = 0; i < 8; i++)
        snprintf(out + 8 * i, 9, "%08x", it->state[i]);
}

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
static int shared_memory(const char *bundle, struct buf *out)
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

static int dump(const char *runc, const char *root, const char *id, const char *to, const char *shm)
{
    char image[PATH_MAX], work[PATH_MAX + 8], log[PATH_MAX + 24], remap[PATH_MAX + 32];
    const char *level = getenv("CRIU_LOG_LEVEL");
    snprintf(image, sizeof image, "%s/image", to);
    snprintf(work, sizeof work, "%s/work", image);
    snprintf(log, sizeof log, "%s/dump.log", work);
    snprintf(remap, sizeof remap, "%s/rootfs-external-diff.tar", to);
    if (folder(to) < 0 || folder(image) < 0 || folder(work) < 0)
        return -1;
    setenv("CRIU_CALL_BY_GRUS", "1", 1);
    setenv("CRIU_LOG_LEVEL", level && strlen(level) == 1 && strchr("01234", *level) ? level : "1", 1);
    if (*shm) {
        setenv("SNAPSHOT_LINK_REMAP_SRC", shm, 1);
        setenv("SNAPSHOT_LINK_REMAP_DST", remap, 1);
    }
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
    struct digest digest = {.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
    char path[PATH_MAX], text[80] = "sha256:";
    const char *space = strrchr(root, '/');
    char *argv[] = {
        (char[]){"ctr"}, (char[]){"--address"}, (char[]){SOCKET}, (char[]){"--namespace"}, (char *)(space ? space + 1 : root),
        (char[]){"snapshots"}, (char[]){"diff"}, (char[]){"--media-type"}, (char[]){LAYER}, (char *)id, NULL,
    };
    snprintf(path, sizeof path, "%s/rootfs-diff.tar", to);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        return fail("%.300s: %s", path, strerror(errno));
    int done = capture(argv, "snapshots diff", NULL, file, &digest);
    if (done == 0 && fsync(file) < 0)
        done = fail("%.300s: %s", path, strerror(errno));
    close(file);
    if (done < 0)
        return -1;
    digest_text(&digest, text + strlen(text));
    snprintf(path, sizeof path, "%s/rootfs-diff.digest", to);
    return put_file(path, text, 0640);
}

int snapshot_checkpoint(const char *runc, const char *root, const char *id, const char *to)
{
    struct buf status = {0}, bundle = {0}, shm = {0};
    struct sigaction action = {.sa_handler = pass_on};
    if (*to != '/' || strlen(to) > PATH_MAX - 64)
        return fail("--image-path: %.200s is no absolute path", to);
    if (read_state(runc, root, id, &status, &bundle) < 0 || shared_memory(bundle.at, &shm) < 0)
        return -1;
    /* whoever ends this must not leave the container standing still */
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    umask(022);
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
