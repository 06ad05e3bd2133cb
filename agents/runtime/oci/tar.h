/* The entries of a tar file, for untar.c. */
#ifndef BELAY_OCI_TAR_H
#define BELAY_OCI_TAR_H

#include "runtime.h"

#include <limits.h>
#include <time.h>

struct entry {
    char type, name[PATH_MAX], link[PATH_MAX];
    uint64_t size;
    unsigned mode, uid, gid, major, minor;
    struct timespec time;
    struct buf pax; /* records of the header before it */
};

int tar_next(int tar, struct entry *it);             /* 1, or 0 at the end; what follows is its content */
int tar_take(int tar, void *into, size_t len, bool end); /* all of it; 0 at a clean end, where `end` allows one */
int tar_skip(int tar, uint64_t size);
uint64_t tar_padding(uint64_t size); /* behind a content of this size */

/* One record of a PAX header after the other. */
int tar_record(const struct buf *pax, size_t *at, const char **key, size_t *key_len, const char **value, size_t *value_len);

#endif
