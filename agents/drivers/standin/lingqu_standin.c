/* A stand-in of `liblingqu-dcmi.so`, the bus switch's library: what stands is the lines of the file BELAY_SIM_SWITCH_STATE
 *
 *     TYPE SUBTYPE PEER_DEVICE PEER_PORT CHIP PORT RAISED_MS          (numbers as C reads them)
 *
 * A thread looks at it every 20 ms and tells the subscriber what came and what went. "result N" makes every call fail,
 * "mute" keeps events back. The variable is read by lq_dcmi_init, on the caller's thread: a thread that reads the
 * environment while the program changes it reads freed memory. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 128

struct event {
    uint32_t type, sub;
    uint16_t peer, peer_port, chip, port;
    uint8_t severity, assertion;
    char res[6];
    uint32_t serial, notify;
    unsigned long raised;
    unsigned char additional[40];
    char information[32];
};
struct filter { uint32_t flag, type, id; uint8_t severity; uint32_t chip; };

_Static_assert(sizeof(struct event) == 112, "LqDcmiEvent");
_Static_assert(sizeof(struct filter) == 20, "lq_dcmi_event_filter");

static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER; /* of state_file */
static char state_file[4096];
static pthread_mutex_t telling = PTHREAD_MUTEX_INITIALIZER; /* of what the thread tells, and whom */
static void (*told)(struct event *);

static int standing(struct event *out, int *result, int *mute)
{
    char name[sizeof state_file], line[256];
    int count = 0;
    pthread_mutex_lock(&naming);
    memcpy(name, state_file, sizeof name);
    pthread_mutex_unlock(&naming);
    FILE *file = *name ? fopen(name, "re") : NULL;
    *result = *mute = 0;
    while (file && fgets(line, sizeof line, file) && count < MOST) {
        struct event one = {.assertion = 1, .severity = 2};
        int type, sub, peer, peer_port, chip, port;
        if (sscanf(line, "result %i", result) == 1)
            continue;
        *mute |= !strncmp(line, "mute", 4);
        if (sscanf(line, "%i %i %i %i %i %i %lu", &type, &sub, &peer, &peer_port, &chip, &port, &one.raised) != 7)
            continue;
        one.type = (uint32_t)type, one.sub = (uint32_t)sub, one.peer = (uint16_t)peer, one.peer_port = (uint16_t)peer_port;
        one.chip = (uint16_t)chip, one.port = (uint16_t)port;
        out[count++] = one;
    }
    if (file)
        fclose(file);
    return count;
}

static int there(const struct event *all, int count, const struct event *one)
{
    for (int i = 0; i < count; i++)
        if (!memcmp(all + i, one, sizeof *one))
            return 1;
    return 0;
}

static struct event before[MOST];
static int had;

static void *watch(void *unused)
{
    static struct event now[MOST];
    int result, mute;
    for (;; usleep(20000)) {
        pthread_mutex_lock(&telling);
        int count = standing(now, &result, &mute);
        if (mute) {
            pthread_mutex_unlock(&telling);
            continue;
        }
        for (int i = 0; i < count; i++)
            if (!there(before, had, now + i))
                told(now + i);
        for (int i = 0; i < had; i++)
            if (!there(now, count, before + i)) {
                before[i].assertion = 0;
                before[i].raised = 0;
                told(before + i);
            }
        memcpy(before, now, sizeof before);
        had = count;
        pthread_mutex_unlock(&telling);
    }
    return unused;
}

int lq_dcmi_init(void)
{
    struct event all[MOST];
    const char *name = getenv("BELAY_SIM_SWITCH_STATE");
    int result, mute;
    pthread_mutex_lock(&naming);
    snprintf(state_file, sizeof state_file, "%s", name ? name : "");
    pthread_mutex_unlock(&naming);
    standing(all, &result, &mute);
    return result;
}

int lq_dcmi_subscribe_fault_event(struct filter wanted, void (*handler)(struct event *))
{
    pthread_t thread;
    int result, mute, first;
    (void)wanted;
    pthread_mutex_lock(&telling);
    first = !told;
    told = handler;
    /* before the thread runs: what comes from here on is told, however late it starts */
    had = standing(before, &result, &mute);
    pthread_mutex_unlock(&telling);
    return !first ? 0 : pthread_create(&thread, NULL, watch, NULL) ? -1 : pthread_detach(thread);
}

int lq_dcmi_get_fault_info(unsigned int length, unsigned int *count, struct event *list)
{
    struct event all[MOST];
    int result, mute, found = standing(all, &result, &mute);
    if (result)
        return result;
    *count = (unsigned int)found < length ? (unsigned int)found : length;
    memcpy(list, all, *count * sizeof *list);
    return 0;
}
