/* Growing text, sentences about what went wrong, and the log that operators look into. */
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOG_FOLDER "/var/log/ascend-docker-runtime"
#define LOG_BYTES (2 << 20)
#define LOG_BACKUPS 2

char fault[1024];

void *want(void *memory)
{
    if (!memory) {
        static const char words[] = "belay-oci-runtime: out of memory\n";
        (void)!write(2, words, sizeof words - 1);
        _exit(1);
    }
    return memory;
}

char *copy_text(const char *text) { return want(strdup(text)); }

void buf_add(struct buf *out, const char *text, size_t len)
{
    if (out->cap - out->len <= len) {
        size_t cap = out->cap ? out->cap : 256;
        while (cap - out->len <= len)
            cap *= 2;
        out->at = want(realloc(out->at, cap));
        out->cap = cap;
    }
    memcpy(out->at + out->len, text, len);
    out->len += len;
    out->at[out->len] = 0;
}

void buf_text(struct buf *out, const char *text) { buf_add(out, text, strlen(text)); }

void buf_format(struct buf *out, const char *format, ...)
{
    char *text = NULL;
    va_list list;
    va_start(list, format);
    int len = vasprintf(&text, format, list);
    va_end(list);
    want(len < 0 ? NULL : text);
    buf_add(out, text, (size_t)len);
    free(text);
}

void buf_json(struct buf *out, const char *text)
{
    buf_text(out, "\"");
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\')
            buf_add(out, (char[]){'\\', *c}, 2);
        else if ((unsigned char)*c < 0x20)
            buf_format(out, "\\u%04x", (unsigned char)*c);
        else
            buf_add(out, c, 1);
    }
    buf_text(out, "\"");
}

void buf_free(struct buf *out)
{
    free(out->at);
    *out = (struct buf){0};
}

bool number(const char *text, long *out)
{
    size_t len = strlen(text);
    if (!len || len > 5 || strspn(text, "0123456789") != len)
        return false;
    *out = strtol(text, NULL, 10);
    return *out <= 65535;
}

int fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(fault, sizeof fault, format, list);
    va_end(list);
    return -1;
}

int fail_in(const char *format, ...)
{
    char whole[sizeof fault];
    va_list list;
    va_start(list, format);
    int len = vsnprintf(whole, sizeof whole, format, list);
    va_end(list);
    if (len >= 0 && (size_t)len < sizeof whole)
        snprintf(whole + len, sizeof whole - (size_t)len, "%s", fault);
    memcpy(fault, whole, sizeof fault);
    return -1;
}

static void rotate(const char *file)
{
    char older[128], newer[128];
    for (int i = LOG_BACKUPS; i > 0; i--) {
        snprintf(older, sizeof older, "%s.%d", file, i);
        if (i > 1)
            snprintf(newer, sizeof newer, "%s.%d", file, i - 1);
        else
            snprintf(newer, sizeof newer, "%s", file);
        rename(newer, older);
    }
}

/* A log that cannot be written never keeps a container from starting. */
void say(const char *role, const char *level, const char *format, ...)
{
    char file[96], words[1024], line[1200], when[32];
    snprintf(file, sizeof file, LOG_FOLDER "/%s-run.log", role);
    mkdir(LOG_FOLDER, 0750);
    struct stat status;
    if (lstat(file, &status) == 0 && status.st_size >= LOG_BYTES)
        rotate(file);
    int fd = open(file, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0400);
    if (fd < 0)
        return;
    va_list list;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    for (char *c = words; *c; c++) /* nobody writes lines of his own into it */
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    time_t now = time(NULL);
    struct tm parts;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
    int len = snprintf(line, sizeof line, "%s [%s] %d %s\n", when, level, (int)getpid(), words);
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode))
        (void)!write(fd, line, (size_t)len < sizeof line ? (size_t)len : sizeof line - 1);
    close(fd);
}
