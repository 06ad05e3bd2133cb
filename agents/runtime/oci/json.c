/* JSON (RFC 8259) read into spans of the text, and edits of that text. */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>

#define MAX_NESTING 512
#define MAX_NODES (4u << 20)

struct reader {
    struct json *out;
    size_t at;
};

static int bad(const struct reader *in, const char *what)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; i < in->at && i < in->out->size; i++) {
        column++;
        if (in->out->text[i] == '\n')
            line++, column = 1;
    }
    return fail("%zu:%zu: %s", line, column, what);
}

static int peek(const struct reader *in) { return in->at < in->out->size ? (unsigned char)in->out->text[in->at] : -1; }

static void blanks(struct reader *in)
{
    for (int c; (c = peek(in)) == ' ' || c == '\t' || c == '\n' || c == '\r';)
        in->at++;
}

static int word(struct reader *in, const char *text)
{
    size_t len = strlen(text);
    if (in->out->size - in->at < len || memcmp(in->out->text + in->at, text, len))
        return bad(in, "no JSON value");
    in->at += len;
    return 0;
}

static bool digits(struct reader *in)
{
    size_t before = in->at;
    while (peek(in) >= '0' && peek(in) <= '9')
        in->at++;
    return in->at > before;
}

static int a_number(struct reader *in)
{
    if (peek(in) == '-')
        in->at++;
    if (peek(in) == '0')
        in->at++;
    else if (!digits(in))
        return bad(in, "no JSON value");
    if (peek(in) == '.') {
        in->at++;
        if (!digits(in))
            return bad(in, "a number ends in a point");
    }
    if (peek(in) == 'e' || peek(in) == 'E') {
        in->at++;
        if (peek(in) == '+' || peek(in) == '-')
            in->at++;
        if (!digits(in))
            return bad(in, "a number has no exponent");
    }
    return 0;
}

