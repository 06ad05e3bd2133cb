/* A stand-in for the NPU driver's libdcmi.so: layouts of the public interface (dcmi_interface_api.h, names and offsets)
 * and the state that it serves, a file mapped into memory, so that a test or a person can break chips while agents look.
 *
 * BELAY_SIM_DCMI_STATE names the file (made with `belay sim-driver build`). Natural alignment everywhere. */
#ifndef BELAY_DCMI_STANDIN_H
#define BELAY_DCMI_STANDIN_H

#include <stdint.h>

#define SIM_MAGIC 0x42444332u /* "BDC2" */
#define SIM_CHIPS 64
#define SIM_CODES 128
#define SIM_URMA 8
#define SIM_EIDS 16
#define SIM_VDEVS 16
#define SIM_PROCESSES 32
#define SIM_TEMPLATES 32
#define SIM_OVERRIDES 64
#define SIM_EVENTS 1024

struct sim_vdev {
    uint32_t id; /* 0: free */
    uint32_t used;
    uint32_t group; /* vGroup; 0xFFFFFFFF: none */
    char name[32];
};

struct sim_process {
    int32_t pid;
    uint32_t pad;
    uint64_t bytes;
};

struct sim_chip {
    int32_t phy, logic, card, device;
    uint32_t dropped; /* -8012 from health, codes and everything */
    uint32_t health;
    int32_t network;
    int32_t boot; /* 16: started */
    uint64_t boot_at_ms; /* when a running reset ends; 0: none */
    uint32_t reset_fails; /* that many resets answer -8015 */
    uint32_t resets;
    uint32_t sticky; /* codes outlive a reset */
    uint32_t outband; /* channel state */
    uint32_t code_count;
    uint32_t codes[SIM_CODES];
    int32_t temperature, power; /* power in 0.1 W */
    uint32_t voltage; /* 0.01 V */
    uint32_t utilisation[16]; /* by kind */
    uint32_t frequency[16];
    uint64_t hbm_total, hbm_used; /* MB */
    uint32_t hbm_frequency;
    int32_t hbm_temperature;
    uint32_t hbm_bandwidth;
    uint32_t ecc[4][8];
    uint64_t ddr_total, ddr_free; /* MB */
    uint8_t ip[4];
    uint32_t die[3][5];
    uint32_t sdid;
    uint64_t hccs[4][16]; /* sent, received, CRC, retries */
    uint32_t sio_tx, sio_rx;
    uint32_t process_count;
    struct sim_process processes[SIM_PROCESSES];
    struct sim_vdev vdevs[SIM_VDEVS];
    char serial[64];
    int32_t brother; /* card; -1: none */
    uint32_t urma_count; /* URMA devices (Ascend950), each with so many EIDs */
    uint32_t eid_count[SIM_URMA];
    uint8_t eid[SIM_URMA][SIM_EIDS][16];
};

struct sim_template {
    char name[32];
    float cores;
    uint32_t memory; /* MB */
};

/* one call made to fail, hang or answer a bad value: the first entry with its name is taken */
struct sim_override {
    char name[64];
    int32_t result; /* answered instead of 0 */
    int32_t remaining; /* how many calls; -1: all */
    uint32_t delay_ms; /* before it answers; a hang is a long one */
    int32_t phy; /* -1: every chip */
};

struct sim_event {
    uint32_t code;
    uint16_t logic;
    uint8_t severity, assertion;
    int32_t serial;
    uint32_t pad;
};

struct sim_state {
    uint32_t magic, size;
    uint32_t chips, v2;
    uint32_t board, mainboard;
    uint32_t aicores, reset_ms;
    uint32_t super_pod_id, server_id, chassis_id, super_pod_type, scale_type;
    uint32_t reset_group; /* how many physical ids reset together; 0: the card, and its brother */
    float cores_per_chip;
    uint32_t memory_per_chip;
    char chip_name[32], chip_type[32], npu_name[32], product[64], version[32];
    struct sim_template templates[SIM_TEMPLATES];
    struct sim_override overrides[SIM_OVERRIDES];
    uint64_t events_written; /* count, its low word a futex; the ring holds the last SIM_EVENTS */
    struct sim_event events[SIM_EVENTS];
    struct sim_chip chip[SIM_CHIPS];
};

#endif
