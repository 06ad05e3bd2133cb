/* The prestart hook: what the lists name is mounted. The destroy hook: a vNPU goes when its container went. */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int text_at(const struct json *doc, const char *const *path, struct buf *out)
{
    return json_string(doc, json_path(doc, path), out) < 0 ? fail("%s is missing", *path) : 0;
}

struct container {
    long pid;
    struct buf rootfs;
    struct env env;
};

static int read_container(struct container *out)
{
    static const char *const bundle[] = {"bundle", NULL}, *const pid[] = {"pid", NULL}, *const root[] = {"root", "path", NULL};
    struct buf state = {0}, folder = {0}, spec = {0}, path = {0};
    struct json doc;
    if (read_file(0, "the container's state on stdin", MAX_STATE, &state) < 0 || json_parse(&doc, state.at, state.len) < 0 ||
        text_at(&doc, bundle, &folder) < 0)
        return -1;
    int node = json_path(&doc, pid);
    if (node < 0 || doc.nodes[node].kind != JSON_NUMBER)
        return fail("the container's state has no pid");
    out->pid = strtol(doc.text + doc.nodes[node].start, NULL, 10);
    buf_format(&path, "%s/config.json", folder.at);
    if (read_trusted(path.at, true, MAX_FILE, &spec) < 0 || json_parse(&doc, spec.at, spec.len) < 0 ||
        env_read(&doc, &out->env) < 0 || text_at(&doc, root, &state) < 0)
        return -1;
    /* ctr and docker give paths relative to the bundle */
    buf_format(&out->rootfs, "%s%s%s", *state.at == '/' ? "" : folder.at, *state.at == '/' ? "" : "/", state.at);
    return 0;
}

static void add(char **argv, int *argc, const char *name, const char *value)
{
    argv[(*argc)++] = copy_text(name);
    argv[(*argc)++] = copy_text(value);
}

static int hook(void)
{
    struct container container = {0};
    static struct mounts mounts;
    bool no_driver, virtual, ub;
    char pid[24];
    if (read_container(&container) < 0)
        return -1;
    const char *visible = env_last(&container.env, "ASCEND_VISIBLE_DEVICES");
    if (!*visible || !strcmp(visible, "void"))
        return 0;
    if (lists_read(&mounts, &container.env, LISTS_LEGACY, &ub) < 0 || options_read(&container.env, &no_driver, &virtual) < 0)
        return -1;
    const char *link = env_first(&container.env, "ASCEND_ALLOW_LINK");
    if (*link && strcmp(link, "True") && strcmp(link, "False"))
        return fail("ASCEND_ALLOW_LINK: '%.64s' is neither True nor False", link);
    char **argv = want(calloc(2 * (mounts.files + mounts.folders) + 12, sizeof *argv));
    int argc = 0;
    argv[argc++] = copy_text("ascend-docker-cli");
    add(argv, &argc, "--allow-link", ub || !strcmp(link, "True") ? "True" : "False");
    snprintf(pid, sizeof pid, "%ld", container.pid);
    add(argv, &argc, "--pid", pid);
    add(argv, &argc, "--rootfs", container.rootfs.at);
    for (size_t i = 0; i < mounts.files; i++)
        add(argv, &argc, "--mount-file", mounts.file[i]);
    for (size_t i = 0; i < mounts.folders; i++)
        add(argv, &argc, "--mount-dir", mounts.folder[i]);
    if (no_driver || virtual)
        add(argv, &argc, "--options", no_driver && virtual ? "NODRV,VIRTUAL" : no_driver ? "NODRV" : "VIRTUAL");
    return role_mount(argc, argv) == 0 ? 0 : -1;
}

int role_hook(void)
{
    fault[0] = 0;
    if (hook() == 0)
        return 0;
    say("hook", "ERROR", "%s", fault);
    fprintf(stderr, "belay-oci-runtime hook: %s\n", fault);
    return 1;
}

int role_destroy(int argc, char **argv)
{
    long value;
    int done = argc == 4 ? 0 : fail("want card, chip and vNPU");
    for (int i = 1; i < argc && done == 0; i++)
        if (!number(argv[i], &value))
            done = fail("'%.32s' is not a number from 0 to 65535", argv[i]);
    if (done == 0)
        done = driver_destroy(argv[1], argv[2], argv[3]);
    if (done == 0)
        return 0;
    say("hook", "ERROR", "destroy: %s", fault);
    fprintf(stderr, "belay-oci-runtime destroy: %s\n", fault);
    return 1;
}
