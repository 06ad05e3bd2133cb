/* `create` with the container's NPUs written into its config.json, then runc; but for checkpoints (snapshot.c, restore.c)
 * everything else is runc's alone.
 *
 * A container that asks for no NPU starts whatever is wrong with us: every problem on its way leads to plain runc. One
 * that asks fails with a sentence on stderr and in the file of --log, which is what engines show. */
#include "runtime.h"
#include "tables.h"

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

#define HOOK "ascend-docker-hook"
#define DESTROY "ascend-docker-destroy"
#define INFO "ascend_docker_runtime_install.info"
#define VISIBLE "ASCEND_VISIBLE_DEVICES"
#define OPTIONS "ASCEND_RUNTIME_OPTIONS"

/* -- a vNPU that lives as long as the container */

struct vnpu {
    bool made;
    int place[3];
};

static void undo(const struct vnpu *vnpu)
{
    char text[3][16], why[sizeof fault];
    if (!vnpu->made)
        return;
    memcpy(why, fault, sizeof why);
    for (int i = 0; i < 3; i++)
        snprintf(text[i], sizeof text[i], "%d", vnpu->place[i]);
    if (driver_destroy(text[0], text[1], text[2]) < 0)
        say("runtime", "ERROR", "vNPU %s of card %s chip %s is left behind: %s", text[2], text[0], text[1], fault);
    memcpy(fault, why, sizeof fault);
}

static int make_virtual(struct buf *spec, const struct env *env)
{
    struct buf item = {0};
    for (size_t i = 0; i < env->count; i++) {
        const char *line = env->line[i], *value = strchr(line, '=');
        if (!value || strncmp(line, OPTIONS "=", sizeof OPTIONS) || strchr(value + 1, '='))
            continue;
        /* an empty value plus ",VIRTUAL" would name an option without letters, which the hook refuses */
        buf_format(&item, "%s%sVIRTUAL", line, value[1] ? "," : "");
        struct buf quoted = {0};
        buf_json(&quoted, item.at);
        int done = json_replace(spec, SPEC_ENV, i, quoted.at);
        buf_free(&quoted);
        buf_free(&item);
        return done;
    }
    return spec_append(spec, SPEC_ENV, OPTIONS "=VIRTUAL");
}

static int split(const struct env *env, const struct ids *ids, struct vnpu *out)
{
    const char *template = env_single(env, "ASCEND_VNPU_SPECS");
    const char *const *known = table_templates;
    if (!*template)
        return 0;
    while (*known && strcmp(*known, template))
        known++;
    if (!*known)
        return fail("ASCEND_VNPU_SPECS: '%.64s' is not a vNPU template", template);
    if (ids->count != 1 || ids->at[0] < 0 || ids->at[0] > 255)
        return fail("ASCEND_VNPU_SPECS needs exactly one chip, 0 to 255, in " VISIBLE);
    if (driver_create(ids->at[0], template, out->place) < 0)
        return -1;
    out->made = true;
    return 0;
}

/* -- the container that asks for NPUs */

static bool cdi_mode(void)
{
    char folder[PATH_MAX], file[PATH_MAX + 64];
    struct buf text = {0};
    bool cdi = false;
    if (own_folder(folder, sizeof folder) < 0)
        return false;
    snprintf(file, sizeof file, "%s/" INFO, strcmp(folder, "/") ? folder : "");
    if (read_trusted(file, false, 65536, &text) == 0) {
        char *rest = text.at, *line;
        while ((line = strsep(&rest, "\n")))
            if (!strncmp(line, "injection-mode=", 15))
                cdi = !strcmp(line + 15, "cdi");
    }
    buf_free(&text);
    return cdi;
}

static int edit_mounts(struct buf *spec, const struct env *env)
{
    struct mounts mounts;
    bool ub, no_driver, virtual;
    if (options_read(env, &no_driver, &virtual) < 0)
        return -1;
    if (no_driver)
        return 0;
    if (lists_read(&mounts, env, LISTS_CDI, &ub) < 0)
        return -1;
    for (size_t i = 0; i < mounts.files + mounts.folders; i++)
        if (spec_bind(spec, i < mounts.files ? mounts.file[i] : mounts.folder[i - mounts.files]) < 0)
            return -1;
    return 0;
}

static int edit_nodes(struct buf *spec, const struct ids *ids, bool virtual, bool cdi)
{
    struct grant grant = {0};
    struct chip chip;
    if (driver_identify(&chip) < 0)
        return -1;
    /* a CDI description holds what devices share before what each has */
    if ((cdi && grant_managers(&grant, &chip) < 0) || grant_chips(&grant, ids, virtual) < 0 ||
        (!cdi && grant_managers(&grant, &chip) < 0))
        return -1;
    return json_append(spec, SPEC_DEVICES, grant.devices.at) < 0 ? -1 : json_append(spec, SPEC_RULES, grant.rules.at);
}

