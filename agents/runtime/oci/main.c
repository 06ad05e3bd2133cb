/* Which role: by the name the program is called by, or by the first argument (belay-hook, belay-mount, …). */
#include "runtime.h"

#include <stdio.h>
#include <string.h>

static bool called(const char *name, const char *theirs, const char *ours) { return !strcmp(name, theirs) || !strcmp(name, ours); }

int main(int argc, char **argv)
{
    if (argc < 1)
        return 1;
    const char *slash = strrchr(argv[0], '/'), *name = slash ? slash + 1 : argv[0];
    if (argc > 1 && !strncmp(argv[1], "belay-", 6)) {
        name = argv[1];
        argc--, argv++;
    }
    if (called(name, "ascend-docker-hook", "belay-hook"))
        return role_hook();
    if (called(name, "ascend-docker-destroy", "belay-destroy"))
        return role_destroy(argc, argv);
    if (called(name, "belay-check", "belay-oci-check"))
        return role_check(argc, argv);
    if (!called(name, "ascend-docker-cli", "belay-mount"))
        return role_runtime(argc, argv);
    int code = role_mount(argc, argv);
    if (code)
        fprintf(stderr, "belay-oci-runtime mount: %s\n", fault);
    return code;
}
