/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Tells OpenTelemetry's profiler, or whoever else listens, of sampled allocations: by the USDT
 * probes `otel_memory:alloc(pointer, size, weight)` and `otel_memory:free(pointer)` (design document
 * 00003 of open-telemetry/opentelemetry-ebpf-profiler). Only where tracelloc itself does not want
 * events: a thread that reports those says nothing here but the frees of what it has said before.
 *
 * Sampling
 *   Points lie at random distances along all bytes that a thread asks for, OTEL_MEAN_BYTES apart on
 *   average and exponentially distributed; a block is said if one falls into it. It stands for
 *   size / (1 - e^(-size / mean)) bytes, its weight.
 *
 * What is remembered
 *   Which blocks were said, so that their frees can be: a table in this library's memory, and one
 *   byte for each hash of addresses that tells most others at once. An entry is there before the
 *   block is handed out, and goes before it is freed. A block that finds no room is not said. When
 *   nobody listens any more, the next call of any thread empties it. A forked child finds it empty
 *   (MADV_WIPEONFORK). A resize that fails has taken its block out for good: it looks freed.
 *
 * Idle
 *   `otel_words` is 0: neither counter, which the kernel raises with the probes, nor anything in
 *   the table. That is one load and a branch in each call.
 */
#ifndef TRACELLOC_PRELOADED_OTEL_H
#define TRACELLOC_PRELOADED_OTEL_H

#include "area.h"
#include "countingfilter.h"
#include "kernel.h"

#define OTEL_MEAN_BYTES 524288.0
#define OTEL_SETS (1U << 13)
#define OTEL_WAYS 8
#define OTEL_FILTER_BYTES 65536

/* The counters of both probes, in a section that is mapped from the file; and the table's state. */
static volatile union {
	struct {
		unsigned short alloc;
		unsigned short free;
		u32 table; /* enum otel_table */
	};
	u64 all;
} otel_words __asm__("tracelloc_otel_words")
	__attribute__((section(".probes"), used, aligned(8)));

enum otel_table {
	OTEL_EMPTY = 0,
	OTEL_USED = 1,
	OTEL_EMPTYING = 2, /* by a thread: nothing may be added */
};

static struct {
	u8 filter[OTEL_FILTER_BYTES];
	u64 sets[OTEL_SETS][OTEL_WAYS];
} otel_said __attribute__((aligned(PRELOAD_PAGE)));

/* Bytes until the next sample, 0: to be drawn; pseudo-random numbers. */
static __thread u64 otel_until __attribute__((tls_model("initial-exec")));
static __thread u64 otel_dice __attribute__((tls_model("initial-exec")));

/* A note that says where the probe is, and that its counter is so far into `otel_words`. */
#define OTEL_PROBE(name, counter, arguments) \
	"990: nop\n" \
	".pushsection .note.stapsdt,\"\",\"note\"\n" \
	".balign 4\n" \
	".4byte 992f-991f, 994f-993f, 3\n" \
	"991: .asciz \"stapsdt\"\n" \
	"992: .balign 4\n" \
	"993: .8byte 990b, _.stapsdt.base, tracelloc_otel_words+" counter "\n" \
	".asciz \"otel_memory\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n" \
	"994: .balign 4\n" \
	".popsection\n" \
	".ifndef _.stapsdt.base\n" \
	".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
	".weak _.stapsdt.base\n.hidden _.stapsdt.base\n" \
	"_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n" \
	".popsection\n.endif\n"

/* In functions of their own, so that each probe is at one place, with arguments as for a call. */
static __attribute__((noinline)) void otel_say_alloc(u64 address, u64 size, u64 weight)
{
	__asm__ volatile(OTEL_PROBE("alloc", "0", "8@%%rdi 8@%%rsi 8@%%rdx")
			 : : "D"(address), "S"(size), "d"(weight) : "memory");
}

static __attribute__((noinline)) void otel_say_free(u64 address)
{
	__asm__ volatile(OTEL_PROBE("free", "2", "8@%%rdi")
			 : : "D"(address) : "memory");
}

/* Whether nobody listens, and nothing is remembered. */
static inline int otel_is_idle(void)
{
	return !otel_words.all;
}

/* Whether the table is wiped in forked children; else it is not used. */
static u32 otel_is_wiped;

static void otel_begin(void)
{
	otel_is_wiped = !system_call(SYS_madvise, (u64)&otel_said, PRELOAD_CEIL(sizeof(otel_said)),
				     MADV_WIPEONFORK, 0, 0, 0);
}

static inline u64 otel_hash(u64 address)
{
	return (address >> 4) * 0x9e3779b97f4a7c15ULL;
}

static u8 *otel_filter(u64 address)
{
	return &otel_said.filter[(otel_hash(address) >> 48) % OTEL_FILTER_BYTES];
}

