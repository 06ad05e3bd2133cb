/* The stand-in's functions: what dcmi_interface_api.h declares, answered from the mapped state. See dcmi_standin.h. */
#define _GNU_SOURCE
#include "dcmi_standin.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define OK 0
#define BAD_PARAMETER (-8001)
#define NO_MEMORY (-8003)
#define INTERNAL (-8005)
#define BAD_ID (-8007)
#define NOT_READY (-8012)
#define RESET_FAILED (-8015)
#define BUSY (-8020)
#define NOT_SUPPORTED (-8255)
#define ANY_ID 0xFFFFFFFFu

/* ---- layouts of the interface */

struct chip_info { uint8_t type[32], name[32], ver[32]; uint32_t aicores; };
struct chip_info_v2 { uint8_t type[32], name[32], ver[32]; uint32_t aicores; uint8_t npu_name[32]; };
struct board_info { uint32_t board, pcb, bom, slot; };
struct elabel { char product[256], model[256], manufacturer[256], date[256], serial[256]; };
struct pcie_info { uint32_t vendor, subvendor, device, subdevice; int32_t domain; uint32_t bus, dev, func; uint8_t rsv[32]; };
struct die_id { uint32_t word[5]; };
struct ecc_info { int32_t enable; uint32_t count[8]; };
struct hbm_info { uint64_t size; uint32_t freq; uint64_t usage; int32_t temp; uint32_t bandwidth; };
struct memory_v3 { uint64_t size, available; uint32_t freq; unsigned long huge, total, freep; uint32_t used; uint8_t rsv[60]; };
struct memory { uint64_t size; uint32_t freq, used; };
struct multi { uint32_t cube, vector, core, overall, rsv[8]; };
struct ip_addr { uint8_t address[16]; int32_t type; };
struct proc_mem { int32_t pid; unsigned long bytes; };
struct pcie_bw { int32_t ms; uint32_t value[7][3]; };
struct hccs { uint32_t count[4][16], rsv[64]; };
struct hccs64 { uint64_t count[4][16], rsv[64]; };
struct hccs_bw { int32_t ms; double tx, rx, txs[16], rxs[16]; };
struct sio { uint16_t tx, rx; uint8_t rsv[8]; };
struct spod { uint32_t sdid, scale, pod, server, chassis, type, rsv[6]; };
struct base_res { uint64_t token, token_max, timeout; uint32_t vfg; uint8_t vip, rsv[31]; };
struct compute { float aic, aiv; uint16_t small[8]; uint64_t memory; uint32_t ids[4]; uint16_t cpus[5]; uint32_t used; uint64_t total, freem; uint8_t rsv[12]; };
struct media { float part[6]; uint8_t rsv[32]; };
struct create_vdev { uint32_t vdev, vfg; char name[32]; uint8_t rsv[64]; };
struct created_vdev { uint32_t vdev, bus, device, func, vfg; uint8_t rsv[32]; };
struct vdev_info { char name[16]; uint32_t status, used, vfid, vfg; uint64_t container; struct base_res base; struct compute compute; struct media media; };
struct vdev_query { uint32_t vdev; struct vdev_info info; };
struct soc_free { uint32_t vfg_num, vfg_bitmap; struct base_res base; struct compute compute; struct media media; };
struct soc_total { uint32_t num, ids[32], vfg_num, vfg_bitmap; struct base_res base; struct compute compute; struct media media; };
struct dms { uint32_t id; uint16_t device; uint8_t node, node_id, sub, sub_id, severity, assertion; int32_t serial, notify; uint64_t raised; char name[256], info[32]; uint8_t rsv[32]; };
struct event { int32_t type; struct dms dms; };
struct filter { uint64_t flag; uint32_t id; uint8_t severity, node, rsv[32]; };
struct ub_port { int32_t die, port; };
struct ping_operate { char list[1024]; int32_t size, count, interval, timeout, period, task; };
struct ping_info { char target[48][16]; uint32_t ok[48], lost[48]; long max[48], min[48], avg[48], tp95[48]; int32_t replies[48]; uint64_t total[48]; int32_t count; };
struct port_pkt { int32_t mode; uint64_t count[48], rsv[16]; };

_Static_assert(sizeof(struct elabel) == 1280, "elabel_info");
_Static_assert(sizeof(struct hbm_info) == 32, "hbm_info");
_Static_assert(sizeof(struct memory_v3) == 112, "get_memory_info");
_Static_assert(sizeof(struct pcie_bw) == 88, "pcie_link_bandwidth_info");
_Static_assert(sizeof(struct compute) == 96, "computing_resource");
_Static_assert(sizeof(struct vdev_query) == 264, "vdev_query_stru");
_Static_assert(sizeof(struct soc_total) == 360, "soc_total_resource");
_Static_assert(sizeof(struct soc_free) == 224, "soc_free_resource");
_Static_assert(sizeof(struct event) == 360, "event");
_Static_assert(sizeof(struct filter) == 48, "event_filter");
_Static_assert(sizeof(struct hccs_bw) == 280, "hccs_bandwidth_info");

/* ---- the state */

static struct sim_state *state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

uint32_t belay_sim_state_size(void) { return sizeof(struct sim_state); }
uint32_t belay_sim_chip_size(void) { return sizeof(struct sim_chip); }

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int map_state(void)
{
    if (state)
        return OK;
    const char *path = getenv("BELAY_SIM_DCMI_STATE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    struct stat st;
    if (fd < 0)
        return NOT_READY;
    if (fstat(fd, &st) || (size_t)st.st_size < sizeof *state) {
        close(fd);
        return NOT_READY;
    }
    void *at = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED)
        return NO_MEMORY;
    if (((struct sim_state *)at)->magic != SIM_MAGIC || ((struct sim_state *)at)->size != sizeof *state) {
        munmap(at, sizeof *state);
        return INTERNAL;
    }
    state = at;
    return OK;
}

