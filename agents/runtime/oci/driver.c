/* belay-oci-driver: the few calls of libdcmi.so that starting a container needs, in a program that is linked
 * dynamically, because the driver's libraries need the host's own libc.
 *
 *   identify              chip name, tab, product of the first chip that answers
 *   create PHY TEMPLATE   card, chip and vNPU made
 *   destroy CARD CHIP VNPU
 *
 * One line on stdout; on failure the reason, and exit code 1. Facts: component/ascend-docker-runtime/runtime/dcmi. */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tables.h"

/* A program linked here the usual way would ask for this machine's libc; hosts have any since 2.17. So: the old versions
 * of what has newer ones, stat without libc, and a start of our own (ld.so has made libc ready by then). */
#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov (%rsp), %edi\n\tlea 8(%rsp), %rsi\n\tand $-16, %rsp\n\tcall begin\n\thlt\n");
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
__asm__(".globl _start\n_start:\n\tmov x29, #0\n\tmov x30, #0\n\tldr w0, [sp]\n\tadd x1, sp, #8\n\tbl begin\n\tbrk #1\n");
#else
#error "an architecture that has no Ascend servers"
#endif
__asm__(".symver dlopen, dlopen@" OLDEST "\n.symver dlsym, dlsym@" OLDEST "\n.symver dlerror, dlerror@" OLDEST "\n");

static int status_of(const char *path, struct stat *out) { return (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, 0); }

#define MAX_CARDS 64
#define MAX_CHIPS 64
#define ANY 0xFFFFFFFFu
#define LIBRARY "libdcmi.so"

struct chip_info { uint8_t type[32], name[32], ver[32]; uint32_t aicores; };
struct chip_info_v2 { uint8_t type[32], name[32], ver[32]; uint32_t aicores; uint8_t npu_name[32]; };
struct create_vdev { uint32_t vdev, vfg; char name[32]; uint8_t rsv[64]; };
struct created_vdev { uint32_t vdev, bus, device, func, vfg; uint8_t rsv[32]; };

_Static_assert(sizeof(struct chip_info_v2) == 132, "dcmi_chip_info_v2");
_Static_assert(sizeof(struct create_vdev) == 104, "dcmi_create_vdev_res_stru");
_Static_assert(sizeof(struct created_vdev) == 52, "dcmi_create_vdev_out");

static void *library;
static FILE *answer; /* what the driver itself prints goes elsewhere */

