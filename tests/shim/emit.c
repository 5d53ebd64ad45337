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
struct pt_regs;
#define __always_inline inline
#define PAGE_SIZE 4096
#define BPF_FUNC_ringbuf_query 0
#define BPF_RB_AVAIL_DATA 0
#define BPF_RB_NO_WAKEUP 0
#define BPF_RB_FORCE_WAKEUP 0
#define PT_REGS_IP(ctx) 0
#define PT_REGS_FP(ctx) 0

static u64 now;
static u64 bpf_jiffies64(void) { return now; }
static u64 bpf_ktime_get_ns(void) { return now << 20; }

// A map: few entries, found one by one. As in the kernel's hash maps an entry that is
// found may be changed where it is.
struct store {
    size_t key_bytes, value_bytes, room, used;
    char *entries;
};

static void *find(struct store *store, const void *key)
{
    size_t bytes = store->key_bytes + store->value_bytes;

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
    static struct store name##_store = {sizeof(key_type), sizeof(value_type), ROOM, 0, NULL}; \
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
static void *reserve(u64 bytes);
static void submit(void *record, u64 flags) { (void)record, (void)flags; }

#define BPF_RINGBUF_OUTPUT(name, pages) \
    static const struct { \
        void *(*ringbuf_reserve)(u64); \
        void (*ringbuf_submit)(void *, u64); \
        u64 (*query)(u64); \
    } name __attribute__((unused)) = {reserve, submit, no_room};

#include "event.h"
#include "maps.h"
#include "space.h"
#include "stack.h"
#include "spill.h"
#include "emit.h"

struct record {
    __u32 length, page;
    struct event event;
};

static struct record ring[ROOM];
static size_t ring_used, ring_room;

static void *reserve(u64 bytes)
{
    if (bytes != sizeof(struct event) || ring_used >= ring_room)
        return NULL;
    ring[ring_used] = (struct record){.length = sizeof(struct event)};
    return &ring[ring_used++].event;
}

#define THREADS 16
static struct call threads[THREADS];
static struct control *words;

static struct store *const stores[] = {
    &spill_store, &pairs_store, &counters_store, &spaces_store, &control_store,
};

// Everything empty again; the spill map holds this many entries.
void reset(size_t spill_entries)
{
    struct control no_control = {0};
    struct space no_space = {0};
    u32 zero = 0;
    u64 none = 0;

    for (size_t n = 0; n < sizeof(stores) / sizeof(*stores); n++) {
        struct store *store = stores[n];

        if (!store->entries)
            store->entries = malloc(ROOM * (store->key_bytes + store->value_bytes));
        store->used = 0;
    }
    spill_store.room = spill_entries;
    for (u32 counter = 0; counter < COUNTERS; counter++)
        insert(&counters_store, &counter, &none);
    insert(&spaces_store, &zero, &no_space);
    insert(&control_store, &zero, &no_control);
    words = control.lookup(&zero);
    memset(threads, 0, sizeof(threads));
    ring_used = ring_room = 0;
}

// Something happens, as the probes would report it. The ring has room for `room` records.
void happen(u32 kind, u64 address, u64 size, u64 stack_id, u32 tid, u64 time_ns, size_t room)
{
    struct call *call = &threads[tid];

    now = time_ns;
    ring_room = room;
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

// Moves the ring's records out. Returns how many they are.
size_t take_ring(struct record *to)
{
    size_t used = ring_used;

    memcpy(to, ring, used * sizeof(*ring));
    ring_used = 0;
    return used;
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
