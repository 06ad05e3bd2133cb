/* Asking belay-oci-driver, which alone loads libdcmi.so: a driver that hangs or crashes takes only that process along,
 * and this program stays static. */
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM "belay-oci-driver"
#define MAX_ANSWER 1024
#define IDENTIFY_SECONDS 20
#define CHANGE_SECONDS 60

static long milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Reads what the child says until it ends or the time is up; false when the time was up. */
static bool listen_to(int fd, long until, char *out)
{
    size_t len = 0;
    for (;;) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        long left = until - milliseconds();
        int ready = left > 0 ? poll(&wait, 1, (int)left) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return false;
        char part[256];
        ssize_t got = read(fd, part, sizeof part);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return true;
        for (ssize_t i = 0; i < got && len < MAX_ANSWER - 1; i++)
            out[len++] = part[i];
        out[len] = 0;
    }
}

/* A slow host may be given more (or less) time. */
static int patience(int seconds)
{
    const char *text = getenv("BELAY_OCI_DRIVER_SECONDS");
    long given;
    return text && number(text, &given) && given ? (int)given : seconds;
}

static int ask(char *const *argv, int seconds, char *out)
{
    seconds = patience(seconds);
    char folder[PATH_MAX], file[PATH_MAX + 64];
    int pipes[2], status = 0;
    *out = 0;
    if (own_folder(folder, sizeof folder) < 0)
        return -1;
    snprintf(file, sizeof file, "%s/" PROGRAM, strcmp(folder, "/") ? folder : "");
    if (trusted(file, false) < 0)
        return -1;
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return fail("pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child < 0) {
        close(pipes[0]);
        close(pipes[1]);
        return fail("fork: %s", strerror(errno));
    }
    if (child == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(pipes[1], 1);
        dup2(null, 2); /* the driver's own chatter is no answer */
        execv(file, argv);
        _exit(127);
    }
    close(pipes[1]);
    bool ended = listen_to(pipes[0], milliseconds() + seconds * 1000L, out);
    close(pipes[0]);
    if (!ended)
        kill(child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    if (!ended)
        return fail("the NPU driver did not answer '%s' in %d s", argv[1], seconds);
    out[strcspn(out, "\n")] = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    char why[MAX_ANSWER];
    snprintf(why, sizeof why, "%s", out);
    if (WIFSIGNALED(status))
        return fail("the NPU driver crashed on '%s' (signal %d)", argv[1], WTERMSIG(status));
    return fail("the NPU driver: %.700s", *why ? why : file);
}

int driver_identify(struct chip *out)
{
    char answer[MAX_ANSWER], *argv[] = {(char[]){PROGRAM}, (char[]){"identify"}, NULL};
    if (ask(argv, IDENTIFY_SECONDS, answer) < 0)
        return -1;
    char *product = strchr(answer, '\t');
    snprintf(out->name, sizeof out->name, "%.*s", (int)strcspn(answer, "\t"), answer);
    snprintf(out->product, sizeof out->product, "%s", product ? product + 1 : "");
    return 0;
}

int driver_create(long phy, const char *template, int place[3])
{
    char answer[MAX_ANSWER], chip[16];
    snprintf(chip, sizeof chip, "%ld", phy);
    char *argv[] = {(char[]){PROGRAM}, (char[]){"create"}, chip, (char *)template, NULL};
    if (ask(argv, CHANGE_SECONDS, answer) < 0)
        return -1;
    return sscanf(answer, "%d %d %d", &place[0], &place[1], &place[2]) == 3 ? 0 : fail("the NPU driver answered '%.64s'", answer);
}

int driver_destroy(const char *card, const char *chip, const char *vnpu)
{
    char answer[MAX_ANSWER], *argv[] = {(char[]){PROGRAM}, (char[]){"destroy"}, (char *)card, (char *)chip, (char *)vnpu, NULL};
    return ask(argv, CHANGE_SECONDS, answer);
}
