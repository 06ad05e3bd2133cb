/* What the program makes of an input, for operators and tests.
 *
 *   belay-check json             a document from stdin, read and written anew
 *   belay-check documents        many of them, each after a line with its length; so are the answers, -1: no JSON
 *   belay-check append PATH ITEMS   the document from stdin with items appended to the array at a.b.c
 *   belay-check devices VALUE    the chips that ASCEND_VISIBLE_DEVICES=VALUE selects
 *   belay-check layer FOLDER     a layer from stdin, applied to FOLDER: the one verb that writes */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_json(void)
{
    struct buf text = {0}, out = {0};
    struct json doc;
    if (read_file(0, "stdin", MAX_FILE, &text) < 0 || json_parse(&doc, text.at, text.len) < 0)
        return -1;
    json_print(&doc, 0, &out);
    fwrite(out.at, 1, out.len, stdout);
    json_free(&doc);
    buf_free(&text);
    buf_free(&out);
    return 0;
}

static int check_documents(void)
{
    struct buf text = {0}, out = {0};
    struct json doc;
    if (read_file(0, "stdin", MAX_FILE, &text) < 0)
        return -1;
    for (size_t at = 0; at < text.len;) {
        char *end;
        unsigned long len = strtoul(text.at + at, &end, 10);
        at = (size_t)(end - text.at) + 1;
        if (*end != '\n' || len > text.len - at)
            return fail("want a line with a length and as many bytes");
        out.len = 0;
        if (json_parse(&doc, text.at + at, len) < 0) {
            printf("-1\n");
        } else {
            json_print(&doc, 0, &out);
            printf("%zu\n", out.len);
            fwrite(out.at, 1, out.len, stdout);
            json_free(&doc);
        }
        at += len;
    }
    buf_free(&text);
    buf_free(&out);
    return 0;
}

static int check_append(char *dotted, const char *items)
{
    struct buf text = {0};
    const char *path[16] = {NULL};
    for (size_t i = 0; dotted && i < 15; i++)
        path[i] = strsep(&dotted, ".");
    if (read_file(0, "stdin", MAX_FILE, &text) < 0 || json_append(&text, path, items) < 0)
        return -1;
    fwrite(text.at, 1, text.len, stdout);
    buf_free(&text);
    return 0;
}

static int check_devices(const char *value)
{
    struct ids ids;
    if (select_ids(value, &ids) < 0)
        return -1;
    for (size_t i = 0; i < ids.count; i++)
        printf("%s%ld", i ? "," : "", ids.at[i]);
    printf("\n");
    return 0;
}

int role_check(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    int done = argc == 2 && !strcmp(verb, "json")        ? check_json()
               : argc == 2 && !strcmp(verb, "documents") ? check_documents()
               : argc == 4 && !strcmp(verb, "append")    ? check_append(argv[2], argv[3])
               : argc == 3 && !strcmp(verb, "devices")   ? check_devices(argv[2])
                                                         : argc == 3 && !strcmp(verb, "layer")     ? untar(0, argv[2], false)
                                                         : fail("want json, documents, append PATH ITEMS, devices VALUE or layer FOLDER");
    if (done < 0)
        fprintf(stderr, "belay-oci-runtime check: %s\n", fault);
    return done < 0 ? 1 : 0;
}
