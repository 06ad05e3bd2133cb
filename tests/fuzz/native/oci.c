/* Harnesses of the container runtime's C code, for libFuzzer or for driver.c. BELAY_FUZZ_TARGET chooses one.
 *
 * A target aborts where a rule is broken that no sanitizer knows: what was parsed must read the same when printed, and
 * an edit that succeeds must leave a document. Nothing here changes the host: mounting and logging are cut off. */
#include "runtime.h"
#include "tar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* the hook reads the container's state from stdin, and would mount */
static int no_mount(int argc, char **argv) { return argc > 0 && argv[0] ? 0 : 1; }
#define role_mount no_mount
#include "hook.c"
#undef role_mount

int role_mount(int argc, char **argv) { return no_mount(argc, argv); }

/* linked with --wrap=say: no log on this host */
void __wrap_say(const char *role, const char *level, const char *format, ...);
void __wrap_say(const char *role, const char *level, const char *format, ...) { (void)role, (void)level, (void)format; }

static void must(bool held, const char *rule)
{
    if (held)
        return;
    fprintf(stderr, "broken rule: %s\n", rule);
    abort();
}

static void free_env(struct env *env)
{
    for (size_t i = 0; i < env->count; i++)
        free(env->line[i]);
    free(env->line);
}

/* `size` bytes in memory that can be read like a file. */
static int as_file(const uint8_t *data, size_t size)
{
    int fd = memfd_create("input", MFD_CLOEXEC);
    must(fd >= 0 && write(fd, data, size) == (ssize_t)size && lseek(fd, 0, SEEK_SET) == 0, "memory for the input");
    return fd;
}

static void document(const uint8_t *data, size_t size)
{
    struct json doc;
    struct buf once = {0}, twice = {0};
    if (json_parse(&doc, (const char *)data, size) < 0)
        return;
    json_print(&doc, 0, &once);
    json_free(&doc);
    must(json_parse(&doc, once.at, once.len) == 0, "what is printed can be read");
    json_print(&doc, 0, &twice);
    json_free(&doc);
    must(once.len == twice.len && !memcmp(once.at, twice.at, once.len), "what is printed reads the same");
    buf_free(&once);
    buf_free(&twice);
}

/* Every edit of `create`, one after the other. */
static void edits(const uint8_t *data, size_t size)
{
    static const char *const libraries[] = {"/usr", "/usr/lib", "/nowhere", NULL};
    const char *const *const paths[] = {SPEC_PRESTART, SPEC_POSTSTOP, SPEC_ENV, SPEC_DEVICES, SPEC_RULES, SPEC_MOUNTS};
    struct buf spec = {0}, shared = {0};
    struct json doc;
    struct env env = {0};
    buf_add(&spec, (const char *)data, size);
    if (json_parse(&doc, spec.at, spec.len) == 0) {
        int known = env_read(&doc, &env);
        json_free(&doc);
        for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
            if (json_append(&spec, paths[i], "{\"a\":\"b\"},1") == 0)
                must(json_parse(&doc, spec.at, spec.len) == 0, "an edit leaves a document"), json_free(&doc);
        if (known == 0) {
            spec_everyone(&spec, &env, true);
            spec_library_path(&spec, &env, libraries);
        }
        spec_bind(&spec, "/a \"b\"\n");
        json_replace(&spec, SPEC_ENV, env.count / 2, "\"C=d\"");
        struct restore restore = {.wanted = true};
        restore_edit(&restore, &env, &spec);
        must(json_parse(&doc, spec.at, spec.len) == 0, "all edits leave a document");
        json_free(&doc);
    }
    free_env(&env);
    buf_free(&spec);
    buf_free(&shared);
}

