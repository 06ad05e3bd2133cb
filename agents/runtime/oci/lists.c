/* Which paths of the host a container sees: the lists in /etc/ascend-docker-runtime.d. */
#include "runtime.h"
#include "tables.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_NAMES 128 /* characters of ASCEND_RUNTIME_MOUNTS */
#define MAX_LINES 128
#define UB_DRIVER "ub_driver"

static int put(struct mounts *out, const char *path, bool cdi)
{
    struct stat link, target;
    if (lstat(path, &link) < 0 || stat(path, &target) < 0)
        return 0;
    if (S_ISLNK(link.st_mode) && (link.st_uid || target.st_uid)) {
        say(cdi ? "runtime" : "hook", "WARN", "%s: link or target is not root's; left out", path);
        return 0;
    }
    bool folder = S_ISDIR(target.st_mode);
    if (!folder && !S_ISREG(target.st_mode))
        return 0;
    if ((folder ? out->folders : out->files) >= MAX_MOUNTS)
        return fail("more than %d %s to mount", MAX_MOUNTS, folder ? "folders" : "files");
    if (folder)
        out->folder[out->folders++] = copy_text(path);
    else
        out->file[out->files++] = copy_text(path);
    return 0;
}

static int visible(const struct dirent *entry) { return strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."); }

/* Matches in the pattern's own folder; one whose target lies elsewhere is left out. */
static int expand(struct mounts *out, const char *pattern)
{
    char folder[MAX_PATH], path[MAX_PATH + 256], real[PATH_MAX];
    const char *name = strrchr(pattern, '/') + 1;
    struct dirent **entry;
    size_t len = (size_t)(name - pattern);
    snprintf(folder, sizeof folder, "%.*s", (int)(len > 1 ? len - 1 : 1), pattern);
    int count = scandir(folder, &entry, visible, alphasort), done = 0;
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s%s%s", folder, len > 1 ? "/" : "", entry[i]->d_name);
        if (done == 0 && fnmatch(name, entry[i]->d_name, 0) == 0 && realpath(path, real)) {
            size_t above = (size_t)(strrchr(real, '/') - real);
            if (strlen(folder) == (above ? above : 1) && !strncmp(real, folder, above ? above : 1))
                done = put(out, path, false);
        }
        free(entry[i]);
    }
    if (count >= 0)
        free(entry);
    return done;
}

/* An absolute path without '.', '..' and doubled slashes; relative ones start in the working directory. */
static int absolute(const char *line, char *out, size_t size)
{
    char whole[2 * MAX_PATH], here[MAX_PATH] = "";
    if (*line != '/' && !getcwd(here, sizeof here))
        return fail("the working directory: %s", strerror(errno));
    if ((size_t)snprintf(whole, sizeof whole, "%s/%s", here, line) >= size)
        return fail("a path is longer than %zu characters", size);
    size_t len = 0;
    char *rest = whole, *part;
    while ((part = strsep(&rest, "/"))) {
        if (!*part || !strcmp(part, "."))
            continue;
        if (!strcmp(part, "..")) {
            while (len && out[--len] != '/') {}
            continue;
        }
        out[len++] = '/';
        memcpy(out + len, part, strlen(part));
        len += strlen(part);
    }
    if (!len)
        out[len++] = '/';
    out[len] = 0;
    return 0;
}

static int read_list(struct mounts *out, const char *name, int form)
{
    char file[MAX_PATH], path[MAX_PATH];
    struct buf text = {0};
    struct stat status;
    if (!*name || strchr(name, '/') || !plain_path(name))
        return fail("ASCEND_RUNTIME_MOUNTS: '%.64s' is not the name of a list", name);
    snprintf(file, sizeof file, TABLE_LISTS "/%s.list", name);
    if (form == LISTS_CDI && stat(file, &status) < 0 && errno == ENOENT) {
        say("runtime", "WARN", "%s is not there; its mounts are left out", file);
        return 0;
    }
    if (read_trusted(file, false, MAX_FILE, &text) < 0)
        return -1;
    int done = 0, lines = 0;
    char *rest = text.at, *line;
    if (text.len && text.at[text.len - 1] == '\n')
        text.at[text.len - 1] = 0;
    while (done == 0 && text.len && (line = strsep(&rest, "\n"))) {
        size_t len = strlen(line);
        if (len && line[len - 1] == '\r')
            line[--len] = 0;
        bool blank = strspn(line, " \t") == len;
        if (form == LISTS_CDI) {
            line += strspn(line, " \t");
            if (blank || *line == '#')
                continue;
        }
        if (++lines > MAX_LINES)
            done = fail("%s: too long, more than %d lines", file, MAX_LINES);
        else if (!blank) /* a blank line would mean the folder of the container */
            done = absolute(line, path, sizeof path);
        if (done == 0 && !blank)
            done = form == LISTS_LEGACY && strpbrk(path, "*?[") ? expand(out, path) : put(out, path, form == LISTS_CDI);
    }
    buf_free(&text);
    return done;
}

static int flag(const struct env *env, const char *name, bool *out)
{
    const char *value = env_first(env, name);
    *out = !strcmp(value, "True");
    return *out || !*value || !strcmp(value, "False") ? 0 : fail("%s: '%.64s' is neither True nor False", name, value);
}

int lists_read(struct mounts *out, const struct env *env, int form, bool *ub_driver)
{
    bool disabled;
    struct stat status;
    *out = (struct mounts){0};
    *ub_driver = false;
    if (flag(env, "DISABLE_UB_MOUNT", &disabled) < 0)
        return -1;
    const char *value = env_first(env, "ASCEND_RUNTIME_MOUNTS");
    char *copy = copy_text(!*value || strlen(value) > MAX_NAMES ? "base" : value), *rest = copy, *name;
    int done = 0;
    while (done == 0 && (name = strsep(&rest, ","))) {
        name += strspn(name, " \t\n\v\f\r");
        for (size_t len = strlen(name); len && isspace((unsigned char)name[len - 1]); len--)
            name[len - 1] = 0;
        if (form == LISTS_CDI && !*name)
            continue;
        for (char *c = name; *c && form == LISTS_LEGACY; c++)
            *c = (char)tolower((unsigned char)*c);
        done = read_list(out, name, form);
    }
    free(copy);
    if (done == 0 && !disabled && stat(TABLE_LISTS "/" UB_DRIVER ".list", &status) == 0) {
        *ub_driver = true;
        done = read_list(out, UB_DRIVER, form);
    }
    for (const char *const *path = table_always; done == 0 && *path; path++)
        done = put(out, *path, form == LISTS_CDI);
    return done;
}