static int edit_asking(struct buf *spec, struct env *env, struct ids *ids, struct vnpu *vnpu, bool cdi)
{
    bool virtual = strstr(env_first(env, OPTIONS), "VIRTUAL") != NULL;
    if (!cdi && spec_hook(spec, SPEC_PRESTART, HOOK, "", true) < 0)
        return -1;
    if (!virtual && split(env, ids, vnpu) < 0)
        return -1;
    if (vnpu->made) {
        char arguments[64];
        snprintf(arguments, sizeof arguments, ",\"%d\",\"%d\",\"%d\"", vnpu->place[0], vnpu->place[1], vnpu->place[2]);
        if (make_virtual(spec, env) < 0 || spec_hook(spec, SPEC_POSTSTOP, DESTROY, arguments, false) < 0)
            return -1;
        ids->at[0] = vnpu->place[2];
        virtual = true;
    }
    if (edit_nodes(spec, ids, virtual, cdi) < 0)
        return -1;
    if (!cdi)
        return 0;
    return edit_mounts(spec, env) < 0 ? -1 : spec_library_path(spec, env, table_cdi_libraries);
}

static volatile sig_atomic_t watched;

static void pass_on(int number)
{
    if (watched > 0)
        kill(watched, number);
}

/* runc as a child, so that a vNPU of a container that never came to be is given back. */
static int watch_runc(const struct call *call, const char *runc, const struct vnpu *vnpu)
{
    /* who ends us means runc; the vNPU is looked after all the same */
    struct sigaction action = {.sa_handler = pass_on};
    sigset_t both, before;
    sigemptyset(&both);
    sigaddset(&both, SIGTERM);
    sigaddset(&both, SIGINT);
    sigprocmask(SIG_BLOCK, &both, &before);
    pid_t child = fork();
    if (child < 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        undo(vnpu);
        return fail("fork: %s", strerror(errno));
    }
    watched = child;
    if (child > 0) {
        sigaction(SIGTERM, &action, NULL);
        sigaction(SIGINT, &action, NULL);
        sigprocmask(SIG_SETMASK, &before, NULL);
    }
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        sigprocmask(SIG_SETMASK, &before, NULL);
        call_become_runc(call, runc);
        call_report(call);
        _exit(1);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    char root[MAX_PATH], state[2 * MAX_PATH];
    struct stat found;
    call_root(call, root, sizeof root);
    snprintf(state, sizeof state, "%s/%s/state.json", root, call->id);
    /* with a state, runc delete runs the destroy hook */
    if (code && stat(state, &found) < 0)
        undo(vnpu);
    return code;
}

/* The container goes on from a checkpoint; config.json says already what it gets. */
static int go_on(const struct call *call, const char *runc, const char *bundle, const struct buf *spec, struct restore *restore, const struct vnpu *vnpu)
{
    struct call again;
    if (restore_prepare(restore, call, bundle, spec) < 0) {
        undo(vnpu);
        return fail_in("the checkpoint in %.300s: ", restore->folder);
    }
    restore_call(restore, call, &again);
    int code = watch_runc(&again, runc, vnpu);
    if (code == 0)
        restore_mark(restore, call);
    return code;
}

static int give(const struct call *call, const char *bundle, const char *file, struct buf *spec, struct env *env, const char *visible)
{
    struct ids ids;
    struct vnpu vnpu = {0};
    struct buf before = {0};
    struct restore restore;
    char runc[PATH_MAX];
    restore_find(call, env, &restore);
    buf_add(&before, spec->at, spec->len);
    bool cdi = cdi_mode();
    if (call_check(call) < 0 || trusted(file, true) < 0 || call_find_runc(runc) < 0 || trusted(runc, false) < 0)
        return -1;
    if (select_ids(visible, &ids) < 0)
        return fail_in(VISIBLE ": ");
    if (edit_asking(spec, env, &ids, &vnpu, cdi) < 0 || spec_everyone(spec, env, !cdi) < 0 || restore_edit(&restore, env, spec) < 0 ||
        spec_write(file, spec, &before) < 0) {
        undo(&vnpu);
        return -1;
    }
    say("runtime", "INFO", "%.64s: " VISIBLE "=%.128s, %zu chips, %s", call->id, visible, ids.count, cdi ? "cdi" : "legacy");
    if (restore.wanted)
        return go_on(call, runc, bundle, spec, &restore, &vnpu);
    if (vnpu.made)
        return watch_runc(call, runc, &vnpu);
    call_become_runc(call, runc);
    return -1;
}

