/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Preemption: the kernel may interrupt any of these programs by another thread, whose probes
 * run on the same processor before this program continues.
 *
 * Since Linux 5.7 tracing programs do not disable preemption themselves (kernel commit
 * b0a81b94cc50), and since 6.0 nothing disables it for programs on uprobes (8c7dcb84e3b7,
 * 88bf18581375). They cannot migrate, and run in an RCU read section. The consequences:
 *
 *   Stack. From 6.13 on the x86-64 JIT gives programs of these types that use 64 bytes of
 *     stack or more a private stack per processor (a76ab5731e32), which ignores preemption:
 *     another thread's probe overwrites spilled registers, and the kernel oopses.
 *     A program that may tail-call keeps the thread's own kernel stack, hence
 *     `use_thread_stack`.
 *   Scratch memory. A processor has several pieces, of which a program takes one (scratch.h).
 *   Counters change by atomic additions. Words in map `control` are written whole, and either
 *     of two writers may be the last one.
 *   The cached time of the last tick is one word: if a thread is preempted before it writes the
 *     word, the next event notices that the time is of an old tick (emit.h).
 *   Rings of events have no lock (ring.h): a program that is preempted between reserving a
 *     slot and writing it delays the reader, but no other program.
 *   Ring and hash maps: the kernel holds their locks with interrupts disabled, or refuses an
 *     entry if a lock is contended (6.15 on). Maps without preallocation take entries from lists
 *     per processor, which an interrupt (6.1 on) or, with PREEMPT_RT, a thread refills; an empty
 *     list has no entry. A refused entry counts as no room.
 *   Tracepoint programs are skipped if the same program is entered again on the same processor
 *     (`recursion_misses` of struct bpf_prog_info). The kernel runs these programs with
 *     preemption disabled, or one at a time; tracelloc reports the kernel's count of skips.
 */

/*
 * Keeps a program on its thread's kernel stack. Every program calls this. The verifier looks for
 * tail calls before it removes unreachable code, so this one counts but costs nothing.
 */
static __always_inline void use_thread_stack(void *ctx)
{
	long (*tail_call)(void *, void *, u32) = (void *)BPF_FUNC_tail_call;
	u64 reached = 0;

	/* Otherwise clang knows that it is 0 and removes the call. */
	asm volatile("" : "+r"(reached));
	if (reached)
		tail_call(ctx, NULL, 0);
}