static int bad(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int bad(const char *format, ...)
{
    char text[600];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(answer, "%s\n", text);
    return 1;
}

/* 1 when the file and every folder above belong to root and nobody else may write them (sticky folders excepted). */
static int trusted(char *path)
{
    struct stat status;
    for (int first = 1;; first = 0) {
        if (status_of(path, &status) < 0 || status.st_uid || (status.st_mode & 022 && (first || !(status.st_mode & S_ISVTX))))
            return 0;
        char *slash = strrchr(path, '/');
        if (!slash || !strcmp(path, "/"))
            return 1;
        slash[slash == path] = 0;
    }
}

static int load(const char *folder, size_t len, char *tried, size_t size)
{
    char file[PATH_MAX], real[PATH_MAX], walked[PATH_MAX];
    if (!len || (size_t)snprintf(file, sizeof file, "%.*s/" LIBRARY, (int)len, folder) >= sizeof file || !realpath(file, real))
        return 0;
    strcpy(walked, real);
    if (!trusted(walked)) {
        snprintf(tried, size, "%s: file or folder is not root's alone", file);
        return 0;
    }
    library = dlopen(real, RTLD_LAZY | RTLD_GLOBAL);
    if (!library)
        snprintf(tried, size, "%.200s", dlerror());
    return library != NULL;
}

static int load_cached(char *tried, size_t size)
{
    char line[PATH_MAX];
    FILE *cache = access("/sbin/ldconfig", X_OK) == 0 ? popen("/sbin/ldconfig -p 2>/dev/null", "r") : NULL;
    int found = 0;
    while (cache && !found && fgets(line, sizeof line, cache)) {
        char *name = line + strspn(line, " \t"), *arrow = strstr(line, " => ");
        if (!arrow || strncmp(name, LIBRARY " ", sizeof LIBRARY))
            continue;
        char *slash = strrchr(arrow + 4, '/');
        found = slash && load(arrow + 4, (size_t)(slash - arrow - 4), tried, size);
    }
    if (cache)
        pclose(cache);
    return found;
}

static int open_library(void)
{
    char tried[300] = LIBRARY " was found nowhere; is the NPU driver installed?";
    const char *path = getenv("LD_LIBRARY_PATH");
    for (; path && *path; path += strcspn(path, ":") + (path[strcspn(path, ":")] == ':'))
        if (load(path, strcspn(path, ":"), tried, sizeof tried))
            return 0;
    for (const char *const *folder = table_driver_folders; *folder; folder++)
        if (load(*folder, strlen(*folder), tried, sizeof tried))
            return 0;
    return load_cached(tried, sizeof tried) ? 0 : bad("%s", tried);
}

/* A call by name; -99998 is the driver bindings' own code for a function that the library lacks. */
#define CALL(name, types, ...)                                                                     \
    ({                                                                                             \
        int (*function) types;                                                                     \
        *(void **)&function = dlsym(library, name);                                                \
        function ? function(__VA_ARGS__) : -99998;                                                 \
    })

static void show(const uint8_t *name, const char *product)
{
    char text[33];
    memcpy(text, name, 32);
    text[32] = 0;
    fprintf(answer, "%s\t%s\n", text, product);
}

static int identify_v2(void)
{
    int chips[MAX_CHIPS], count = 0, code = CALL("dcmiv2_get_device_list", (int *, int *, int), chips, &count, MAX_CHIPS);
    for (int i = 0; code == 0 && i < count && i < MAX_CHIPS; i++) {
        struct chip_info_v2 info = {0};
        if ((code = CALL("dcmiv2_get_device_chip_info", (int, struct chip_info_v2 *), chips[i], &info)) == 0)
            return show(info.name, ""), 0;
        code = i + 1 < count ? 0 : code;
    }
    return bad("no chip says its name (%d)", code);
}

static int chip_name(int card, int device, uint8_t name[32])
{
    struct chip_info_v2 newer = {0};
    struct chip_info older = {0};
    int code = CALL("dcmi_get_device_chip_info_v2", (int, int, struct chip_info_v2 *), card, device, &newer);
    memcpy(name, newer.name, 32);
    if (code) {
        code = CALL("dcmi_get_device_chip_info", (int, int, struct chip_info *), card, device, &older);
        memcpy(name, older.name, 32);
    }
    return code;
}

static int identify_v1(void)
{
    int cards[MAX_CARDS], count = 0, code = CALL("dcmi_get_card_list", (int *, int *, int), &count, cards, MAX_CARDS);
    for (int i = 0; i < count && i < MAX_CARDS && code == 0; i++) {
        int chips = 0;
        if (CALL("dcmi_get_device_num_in_card", (int, int *), cards[i], &chips))
            continue;
        for (int chip = 0; chip < chips && chip < MAX_CHIPS; chip++) {
            uint8_t name[32];
            char product[65] = "";
            if (chip_name(cards[i], chip, name))
                continue;
            /* a driver without this call has none of the products that it tells apart */
            if (CALL("dcmi_get_product_type", (int, int, char *, int), cards[i], chip, product, 64))
                product[0] = 0;
            return show(name, product), 0;
        }
    }
    return bad("no chip of %d cards says its name (%d)", count, code);
}

static int create(int v2, char *phy, const char *template)
{
    unsigned logic = 0;
    int card = 0, device = 0, code;
    if (v2)
        return bad("this driver cannot split chips (its interface is the second generation)");
    if ((code = CALL("dcmi_get_device_logicid_from_phyid", (unsigned, unsigned *), (unsigned)atoi(phy), &logic)))
        return bad("no chip %s (%d)", phy, code);
    if ((code = CALL("dcmi_get_card_id_device_id_from_logicid", (int *, int *, unsigned), &card, &device, logic)))
        return bad("chip %s has no card (%d)", phy, code);
    struct create_vdev wanted = {.vdev = ANY, .vfg = ANY};
    struct created_vdev made = {0};
    if (strlen(template) >= sizeof wanted.name)
        return bad("template '%.40s' is too long", template);
    strcpy(wanted.name, template);
    if ((code = CALL("dcmi_create_vdevice", (int, int, struct create_vdev *, struct created_vdev *), card, device, &wanted, &made)))
        return bad("chip %s: no vNPU of template %s could be made (%d)", phy, template, code);
    fprintf(answer, "%d %d %u\n", card, device, made.vdev);
    return 0;
}

static int destroy(int v2, const char *card, const char *device, const char *vdev)
{
    int code = v2 ? -8255 : CALL("dcmi_set_destroy_vdevice", (int, int, unsigned), atoi(card), atoi(device), (unsigned)atoi(vdev));
    return code ? bad("vNPU %s of card %s chip %s could not be destroyed (%d)", vdev, card, device, code) : 0;
}

static int work(int argc, char **argv)
{
    int kept = dup(1);
    if (kept < 0 || dup2(2, 1) < 0 || !(answer = fdopen(kept, "w")))
        return 1;
    const char *verb = argc > 1 ? argv[1] : "";
    int wanted = !strcmp(verb, "identify") ? 2 : !strcmp(verb, "create") ? 4 : !strcmp(verb, "destroy") ? 5 : 0;
    if (!wanted || argc != wanted)
        return bad("want identify, create PHY TEMPLATE or destroy CARD CHIP VNPU");
    if (open_library())
        return 1;
    int code = CALL("dcmi_init", (void), ), v2 = 0;
    if (code) {
        int newer = CALL("dcmiv2_init", (void), );
        if (newer)
            return bad("the driver does not start (%d)", newer == -99998 ? code : newer);
        v2 = 1;
    }
    code = wanted == 2 ? v2 ? identify_v2() : identify_v1() : wanted == 4 ? create(v2, argv[2], argv[3]) : destroy(v2, argv[2], argv[3], argv[4]);
    return code;
}

__attribute__((noreturn, used)) void begin(int argc, char **argv)
{
    int code = work(argc, argv);
    if (answer)
        fflush(answer);
    _exit(code); /* what the driver does at exit may hang */
}
