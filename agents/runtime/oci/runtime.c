/* `create` with the container's NPUs written into its config.json, then runc; everything else is runc's alone.
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
#include <time.h>
#include <unistd.h>

#define HOOK "ascend-docker-hook"
#define DESTROY "ascend-docker-destroy"
#define INFO "ascend_docker_runtime_install.info"
#define VISIBLE "ASCEND_VISIBLE_DEVICES"
#define OPTIONS "ASCEND_RUNTIME_OPTIONS"

struct call {
    int argc;
    char **argv;
    const char *bundle, *root, *log, *format, *image, *work, *id;
    const char *verb; /* of runc; NULL: none */
};

static const char *const PRESTART[] = {"hooks", "prestart", NULL}, *const POSTSTOP[] = {"hooks", "poststop", NULL},
                  *const ENV[] = {"process", "env", NULL}, *const DEVICES[] = {"linux", "devices", NULL},
                  *const RULES[] = {"linux", "resources", "devices", NULL}, *const MOUNTS[] = {"mounts", NULL};

/* -- runc */

/* `name` on PATH with its links resolved, never this program itself. */
static bool find(const char *name, char *out)
{
    char own[PATH_MAX] = "", candidate[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", own, sizeof own - 1);
    own[len > 0 ? len : 0] = 0;
    const char *path = getenv("PATH");
    char *copy = copy_text(path && *path ? path : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), *rest = copy, *folder;
    bool found = false;
    while (!found && (folder = strsep(&rest, ":"))) {
        struct stat mine, other;
        if (*folder != '/' || (size_t)snprintf(candidate, sizeof candidate, "%s/%s", folder, name) >= sizeof candidate)
            continue;
        found = access(candidate, X_OK) == 0 && realpath(candidate, out) && stat(out, &other) == 0 && S_ISREG(other.st_mode) &&
                !(*own && stat(own, &mine) == 0 && mine.st_dev == other.st_dev && mine.st_ino == other.st_ino);
    }
    free(copy);
    return found;
}

static int find_runc(char *out)
{
    return find("docker-runc", out) || find("runc", out) ? 0 : fail("neither docker-runc nor runc is on PATH; install runc");
}

static void become_runc(const struct call *call, const char *runc)
{
    char **argv = want(calloc((size_t)call->argc + 1, sizeof *argv));
    for (int i = 1; i < call->argc; i++)
        argv[i] = call->argv[i];
    argv[0] = (char *)runc;
    execv(runc, argv);
    fail("%.400s: %s", runc, strerror(errno));
    free(argv);
}

/* One line as runc would log it: the engine shows the last error of this file. */
static void report(const struct call *call)
{
    char when[40];
    struct tm parts;
    time_t now = time(NULL);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
    fprintf(stderr, "belay-oci-runtime: %s\n", fault);
    int fd = call->log ? open(call->log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (fd < 0)
        return;
    struct buf line = {0};
    bool json = call->format && !strcmp(call->format, "json");
    buf_text(&line, json ? "{\"level\":\"error\",\"msg\":" : "level=error msg=");
    struct buf words = {0};
    buf_format(&words, "belay-oci-runtime: %s", fault);
    buf_json(&line, words.at);
    buf_format(&line, json ? ",\"time\":\"%s\"}\n" : " time=\"%s\"\n", when);
    (void)!write(fd, line.at, line.len);
    close(fd);
    buf_free(&line);
    buf_free(&words);
}

static int plain(const struct call *call)
{
    char runc[PATH_MAX];
    if (find_runc(runc) == 0)
        become_runc(call, runc);
    report(call);
    return 1;
}

/* -- the command line */

static bool option(const struct call *call, int at, const char *name, const char **out)
{
    size_t len = strlen(name);
    const char *given = call->argv[at];
    if (!strncmp(given, name, len) && given[len] == '=' && len > 2)
        *out = given + len + 1;
    else if (!strcmp(given, name))
        *out = at + 1 < call->argc ? call->argv[at + 1] : NULL;
    else
        return false;
    return true;
}

/* The first word that is a sub-command of runc decides; a container may be named like one. */
static bool command(const char *text)
{
    static const char *const all[] = {"checkpoint", "create", "delete", "events", "exec", "features", "init", "kill", "list", "pause",
                                      "ps", "restore", "resume", "run", "spec", "start", "state", "update", "help", NULL};
    for (const char *const *it = all; *it; it++)
        if (!strcmp(*it, text))
            return true;
    return false;
}

static int read_call(int argc, char **argv, struct call *out)
{
    *out = (struct call){.argc = argc, .argv = argv, .id = argc > 1 ? argv[argc - 1] : ""};
    int done = 0;
    for (int i = 1; i < argc; i++) {
        const char **to = NULL, *value = NULL;
        if (option(out, i, "--bundle", &value) || option(out, i, "-b", &value))
            to = &out->bundle;
        else if (option(out, i, "--root", &value))
            to = &out->root;
        else if (option(out, i, "--log", &value))
            to = &out->log;
        else if (option(out, i, "--log-format", &value))
            to = &out->format;
        else if (option(out, i, "--image-path", &value))
            to = &out->image;
        else if (option(out, i, "--work-path", &value))
            to = &out->work;
        else if (!out->verb && command(argv[i]))
            out->verb = argv[i];
        if (to && !value)
            done = fail("option %.32s needs a value", argv[i]);
        if (to)
            *to = value;
        i += to && value == (i + 1 < argc ? argv[i + 1] : NULL) && value;
    }
    return done;
}

static int check_arguments(const struct call *call)
{
    for (int i = 1; i < call->argc; i++) {
        const char *text = call->argv[i];
        if (strlen(text) >= MAX_ENTRIES)
            return fail("argument %d is longer than %d characters", i, MAX_ENTRIES - 1);
        for (; *text; text++)
            if (!strchr("-_./~=: ", *text) && !(*text >= '0' && *text <= '9') && !((*text | 32) >= 'a' && (*text | 32) <= 'z'))
                return fail("argument %d: only letters, digits, blanks and -_./~=: are allowed", i);
    }
    return 0;
}

/* Where runc keeps its states: as said, else where containerd has this container. */
static void root_of(const struct call *call, char *out, size_t size)
{
    static const char base[] = "/run/containerd/runc";
    static const char *const below[] = {"", "/default", "/k8s.io"};
    for (size_t i = 0; i < 3 && !call->root; i++) {
        char folder[MAX_PATH];
        struct stat status;
        snprintf(folder, sizeof folder, "%s%s/%s", base, below[i], call->id);
        if (i == 2 || stat(folder, &status) == 0) {
            snprintf(out, size, "%s%s", base, below[i]);
            return;
        }
    }
    snprintf(out, size, "%s", call->root);
}

/* -- edits */

static int append_text(struct buf *spec, const char *const *path, const char *text)
{
    struct buf item = {0};
    buf_json(&item, text);
    int done = json_append(spec, path, item.at);
    buf_free(&item);
    return done;
}

/* LD_LIBRARY_PATH with the driver's folders in front: those on this host that it does not name yet. */
static int library_path(struct buf *spec, const struct env *env, const char *const *candidates)
{
    struct buf line = {0};
    struct stat status;
    const char *present = NULL;
    size_t index = 0;
    for (size_t i = env->count; i-- > 0 && !present;)
        if (!strncmp(env->line[i], "LD_LIBRARY_PATH=", 16))
            present = env->line[index = i] + 16;
    for (; *candidates; candidates++) {
        size_t len = strlen(*candidates);
        bool named = stat(*candidates, &status) < 0;
        for (const char *at = present; at && !named; at = strchr(at, ':') ? strchr(at, ':') + 1 : NULL)
            named = !strncmp(at, *candidates, len) && (at[len] == ':' || !at[len]);
        if (!named)
            buf_format(&line, "%s%s", line.len ? ":" : "LD_LIBRARY_PATH=", *candidates);
    }
    int done = 0;
    if (line.len && present) {
        struct buf item = {0};
        if (*present)
            buf_format(&line, ":%s", present);
        buf_json(&item, line.at);
        done = json_replace(spec, ENV, index, item.at);
        buf_free(&item);
    } else if (line.len) {
        done = append_text(spec, ENV, line.at);
    }
    buf_free(&line);
    return done;
}

static bool mounted(const struct json *doc, const char *destination)
{
    struct buf text = {0};
    bool found = false;
    int node = json_path(doc, MOUNTS);
    for (node = node < 0 ? -1 : doc->nodes[node].first; node >= 0 && !found; node = doc->nodes[node].next)
        found = json_string(doc, json_member(doc, node, "destination"), &text) == 0 && !strcmp(text.at, destination);
    buf_free(&text);
    return found;
}

static int bind(struct buf *spec, const char *path)
{
    struct json doc;
    struct buf item = {0};
    if (json_parse(&doc, spec->at, spec->len) < 0)
        return -1;
    bool there = mounted(&doc, path);
    json_free(&doc);
    if (there)
        return 0;
    buf_text(&item, "{\"destination\":");
    buf_json(&item, path);
    buf_text(&item, ",\"type\":\"bind\",\"source\":");
    buf_json(&item, path);
    buf_text(&item, ",\"options\":[" TABLE_BIND_OPTIONS "]}");
    int done = json_append(spec, MOUNTS, item.at);
    buf_free(&item);
    return done;
}

/* What every container gets. */
static int edit_everyone(struct buf *spec, const struct env *env, bool legacy)
{
    if (append_text(spec, ENV, "ASCEND_DOCKER_RUNTIME=True") < 0)
        return -1;
    if (legacy && library_path(spec, env, table_libraries) < 0)
        return -1;
    struct stat status;
    for (const char *const *path = table_sockets; env_has(env, "MOUNT_BY_RUNTIME_FOR_DP") && *path; path++)
        if (stat(*path, &status) == 0 && bind(spec, *path) < 0)
            return -1;
    return 0;
}

static int add_hook(struct buf *spec, const char *const *path, const char *program, const char *arguments, bool once)
{
    char folder[PATH_MAX], file[PATH_MAX + 64];
    struct json doc;
    struct buf item = {0}, text = {0};
    if (own_folder(folder, sizeof folder) < 0)
        return -1;
    snprintf(file, sizeof file, "%s/%s", strcmp(folder, "/") ? folder : "", program);
    if (trusted(file, false) < 0 || json_parse(&doc, spec->at, spec->len) < 0)
        return -1;
    int node = json_path(&doc, path), count = 0, done = 0;
    bool there = false;
    for (node = node < 0 ? -1 : doc.nodes[node].first; node >= 0; node = doc.nodes[node].next, count++)
        there |= once && json_string(&doc, json_member(&doc, node, "path"), &text) == 0 && strstr(text.at, program);
    json_free(&doc);
    if (count > MAX_ENTRIES)
        done = fail("more than %d hooks", MAX_ENTRIES);
    buf_text(&item, "{\"path\":");
    buf_json(&item, file);
    buf_text(&item, ",\"args\":[");
    buf_json(&item, file);
    buf_format(&item, "%s]}", arguments);
    if (done == 0 && !there)
        done = json_append(spec, path, item.at);
    buf_free(&item);
    buf_free(&text);
    return done;
}

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
        int done = json_replace(spec, ENV, i, quoted.at);
        buf_free(&quoted);
        buf_free(&item);
        return done;
    }
    return append_text(spec, ENV, OPTIONS "=VIRTUAL");
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
        return fail("ASCEND_VNPU_SPECS: '%.64s' is no vNPU template", template);
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
        if (bind(spec, i < mounts.files ? mounts.file[i] : mounts.folder[i - mounts.files]) < 0)
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
    return json_append(spec, DEVICES, grant.devices.at) < 0 ? -1 : json_append(spec, RULES, grant.rules.at);
}