/* what a script wants this call to do; waits outside the lock, so that a hang is this call's alone */
static int scripted(const char *name, int phy)
{
    uint32_t delay = 0;
    int result = OK;
    pthread_mutex_lock(&lock);
    for (int i = 0; state && i < SIM_OVERRIDES; i++) {
        struct sim_override *o = &state->overrides[i];
        if (!o->remaining || strncmp(o->name, name, sizeof o->name) || (o->phy >= 0 && o->phy != phy))
            continue;
        if (o->remaining > 0)
            o->remaining--;
        delay = o->delay_ms;
        result = o->result;
        break;
    }
    pthread_mutex_unlock(&lock);
    if (delay) {
        struct timespec t = {delay / 1000, (long)(delay % 1000) * 1000000};
        nanosleep(&t, NULL);
    }
    return result;
}

static struct sim_chip *find(int card, int device)
{
    for (uint32_t i = 0; state && i < state->chips; i++) {
        struct sim_chip *c = &state->chip[i];
        if (state->v2 ? c->logic == device : (c->card == card && c->device == device))
            return c;
    }
    return NULL;
}

/* resets end by the clock */
static void settle(struct sim_chip *c)
{
    if (c->boot_at_ms && now_ms() >= c->boot_at_ms) {
        c->boot_at_ms = 0;
        c->boot = 16;
        if (!c->sticky) {
            c->code_count = 0;
            c->health = 0;
            c->dropped = 0;
            c->network = 0;
        }
    }
}

static int enter(const char *name, int card, int device, struct sim_chip **chip)
{
    if (!state)
        return NOT_READY;
    struct sim_chip *c = find(card, device);
    int code = scripted(name, c ? c->phy : -1);
    if (code)
        return code;
    if (!c)
        return BAD_ID;
    settle(c);
    *chip = c;
    return c->dropped ? NOT_READY : OK;
}

#define CHIP(name) \
    struct sim_chip *c = NULL; \
    int code = enter(name, card, device, &c); \
    if (code) \
        return code

static void copy(void *to, const char *from, size_t size)
{
    memset(to, 0, size);
    memcpy(to, from, strnlen(from, size - 1));
}

static int start(uint32_t v2, const char *name)
{
    int code = map_state();
    if (code)
        return code;
    if (state->v2 != v2)
        return NOT_SUPPORTED;
    return scripted(name, -1);
}

int dcmi_init(void) { return start(0, "dcmi_init"); }
int dcmiv2_init(void) { return start(1, "dcmiv2_init"); }

/* ---- who is there */

int dcmi_get_card_list(int *num, int *list, int len)
{
    if (!state)
        return NOT_READY;
    int code = scripted("dcmi_get_card_list", -1), n = 0;
    if (code)
        return code;
    for (uint32_t i = 0; i < state->chips; i++) {
        int card = state->chip[i].card, known = 0;
        for (int k = 0; k < n; k++)
            known |= list[k] == card;
        if (!known && n < len)
            list[n++] = card;
    }
    *num = n;
    return OK;
}

int dcmi_get_card_num_list(int *num, int *list, int len) { return dcmi_get_card_list(num, list, len); }

int dcmi_get_device_num_in_card(int card, int *num)
{
    int n = 0;
    for (uint32_t i = 0; state && i < state->chips; i++)
        n += state->chip[i].card == card;
    *num = n;
    return n ? OK : BAD_ID;
}

int dcmi_get_device_id_in_card(int card, int *max, int *mcu, int *cpu)
{
    *mcu = *cpu = -1;
    return dcmi_get_device_num_in_card(card, max);
}

int dcmi_get_device_type(int card, int device, int *type)
{
    *type = 0;
    return find(card, device) ? OK : BAD_ID;
}

int dcmi_get_device_logic_id(int *logic, int card, int device)
{
    struct sim_chip *c = find(card, device);
    if (!c)
        return BAD_ID;
    *logic = c->logic;
    return OK;
}

static struct sim_chip *by(uint32_t id, int phy)
{
    for (uint32_t i = 0; state && i < state->chips; i++)
        if ((uint32_t)(phy ? state->chip[i].phy : state->chip[i].logic) == id)
            return &state->chip[i];
    return NULL;
}

int dcmi_get_device_phyid_from_logicid(uint32_t logic, uint32_t *phy)
{
    struct sim_chip *c = by(logic, 0);
    if (!c)
        return BAD_ID;
    *phy = c->phy;
    return OK;
}

int dcmi_get_device_logicid_from_phyid(uint32_t phy, uint32_t *logic)
{
    struct sim_chip *c = by(phy, 1);
    if (!c)
        return BAD_ID;
    *logic = c->logic;
    return OK;
}

int dcmi_get_card_id_device_id_from_logicid(int *card, int *device, uint32_t logic)
{
    struct sim_chip *c = by(logic, 0);
    if (!c)
        return BAD_ID;
    *card = c->card;
    *device = c->device;
    return OK;
}

int dcmi_get_card_id_device_id_from_phyid(int *card, int *device, uint32_t phy)
{
    struct sim_chip *c = by(phy, 1);
    if (!c)
        return BAD_ID;
    *card = c->card;
    *device = c->device;
    return OK;
}

/* ---- what it is */

int dcmi_get_device_chip_info_v2(int card, int device, struct chip_info_v2 *out)
{
    CHIP("dcmi_get_device_chip_info_v2");
    memset(out, 0, sizeof *out);
    copy(out->type, state->chip_type, 32);
    copy(out->name, state->chip_name, 32);
    copy(out->ver, "V1", 32);
    copy(out->npu_name, state->npu_name, 32);
    out->aicores = state->aicores;
    return OK;
}