/* A container without NPUs that goes on from a checkpoint. */
static int bring_back(const struct call *call, const char *bundle, const char *file, struct buf *spec, struct env *env, struct restore *restore)
{
    const struct vnpu none = {0};
    struct buf before = {0};
    char runc[PATH_MAX];
    buf_add(&before, spec->at, spec->len);
    if (call_check(call) < 0 || trusted(file, true) < 0 || call_find_runc(runc) < 0 || trusted(runc, false) < 0 ||
        spec_everyone(spec, env, !cdi_mode()) < 0 || restore_edit(restore, env, spec) < 0 || spec_write(file, spec, &before) < 0)
        return fail_in("the checkpoint in %.300s: ", restore->folder);
    return go_on(call, runc, bundle, spec, restore, &none);
}

static int reported(const struct call *call)
{
    say("runtime", "ERROR", "%s", fault);
    call_report(call);
    return 1;
}

static int refused(const struct call *call, const char *what)
{
    fail_in("container %.64s %s: ", call->id, what);
    return reported(call);
}

static int create(const struct call *call)
{
    char file[MAX_PATH], here[PATH_MAX];
    struct buf spec = {0}, before = {0};
    struct json doc = {0};
    struct env env = {0};
    const char *bundle = call->bundle && *call->bundle == '/' ? call->bundle : realpath(call->bundle ? call->bundle : ".", here);
    if (!bundle || (size_t)snprintf(file, sizeof file, "%s/config.json", bundle) >= sizeof file)
        return call_plain(call);
    struct stat status;
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would wait for a writer, and so would runc */
    if (fd >= 0 && fstat(fd, &status) == 0 && !S_ISREG(status.st_mode)) {
        fail("%.300s: is not a regular file", file);
        call_report(call);
        return 1;
    }
    if (fd < 0 || read_file(fd, file, MAX_FILE, &spec) < 0)
        return call_plain(call); /* runc says what is wrong with its own file */
    close(fd);
    if (json_parse(&doc, spec.at, spec.len) < 0) {
        if (!memmem(spec.at, spec.len, VISIBLE, sizeof VISIBLE - 1))
            return call_plain(call);
        fail_in("%.300s:", file);
        call_report(call);
        return 1;
    }
    bool readable = env_read(&doc, &env) == 0;
    json_free(&doc);
    if (!readable && env.count >= MAX_ENTRIES && memmem(spec.at, spec.len, VISIBLE, sizeof VISIBLE - 1))
        return refused(call, "asks for NPUs"); /* runc would start it, without any */
    const char *visible = readable ? env_last(&env, VISIBLE) : "";
    if (*visible && strcmp(visible, "void")) {
        int code = give(call, bundle, file, &spec, &env, visible);
        return code >= 0 ? code : refused(call, "asks for NPUs");
    }
    if (readable) {
        struct restore restore;
        restore_find(call, &env, &restore);
        if (restore.wanted) {
            int code = bring_back(call, bundle, file, &spec, &env, &restore);
            return code >= 0 ? code : refused(call, "cannot go on");
        }
        buf_add(&before, spec.at, spec.len);
        if (spec_everyone(&spec, &env, !cdi_mode()) == 0 && trusted(file, true) == 0)
            spec_write(file, &spec, &before);
    }
    return call_plain(call);
}

/* Belay's agent and NodeD name a folder only; engines, which make checkpoints of their own, name a work folder, too. */
static int checkpoint(const struct call *call)
{
    char runc[PATH_MAX], root[MAX_PATH];
    call_root(call, root, sizeof root);
    if (call_find_runc(runc) == 0 && trusted(runc, false) == 0 && call_check(call) == 0 &&
        snapshot_checkpoint(runc, root, call->id, call->image) == 0)
        return 0;
    fail_in("container %.64s: ", call->id);
    return reported(call);
}

static int resume(const struct call *call)
{
    char runc[PATH_MAX], root[MAX_PATH];
    call_root(call, root, sizeof root);
    return call_find_runc(runc) == 0 && !snapshot_stands(runc, root, call->id) ? 0 : call_plain(call);
}

int role_runtime(int argc, char **argv)
{
    struct call call;
    int complete = call_read(argc, argv, &call);
    if (complete < 0 || !call.verb)
        return call_plain(&call); /* runc refuses an option without a value, too, and says so in its words */
    if (!strcmp(call.verb, "create"))
        return create(&call);
    if (!strcmp(call.verb, "start") && restore_marked(&call))
        return 0;
    if (!strcmp(call.verb, "checkpoint") && call.image && !call.work)
        return checkpoint(&call);
    if (!strcmp(call.verb, "resume"))
        return resume(&call);
    return call_plain(&call);
}
