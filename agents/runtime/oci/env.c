/* The variables by which a container asks for NPUs: component/ascend-docker-runtime/runtime/process/process.go. */
#include "runtime.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANGE 128
#define MAX_IDS 65536
#define MAX_OPTIONS 128

int env_read(const struct json *spec, struct env *out)
{
    static const char *const process[] = {"process", NULL}, *const lines[] = {"process", "env", NULL};
    int node = json_path(spec, process);
    *out = (struct env){0};
    if (node < 0 || spec->nodes[node].kind != JSON_OBJECT)
        return fail("process is missing");
    node = json_path(spec, lines);
    if (node < 0 || spec->nodes[node].kind == JSON_NULL)
        return 0;
    if (spec->nodes[node].kind != JSON_ARRAY)
        return fail("process.env is not an array");
    struct buf text = {0};
    for (int line = spec->nodes[node].first; line >= 0; line = spec->nodes[line].next) {
        if (json_string(spec, line, &text) < 0)
            return fail("process.env[%zu] is not a line of text", out->count);
        if (out->count >= MAX_ENTRIES)
            return fail("process.env has more than %d lines", MAX_ENTRIES);
        out->line = want(realloc(out->line, (out->count + 1) * sizeof *out->line));
        out->line[out->count++] = copy_text(text.at);
    }
    buf_free(&text);
    return 0;
}

/* The value when `line` sets `name`; NULL otherwise. `*broken` when the line sets nothing, which ends a search. */
static const char *sets(const char *line, const char *name, bool *broken)
{
    const char *equals = strchr(line, '=');
    *broken = !equals;
    return equals && (size_t)(equals - line) == strlen(name) && !strncmp(line, name, strlen(name)) ? equals + 1 : NULL;
}

const char *env_first(const struct env *env, const char *name)
{
    bool broken = false;
    for (size_t i = 0; i < env->count && !broken; i++) {
        const char *value = sets(env->line[i], name, &broken);
        if (value)
            return value;
    }
    return "";
}

const char *env_last(const struct env *env, const char *name)
{
    bool broken = false;
    for (size_t i = env->count; i-- > 0 && !broken;) {
        const char *value = sets(env->line[i], name, &broken);
        if (value)
            return value;
    }
    return "";
}

const char *env_single(const struct env *env, const char *name)
{
    for (size_t i = 0; i < env->count; i++) {
        bool broken;
        const char *value = sets(env->line[i], name, &broken);
        if (value && !strchr(value, '='))
            return value;
    }
    return "";
}

bool env_has(const struct env *env, const char *name)
{
    bool broken;
    for (size_t i = 0; i < env->count; i++)
        if (sets(env->line[i], name, &broken))
            return true;
    return false;
}

/* -- ASCEND_VISIBLE_DEVICES */

static char *trimmed(char *text)
{
    text += strspn(text, " \t\n\v\f\r");
    for (size_t len = strlen(text); len && strchr(" \t\n\v\f\r", text[len - 1]); len--)
        text[len - 1] = 0;
    return text;
}

/* An integer as Go's Atoi reads it: an optional sign and digits, nothing else. */
static bool integer(const char *text, long *out)
{
    const char *first = text + (*text == '+' || *text == '-');
    if (!*first || strspn(first, "0123456789") != strlen(first))
        return false;
    errno = 0;
    *out = strtol(text, NULL, 10);
    return errno == 0;
}

static int put(struct ids *out, long id)
{
    if (out->count >= MAX_IDS)
        return fail("more than %d ids", MAX_IDS);
    if (out->count % 64 == 0)
        out->at = want(realloc(out->at, (out->count + 64) * sizeof *out->at));
    out->at[out->count++] = id;
    return 0;
}

static int by_number(char *item, struct ids *out)
{
    long left, right;
    char *dash = strchr(item, '-');
    if (!dash) {
        if (!integer(item, &left))
            return fail("'%.64s' is not a chip; want N, L-R or Ascend910-N", item);
        return put(out, left);
    }
    *dash = 0;
    char *high = trimmed(dash + 1), *low = trimmed(item);
    if (strchr(high, '-'))
        return fail("'%.32s-%.32s' is not a range; want exactly two borders", low, high);
    if (!integer(low, &left) || left < 0 || !integer(high, &right) || right > MAX_RANGE)
        return fail("'%.32s-%.32s' is not a range; borders are integers from 0 to %d", low, high, MAX_RANGE);
    if (left > right)
        return fail("the range %ld-%ld runs backwards", left, right);
    for (; left <= right; left++)
        if (put(out, left) < 0)
            return -1;
    return 0;
}

static int by_name(const char *item, struct ids *out)
{
    static const char *const kinds[] = {"Ascend910-", "Ascend310B-", "Ascend310P-", "Ascend310-", "npu-"};
    long id;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *digits = item + strlen(kinds[i]);
        if (!strncmp(item, kinds[i], strlen(kinds[i])) && *digits >= '0' && *digits <= '9' && integer(digits, &id))
            return put(out, id);
    }
    return fail("'%.64s' is not a chip; want Ascend910-N, Ascend310-N, Ascend310B-N, Ascend310P-N or npu-N", item);
}

static int ascending(const void *a, const void *b)
{
    long left = *(const long *)a, right = *(const long *)b;
    return (left > right) - (left < right);
}

int select_ids(const char *value, struct ids *out)
{
    *out = (struct ids){0};
    if (!*value || !strcmp(value, "void"))
        return 0;
    bool names = strstr(value, "Ascend") || strstr(value, "npu");
    char *copy = copy_text(value), *rest = copy, *item;
    int done = 0;
    while (done == 0 && (item = strsep(&rest, ",")))
        done = names ? by_name(trimmed(item), out) : by_number(trimmed(item), out);
    free(copy);
    if (done < 0)
        return -1;
    qsort(out->at, out->count, sizeof *out->at, ascending);
    size_t kept = 0;
    for (size_t i = 0; i < out->count; i++)
        if (!i || out->at[i] != out->at[kept - 1])
            out->at[kept++] = out->at[i];
    out->count = kept;
    return 0;
}

/* -- ASCEND_RUNTIME_OPTIONS as the hook reads it */

int options_read(const struct env *env, bool *no_driver, bool *virtual)
{
    const char *value = env_first(env, "ASCEND_RUNTIME_OPTIONS");
    *no_driver = *virtual = false;
    if (!*value)
        return 0;
    if (strlen(value) > MAX_OPTIONS)
        return fail("ASCEND_RUNTIME_OPTIONS is longer than %d characters", MAX_OPTIONS);
    char *copy = copy_text(value), *rest = copy, *item;
    int done = 0;
    while (done == 0 && (item = strsep(&rest, ","))) {
        item = trimmed(item);
        if (!strcmp(item, "NODRV"))
            *no_driver = true;
        else if (!strcmp(item, "VIRTUAL"))
            *virtual = true;
        else
            done = fail("ASCEND_RUNTIME_OPTIONS: '%.64s' is neither NODRV nor VIRTUAL", item);
    }
    free(copy);
    return done;
}