int dcmi_get_device_chip_info(int card, int device, struct chip_info *out)
{
    CHIP("dcmi_get_device_chip_info");
    memset(out, 0, sizeof *out);
    copy(out->type, state->chip_type, 32);
    copy(out->name, state->chip_name, 32);
    copy(out->ver, "V1", 32);
    out->aicores = state->aicores;
    return OK;
}

int dcmi_get_product_type(int card, int device, char *out, int size)
{
    CHIP("dcmi_get_product_type");
    if (size < 1)
        return BAD_PARAMETER;
    copy(out, state->product, size < 64 ? size : 64);
    return OK;
}

int dcmi_get_device_board_info(int card, int device, struct board_info *out)
{
    CHIP("dcmi_get_device_board_info");
    *out = (struct board_info){state->board, 1, 1, (uint32_t)c->card};
    return OK;
}

int dcmi_get_mainboard_id(int card, int device, uint32_t *out)
{
    CHIP("dcmi_get_mainboard_id");
    *out = state->mainboard;
    return OK;
}

int dcmi_get_card_elabel_v2(int card, struct elabel *out)
{
    for (uint32_t i = 0; state && i < state->chips; i++)
        if (state->chip[i].card == card) {
            int code = scripted("dcmi_get_card_elabel_v2", state->chip[i].phy);
            if (code)
                return code;
            memset(out, 0, sizeof *out);
            copy(out->product, state->product, 64);
            copy(out->manufacturer, "Belay", 64);
            copy(out->serial, state->chip[i].serial, 64);
            return OK;
        }
    return BAD_ID;
}

int dcmi_get_dcmi_version(char *out, int size)
{
    if (!state || size < 1)
        return state ? BAD_PARAMETER : NOT_READY;
    copy(out, state->version, size < 32 ? size : 32);
    return OK;
}

int dcmi_get_device_pcie_info_v2(int card, int device, struct pcie_info *out)
{
    CHIP("dcmi_get_device_pcie_info_v2");
    memset(out, 0, sizeof *out);
    out->vendor = 0x19e5;
    out->device = 0xd802;
    out->bus = 0x10 + c->phy;
    return OK;
}

int dcmi_get_device_die_v2(int card, int device, int kind, struct die_id *out)
{
    CHIP("dcmi_get_device_die_v2");
    if (kind < 0 || kind > 2)
        return BAD_PARAMETER;
    memcpy(out->word, c->die[kind], sizeof out->word);
    return OK;
}

int dcmi_get_device_ip(int card, int device, int port, int id, struct ip_addr *ip, struct ip_addr *mask)
{
    CHIP("dcmi_get_device_ip");
    (void)id;
    if (port != 1 || ip->type != 0 || !(c->ip[0] | c->ip[1] | c->ip[2] | c->ip[3]))
        return NOT_SUPPORTED;
    memset(ip->address, 0, 16);
    memcpy(ip->address, c->ip, 4);
    memset(mask->address, 0, 16);
    memset(mask->address, 255, 3);
    return OK;
}

int dcmi_get_npu_work_mode(int card, uint8_t *mode)
{
    (void)card;
    *mode = 0;
    return state ? OK : NOT_READY;
}

int dcmi_get_affinity_cpu_info_by_device_id(int card, int device, char *out, int *length)
{
    CHIP("dcmi_get_affinity_cpu_info_by_device_id");
    /* callers of the real one pass 0: there the length is an output only, and the buffer has 128 bytes or more */
    copy(out, "0-1", *length >= 4 ? *length : 4);
    *length = 3;
    return OK;
}

int dcmi_get_netdev_brother_device(int card, int device, int *out)
{
    CHIP("dcmi_get_netdev_brother_device");
    if (c->brother < 0)
        return NOT_SUPPORTED;
    *out = c->brother;
    return OK;
}

/* ---- how it is */

int dcmi_get_device_health(int card, int device, uint32_t *out)
{
    CHIP("dcmi_get_device_health");
    *out = c->health ? c->health : (c->code_count ? 1 : 0);
    return OK;
}

int dcmi_get_device_errorcode_v2(int card, int device, int *count, uint32_t *list, uint32_t len)
{
    CHIP("dcmi_get_device_errorcode_v2");
    uint32_t n = c->code_count < len ? c->code_count : len;
    for (uint32_t i = 0; i < n; i++)
        list[i] = c->codes[i];
    *count = (int)n;
    return OK;
}

int dcmi_get_device_errorcode(int card, int device, int *count, uint32_t *list, int *width)
{
    *width = 4;
    return dcmi_get_device_errorcode_v2(card, device, count, list, SIM_CODES);
}

int dcmi_get_device_network_health(int card, int device, int *out)
{
    CHIP("dcmi_get_device_network_health");
    *out = c->network;
    return OK;
}

int dcmi_get_device_temperature(int card, int device, int *out)
{
    CHIP("dcmi_get_device_temperature");
    *out = c->temperature;
    return OK;
}

int dcmi_get_device_power_info(int card, int device, int *out)
{
    CHIP("dcmi_get_device_power_info");
    *out = c->power;
    return OK;
}

int dcmi_mcu_get_power_info(int card, int *out)
{
    int sum = 0, n = 0;
    for (uint32_t i = 0; state && i < state->chips; i++)
        if (state->chip[i].card == card) {
            sum += state->chip[i].power;
            n++;
        }
    *out = sum;
    return n ? OK : BAD_ID;
}

int dcmi_get_device_voltage(int card, int device, uint32_t *out)
{
    CHIP("dcmi_get_device_voltage");
    *out = c->voltage;
    return OK;
}