static int edit_asking(struct buf *spec, struct env *env, struct ids *ids, struct vnpu *vnpu, bool cdi)
{
    bool virtual = strstr(env_first(env, OPTIONS), "VIRTUAL") != NULL;
    if (!cdi && add_hook(spec, PRESTART, HOOK, "", true) < 0)
        return -1;
    if (!virtual && split(env, ids, vnpu) < 0)
        return -1;
    if (vnpu->made) {
        char arguments[64];
        snprintf(arguments, sizeof arguments, ",\"%d\",\"%d\",\"%d\"", vnpu->place[0], vnpu->place[1], vnpu->place[2]);
        if (make_virtual(spec, env) < 0 || add_hook(spec, POSTSTOP, DESTROY, arguments, false) < 0)
            return -1;
        ids->at[0] = vnpu->place[2];
        virtual = true;
    }
    if (edit_nodes(spec, ids, virtual, cdi) < 0)
        return -1;
    if (!cdi)
        return 0;
    return edit_mounts(spec, env) < 0 ? -1 : library_path(spec, env, table_cdi_libraries);
}

static int write_spec(const char *file, const struct buf *spec, const struct buf *before)
{
    int fd = open(file, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return fail("%.400s: %s", file, strerror(errno));
    const struct buf *texts[] = {spec, before};
    int problem = 0;
    for (int attempt = 0; attempt < 2; attempt++) {
        size_t done = 0;
        int wrong = ftruncate(fd, 0) < 0 || lseek(fd, 0, SEEK_SET) < 0 ? errno : 0;
        while (!wrong && done < texts[attempt]->len) {
            ssize_t put = write(fd, texts[attempt]->at + done, texts[attempt]->len - done);
            if (put < 0 && errno != EINTR)
                wrong = errno;
            done += put > 0 ? (size_t)put : 0;
        }
        problem = attempt ? problem : wrong; /* a half-written file is worth nothing: the old text goes back */
        if (!problem)
            break;
    }
    close(fd);
    return problem ? fail("%.400s: %s", file, strerror(problem)) : 0;
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
        become_runc(call, runc);
        report(call);
        _exit(1);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    char root[MAX_PATH], state[2 * MAX_PATH];
    struct stat found;
    root_of(call, root, sizeof root);
    snprintf(state, sizeof state, "%s/%s/state.json", root, call->id);
    /* with a state, runc delete runs the destroy hook */
    if (code && stat(state, &found) < 0)
        undo(vnpu);
    return code;
}

static int give(const struct call *call, const char *file, struct buf *spec, struct env *env, const char *visible)
{
    struct ids ids;
    struct vnpu vnpu = {0};
    struct buf before = {0};
    char runc[PATH_MAX];
    buf_add(&before, spec->at, spec->len);
    bool cdi = cdi_mode();
    if (check_arguments(call) < 0 || trusted(file, true) < 0 || find_runc(runc) < 0 || trusted(runc, false) < 0)
        return -1;
    if (select_ids(visible, &ids) < 0)
        return fail_in(VISIBLE ": ");
    if (edit_asking(spec, env, &ids, &vnpu, cdi) < 0 || edit_everyone(spec, env, !cdi) < 0 || write_spec(file, spec, &before) < 0) {
        undo(&vnpu);
        return -1;
    }
    say("runtime", "INFO", "%.64s: " VISIBLE "=%.128s, %zu chips, %s", call->id, visible, ids.count, cdi ? "cdi" : "legacy");
    if (vnpu.made)
        return watch_runc(call, runc, &vnpu);
    become_runc(call, runc);
    return -1;
}

static int create(const struct call *call)
{
    char file[MAX_PATH], here[PATH_MAX];
    struct buf spec = {0}, before = {0};
    struct json doc = {0};
    struct env env = {0};
    const char *bundle = call->bundle && *call->bundle == '/' ? call->bundle : realpath(call->bundle ? call->bundle : ".", here);
    if (!bundle || (size_t)snprintf(file, sizeof file, "%s/config.json", bundle) >= sizeof file)
        return plain(call);
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read_file(fd, file, MAX_FILE, &spec) < 0)
        return plain(call); /* runc says what is wrong with its own file */
    close(fd);
    if (json_parse(&doc, spec.at, spec.len) < 0) {
        if (!memmem(spec.at, spec.len, VISIBLE, sizeof VISIBLE - 1))
            return plain(call);
        fail_in("%.300s:", file);
        report(call);
        return 1;
    }
    bool readable = env_read(&doc, &env) == 0;
    json_free(&doc);
    const char *visible = readable ? env_last(&env, VISIBLE) : "";
    if (*visible && strcmp(visible, "void")) {
        int code = give(call, file, &spec, &env, visible);
        if (code >= 0)
            return code;
        fail_in("container %.64s asks for NPUs: ", call->id);
        say("runtime", "ERROR", "%s", fault);
        report(call);
        return 1;
    }
    if (readable) {
        buf_add(&before, spec.at, spec.len);
        if (edit_everyone(&spec, &env, !cdi_mode()) == 0 && trusted(file, true) == 0)
            write_spec(file, &spec, &before);
    }
    return plain(call);
}

