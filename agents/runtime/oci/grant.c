/* Device nodes of the host as entries of linux.devices and linux.resources.devices. */
#include "runtime.h"
#include "tables.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

static int add_node(struct grant *out, const char *host, const char *inside)
{
    struct stat status;
    if (lstat(host, &status) < 0)
        return fail("%.300s: %s", host, strerror(errno));
    const char *type = S_ISCHR(status.st_mode) ? "c" : S_ISBLK(status.st_mode) ? "b" : S_ISFIFO(status.st_mode) ? "p" : NULL;
    if (!type)
        return fail("%.300s: is not a device node", host);
    const char *comma = out->devices.len ? "," : "";
    buf_format(&out->devices, "%s{\"path\":", comma);
    buf_json(&out->devices, inside);
    buf_format(&out->devices, ",\"type\":\"%s\",\"major\":%u,\"minor\":%u,\"fileMode\":%u,\"uid\":%u,\"gid\":%u}", type,
               major(status.st_rdev), minor(status.st_rdev), status.st_mode & ~S_IFMT, status.st_uid, status.st_gid);
    buf_format(&out->rules, "%s{\"allow\":true,\"type\":\"%s\",\"major\":%u,\"minor\":%u,\"access\":\"" TABLE_ACCESS "\"}", comma,
               type, major(status.st_rdev), minor(status.st_rdev));
    return 0;
}

static void add_if_there(struct grant *out, const char *node)
{
    if (add_node(out, node, node) == 0)
        return;
    out->warnings++;
    say("runtime", "WARN", "left out: %s", fault);
}

static int visible(const struct dirent *entry) { return strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."); }

static int add_folder(struct grant *out, const char *folder)
{
    struct dirent **entry;
    struct stat status;
    int count = scandir(folder, &entry, visible, alphasort), done = 0;
    if (count < 0)
        return errno == ENOENT ? 0 : fail("%s: %s", folder, strerror(errno));
    for (int i = 0; i < count; i++) {
        char path[MAX_PATH];
        snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);
        if (done == 0 && !(lstat(path, &status) == 0 && S_ISDIR(status.st_mode)))
            done = add_node(out, path, path);
        free(entry[i]);
    }
    free(entry);
    return done;
}

int grant_chips(struct grant *out, const struct ids *ids, bool virtual)
{
    for (size_t i = 0; i < ids->count; i++) {
        char host[64], inside[64];
        snprintf(host, sizeof host, "%s%ld", virtual ? TABLE_VIRTUAL : TABLE_CHIP, ids->at[i]);
        snprintf(inside, sizeof inside, "%s%ld", TABLE_CHIP, ids->at[i]);
        if (add_node(out, host, inside) < 0)
            return -1;
    }
    return 0;
}

static const struct table_family *family_of(const char *name)
{
    static const struct table_family unknown = TABLE_UNKNOWN;
    for (size_t i = 0; i < sizeof table_families / sizeof *table_families; i++) {
        const struct table_family *it = &table_families[i];
        if (it->prefix ? !strncmp(name, it->text, strlen(it->text)) : strstr(name, it->text) != NULL)
            return it;
    }
    return &unknown;
}

static bool listed(const char *const *list, const char *name)
{
    for (; *list; list++)
        if (!strcmp(*list, name))
            return true;
    return false;
}

int grant_managers(struct grant *out, const struct chip *chip)
{
    const struct table_family *family = family_of(chip->name);
    for (const char *const *folder = table_folders; *folder; folder++)
        if (add_folder(out, *folder) < 0)
            return -1;
    for (const char *const *node = family->optional; *node; node++)
        add_if_there(out, *node);
    for (const char *const *pair = family->renamed; *pair; pair += 2) {
        /* the first that is there takes the name inside */
        struct stat status;
        bool last = !pair[2] || strcmp(pair[1], pair[3]);
        if (!last && stat(pair[0], &status) < 0)
            continue;
        if (add_node(out, pair[0], pair[1]) < 0)
            return -1;
        while (pair[2] && !strcmp(pair[1], pair[3]))
            pair += 2;
    }
    for (const char *const *node = family->mandatory; *node; node++)
        if (add_node(out, *node, *node) < 0)
            return -1;
    if (listed(table_modest_products, chip->product))
        return 0;
    for (const char *const *node = family->common; *node; node++)
        if (add_node(out, *node, *node) < 0)
            return -1;
    return 0;
}
