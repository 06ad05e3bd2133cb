/* The alarm and serial-number commands of Huawei's BMC (network function 30h, commands 94h and 90h) for OpenIPMI's
 * ipmi_sim. What it answers is read from a text file at every request:
 *
 *   event CODE SEVERITY TYPE ID     four hex numbers; CODE is the error code as a number
 *   per N                           events in one message (default 4)
 *   total N                         claims N events whatever there is
 *   truncate N                      answers end after N bytes
 *   extra N                         N bytes too many after the records
 *   complete CC                     completion code, hex
 *   hang S                          answers after S seconds
 *   serial TEXT, manufacturer TEXT  what command 90h tells */
#include <OpenIPMI/mcserv.h>
#include <OpenIPMI/serv.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_EVENTS 4096
#define RECORD 15

static char state_file[512];

struct event { unsigned code, severity, type, id; };
struct state {
    unsigned per, total, truncate, extra, complete, hang, count, has_total;
    char serial[128], manufacturer[128];
    struct event events[MAX_EVENTS];
};
static struct state now;

static void read_state(void)
{
    char line[256];
    memset(&now, 0, sizeof now);
    now.per = 4;
    now.truncate = ~0u;
    FILE *in = fopen(state_file, "r");
    if (!in)
        return;
    while (fgets(line, sizeof line, in)) {
        struct event e;
        if (sscanf(line, "event %x %x %x %x", &e.code, &e.severity, &e.type, &e.id) == 4) {
            if (now.count < MAX_EVENTS)
                now.events[now.count++] = e;
        } else if (sscanf(line, "total %u", &now.total) == 1) {
            now.has_total = 1;
        } else if (sscanf(line, "per %u", &now.per) == 1 || sscanf(line, "truncate %u", &now.truncate) == 1 ||
                   sscanf(line, "extra %u", &now.extra) == 1 || sscanf(line, "complete %x", &now.complete) == 1 ||
                   sscanf(line, "hang %u", &now.hang) == 1 || sscanf(line, "serial %127s", now.serial) == 1 ||
                   sscanf(line, "manufacturer %127s", now.manufacturer) == 1) {
        }
    }
    fclose(in);
}

static void finish(unsigned char *rdata, unsigned int *len, unsigned int used)
{
    if (now.hang)
        sleep(now.hang);
    if (now.complete) {
        rdata[0] = now.complete;
        *len = 1;
        return;
    }
    *len = used < now.truncate ? used : now.truncate;
    if (!*len)
        *len = 1;
}

static void alarms(lmc_data_t *mc, msg_t *msg, unsigned char *rdata, unsigned int *len, void *cb)
{
    (void)mc; (void)cb;
    static const unsigned char prefix[] = {0xDB, 0x07, 0x00, 0x40, 0x00};
    if (msg->len != 9 || memcmp(msg->data, prefix, 5) || msg->data[7] != 0x0E || msg->data[8] != 0xFF) {
        rdata[0] = 0xCC; /* invalid data field */
        *len = 1;
        return;
    }
    read_state();
    unsigned index = msg->data[5] | msg->data[6] << 8, total = now.has_total ? now.total : now.count;
    unsigned n = 0, used = 8;
    memset(rdata, 0, 8);
    memcpy(rdata + 1, prefix, 3);
    rdata[4] = total & 0xFF;
    rdata[5] = total >> 8 & 0xFF;
    for (; n < now.per && now.count && (now.has_total || index + n < now.count); n++, used += RECORD) {
        struct event *e = &now.events[(index + n) % now.count];
        unsigned char *r = rdata + used;
        memset(r, 0xEE, RECORD);
        r[0] = e->code; r[1] = e->code >> 8; r[2] = e->code >> 16; r[3] = e->code >> 24;
        r[8] = e->severity; r[9] = e->type; r[10] = e->id;
    }
    rdata[6] = n;
    memset(rdata + used, 0, now.extra);
    finish(rdata, len, used + now.extra);
}

static void board(lmc_data_t *mc, msg_t *msg, unsigned char *rdata, unsigned int *len, void *cb)
{
    (void)mc; (void)cb;
    static const unsigned char prefix[] = {0x05, 0x00, 0x03};
    if (msg->len != 6 || memcmp(msg->data, prefix, 3) || msg->data[4] || msg->data[5] != 0xFF ||
        (msg->data[3] != 0x04 && msg->data[3] != 0x00)) {
        rdata[0] = 0xCC;
        *len = 1;
        return;
    }
    read_state();
    const char *text = msg->data[3] == 0x04 ? now.serial : now.manufacturer;
    rdata[0] = rdata[1] = 0;
    memcpy(rdata + 2, text, strlen(text));
    finish(rdata, len, 2 + strlen(text));
}

int ipmi_sim_module_init(sys_data_t *sys, const char *options)
{
    (void)sys;
    snprintf(state_file, sizeof state_file, "%s", options);
    int failed = ipmi_emu_register_cmd_handler(0x30, 0x94, alarms, NULL);
    return failed ? failed : ipmi_emu_register_cmd_handler(0x30, 0x90, board, NULL);
}