int dcmi_get_device_frequency(int card, int device, int kind, uint32_t *out)
{
    CHIP("dcmi_get_device_frequency");
    if (kind < 0 || kind > 15)
        return BAD_PARAMETER;
    *out = c->frequency[kind];
    return OK;
}

int dcmi_get_device_utilization_rate(int card, int device, int kind, uint32_t *out)
{
    CHIP("dcmi_get_device_utilization_rate");
    if (kind < 0 || kind > 15)
        return BAD_PARAMETER;
    *out = c->utilisation[kind];
    return OK;
}

int dcmi_get_device_multi_utilization_rate(int card, int device, struct multi *out)
{
    CHIP("dcmi_get_device_multi_utilization_rate");
    *out = (struct multi){c->utilisation[14], c->utilisation[12], c->utilisation[2], c->utilisation[13], {0}};
    return OK;
}

int dcmi_get_device_multi_utilization_rate_period(int card, int device, struct multi *out, int seconds)
{
    CHIP("dcmi_get_device_multi_utilization_rate_period");
    (void)seconds;
    *out = (struct multi){c->utilisation[14], c->utilisation[12], c->utilisation[2], c->utilisation[13], {0}};
    return OK;
}

int dcmi_get_device_hbm_info(int card, int device, struct hbm_info *out)
{
    CHIP("dcmi_get_device_hbm_info");
    if (!c->hbm_total)
        return NOT_SUPPORTED;
    *out = (struct hbm_info){c->hbm_total, c->hbm_frequency, c->hbm_used, c->hbm_temperature, c->hbm_bandwidth};
    return OK;
}

int dcmi_get_device_memory_info_v3(int card, int device, struct memory_v3 *out)
{
    CHIP("dcmi_get_device_memory_info_v3");
    if (!c->ddr_total)
        return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->size = c->ddr_total;
    out->available = c->ddr_free;
    out->freq = c->frequency[1];
    out->used = (uint32_t)((c->ddr_total - c->ddr_free) * 100 / c->ddr_total);
    return OK;
}

int dcmi_get_memory_info(int card, int device, struct memory *out)
{
    CHIP("dcmi_get_memory_info");
    if (!c->ddr_total)
        return NOT_SUPPORTED;
    *out = (struct memory){c->ddr_total, c->frequency[1], (uint32_t)((c->ddr_total - c->ddr_free) * 100 / c->ddr_total)};
    return OK;
}

int dcmi_get_device_ecc_info(int card, int device, int kind, struct ecc_info *out)
{
    CHIP("dcmi_get_device_ecc_info");
    if (kind < 0 || kind > 3)
        return BAD_PARAMETER;
    out->enable = 1;
    memcpy(out->count, c->ecc[kind], sizeof out->count);
    return OK;
}

int dcmi_get_device_resource_info(int card, int device, struct proc_mem *out, int *num)
{
    CHIP("dcmi_get_device_resource_info");
    int room = *num > 0 && *num < SIM_PROCESSES ? *num : SIM_PROCESSES;
    int n = (int)c->process_count < room ? (int)c->process_count : room;
    for (int i = 0; i < n; i++)
        out[i] = (struct proc_mem){c->processes[i].pid, (unsigned long)c->processes[i].bytes};
    *num = n;
    return OK;
}

int dcmi_get_device_boot_status(int card, int device, int *out)
{
    struct sim_chip *c = NULL;
    int code = enter("dcmi_get_device_boot_status", card, device, &c);
    if (code && !(c && code == NOT_READY && c->dropped))
        return code;
    *out = c->boot;
    return OK;
}

int dcmi_get_pcie_link_bandwidth_info(int card, int device, struct pcie_bw *out)
{
    CHIP("dcmi_get_pcie_link_bandwidth_info");
    for (int i = 0; i < 7; i++)
        for (int k = 0; k < 3; k++)
            out->value[i][k] = 100u * (i + 1) + k;
    return OK;
}

int dcmi_get_hccs_link_bandwidth_info(int card, int device, struct hccs_bw *out)
{
    CHIP("dcmi_get_hccs_link_bandwidth_info");
    out->tx = out->rx = 0;
    for (int i = 0; i < 16; i++) {
        out->txs[i] = out->rxs[i] = i < 8 ? 1.5 : 0;
        out->tx += out->txs[i];
        out->rx += out->rxs[i];
    }
    return OK;
}

static int die_policy; /* of this process */

int dcmi_get_multi_die_policy(int *out)
{
    *out = die_policy;
    return state ? OK : NOT_READY;
}

int dcmi_set_multi_die_policy(int policy)
{
    if (policy != 0 && policy != 1)
        return BAD_PARAMETER;
    die_policy = policy;
    return OK;
}

/* pings and super-pod states live as long as the process that asked for them; a chip whose network is bad loses all */
static uint32_t spod_status[SIM_CHIPS][64][2];
static struct ping_operate pings[SIM_CHIPS][2];

static uint32_t *spod_of(struct sim_chip *c, uint32_t sdid)
{
    uint32_t (*known)[2] = spod_status[c - state->chip];
    for (int i = 0; i < 64; i++)
        if (known[i][0] == sdid + 1 || !known[i][0]) {
            known[i][0] = sdid + 1;
            return &known[i][1];
        }
    return NULL;
}

int dcmi_get_spod_node_status(int card, int device, uint32_t sdid, uint32_t *out)
{
    CHIP("dcmi_get_spod_node_status");
    uint32_t *found = spod_of(c, sdid);
    if (!found)
        return NO_MEMORY;
    *out = *found;
    return OK;
}

int dcmi_set_spod_node_status(int card, int device, uint32_t sdid, uint32_t value)
{
    CHIP("dcmi_set_spod_node_status");
    uint32_t *found = spod_of(c, sdid);
    if (!found)
        return NO_MEMORY;
    *found = value;
    return value > 1 ? BAD_PARAMETER : OK;
}