static int hex(const char *text)
{
    int value = 0;
    for (int i = 0; i < 4; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Length of the UTF-8 character at `text`, 0 when it is none (overlong forms, surrogates and beyond U+10FFFF are none). */
static size_t utf8(const unsigned char *text, size_t left)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = text[0] < 0xc2 ? 0 : text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3 : text[0] < 0xf5 ? 4 : 0;
    if (!len || len > left)
        return 0;
    uint32_t code = text[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (text[i] & 0x3f);
    }
    return code < least[len] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : len;
}

static int a_string(struct reader *in)
{
    in->at++;
    for (;;) {
        int c = peek(in);
        size_t left = in->out->size - in->at;
        const char *text = in->out->text + in->at;
        if (c < 0)
            return bad(in, "a string does not end");
        if (c == '"') {
            in->at++;
            return 0;
        }
        if (c < 0x20)
            return bad(in, "a control character in a string");
        if (c == '\\') {
            if (left < 2 || !text[1] || !strchr("\"\\/bfnrtu", text[1]))
                return bad(in, "an unknown escape");
            if (text[1] == 'u' && (left < 6 || hex(text + 2) < 0))
                return bad(in, "\\u without four hexadecimal digits");
            in->at += text[1] == 'u' ? 6 : 2;
        } else if (c < 0x80) {
            in->at++;
        } else {
            size_t len = utf8((const unsigned char *)text, left);
            if (!len)
                return bad(in, "bytes that are not UTF-8");
            in->at += len;
        }
    }
}

static int32_t add_node(struct reader *in, uint8_t kind)
{
    struct json *out = in->out;
    if (out->count == out->cap) {
        out->cap = out->cap ? out->cap * 2 : 1024;
        out->nodes = want(realloc(out->nodes, out->cap * sizeof *out->nodes));
    }
    out->nodes[out->count] = (struct json_node){.start = (uint32_t)in->at, .first = -1, .next = -1, .kind = kind};
    return (int32_t)out->count++;
}

/* One value that is no container, or the begin of one; answers its node or -1. */
static int32_t value(struct reader *in)
{
    if (in->out->count >= MAX_NODES)
        return bad(in, "too many values");
    int c = peek(in), done = 0;
    int32_t node = add_node(in, c == '{'   ? JSON_OBJECT
                                : c == '[' ? JSON_ARRAY
                                : c == '"' ? JSON_STRING
                                : c == 't' ? JSON_TRUE
                                : c == 'f' ? JSON_FALSE
                                : c == 'n' ? JSON_NULL
                                           : JSON_NUMBER);
    switch (c) {
    case '{':
    case '[': in->at++; break;
    case '"': done = a_string(in); break;
    case 't': done = word(in, "true"); break;
    case 'f': done = word(in, "false"); break;
    case 'n': done = word(in, "null"); break;
    default: done = a_number(in);
    }
    in->out->nodes[node].end = (uint32_t)in->at;
    return done < 0 ? -1 : node;
}

/* The next child of `parent`: 1 and the child, 0 at its end, -1. */
static int child(struct reader *in, int32_t parent, int32_t last, int32_t *out)
{
    bool object = in->out->nodes[parent].kind == JSON_OBJECT;
    uint32_t key_start = 0, key_end = 0;
    blanks(in);
    if (peek(in) == (object ? '}' : ']')) {
        in->out->nodes[parent].end = (uint32_t)++in->at;
        return 0;
    }
    if (last >= 0) {
        if (peek(in) != ',')
            return bad(in, object ? "want ',' or '}'" : "want ',' or ']'");
        in->at++;
        blanks(in);
    }
    if (object) {
        if (peek(in) != '"')
            return bad(in, "want a name in quotes");
        key_start = (uint32_t)in->at;
        if (a_string(in) < 0)
            return -1;
        key_end = (uint32_t)in->at;
        blanks(in);
        if (peek(in) != ':')
            return bad(in, "want ':'");
        in->at++;
        blanks(in);
    }
    int32_t node = value(in);
    if (node < 0)
        return -1;
    in->out->nodes[node].key_start = key_start;
    in->out->nodes[node].key_end = key_end;
    if (last >= 0)
        in->out->nodes[last].next = node;
    else
        in->out->nodes[parent].first = node;
    *out = node;
    return 1;
}

static int document(struct reader *in)
{
    int32_t open[MAX_NESTING], last[MAX_NESTING];
    int depth = 0;
    blanks(in);
    int32_t node = value(in);
    if (node < 0)
        return -1;
    for (;;) {
        if (in->out->nodes[node].kind >= JSON_ARRAY && in->out->nodes[node].end == in->at) {
            if (depth == MAX_NESTING)
                return bad(in, "nested too deeply");
            open[depth] = node;
            last[depth++] = -1;
        }
        int more = 0;
        while (depth && (more = child(in, open[depth - 1], last[depth - 1], &node)) == 0)
            depth--;
        if (more < 0)
            return -1;
        if (!depth)
            break;
        last[depth - 1] = node;
    }
    blanks(in);
    return in->at == in->out->size ? 0 : bad(in, "text after the document");
}

int json_parse(struct json *out, const char *text, size_t size)
{
    *out = (struct json){.text = text, .size = size};
    struct reader in = {.out = out};
    if (size > MAX_FILE)
        return fail("larger than %u bytes", MAX_FILE);
    if (document(&in) == 0)
        return 0;
    json_free(out);
    return -1;
}

void json_free(struct json *doc)
{
    free(doc->nodes);
    doc->nodes = NULL;
    doc->count = doc->cap = 0;
}

static void encode(struct buf *out, uint32_t code)
{
    char bytes[4];
    size_t len = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = len; i-- > 1; code >>= 6)
        bytes[i] = (char)(0x80 | (code & 0x3f));
    bytes[0] = (char)(lead[len] | code);
    buf_add(out, bytes, len);
}

/* The characters of the string in quotes at [start, end). A surrogate without its pair becomes U+FFFD, as in Go. */
static void decode(const struct json *doc, uint32_t start, uint32_t end, struct buf *out)
{
    const char *at = doc->text + start + 1, *stop = doc->text + end - 1;
    buf_add(out, "", 0);
    while (at < stop) {
        const char *plain = at;
        while (at < stop && *at != '\\')
            at++;
        buf_add(out, plain, (size_t)(at - plain));
        if (at >= stop)
            return;
        if (at[1] != 'u') {
            static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
            buf_add(out, to + (strchr(from, at[1]) - from), 1);
            at += 2;
            continue;
        }
        uint32_t code = (uint32_t)hex(at + 2);
        at += 6;
        if (code >= 0xd800 && code < 0xdc00 && stop - at >= 6 && at[0] == '\\' && at[1] == 'u') {
            uint32_t low = (uint32_t)hex(at + 2);
            if (low >= 0xdc00 && low < 0xe000) {
                code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                at += 6;
            }
        }
        encode(out, code >= 0xd800 && code < 0xe000 ? 0xfffd : code);
    }
}

int json_string(const struct json *doc, int node, struct buf *out)
{
    if (node < 0 || doc->nodes[node].kind != JSON_STRING)
        return fail("no string");
    out->len = 0;
    decode(doc, doc->nodes[node].start, doc->nodes[node].end, out);
    return memchr(out->at, 0, out->len) ? fail("a string holds U+0000") : 0;
}

