/* Edits of config.json. */
#include "runtime.h"
#include "tables.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const SPEC_PRESTART[] = {"hooks", "prestart", NULL}, *const SPEC_POSTSTOP[] = {"hooks", "poststop", NULL},
                  *const SPEC_ENV[] = {"process", "env", NULL}, *const SPEC_DEVICES[] = {"linux", "devices", NULL},
                  *const SPEC_RULES[] = {"linux", "resources", "devices", NULL}, *const SPEC_MOUNTS[] = {"mounts", NULL};

int spec_append(struct buf *spec, const char *const *path, const char *text)
{
    struct buf item = {0};
    buf_json(&item, text);
    int done = json_append(spec, path, item.at);
    buf_free(&item);
    return done;
}

/* LD_LIBRARY_PATH with the driver's folders in front: those on this host that it does not name yet. */
int spec_library_path(struct buf *spec, const struct env *env, const char *const *candidates)
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
        done = json_replace(spec, SPEC_ENV, index, item.at);
        buf_free(&item);
    } else if (line.len) {
        done = spec_append(spec, SPEC_ENV, line.at);
    }
    buf_free(&line);
    return done;
}

static bool mounted(const struct json *doc, const char *destination)
{
    struct buf text = {0};
    bool found = false;
    int node = json_path(doc, SPEC_MOUNTS);
    for (node = node < 0 ? -1 : doc->nodes[node].first; node >= 0 && !found; node = doc->nodes[node].next)
        found = json_string(doc, json_member(doc, node, "destination"), &text) == 0 && !strcmp(text.at, destination);
    buf_free(&text);
    return found;
}

int spec_bind(struct buf *spec, const char *path)
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
    int done = json_append(spec, SPEC_MOUNTS, item.at);
    buf_free(&item);
    return done;
}

/* What every container gets. */
int spec_everyone(struct buf *spec, const struct env *env, bool legacy)
{
    if (spec_append(spec, SPEC_ENV, "ASCEND_DOCKER_RUNTIME=True") < 0)
        return -1;
    if (legacy && spec_library_path(spec, env, table_libraries) < 0)
        return -1;
    struct stat status;
    for (const char *const *path = table_sockets; env_has(env, "MOUNT_BY_RUNTIME_FOR_DP") && *path; path++)
        if (stat(*path, &status) == 0 && spec_bind(spec, *path) < 0)
            return -1;
    return 0;
}

int spec_hook(struct buf *spec, const char *const *path, const char *program, const char *arguments, bool once)
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

int spec_write(const char *file, const struct buf *spec, const struct buf *before)
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