int dcmi_start_hccsping_mesh(int card, int device, int port, struct ping_operate *wanted)
{
    CHIP("dcmi_start_hccsping_mesh");
    if (port || wanted->task < 0 || wanted->task > 1 || !wanted->list[0] || wanted->size < 1792 || wanted->size > 3000 ||
        wanted->count < 1 || wanted->count > 1000 || wanted->interval < 1 || wanted->interval > 1000 ||
        wanted->period < 1 || wanted->period > 60)
        return BAD_PARAMETER;
    pings[c - state->chip][wanted->task] = *wanted;
    return OK;
}

int dcmi_stop_hccsping_mesh(int card, int device, int port, uint32_t task)
{
    CHIP("dcmi_stop_hccsping_mesh");
    if (port || task > 1)
        return BAD_PARAMETER;
    memset(&pings[c - state->chip][task], 0, sizeof pings[0][0]);
    return OK;
}

int dcmi_get_hccsping_mesh_state(int card, int device, int port, uint32_t task, uint32_t *out)
{
    CHIP("dcmi_get_hccsping_mesh_state");
    if (port || task > 1)
        return BAD_PARAMETER;
    *out = pings[c - state->chip][task].list[0] != 0;
    return OK;
}

int dcmi_get_hccsping_mesh_info(int card, int device, int port, uint32_t task, struct ping_info *out)
{
    CHIP("dcmi_get_hccsping_mesh_info");
    if (port || task > 1)
        return BAD_PARAMETER;
    struct ping_operate *running = &pings[c - state->chip][task];
    memset(out, 0, sizeof *out);
    char list[1024], *save = NULL;
    memcpy(list, running->list, sizeof list);
    for (char *one = strtok_r(list, ",", &save); one && out->count < 48; one = strtok_r(NULL, ",", &save)) {
        int n = out->count++, lost = c->network != 0;
        strncpy(out->target[n], one, 15);
        out->ok[n] = lost ? 0 : running->count;
        out->lost[n] = lost ? running->count : 0;
        out->max[n] = lost ? -1 : 90;
        out->min[n] = lost ? -1 : 10;
        out->avg[n] = lost ? -1 : 40;
        out->tp95[n] = lost ? -1 : 80;
        out->replies[n] = 1;
        out->total[n] = running->count;
    }
    return OK;
}

/* ---- Ascend950: EIDs, and pings between them */

struct eid_info { uint64_t eid[2]; uint32_t index; };
struct ub_operate { uint8_t source[16], target[64][16]; int32_t count, size, number, interval, timeout, period, task; };
struct ub_info { uint8_t source[16], target[64][16]; uint32_t ok[48], lost[48]; long max[48], min[48], avg[48], tp95[48]; int32_t replies[48]; uint64_t total[48]; int32_t count; unsigned long when; };
_Static_assert(sizeof(struct eid_info) == 24 && sizeof(struct ub_operate) == 1068 && sizeof(struct ub_info) == 3552, "UB");

#define UB_PINGS 32
static struct ub_operate ub_pings[SIM_CHIPS][2][UB_PINGS];
static int ub_count[SIM_CHIPS][2];

int dcmi_get_urma_device_cnt(int card, int device, uint32_t *out)
{
    CHIP("dcmi_get_urma_device_cnt");
    *out = c->urma_count;
    return strncmp(state->chip_name, "Ascend950", 9) ? NOT_SUPPORTED : OK;
}

int dcmi_get_eid_list_by_urma_dev_index(int card, int device, uint32_t index, struct eid_info *out, uint32_t *count)
{
    CHIP("dcmi_get_eid_list_by_urma_dev_index");
    if (index >= c->urma_count || index >= SIM_URMA || *count < c->eid_count[index])
        return BAD_PARAMETER;
    *count = c->eid_count[index];
    for (uint32_t i = 0; i < *count && i < SIM_EIDS; i++) {
        memcpy(out[i].eid, c->eid[index][i], 16);
        out[i].index = i;
    }
    return OK;
}

int dcmi_start_ub_ping_mesh(int card, int device, int count, struct ub_operate *wanted)
{
    CHIP("dcmi_start_ub_ping_mesh");
    if (strncmp(state->chip_name, "Ascend950", 9))
        return NOT_SUPPORTED;
    if (count < 1 || count > UB_PINGS)
        return BAD_PARAMETER;
    for (int i = 0; i < count; i++)
        if (wanted[i].task != wanted[0].task || wanted[i].task < 0 || wanted[i].task > 1 || wanted[i].count < 1 || wanted[i].count > 48 ||
            wanted[i].size < 1792 || wanted[i].size > 3000 || wanted[i].period < 1 || wanted[i].period > 60)
            return BAD_PARAMETER;
    memcpy(ub_pings[c - state->chip][wanted->task], wanted, (size_t)count * sizeof *wanted);
    ub_count[c - state->chip][wanted->task] = count;
    return OK;
}

int dcmi_stop_ub_ping_mesh(int card, int device, int task)
{
    CHIP("dcmi_stop_ub_ping_mesh");
    if (task < 0 || task > 1)
        return BAD_PARAMETER;
    ub_count[c - state->chip][task] = 0;
    return OK;
}

int dcmi_get_ub_ping_mesh_state(int card, int device, int task, uint32_t *out)
{
    CHIP("dcmi_get_ub_ping_mesh_state");
    if (strncmp(state->chip_name, "Ascend950", 9))
        return NOT_SUPPORTED;
    if (task < 0 || task > 1)
        return BAD_PARAMETER;
    *out = ub_count[c - state->chip][task] != 0;
    return OK;
}

