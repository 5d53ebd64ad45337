// SPDX-License-Identifier: (MIT OR GPL-2.0)
/*
 * Probes on allocations that a program itself reports by USDT probes (record/mallocs/usdt.py). If
 * they have a weight, the program samples (OpenTelemetry's design document 00003): it is the number
 * of bytes that a block represents, and frees of sampled blocks only are reported.
 *
 * A probe is in the middle of a function: the walk begins at the instruction itself, with the
 * current registers. The probe's cookie is the number of the description of where its arguments
 * are (event.h). The order argument of heap.bpf.c holds if the program reports a free before it
 * frees.
 */

/* bpf_probe_read_kernel under another name: see read_user. */
static int (*read_kernel)(void *to, u32 size_bytes, const void *from) =
	(void *)BPF_FUNC_probe_read_kernel;

/* A register by its number, shifted. */
static __always_inline u64 usdt_register(struct pt_regs *ctx, u8 number, u8 shift)
{
	u64 value = 0;

	if (number != USDT_NO_REGISTER)
		read_kernel(&value, sizeof(value), (void *)ctx + number * sizeof(u64));
	return value << (shift & 63);
}

/* An argument; 0 if there is none, or its memory can't be read. */
static __always_inline u64 usdt_value(struct pt_regs *ctx, struct usdt_argument *place)
{
	u64 unused_bits = 64 - 8 * ((place->bytes - 1 & 7) + 1);
	u64 value = place->constant + usdt_register(ctx, place->base, 0) +
		    usdt_register(ctx, place->index, place->shift);

	if (!place->bytes)
		return 0;
	if (place->in_memory) {
		u64 address = value;

		value = 0;
		read_user(&value, (place->bytes - 1 & 7) + 1, (void *)address);
	}
	value = value >> (place->skip_bits & 63) << unused_bits;
	return place->is_signed ? (u64)((s64)value >> unused_bits) : value >> unused_bits;
}

/* Where the arguments of the probe are that was hit. */
static __always_inline struct usdt_probe *usdt_places(struct pt_regs *ctx)
{
	u32 number = attach_cookie(ctx);

	return usdt_probes.lookup(&number);
}

static __always_inline u32 bit_length(u64 value)
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
	u32 bits = bit_length(whole);
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

/* Reads what is reported. Whether a block is to be reported now. */
static __always_inline bool begin_report(struct pt_regs *ctx, struct call *call)
{
	struct usdt_probe *places = usdt_places(ctx);
	u64 size, bytes;
	bool is_weighed;

	if (!places)
		return false;
	call->result = usdt_value(ctx, &places->pointer);
	size = usdt_value(ctx, &places->size);
	if (!call->result || size < MIN_SIZE || size > MAX_SIZE)
		return false;
	bytes = usdt_value(ctx, &places->weight);
	is_weighed = places->weight.bytes;
	if (size >> (is_weighed ? WEIGHED_SIZE_BITS : EVENT_SIZE_BITS) || bytes >> 63) {
		count(COUNTER_IMPOSSIBLE_SIZES);
		return false;
	}
	call->size = is_weighed ? weighed(size, bytes) : size;
	call->device = places->device.bytes ? (u16)(usdt_value(ctx, &places->device) + 1) : 0;
	/* Treats the probed instruction as a call that has just returned. */
	call->kind = FUNCTION_ALLOC;
	call->last_sp = PT_REGS_SP(ctx) - RETURN_SP_DELTA;
	call->return_address = PT_REGS_IP(ctx) + 1;
	return true;
}

/* The program has allocated a block. */
int usdt_alloc(struct pt_regs *ctx)
{
	struct control *words = get_control();
	u64 id = current_id();
	struct call *call = find_call(id);

	use_thread_stack(ctx);
	if (!has_walked(call)) {
		if (!is_live(words))
			return 0;
		call = get_call(id);
		if (!call) {
			count(COUNTER_LOST_ALLOCS);
			return 0;
		}
		if (!begin_report(ctx, call))
			return 0;
		walk_python_first(ctx, id, call);
	}
	/* Otherwise their states differ, and the verifier follows the walk twice. */
	asm volatile("" : "+r"(ctx), "+r"(words), "+r"(id), "+r"(call) : : "memory");
	if (words)
		report_allocation(ctx, words, id, call);
	return 0;
}

/* The program is about to free a block. */
int usdt_free(struct pt_regs *ctx)
{
	struct control *words = get_control();
	u64 id = current_id();
	struct usdt_probe *places = usdt_places(ctx);
	u64 address = places ? usdt_value(ctx, &places->pointer) : 0;

	use_thread_stack(ctx);
	if (address && is_live(words))
		emit_free(words, id, EVENT_FREE, address);
	return 0;
}