/* The input's lines are the environment; the first is also tried as a list of chips. */
static void environment(const uint8_t *data, size_t size)
{
    struct env env = {0};
    struct ids ids = {0};
    static struct mounts mounts;
    bool no_driver, virtual, ub;
    char *text = want(calloc(size + 1, 1)), *rest = text, *line;
    memcpy(text, data, size);
    while ((line = strsep(&rest, "\n")) && env.count < MAX_ENTRIES) {
        env.line = want(realloc(env.line, (env.count + 1) * sizeof *env.line));
        env.line[env.count++] = copy_text(line);
    }
    const char *value = env_last(&env, "ASCEND_VISIBLE_DEVICES");
    if (select_ids(*value ? value : env.line[0], &ids) == 0)
        for (size_t i = 0; i < ids.count; i++)
            must(!i || ids.at[i] > ids.at[i - 1], "chips are selected once, in ascending order");
    free(ids.at);
    env_first(&env, "A");
    env_single(&env, "A");
    env_has(&env, "MOUNT_BY_RUNTIME_FOR_DP");
    options_read(&env, &no_driver, &virtual);
    for (int form = LISTS_LEGACY; form <= LISTS_CDI; form++) {
        lists_read(&mounts, &env, form, &ub);
        for (size_t i = 0; i < mounts.files; i++)
            free(mounts.file[i]);
        for (size_t i = 0; i < mounts.folders; i++)
            free(mounts.folder[i]);
    }
    struct call call = {.id = "a"};
    struct restore restore;
    restore_find(&call, &env, &restore);
    free_env(&env);
    free(text);
}

/* The headers of a layer; contents are skipped. */
static void layer(const uint8_t *data, size_t size)
{
    int fd = as_file(data, size);
    static struct entry entry;
    entry = (struct entry){0};
    for (int count = 0; count < 10000 && tar_next(fd, &entry) > 0; count++) {
        const char *key, *value;
        size_t at = 0, key_len, len;
        must(strlen(entry.name) < PATH_MAX && strlen(entry.link) < PATH_MAX, "names end");
        while (tar_record(&entry.pax, &at, &key, &key_len, &value, &len) > 0)
            must(key >= entry.pax.at && value + len <= entry.pax.at + entry.pax.len, "a record lies in its header");
        if (entry.type == '0' && tar_skip(fd, entry.size) < 0)
            break;
        if (entry.type == '0' && tar_skip(fd, tar_padding(entry.size)) < 0)
            break;
    }
    buf_free(&entry.pax);
    close(fd);
}

/* The input's lines are the arguments. */
static void arguments(const uint8_t *data, size_t size)
{
    char *text = want(calloc(size + 1, 1)), *rest = text, *line, *argv[66] = {(char[]){"runc"}}, root[PATH_MAX];
    int argc = 1;
    memcpy(text, data, size);
    while (argc < 65 && (line = strsep(&rest, "\n")))
        argv[argc++] = line;
    struct call call = {0};
    if (call_read(argc, argv, &call) == 0) {
        call_check(&call);
        call_root(&call, root, sizeof root);
    }
    free(text);
}

/* The container's state as runc writes it to the hook's stdin. */
static void state(const uint8_t *data, size_t size)
{
    struct container container = {0};
    int fd = as_file(data, size);
    dup2(fd, 0);
    close(fd);
    read_container(&container);
    buf_free(&container.rootfs);
    free_env(&container.env);
}

static const struct {
    const char *name;
    void (*feed)(const uint8_t *data, size_t size);
} targets[] = {
    {"oci-document", document}, {"oci-edits", edits}, {"oci-environment", environment},
    {"oci-layer", layer}, {"oci-arguments", arguments}, {"oci-state", state},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static size_t chosen = sizeof targets / sizeof *targets;
    const char *name = getenv("BELAY_FUZZ_TARGET");
    for (size_t i = 0; chosen == sizeof targets / sizeof *targets && i < chosen; i++)
        if (name && !strcmp(name, targets[i].name))
            chosen = i;
    must(chosen < sizeof targets / sizeof *targets, "BELAY_FUZZ_TARGET names a target");
    fault[0] = 0;
    targets[chosen].feed(data, size);
    must(strnlen(fault, sizeof fault) < sizeof fault, "what went wrong ends");
    return 0;
}