int dcmi_get_ub_ping_mesh_info(int card, int device, int task, struct ub_info *out, int room, int *count)
{
    CHIP("dcmi_get_ub_ping_mesh_info");
    if (task < 0 || task > 1)
        return BAD_PARAMETER;
    int found = ub_count[c - state->chip][task], lost = c->network != 0;
    for (*count = 0; *count < found && *count < room; ++*count) {
        struct ub_operate *running = &ub_pings[c - state->chip][task][*count];
        struct ub_info *one = &out[*count];
        memset(one, 0, sizeof *one);
        memcpy(one->source, running->source, 16);
        memcpy(one->target, running->target, sizeof one->target);
        one->count = running->count;
        for (int n = 0; n < one->count; n++) {
            one->ok[n] = lost ? 0 : (uint32_t)running->number;
            one->lost[n] = lost ? (uint32_t)running->number : 0;
            one->max[n] = lost ? -1 : 90;
            one->min[n] = lost ? -1 : 10;
            one->avg[n] = lost ? -1 : 40;
            one->tp95[n] = lost ? -1 : 80;
            one->replies[n] = 1;
            one->total[n] = (uint64_t)running->number;
        }
    }
    return OK;
}

static float cores_of(const char *name, uint32_t *memory)
{
    for (int i = 0; i < SIM_TEMPLATES; i++)
        if (state->templates[i].name[0] && !strncmp(state->templates[i].name, name, 31)) {
            *memory = state->templates[i].memory;
            return state->templates[i].cores;
        }
    return -1;
}

/* The vGroup of a new vNPU: 310P chips have four, of which two vNPUs of one core share one by time slices. */
static uint32_t group_for(const struct sim_chip *c, float cores)
{
    float taken[4] = {0};
    uint32_t memory = 0;
    if (!strstr(state->chip_name, "310P"))
        return ANY_ID;
    for (int i = 0; i < SIM_VDEVS; i++)
        if (c->vdevs[i].id && c->vdevs[i].group < 4)
            taken[c->vdevs[i].group] += cores_of(c->vdevs[i].name, &memory);
    for (uint32_t group = 0; group < 4; group++)
        if (cores == 1 && taken[group] == 1)
            return group;
    for (uint32_t group = 0; group < 4; group++)
        if (taken[group] == 0)
            return group;
    return ANY_ID;
}

int dcmi_get_device_info(int card, int device, int main_cmd, uint32_t sub, void *buffer, uint32_t *size)
{
    CHIP("dcmi_get_device_info");
    if (main_cmd == 12 && sub == 1 && *size >= sizeof(struct spod)) {
        struct spod *out = buffer;
        memset(out, 0, sizeof *out);
        out->sdid = c->sdid;
        out->pod = state->super_pod_id;
        out->server = state->server_id;
        out->chassis = state->chassis_id;
        out->type = state->super_pod_type;
        out->scale = state->scale_type;
        return OK;
    }
    if (main_cmd == 16 && sub == 5 && *size >= sizeof(struct hccs64)) {
        memset(buffer, 0, sizeof(struct hccs64));
        memcpy(buffer, c->hccs, sizeof c->hccs);
        return OK;
    }
    if (main_cmd == 16 && sub == 3 && *size >= sizeof(struct hccs)) {
        struct hccs *out = buffer;
        memset(out, 0, sizeof *out);
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 16; k++)
                out->count[i][k] = (uint32_t)c->hccs[i][k];
        return OK;
    }
    if (main_cmd == 56 && sub == 0 && *size >= sizeof(struct sio)) {
        struct sio *out = buffer;
        memset(out, 0, sizeof *out);
        out->tx = (uint16_t)c->sio_tx;
        out->rx = (uint16_t)c->sio_rx;
        return OK;
    }
    if (main_cmd == 52 && sub == 1 && *size >= sizeof(struct soc_total)) {
        struct soc_total *out = buffer;
        memset(out, 0, sizeof *out);
        for (int i = 0; i < SIM_VDEVS; i++)
            if (c->vdevs[i].id)
                out->ids[out->num++] = c->vdevs[i].id;
        out->compute.aic = state->cores_per_chip;
        out->compute.memory = state->memory_per_chip;
        return OK;
    }
    if (main_cmd == 52 && sub == 2 && *size >= sizeof(struct soc_free)) {
        struct soc_free *out = buffer;
        memset(out, 0, sizeof *out);
        float left = state->cores_per_chip;
        uint32_t memory = state->memory_per_chip, part = 0;
        for (int i = 0; i < SIM_VDEVS; i++)
            if (c->vdevs[i].id) {
                left -= cores_of(c->vdevs[i].name, &part);
                memory -= part;
            }
        out->compute.aic = left;
        out->compute.memory = memory;
        return OK;
    }
    if (main_cmd == 52 && (sub == 0 || sub == 5) && *size >= sizeof(struct vdev_query)) {
        struct vdev_query *out = buffer;
        for (int i = 0; i < SIM_VDEVS; i++)
            if (c->vdevs[i].id == out->vdev) {
                uint32_t memory = 0;
                memset(&out->info, 0, sizeof out->info);
                copy(out->info.name, c->vdevs[i].name, 16);
                out->info.used = c->vdevs[i].used;
                out->info.vfg = c->vdevs[i].group;
                out->info.compute.aic = cores_of(c->vdevs[i].name, &memory);
                out->info.compute.total = memory;
                out->info.compute.freem = memory;
                return OK;
            }
        return BAD_ID;
    }
    return NOT_SUPPORTED;
}

/* ---- what can be done to it */

