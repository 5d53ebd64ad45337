// The probes' emit.h and spill.h as they are, on maps and a ring in plain memory: so that
// tests can have the ring full whenever they like, and follow each step.
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef __u64 u64;
typedef __s64 s64;
typedef __u32 u32;
typedef __u8 u8;
#include "kernel/include/uapi/linux/ptrace.h"
#define __always_inline inline
#define PAGE_SIZE 4096
#define BPF_FUNC_ringbuf_query 0
#define BPF_RB_AVAIL_DATA 0
#define BPF_RB_NO_WAKEUP 0
#define BPF_RB_FORCE_WAKEUP 0
#define PT_REGS_IP(ctx) 0
#define PT_REGS_FP(ctx) 0
#define PT_REGS_SP(ctx) 0
#define word_at(address) 0

static u64 now;
static u64 bpf_jiffies64(void) { return now; }
u64 bpf_get_current_pid_tgid(void);
static u64 bpf_ktime_get_ns(void) { return now << 20; }

// A map: an array, or few entries, found one by one. As in the kernel's hash maps an entry
// that is found may be changed where it is.
struct store {
    const char *kind;
    size_t key_bytes, value_bytes, room, used;
    char *entries;
};

static void *find(struct store *store, const void *key)
{
    size_t bytes = store->key_bytes + store->value_bytes;

    if (!strcmp(store->kind, "array"))
        return store->entries + *(const u32 *)key * bytes + store->key_bytes;
    for (size_t n = 0; n < store->used; n++) {
        if (!memcmp(store->entries + n * bytes, key, store->key_bytes))
            return store->entries + n * bytes + store->key_bytes;
    }
    return NULL;
}

static int insert(struct store *store, const void *key, const void *value)
{
    size_t bytes = store->key_bytes + store->value_bytes;
    char *entry = store->entries + store->used * bytes;

    if (find(store, key) || store->used == store->room)
        return -1;
    memcpy(entry, key, store->key_bytes);
    memcpy(entry + store->key_bytes, value, store->value_bytes);
    store->used++;
    return 0;
}

static int delete(struct store *store, const void *key)
{
    size_t bytes = store->key_bytes + store->value_bytes;
    char *value = find(store, key);

    if (!value)
        return -1;
    store->used--;
    memmove(value - store->key_bytes, store->entries + store->used * bytes, bytes);
    return 0;
}

#define ROOM 65536

#define BPF_F_TABLE(kind, key_type, value_type, name, size, flags) \
    static struct store name##_store = {kind, sizeof(key_type), sizeof(value_type), ROOM, 0, NULL}; \
    static value_type *name##_lookup(const key_type *key) { return find(&name##_store, key); } \
    static int name##_insert(const key_type *key, const value_type *value) \
    { \
        return insert(&name##_store, key, value); \
    } \
    static int name##_delete(const key_type *key) { return delete(&name##_store, key); } \
    static const struct { \
        value_type *(*lookup)(const key_type *); \
        int (*insert)(const key_type *, const value_type *); \
        int (*delete)(const key_type *); \
    } name __attribute__((unused)) = {name##_lookup, name##_insert, name##_delete};

static u64 no_room(u64 bytes) { return bytes & 0; }
static int output(void *record, u64 bytes, u64 flags) { return record && bytes && flags; }

#define BPF_RINGBUF_OUTPUT(name, pages) \
    static const struct { \
        int (*ringbuf_output)(void *, u64, u64); \
        u64 (*query)(u64); \
    } name __attribute__((unused)) = {output, no_room};

#include "event.h"
#include "maps.h"
#include "x86_64.h"
#include "space.h"
#include "stack.h"
#include "spill.h"
#include "ring.h"
#include "emit.h"

static u64 first_slot; // that the reader has not taken

static u64 *position(u32 at) { return &positions.lookup(&at)->count; }

#define THREADS 16
static struct call call_of[THREADS];
static struct control *words;

static struct store *const stores[] = {
    &spill_store, &pairs_store, &counters_store, &spaces_store, &control_store, &positions_store,
    &events_store,
};

// Everything empty again; the spill map holds this many entries.
void reset(size_t spill_entries)
{
    u32 zero = 0;

    for (size_t n = 0; n < sizeof(stores) / sizeof(*stores); n++) {
        struct store *store = stores[n];

        free(store->entries);
        store->entries = calloc(ROOM, store->key_bytes + store->value_bytes);
        store->used = 0;
    }
    spill_store.room = spill_entries;
    words = control.lookup(&zero);
    memset(call_of, 0, sizeof(call_of));
    first_slot = 0;
}

// Something happens, as the probes would report it. The ring has room for `room` records.
void happen(u32 kind, u64 address, u64 size, u64 stack_id, u32 tid, u64 time_ns, size_t room)
{
    struct call *call = &call_of[tid];

    size_t used = *position(0) - first_slot;

    now = time_ns;
    // As if the rest were in use.
    *position(1) = *position(0) - EVENTS + (room > used ? room - used : 0);
    switch (kind) {
    case EVENT_ALLOC:
        emit_alloc(words, tid, address, size, stack_id);
        break;
    case EVENT_REALLOC_FREE:
        call->old = address;
        emit_taking(words, tid, call);
        break;
    case EVENT_RESTORE:
        emit_restore(words, tid, call);
        break;
    default:
        emit_free(words, tid, kind, address);
    }
}

struct control *shared_control(void) { return words; }

u64 counter(u32 which) { return *counters.lookup(&which); }

// Moves the ring's events out. Returns how many they are.
size_t take_ring(struct event *to)
{
    size_t taken = 0;

    for (; first_slot < *position(0); first_slot++) {
        u32 at = first_slot % EVENTS;

        to[taken++] = *events.lookup(&at);
    }
    return taken;
}

static size_t take_store(struct store *store, u32 parity, size_t parity_at, char *to)
{
    size_t bytes = store->key_bytes + store->value_bytes, taken = 0;

    for (size_t n = store->used; n-- > 0;) {
        char *entry = store->entries + n * bytes;
        u32 own;

        memcpy(&own, entry + parity_at, sizeof(own));
        if (own != parity)
            continue;
        memcpy(to + taken++ * bytes, entry, bytes);
        delete(store, entry);
    }
    return taken;
}

// Moves the entries of one parity out, keys and values side by side; how many.
size_t take_spill(u32 parity, char *to)
{
    return take_store(&spill_store, parity, offsetof(struct spill_key, parity), to);
}

size_t take_pairs(u32 parity, char *to)
{
    return take_store(&pairs_store, parity, offsetof(struct pair_key, parity), to);
}