/* Nobody listens any more: what they know of is nothing to anybody. */
static __attribute__((noinline)) void otel_forget(void)
{
	u32 used = OTEL_USED;

	if (!__atomic_compare_exchange_n(&otel_words.table, &used, OTEL_EMPTYING, 0,
					 __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		return;
	for (u64 *word = (u64 *)&otel_said; word < (u64 *)(&otel_said + 1); word++)
		if (*word)
			__atomic_store_n(word, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&otel_words.table, OTEL_EMPTY, __ATOMIC_SEQ_CST);
}

/* Whether entries can be made. */
static int otel_has_table(void)
{
	u32 empty = OTEL_EMPTY;

	if (likely(otel_words.table == OTEL_USED))
		return 1;
	if (otel_words.table == OTEL_EMPTYING || !otel_is_wiped)
		return 0;
	return __atomic_compare_exchange_n(&otel_words.table, &empty, OTEL_USED, 0,
					   __ATOMIC_SEQ_CST, __ATOMIC_RELAXED) ||
	       empty == OTEL_USED;
}

static int otel_remember(u64 address)
{
	u64 *set = otel_said.sets[(otel_hash(address) >> 24) % OTEL_SETS];

	if (!otel_has_table())
		return 0;
	change_filter(otel_filter(address), 1);
	for (u32 way = 0; way < OTEL_WAYS; way++) {
		u64 nothing = 0;

		if (__atomic_compare_exchange_n(&set[way], &nothing, address, 0, __ATOMIC_SEQ_CST,
						__ATOMIC_RELAXED))
			return 1;
	}
	change_filter(otel_filter(address), -1);
	return 0;
}

/* A block is about to be freed, or resized. */
static __attribute__((noinline)) void otel_note_free(u64 address)
{
	u64 *set = otel_said.sets[(otel_hash(address) >> 24) % OTEL_SETS];

	if (!otel_words.alloc && !otel_words.free) {
		otel_forget();
		return;
	}
	if (likely(!*otel_filter(address)))
		return;
	for (u32 way = 0; way < OTEL_WAYS; way++) {
		u64 known = address;

		if (set[way] == address &&
		    __atomic_compare_exchange_n(&set[way], &known, 0, 0, __ATOMIC_SEQ_CST,
						__ATOMIC_RELAXED)) {
			change_filter(otel_filter(address), -1);
			otel_say_free(address);
			return;
		}
	}
}

/* 1 - e^-x, for x from 0 on: by its series for a 64th of x, and e^2x - 1 = (e^x - 1)(e^x + 1). */
static double otel_share(double x)
{
	double y = -x / 64, term = y, sum = y;

	if (x > 45)
		return 1;
	for (u32 n = 2; n <= 12; n++) {
		term *= y / n;
		sum += term;
	}
	for (u32 n = 0; n < 6; n++)
		sum *= sum + 2;
	return -sum;
}

/* The natural logarithm of a whole number below 2^53 divided by 2^53, for which 0 stands for 1. */
static double otel_log(u64 number)
{
	double mantissa, z, square, power, sum;
	u32 bits = 64 - __builtin_clzll(number | 1);

	/* From 1/2 to 1, and 2 ln 2 (atanh z = z + z^3 / 3 + …; ln m = 2 atanh((m - 1) / (m + 1))). */
	mantissa = (double)(number | 1) / (double)(1ULL << (bits - 1)) / 2;
	z = power = sum = (mantissa - 1) / (mantissa + 1);
	square = z * z;
	for (u32 n = 3; n <= 31; n += 2) {
		power *= square;
		sum += power / n;
	}
	return 2 * sum + ((double)bits - 53) * 0.69314718055994530942;
}

static u64 otel_gap(void)
{
	if (!otel_dice)
		otel_dice = (__builtin_ia32_rdtsc() ^ (u64)&otel_dice) | 1;
	/* Marsaglia's xorshift64*. */
	otel_dice ^= otel_dice >> 12;
	otel_dice ^= otel_dice << 25;
	otel_dice ^= otel_dice >> 27;
	return (u64)(-OTEL_MEAN_BYTES * otel_log(otel_dice * 0x2545f4914f6cdd1dULL >> 11)) + 1;
}

/* A block was allocated, and somebody may be listening. */
static __attribute__((noinline)) void otel_note_alloc(u64 address, u64 size)
{
	u64 bytes = size ? size : 1;

	if (!otel_words.alloc) {
		if (!otel_words.free)
			otel_forget();
		return;
	}
	if (unlikely(!otel_until))
		otel_until = otel_gap();
	if (likely(bytes < otel_until)) {
		otel_until -= bytes;
		return;
	}
	otel_until = otel_gap();
	if (otel_remember(address))
		otel_say_alloc(address, bytes,
			       (u64)((double)bytes / otel_share((double)bytes / OTEL_MEAN_BYTES) + 0.5));
}

#endif