int dcmi_create_vdevice(int card, int device, struct create_vdev *wanted, struct created_vdev *made)
{
    CHIP("dcmi_create_vdevice");
    uint32_t memory = 0, used_memory = 0, part = 0;
    float cores = cores_of(wanted->name, &memory), used = 0;
    int slot = -1;
    if (cores < 0)
        return BAD_PARAMETER;
    for (int i = 0; i < SIM_VDEVS; i++) {
        if (!c->vdevs[i].id) {
            slot = slot < 0 ? i : slot;
            continue;
        }
        used += cores_of(c->vdevs[i].name, &part);
        used_memory += part;
    }
    if (slot < 0 || used + cores > state->cores_per_chip || used_memory + memory > state->memory_per_chip)
        return -8022;
    if (c->process_count)
        return BUSY;
    c->vdevs[slot].group = wanted->vfg == ANY_ID ? group_for(c, cores) : wanted->vfg;
    c->vdevs[slot].id = wanted->vdev == ANY_ID ? (uint32_t)(c->phy * 16 + 100 + slot) : wanted->vdev;
    c->vdevs[slot].used = 0;
    copy(c->vdevs[slot].name, wanted->name, 32);
    memset(made, 0, sizeof *made);
    made->vdev = c->vdevs[slot].id;
    made->vfg = c->vdevs[slot].group;
    return OK;
}

int dcmi_set_destroy_vdevice(int card, int device, uint32_t vdev)
{
    CHIP("dcmi_set_destroy_vdevice");
    for (int i = 0; i < SIM_VDEVS; i++)
        if (c->vdevs[i].id && (c->vdevs[i].id == vdev || vdev == 65535)) {
            if (c->vdevs[i].used)
                return BUSY;
            c->vdevs[i].id = 0;
            if (vdev != 65535)
                return OK;
        }
    return vdev == 65535 ? OK : BAD_ID;
}

static int together(struct sim_chip *a, struct sim_chip *b)
{
    if (state->reset_group)
        return a->phy / (int)state->reset_group == b->phy / (int)state->reset_group;
    return a->card == b->card || b->card == a->brother;
}

int dcmi_set_device_reset(int card, int device, int channel)
{
    struct sim_chip *c = NULL;
    int code = enter("dcmi_set_device_reset", card, device, &c);
    if (code && !(c && c->dropped && code == NOT_READY))
        return code;
    if (channel == 0 && !c->outband)
        return NOT_SUPPORTED;
    for (uint32_t i = 0; i < state->chips; i++)
        if (together(c, &state->chip[i]) && state->chip[i].process_count)
            return BUSY;
    if (c->reset_fails) {
        c->reset_fails--;
        return RESET_FAILED;
    }
    for (uint32_t i = 0; i < state->chips; i++)
        if (together(c, &state->chip[i])) {
            state->chip[i].boot = 0;
            state->chip[i].resets++;
            state->chip[i].boot_at_ms = now_ms() + state->reset_ms;
        }
    return OK;
}

int dcmi_get_device_outband_channel_state(int card, int device, int *out)
{
    struct sim_chip *c = NULL;
    int code = enter("dcmi_get_device_outband_channel_state", card, device, &c);
    if (code && !(c && c->dropped))
        return code;
    *out = (int)c->outband;
    return OK;
}

int dcmi_pre_reset_soc(int card, int device)
{
    struct sim_chip *c = NULL;
    int code = enter("dcmi_pre_reset_soc", card, device, &c);
    return code && !(c && c->dropped) ? code : OK;
}

int dcmi_rescan_soc(int card, int device)
{
    struct sim_chip *c = NULL;
    int code = enter("dcmi_rescan_soc", card, device, &c);
    return code && !(c && c->dropped) ? code : OK;
}

/* ---- events: a thread sleeps until one is written, as with a real driver, and calls back */

static void (*heard)(struct event *);
static uint64_t heard_from; /* what is raised after the subscription returns is told, however late the thread runs */

static void *listen(void *unused)
{
    uint64_t read = heard_from;
    (void)unused;
    for (;;) {
        uint32_t seen = (uint32_t)state->events_written;
        while (read < state->events_written) {
            struct sim_event *e = &state->events[read % SIM_EVENTS];
            struct event out;
            memset(&out, 0, sizeof out);
            out.dms.id = e->code;
            out.dms.device = e->logic;
            out.dms.severity = e->severity;
            out.dms.assertion = e->assertion;
            out.dms.serial = e->serial;
            out.dms.raised = now_ms();
            copy(out.dms.name, "stand-in", 32);
            read++;
            heard(&out);
        }
        /* looking now and then would be measured as the work of the program that listens */
        syscall(SYS_futex, &state->events_written, FUTEX_WAIT, seen, NULL, NULL, 0);
    }
    return NULL;
}

int dcmi_subscribe_fault_event(int card, int device, struct filter filter, void (*callback)(struct event *))
{
    pthread_t thread;
    (void)card;
    (void)device;
    (void)filter;
    if (!state)
        return NOT_READY;
    int code = scripted("dcmi_subscribe_fault_event", -1);
    if (code)
        return code;
    if (heard)
        return BUSY;
    heard = callback;
    heard_from = state->events_written;
    if (pthread_create(&thread, NULL, listen, NULL))
        return INTERNAL;
    pthread_detach(thread);
    return OK;
}

/* ---- the second generation: one id instead of card and device */

int dcmiv2_get_device_list(int *list, int *num, int len)
{
    int n = 0;
    for (uint32_t i = 0; state && i < state->chips && n < len; i++)
        list[n++] = state->chip[i].logic;
    *num = n;
    return state ? OK : NOT_READY;
}

