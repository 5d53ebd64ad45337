// SPDX-License-Identifier: (MIT OR GPL-2.0)
/*
 * Probes on allocations that a program itself reports: USDT probes `otel_memory:alloc(pointer,
 * size, weight)` and `otel_memory:free(pointer)`, as OpenTelemetry's profiler expects them (design
 * document 00003 of open-telemetry/opentelemetry-ebpf-profiler). The program samples; the weight
 * is the number of bytes that a block represents. It reports frees of sampled blocks only.
 *
 * A probe is in the middle of a function: the walk begins at the instruction itself, with the
 * current registers. The probe's cookie says where the arguments are (event.h). The order argument
 * of heap.bpf.c holds if the program reports a free before it frees.
 */

/* A register by its number in cookies. */
static __always_inline u64 otel_register(struct pt_regs *ctx, u32 number)
{
	u64 value = 0;

	/* One read each: clang would merge them into one read at a computed offset. */
#define REGISTER(at, name) \
	case at: \
		value = ctx->name; \
		asm volatile("" : "+r"(value)); \
		break
	switch (number) {
	OTEL_REGISTERS
	}
#undef REGISTER
	return value;
}

/* An argument, counted from 0. */
static __always_inline u64 otel_argument(struct pt_regs *ctx, u64 cookie, u32 which)
{
	u64 place = cookie >> which * OTEL_PLACE_BITS;
	u64 value = otel_register(ctx, place & OTEL_REGISTER);
	s64 displacement = (s64)(place << (64 - OTEL_PLACE_BITS)) >> (64 - OTEL_DISPLACEMENT_BITS);

	if (!(place & OTEL_IN_MEMORY))
		return value;
	return word_at(value + displacement);
}

static __always_inline u32 otel_bits(u64 value)
{
	u32 bits = 0;

	if (value >> 32) {
		bits += 32;
		value >>= 32;
	}
	if (value >> 16) {
		bits += 16;
		value >>= 16;
	}
	if (value >> 8) {
		bits += 8;
		value >>= 8;
	}
	if (value >> 4) {
		bits += 4;
		value >>= 4;
	}
	if (value >> 2) {
		bits += 2;
		value >>= 2;
	}
	return bits + (value > 1 ? 2 : value);
}

/*
 * A size, and the number of blocks of that size that one block represents: see WEIGHT_BITS. Sizes
 * are below 1 << WEIGHED_SIZE_BITS; `bytes` is at least the size.
 */
static __always_inline u64 weighed(u64 size, u64 bytes)
{
	u64 each = size ? size : 1;
	u64 whole = bytes / each, mantissa;
	u32 bits = otel_bits(whole);
	u64 exponent = bits - 1;

	if (!whole) {
		/* Fewer than one block is meaningless: count one. */
		mantissa = 1ULL << WEIGHT_MANTISSA_BITS;
		exponent = 0;
	} else if (bits > WEIGHT_MANTISSA_BITS + 1) {
		u32 shift = bits - (WEIGHT_MANTISSA_BITS + 1);

		mantissa = (whole + (1ULL << (shift - 1))) >> (shift & 63);
	} else {
		u32 shift = WEIGHT_MANTISSA_BITS + 1 - bits;

		/* Below 2^64: bytes are below 2^(WEIGHED_SIZE_BITS + WEIGHT_MANTISSA_BITS + 1). */
		mantissa = ((bytes << (shift & 63)) + each / 2) / each;
	}
	if (mantissa >> (WEIGHT_MANTISSA_BITS + 1)) {
		mantissa >>= 1;
		exponent += 1;
	}
	if (exponent > WEIGHT_MOST_EXPONENT) {
		exponent = WEIGHT_MOST_EXPONENT;
		mantissa = ~0ULL;
	}
	return size << WEIGHT_BITS | exponent << WEIGHT_MANTISSA_BITS |
	       (mantissa & ((1ULL << WEIGHT_MANTISSA_BITS) - 1));
}

/* The program has allocated a block that it has sampled. */
int otel_alloc(struct pt_regs *ctx)
{
	struct control *words = get_control();
	u64 cookie = attach_cookie(ctx);
	u64 id = current_id();
	u64 address, size, bytes, stack_id;
	struct call *call;

	use_thread_stack(ctx);
	if (!is_live(words))
		return 0;
	address = otel_argument(ctx, cookie, 0);
	size = otel_argument(ctx, cookie, 1);
	bytes = otel_argument(ctx, cookie, 2);
	if (!address || size < MIN_SIZE || size > MAX_SIZE)
		return 0;
	if (size >> WEIGHED_SIZE_BITS || bytes >> 63) {
		count(COUNTER_IMPOSSIBLE_SIZES);
		return 0;
	}
	call = get_call(id);
	if (!call) {
		count(COUNTER_LOST_ALLOCS);
		return 0;
	}
	/* Treats the probed instruction as a call that has just returned. */
	call->last_sp = PT_REGS_SP(ctx) - RETURN_SP_DELTA;
	call->return_address = PT_REGS_IP(ctx) + 1;
	stack_id = capture_stack(ctx, words, id, call);
	emit_alloc(words, id, address, weighed(size, bytes), stack_id);
	return 0;
}

/* The program is about to free a block that it has sampled. */
int otel_free(struct pt_regs *ctx)
{
	struct control *words = get_control();
	u64 cookie = attach_cookie(ctx);
	u64 id = current_id();
	u64 address = otel_argument(ctx, cookie, 0);

	use_thread_stack(ctx);
	if (address && is_live(words))
		emit_free(words, id, EVENT_FREE, address);
	return 0;
}
