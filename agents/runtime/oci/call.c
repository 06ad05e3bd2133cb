/* How the runtime was called, where runc is, and what is said when a container cannot be made. */
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

int call_find_runc(char *out)
{
    return find("docker-runc", out) || find("runc", out) ? 0 : fail("neither docker-runc nor runc is on PATH; install runc");
}

void call_become_runc(const struct call *call, const char *runc)
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
void call_report(const struct call *call)
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

int call_plain(const struct call *call)
{
    char runc[PATH_MAX];
    if (call_find_runc(runc) == 0)
        call_become_runc(call, runc);
    call_report(call);
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

int call_read(int argc, char **argv, struct call *out)
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

int call_check(const struct call *call)
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
void call_root(const struct call *call, char *out, size_t size)
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