/* Belay's agent and NodeD name a folder only; engines, which make checkpoints of their own, name a work folder, too. */
static int checkpoint(const struct call *call)
{
    char runc[PATH_MAX], root[MAX_PATH];
    root_of(call, root, sizeof root);
    if (find_runc(runc) == 0 && trusted(runc, false) == 0 && check_arguments(call) == 0 &&
        snapshot_checkpoint(runc, root, call->id, call->image) == 0)
        return 0;
    fail_in("container %.64s: ", call->id);
    say("runtime", "ERROR", "%s", fault);
    report(call);
    return 1;
}

static int resume(const struct call *call)
{
    char runc[PATH_MAX], root[MAX_PATH];
    root_of(call, root, sizeof root);
    return find_runc(runc) == 0 && !snapshot_stands(runc, root, call->id) ? 0 : plain(call);
}

int role_runtime(int argc, char **argv)
{
    struct call call;
    int complete = read_call(argc, argv, &call);
    if (complete < 0 || !call.verb)
        return plain(&call); /* runc refuses an option without a value, too, and says so in its words */
    if (!strcmp(call.verb, "create"))
        return create(&call);
    if (!strcmp(call.verb, "checkpoint") && call.image && !call.work)
        return checkpoint(&call);
    if (!strcmp(call.verb, "resume"))
        return resume(&call);
    return plain(&call);
}
