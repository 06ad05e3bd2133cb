/* Made from policies/runtime and policies/vnpu by `python -m belay.agents.runtime.tables`; do not edit. */
#ifndef BELAY_TABLES_H
#define BELAY_TABLES_H

#include <stdbool.h>
#include <stddef.h>

#define TABLE_LISTS "/etc/ascend-docker-runtime.d"
#define TABLE_CHIP "/dev/davinci"
#define TABLE_VIRTUAL "/dev/vdavinci"
#define TABLE_ACCESS "rwm"
#define TABLE_BIND_OPTIONS "\"rbind\",\"rprivate\",\"ro\""

struct table_family {
    const char *text;
    bool prefix;
    const char *optional[24], *renamed[8], *mandatory[8], *common[8];
};

/* each file that includes this uses some of it */
#define TABLE static const __attribute__((unused))

TABLE struct table_family table_families[] = {
    {.text = "310B", .prefix = false, .optional = {"/dev/dvpp_cmdlist", "/dev/svm0", "/dev/ts_aisle", "/dev/upgrade", "/dev/sys", "/dev/vdec", "/dev/vpc", "/dev/pngd", "/dev/venc", "/dev/log_drv", "/dev/acodec", "/dev/ai", "/dev/ao", "/dev/vo", "/dev/hdmi", NULL}, .renamed = {"/dev/davinci_manager_docker", "/dev/davinci_manager", "/dev/davinci_manager", "/dev/davinci_manager", NULL}, .mandatory = {NULL}, .common = {NULL}},
    {.text = "310P", .prefix = false, .optional = {"/dev/dvpp_cmdlist", NULL}, .renamed = {NULL}, .mandatory = {"/dev/davinci_manager", NULL}, .common = {"/dev/devmm_svm", "/dev/hisi_hdc", NULL}},
    {.text = "Ascend950", .prefix = true, .optional = {NULL}, .renamed = {NULL}, .mandatory = {"/dev/davinci_manager", NULL}, .common = {"/dev/hisi_hdc", NULL}},
    {.text = "310", .prefix = false, .optional = {"/dev/dvpp_cmdlist", NULL}, .renamed = {NULL}, .mandatory = {"/dev/davinci_manager", NULL}, .common = {"/dev/devmm_svm", "/dev/hisi_hdc", NULL}},
    {.text = "910", .prefix = false, .optional = {"/dev/dvpp_cmdlist", NULL}, .renamed = {NULL}, .mandatory = {"/dev/davinci_manager", NULL}, .common = {"/dev/devmm_svm", "/dev/hisi_hdc", NULL}},
};

#define TABLE_UNKNOWN {.text = "", .prefix = false, .optional = {NULL}, .renamed = {NULL}, .mandatory = {"/dev/davinci_manager", NULL}, .common = {"/dev/devmm_svm", "/dev/hisi_hdc", NULL}}

TABLE char *const table_folders[] = {"/dev/uburma", "/dev/ummu", NULL};
TABLE char *const table_modest_products[] = {"Atlas 200I SoC A1", "Atlas 200 Model 3000", NULL};
TABLE char *const table_libraries[] = {"/usr/local/Ascend/driver/lib64/common", "/usr/local/Ascend/driver/lib64/driver", "/usr/lib64", NULL};
TABLE char *const table_cdi_libraries[] = {"/usr/local/Ascend/driver/lib64/common", "/usr/local/Ascend/driver/lib64/driver", NULL};
TABLE char *const table_driver_folders[] = {"/usr/local/dcmi", "/usr/local/Ascend/driver/lib64/driver", "/usr/lib64", NULL};
TABLE char *const table_always[] = {"/etc/hccl_rootinfo.json", "/usr/local/Ascend/driver/topo", NULL};
TABLE char *const table_sockets[] = {"/run/docker.sock", "/run/docker", "/run/containerd", "/var/run/crio/crio.sock", NULL};
TABLE char *const table_templates[] = {"vir01", "vir02", "vir02_1c", "vir03_1c_8g", "vir04", "vir04_3c", "vir04_3c_ndvpp", "vir04_4c_dvpp", "vir05_1c_16g", "vir05_1c_8g", "vir06_1c_16g", "vir08", "vir10_3c_16g", "vir10_3c_16g_nm", "vir10_3c_32g", "vir10_4c_16g_m", "vir12_3c_32g", "vir16", NULL};

#endif
