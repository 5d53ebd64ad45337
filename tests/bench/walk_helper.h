/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Walking call stacks by the kernel's helper, for comparison: what other tools do. It
 * follows frame pointers from the interrupted function, whether it has one or not.
 */
static __always_inline u64 walk_stack(struct pt_regs *ctx, struct space *space,
				      struct call *call, struct scratch *scratch)
{
	struct stack *stack = &scratch->stack;
	long bytes = bpf_get_stack(ctx, stack->frames, sizeof(stack->frames), BPF_F_USER_STACK);
	u64 hash = first_hash(space);
	u32 n = 0;

	stack->image = space->image;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < MAX_FRAMES; i++) {
		if ((long)(i * sizeof(u64)) >= bytes)
			break;
		hash = mix(hash, stack->frames[i]);
		n = i + 1;
	}
	return name_stack(stack, hash, n, 0, true);
}
