/* What the program makes of an input, for operators and tests: nothing on the host changes.
 *
 *   belay-check json             a document from stdin, read and written anew
 *   belay-check devices VALUE    the chips that ASCEND_VISIBLE_DEVICES=VALUE selects */
#include "runtime.h"

#include <stdio.h>
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
    int done = argc == 2 && !strcmp(argv[1], "json")      ? check_json()
               : argc == 3 && !strcmp(argv[1], "devices") ? check_devices(argv[2])
                                                          : fail("want json or devices VALUE");
    if (done < 0)
        fprintf(stderr, "belay-oci-runtime check: %s\n", fault);
    return done < 0 ? 1 : 0;
}