int json_member(const struct json *doc, int object, const char *name)
{
    if (object < 0 || doc->nodes[object].kind != JSON_OBJECT)
        return -1;
    struct buf key = {0};
    int found = -1;
    for (int node = doc->nodes[object].first; node >= 0; node = doc->nodes[node].next) {
        key.len = 0;
        decode(doc, doc->nodes[node].key_start, doc->nodes[node].key_end, &key);
        if (key.len == strlen(name) && !memcmp(key.at, name, key.len))
            found = node;
    }
    buf_free(&key);
    return found;
}

int json_path(const struct json *doc, const char *const *path)
{
    int node = 0;
    for (; *path && node >= 0; path++)
        node = json_member(doc, node, *path);
    return node;
}

static void print_string(const struct json *doc, uint32_t start, uint32_t end, struct buf *out)
{
    struct buf text = {0};
    decode(doc, start, end, &text);
    buf_text(out, "\"");
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.at[i];
        if (c == '"' || c == '\\')
            buf_add(out, (char[]){'\\', (char)c}, 2);
        else if (c < 0x20)
            buf_format(out, "\\u%04x", c);
        else
            buf_add(out, (char *)&c, 1);
    }
    buf_text(out, "\"");
    buf_free(&text);
}

void json_print(const struct json *doc, int node, struct buf *out)
{
    const struct json_node *it = &doc->nodes[node];
    if (it->key_end > it->key_start) {
        print_string(doc, it->key_start, it->key_end, out);
        buf_text(out, ":");
    }
    if (it->kind == JSON_STRING)
        print_string(doc, it->start, it->end, out);
    else if (it->kind < JSON_ARRAY)
        buf_add(out, doc->text + it->start, it->end - it->start);
    else {
        buf_text(out, it->kind == JSON_OBJECT ? "{" : "[");
        for (int next = it->first; next >= 0; next = doc->nodes[next].next) {
            if (next != it->first)
                buf_text(out, ",");
            json_print(doc, next, out); /* as deep as the parser allowed */
        }
        buf_text(out, it->kind == JSON_OBJECT ? "}" : "]");
    }
}

static void splice(struct buf *text, size_t start, size_t end, const char *with)
{
    struct buf out = {0};
    buf_add(&out, text->at, start);
    buf_text(&out, with);
    buf_add(&out, text->at + end, text->len - end);
    buf_free(text);
    *text = out;
}

/* `[items]` under the names from `path` on: "a":{"b":[items]}, without the first name where `value_only`. */
static void wrap(struct buf *out, const char *const *path, const char *items, bool value_only)
{
    size_t depth = 0;
    for (; path[depth]; depth++) {
        if (depth)
            buf_text(out, "{");
        if (depth || !value_only) {
            buf_json(out, path[depth]);
            buf_text(out, ":");
        }
    }
    buf_format(out, "[%s]", items);
    for (; depth > 1; depth--)
        buf_text(out, "}");
}

int json_append(struct buf *text, const char *const *path, const char *items)
{
    struct json doc;
    struct buf put = {0};
    if (!*items)
        return 0;
    if (json_parse(&doc, text->at, text->len) < 0)
        return -1;
    int node = 0, done = 0;
    const char *const *name = path;
    for (; *name; name++) {
        if (doc.nodes[node].kind != JSON_OBJECT) {
            done = fail("%s is not below an object", *name);
            break;
        }
        int below = json_member(&doc, node, *name);
        if (below < 0 || doc.nodes[below].kind == JSON_NULL) {
            bool null = below >= 0;
            if (!null && doc.nodes[node].first >= 0)
                buf_text(&put, ",");
            wrap(&put, name, items, null);
            if (null)
                splice(text, doc.nodes[below].start, doc.nodes[below].end, put.at);
            else
                splice(text, doc.nodes[node].end - 1, doc.nodes[node].end - 1, put.at);
            break;
        }
        node = below;
    }
    if (!*name && doc.nodes[node].kind != JSON_ARRAY) {
        done = fail("%s is not an array", name[-1]);
    } else if (!*name) {
        buf_format(&put, "%s%s", doc.nodes[node].first >= 0 ? "," : "", items);
        splice(text, doc.nodes[node].end - 1, doc.nodes[node].end - 1, put.at);
    }
    buf_free(&put);
    json_free(&doc);
    return done;
}

int json_replace(struct buf *text, const char *const *path, size_t index, const char *item)
{
    struct json doc;
    if (json_parse(&doc, text->at, text->len) < 0)
        return -1;
    int node = json_path(&doc, path);
    node = node >= 0 && doc.nodes[node].kind == JSON_ARRAY ? doc.nodes[node].first : -1;
    for (; node >= 0 && index; index--)
        node = doc.nodes[node].next;
    if (node >= 0)
        splice(text, doc.nodes[node].start, doc.nodes[node].end, item);
    json_free(&doc);
    return node < 0 ? fail("no such item") : 0;
}