int dcmiv2_get_all_device_count(int *num) { *num = state ? (int)state->chips : 0; return state ? OK : NOT_READY; }
int dcmiv2_get_chip_phy_id_by_dev_id(uint32_t id, uint32_t *phy) { return dcmi_get_device_phyid_from_logicid(id, phy); }
int dcmiv2_get_dev_id_by_chip_phy_id(uint32_t phy, uint32_t *id) { return dcmi_get_device_logicid_from_phyid(phy, id); }
int dcmiv2_get_device_type(int id, int *out) { return dcmi_get_device_type(-1, id, out); }
int dcmiv2_get_device_chip_info(int id, struct chip_info_v2 *out) { return dcmi_get_device_chip_info_v2(-1, id, out); }
int dcmiv2_get_device_board_info(int id, struct board_info *out) { return dcmi_get_device_board_info(-1, id, out); }
int dcmiv2_get_mainboard_id(int id, uint32_t *out) { return dcmi_get_mainboard_id(-1, id, out); }
int dcmiv2_get_dcmi_version(char *out, int size) { return dcmi_get_dcmi_version(out, size); }
int dcmiv2_get_device_pcie_info(int id, struct pcie_info *out) { return dcmi_get_device_pcie_info_v2(-1, id, out); }
int dcmiv2_get_device_die_id(int id, int kind, struct die_id *out) { return dcmi_get_device_die_v2(-1, id, kind, out); }
int dcmiv2_get_affinity_cpu_info_by_dev_id(int id, char *out, int *len) { return dcmi_get_affinity_cpu_info_by_device_id(-1, id, out, len); }
int dcmiv2_get_device_health(int id, uint32_t *out) { return dcmi_get_device_health(-1, id, out); }
int dcmiv2_get_device_error_code_list(int id, int *n, uint32_t *list, uint32_t len) { return dcmi_get_device_errorcode_v2(-1, id, n, list, len); }
int dcmiv2_get_device_network_health(int id, int *out) { return dcmi_get_device_network_health(-1, id, out); }
int dcmiv2_get_device_temperature(int id, int *out) { return dcmi_get_device_temperature(-1, id, out); }
int dcmiv2_get_device_power_info(int id, int *out) { return dcmi_get_device_power_info(-1, id, out); }
int dcmiv2_get_device_voltage(int id, uint32_t *out) { return dcmi_get_device_voltage(-1, id, out); }
int dcmiv2_get_device_frequency(int id, int kind, uint32_t *out) { return dcmi_get_device_frequency(-1, id, kind, out); }
int dcmiv2_get_device_utilization_rate(int id, int kind, uint32_t *out) { return dcmi_get_device_utilization_rate(-1, id, kind, out); }
int dcmiv2_get_device_multi_utilization_rate(int id, struct multi *out) { return dcmi_get_device_multi_utilization_rate(-1, id, out); }
int dcmiv2_get_device_multi_utilization_rate_period(int id, struct multi *out, int s) { return dcmi_get_device_multi_utilization_rate_period(-1, id, out, s); }
int dcmiv2_get_device_hbm_info(int id, struct hbm_info *out) { return dcmi_get_device_hbm_info(-1, id, out); }
int dcmiv2_get_device_ecc_info(int id, int kind, struct ecc_info *out) { return dcmi_get_device_ecc_info(-1, id, kind, out); }
int dcmiv2_get_device_proc_mem_info(int id, struct proc_mem *out, int *n) { return dcmi_get_device_resource_info(-1, id, out, n); }
int dcmiv2_get_device_boot_status(int id, int *out) { return dcmi_get_device_boot_status(-1, id, out); }
int dcmiv2_get_pcie_link_bandwidth_info(int id, struct pcie_bw *out) { return dcmi_get_pcie_link_bandwidth_info(-1, id, out); }
int dcmiv2_get_device_info(int id, int m, uint32_t s, void *b, uint32_t *n) { return m == 52 ? NOT_SUPPORTED : dcmi_get_device_info(-1, id, m, s, b, n); }
int dcmiv2_reset_device(int id, int channel) { return dcmi_set_device_reset(-1, id, channel); }
int dcmiv2_get_device_outband_channel_state(int id, int *out) { return dcmi_get_device_outband_channel_state(-1, id, out); }
int dcmiv2_pre_reset_device(int id) { return dcmi_pre_reset_soc(-1, id); }
int dcmiv2_rescan_device(int id) { return dcmi_rescan_soc(-1, id); }
int dcmiv2_subscribe_fault_event(int id, struct filter f, void (*cb)(struct event *)) { return dcmi_subscribe_fault_event(-1, id, f, cb); }

int dcmiv2_get_device_elabel_info(int id, struct elabel *out)
{
    struct sim_chip *c = find(-1, id);
    return c ? dcmi_get_card_elabel_v2(c->card, out) : BAD_ID;
}

int dcmiv2_get_port_pkt_stats_info(int id, struct ub_port *where, struct port_pkt *out)
{
    if (!find(-1, id) || where->die < 0 || where->die > 1)
        return BAD_ID;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < 48; i++)
        out->count[i] = (uint64_t)(where->port + 1) * 1000 + i;
    return OK;
}

int dcmiv2_get_urma_device_cnt(int id, uint32_t *out) { return dcmi_get_urma_device_cnt(-1, id, out); }
int dcmiv2_get_eid_list_by_urma_dev_index(int id, uint32_t index, struct eid_info *out, uint32_t *count)
{
    return dcmi_get_eid_list_by_urma_dev_index(-1, id, index, out, count);
}
int dcmiv2_start_ub_ping_mesh(int id, int count, struct ub_operate *wanted) { return dcmi_start_ub_ping_mesh(-1, id, count, wanted); }
int dcmiv2_stop_ub_ping_mesh(int id, int task) { return dcmi_stop_ub_ping_mesh(-1, id, task); }
int dcmiv2_get_ub_ping_mesh_state(int id, int task, uint32_t *out) { return dcmi_get_ub_ping_mesh_state(-1, id, task, out); }
int dcmiv2_get_ub_ping_mesh_info(int id, int task, struct ub_info *out, int room, int *count)
{
    return dcmi_get_ub_ping_mesh_info(-1, id, task, out, room, count);
}
