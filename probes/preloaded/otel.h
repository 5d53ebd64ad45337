/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Reports sampled allocations to OpenTelemetry's profiler or any other listener, by the USDT probes
 * `otel_memory:alloc(pointer, size, weight)` and `otel_memory:free(pointer)` (design document 00003
 * of open-telemetry/opentelemetry-ebpf-profiler). While tracelloc wants events, a thread reports
 * here only the frees of blocks that were reported before.
 *
 * Sampling
 *   Sampling points lie at exponentially distributed distances, OTEL_MEAN_BYTES on average, along
 *   all bytes that a thread allocates. A block is reported if it contains a point. Its weight,
 *   size / (1 - e^(-size / mean)) bytes, is the amount that it stands for.
 *
 * Table of reported blocks
 *   A table in this library's memory holds the reported blocks, so that their frees can be reported.
 *   A counting filter in front of it rules out most other addresses. An entry is added before the
 *   block is returned to the program and removed before the block is freed. If the table has no room
 *   for a block, the block is not reported. When all listeners are gone, the next call in any thread
 *   empties the table. A forked child finds it empty (MADV_WIPEONFORK). A resize that fails has
 *   removed its block from the table: that block is reported as freed.
 *
 * Idle
 *   While nobody listens, `otel_words` is 0: both probe counters, which the kernel maintains, are 0
 *   and the table is empty. Each call checks that by one load and a branch.
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

/* The counters of both probes and the table's state, in a section that is mapped from the file. */
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
	OTEL_EMPTYING = 2, /* a thread is emptying it: nothing may be added */
};

static struct {
	u8 filter[OTEL_FILTER_BYTES];
	u64 sets[OTEL_SETS][OTEL_WAYS];
} otel_said __attribute__((aligned(PRELOAD_PAGE)));

/* Bytes until the next sample (0: to be drawn); state of the random generator (0: unset). */
static __thread u64 otel_until __attribute__((tls_model("initial-exec")));
static __thread u64 otel_dice __attribute__((tls_model("initial-exec")));

/* A USDT probe and its note; `counter`: offset of its counter in `otel_words`, in bytes. */
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

/* Not inlined, so that each probe exists once, with its arguments in the registers of a call. */
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

/* Whether nobody listens and the table is empty. */
static inline int otel_is_idle(void)
{
	return !otel_words.all;
}

/* Whether the kernel zeroes the table in forked children; if not, the table is not used. */
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

/* Empties the table after all listeners are gone. */
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

/* Whether entries can be added. */
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

/* Reports a free before a block is freed or resized. */
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

/* 1 - e^-x for x >= 0, from the series at x / 64 and e^2x - 1 = (e^x - 1)(e^x + 1). */
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

/* ln(number / 2^53) for a number below 2^53; 0 counts as 1. */
static double otel_log(u64 number)
{
	double mantissa, z, square, power, sum;
	u32 bits = 64 - __builtin_clzll(number | 1);

	/* Mantissa from 1/2 to 1; ln m = 2 atanh((m - 1) / (m + 1)), atanh z = z + z^3 / 3 + …. */
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

/* Samples an allocated block and reports it if somebody listens. */
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
