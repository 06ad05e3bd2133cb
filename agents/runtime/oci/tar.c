/* Tar files as containerd's differ and other builders of layers write them: ustar, PAX (names, sizes, owners, times,
 * extended attributes), GNU's long names. */
#include "tar.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 512
#define MAX_HEADER (1u << 20) /* bytes of a PAX header */

int tar_take(int tar, void *into, size_t len, bool end)
{
    size_t got = 0;
    while (got < len) {
        ssize_t part = read(tar, (char *)into + got, len - got);
        if (part < 0 && errno == EINTR)
            continue;
        if (part < 0)
            return fail("the layer cannot be read: %s", strerror(errno));
        if (part == 0)
            return end && got == 0 ? 0 : fail("the layer ends in the middle of an entry");
        got += (size_t)part;
    }
    return 1;
}

/* A number of a header: octal digits, or base 256 where the first bit is set. */
static uint64_t field(const unsigned char *at, size_t len)
{
    uint64_t value = 0;
    if (*at & 0x80) {
        value = *at & 0x3f;
        for (size_t i = 1; i < len; i++)
            value = value << 8 | at[i];
        return value;
    }
    for (size_t i = 0; i < len; i++)
        if (at[i] >= '0' && at[i] <= '7')
            value = value << 3 | (uint64_t)(at[i] - '0');
        else if (at[i] != ' ' || value)
            break;
    return value;
}

static bool sum_is_right(const unsigned char *block)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : block[i];
    return sum == field(block + 148, 8);
}

static int put_name(char out[PATH_MAX], const char *text, size_t len)
{
    if (len >= PATH_MAX || memchr(text, 0, len))
        return fail("a name in the layer is %zu characters long or has a NUL", len);
    memcpy(out, text, len);
    out[len] = 0;
    return 0;
}

/* One record of a PAX header after the other: "LENGTH KEY=VALUE\n". */
int tar_record(const struct buf *pax, size_t *at, const char **key, size_t *key_len, const char **value, size_t *value_len)
{
    if (*at >= pax->len)
        return 0;
    char *end;
    unsigned long len = strtoul(pax->at + *at, &end, 10);
    const char *from = end + 1, *stop = pax->at + *at + len, *equals;
    if (*end != ' ' || len > pax->len - *at || stop <= from || stop[-1] != '\n' || !(equals = memchr(from, '=', (size_t)(stop - from))))
        return fail("a PAX header of the layer cannot be read");
    *key = from, *key_len = (size_t)(equals - from);
    *value = equals + 1, *value_len = (size_t)(stop - 1 - *value);
    *at += len;
    return 1;
}

static int apply_pax(struct entry *it)
{
    const char *key, *value;
    size_t at = 0, key_len, len;
    int more;
    while ((more = tar_record(&it->pax, &at, &key, &key_len, &value, &len)) > 0) {
#define IS(name) (key_len == sizeof name - 1 && !memcmp(key, name, key_len))
        if (IS("path") || IS("linkpath")) {
            if (put_name(IS("path") ? it->name : it->link, value, len) < 0)
                return -1;
        } else if (IS("size")) {
            it->size = strtoull(value, NULL, 10);
        } else if (IS("uid") || IS("gid")) {
            *(IS("uid") ? &it->uid : &it->gid) = (unsigned)strtoul(value, NULL, 10);
        } else if (IS("mtime")) {
            char *rest;
            it->time = (struct timespec){.tv_sec = strtoll(value, &rest, 10)};
            long unit = 100000000;
            for (rest += *rest == '.'; unit && *rest >= '0' && *rest <= '9'; rest++, unit /= 10)
                it->time.tv_nsec += (*rest - '0') * unit;
        }
#undef IS
    }
    return more;
}

int tar_skip(int tar, uint64_t size)
{
    char part[65536];
    for (size_t now; size; size -= now) {
        now = size < sizeof part ? (size_t)size : sizeof part;
        if (tar_take(tar, part, now, false) < 0)
            return -1;
    }
    return 0;
}

uint64_t tar_padding(uint64_t size) { return (BLOCK - size % BLOCK) % BLOCK; }

static int take_text(int tar, uint64_t size, size_t limit, struct buf *out)
{
    if (size > limit)
        return fail("a header of the layer is longer than %zu bytes", limit);
    char *text = want(malloc((size_t)size + 1));
    int done = tar_take(tar, text, (size_t)size, false) < 0 ? -1 : tar_skip(tar, tar_padding(size));
    if (done == 0) {
        out->len = 0;
        buf_add(out, text, (size_t)size);
    }
    free(text);
    return done;
}

/* The next entry with everything that is said of it; 0: there is none. */
int tar_next(int tar, struct entry *it)
{
    struct buf long_name = {0}, long_link = {0};
    it->pax.len = 0;
    for (;;) {
        unsigned char block[BLOCK];
        int more = tar_take(tar, block, BLOCK, true);
        if (more <= 0)
            return more;
        if (!block[0] && !field(block + 148, 8))
            return 0; /* the end is marked by blocks of zeros */
        if (!sum_is_right(block))
            return fail("the layer is damaged: a header's sum is wrong");
        it->type = (char)(block[156] ? block[156] : '0');
        it->size = field(block + 124, 12);
        if (it->type == 'x') {
            if (take_text(tar, it->size, MAX_HEADER, &it->pax) < 0)
                return -1;
            continue;
        }
        if (it->type == 'L' || it->type == 'K') {
            if (take_text(tar, it->size, PATH_MAX, it->type == 'L' ? &long_name : &long_link) < 0)
                return -1;
            continue;
        }
        if (it->type == 'g') {
            if (tar_skip(tar, it->size + tar_padding(it->size)) < 0)
                return -1;
            continue;
        }
        char prefix[156] = "", name[101] = "";
        memcpy(name, block, 100);
        if (!memcmp(block + 257, "ustar\0", 6))
            memcpy(prefix, block + 345, 155);
        snprintf(it->name, sizeof it->name, "%s%s%s", prefix, *prefix ? "/" : "", name);
        snprintf(it->link, sizeof it->link, "%.100s", (char *)block + 157);
        if ((long_name.len && put_name(it->name, long_name.at, strlen(long_name.at)) < 0) ||
            (long_link.len && put_name(it->link, long_link.at, strlen(long_link.at)) < 0))
            return -1;
        it->mode = (unsigned)field(block + 100, 8) & 07777;
        it->uid = (unsigned)field(block + 108, 8), it->gid = (unsigned)field(block + 116, 8);
        it->time = (struct timespec){.tv_sec = (time_t)field(block + 136, 12)};
        it->major = (unsigned)field(block + 329, 8), it->minor = (unsigned)field(block + 337, 8);
        buf_free(&long_name);
        buf_free(&long_link);
        return apply_pax(it) < 0 ? -1 : 1;
    }
}
