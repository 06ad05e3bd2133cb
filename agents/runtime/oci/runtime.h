/* belay-oci-runtime: an OCI runtime that gives containers their NPUs and leaves the rest to runc.
 *
 * One program in four roles, by the name it is called by: the runtime, the prestart hook, the mounter and the destroy
 * hook. Behaviour follows MindCluster's component/ascend-docker-runtime. Nothing but libc; functions that can fail
 * answer -1 and leave one sentence in `fault`. */
#ifndef BELAY_OCI_RUNTIME_H
#define BELAY_OCI_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define MAX_FILE (100u << 20)   /* bytes of a configuration file or a binary */
#define MAX_STATE (10u << 20)   /* bytes of a container's state on stdin */
#define MAX_ENTRIES 65535       /* environment lines, hooks, characters of an argument */
#define MAX_DEPTH 99            /* folders above a file */
#define MAX_MOUNTS 512          /* files, and as many folders */
#define MAX_PATH 4096

/* -- text */

struct buf {
    char *at; /* always ends in NUL */
    size_t len, cap;
};

void buf_add(struct buf *out, const char *text, size_t len);
void buf_text(struct buf *out, const char *text);
void buf_format(struct buf *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void buf_json(struct buf *out, const char *text); /* a JSON string, quotes included */
void buf_free(struct buf *out);

void *want(void *memory); /* memory, or the end of the program */
char *copy_text(const char *text);
bool number(const char *text, long *out); /* decimal digits only, at most 65535 */

/* -- what went wrong */

extern char fault[1024];
int fail(const char *format, ...) __attribute__((format(printf, 1, 2))); /* sets fault, answers -1 */
int fail_in(const char *format, ...) __attribute__((format(printf, 1, 2))); /* says first where the fault is */
void say(const char *role, const char *level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* -- JSON: a document stays text, edits are made in the text, so that all else stays byte for byte */

enum json_kind { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json_node {
    uint32_t start, end;         /* span of the value */
    uint32_t key_start, key_end; /* span of its name with quotes; equal: none */
    int32_t first, next;         /* node numbers; -1: none */
    uint8_t kind;
};

struct json {
    const char *text;
    size_t size;
    struct json_node *nodes; /* nodes[0] is the document */
    size_t count, cap;
};

int json_parse(struct json *out, const char *text, size_t size);
void json_free(struct json *doc);
int json_member(const struct json *doc, int object, const char *name); /* the last of that name, or -1 */
int json_path(const struct json *doc, const char *const *path);        /* NULL ends the path; -1: not there */
int json_string(const struct json *doc, int node, struct buf *out);    /* decoded; -1: no string, or has a NUL */
void json_print(const struct json *doc, int node, struct buf *out);    /* compact, strings decoded and written anew */
int json_append(struct buf *text, const char *const *path, const char *items); /* into an array, made where missing */
int json_replace(struct buf *text, const char *const *path, size_t index, const char *item);

/* -- files that only root could have put there */

int trusted(const char *path, bool allow_link);
int read_trusted(const char *path, bool allow_link, size_t limit, struct buf *out);
int read_file(int fd, const char *name, size_t limit, struct buf *out);
bool plain_path(const char *path);
int own_folder(char *out, size_t size); /* folder of this program */

/* -- the environment of the container */

struct env {
    char **line;
    size_t count;
};

int env_read(const struct json *spec, struct env *out); /* -1: no process, or a line that is not text */
const char *env_first(const struct env *env, const char *name); /* "" when not there */
const char *env_last(const struct env *env, const char *name);
const char *env_single(const struct env *env, const char *name); /* among lines with exactly one '=' */
bool env_has(const struct env *env, const char *name);

struct ids {
    long *at;
    size_t count;
};

int select_ids(const char *value, struct ids *out); /* ASCEND_VISIBLE_DEVICES */

/* -- what the driver knows, asked of belay-oci-driver beside this program */

struct chip {
    char name[64], product[64];
};

int driver_identify(struct chip *out);
int driver_create(long phy, const char *template, int place[3]); /* card, chip, vNPU */
int driver_destroy(const char *card, const char *chip, const char *vnpu);

/* -- what a container gets */

struct grant {
    struct buf devices, rules, mounts; /* items of linux.devices, linux.resources.devices and mounts */
    size_t warnings;
};

int grant_chips(struct grant *out, const struct ids *ids, bool virtual);
int grant_managers(struct grant *out, const struct chip *chip);

enum { LISTS_LEGACY, LISTS_CDI };
struct mounts {
    char *file[MAX_MOUNTS], *folder[MAX_MOUNTS];
    size_t files, folders;
};
int lists_read(struct mounts *out, const struct env *env, int form, bool *ub_driver);
int options_read(const struct env *env, bool *no_driver, bool *virtual);

/* -- the command line, and runc behind it */

struct call {
    int argc;
    char **argv;
    const char *bundle, *root, *log, *format, *image, *work, *id;
    const char *verb; /* of runc; NULL: none */
};

int call_read(int argc, char **argv, struct call *out);
int call_check(const struct call *call);                           /* characters of the arguments */
void call_root(const struct call *call, char *out, size_t size);   /* where runc keeps its states */
int call_find_runc(char *out);                                     /* PATH_MAX characters */
void call_become_runc(const struct call *call, const char *runc);  /* returns with a fault only */
void call_report(const struct call *call);                         /* the fault, on stderr and in the file of --log */
int call_plain(const struct call *call);                           /* runc, or the exit code */

/* -- edits of config.json */

extern const char *const SPEC_PRESTART[], *const SPEC_POSTSTOP[], *const SPEC_ENV[],
     *const SPEC_DEVICES[], *const SPEC_RULES[], *const SPEC_MOUNTS[];

int spec_append(struct buf *spec, const char *const *path, const char *text);
int spec_library_path(struct buf *spec, const struct env *env, const char *const *candidates);
int spec_bind(struct buf *spec, const char *path);
int spec_everyone(struct buf *spec, const struct env *env, bool legacy); /* what every container gets */
int spec_hook(struct buf *spec, const char *const *path, const char *program, const char *arguments, bool once);
int spec_write(const char *file, const struct buf *spec, const struct buf *before);

/* -- standing still: checkpoint and resume */

#define SNAPSHOT_DIFF "rootfs-diff.tar"           /* what the container wrote to its root file system */
#define SNAPSHOT_DIGEST "rootfs-diff.digest"      /* written last: without it a checkpoint did not end */
#define SNAPSHOT_SHARED "rootfs-external-diff.tar" /* what was in a /dev/shm of the host's */

int snapshot_checkpoint(const char *runc, const char *root, const char *id, const char *to);
bool snapshot_stands(const char *runc, const char *root, const char *id);
int snapshot_shared_memory(const char *bundle, struct buf *out);
void snapshot_environment(const char *level, const char *shm, const char *folder);

/* -- brought back: create and start of a container whose folder holds a checkpoint */

struct restore {
    bool wanted;
    bool flag; /* the container is to find /root/.grusflag */
    char folder[MAX_PATH], rootfs[MAX_PATH], work[MAX_PATH], level[8];
};

void restore_find(const struct call *call, const struct env *env, struct restore *out);
int restore_edit(const struct restore *it, const struct env *env, struct buf *spec); /* POD_IP */
int restore_prepare(struct restore *it, const struct call *call, const char *bundle, const struct buf *spec);
void restore_call(const struct restore *it, const struct call *call, struct call *out); /* `create` as `restore` */
void restore_mark(const struct restore *it, const struct call *call);
bool restore_marked(const struct call *call); /* it runs already, there is nothing to start */

int untar(int tar, const char *root, bool flag); /* a layer, with its whiteouts, applied by a child chrooted to `root` */
int remove_tree(int folder, const char *name);

/* -- digests */

struct digest {
    uint32_t state[8];
    uint64_t length;
    unsigned char block[64];
};

void digest_begin(struct digest *out);
void digest_add(struct digest *it, const unsigned char *bytes, size_t len);
void digest_text(struct digest *it, char out[72]); /* sha256:… */

/* -- roles */

int role_runtime(int argc, char **argv);
int role_hook(void);
int role_mount(int argc, char **argv);
int role_destroy(int argc, char **argv);
int role_check(int argc, char **argv);

#endif
