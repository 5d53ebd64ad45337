/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Being preempted: the kernel may interrupt any of these programs by another thread, whose
 * probes run on the same processor before this program goes on.
 *
 * Since Linux 5.7 tracing programs do not disable preemption by themselves (kernel commit
 * b0a81b94cc50), and since 6.0 nothing does it for programs on uprobes (8c7dcb84e3b7,
 * 88bf18581375). They cannot migrate, and are in an RCU read section. What follows:
 *
 *   Stack. From 6.13 on the x86-64 JIT gives programs of these types that use 64 bytes of
 *     stack or more a private stack per processor (a76ab5731e32), as if they were never
 *     preempted: another thread's probe overwrites spilled registers, and the kernel oopses.
 *     A program that may tail-call keeps the thread's own kernel stack, hence
 *     `use_thread_stack`.
 *   Scratch memory. A processor has several pieces, of which a program takes one (scratch.h).
 *   Counters are changed by atomic additions. Words in map `control` are written whole, and
 *     whichever of two writers is last may be.
 *   The cached time of the last tick is one word: a thread that was preempted before it
 *     writes that leaves an old time to nobody (emit.h).
 *   Rings of events have no lock (ring.h): a program that is preempted between reserving a
 *     slot and writing it holds back the reader, and nobody else.
 *   Ring and hash maps: the kernel's locks in them are held with interrupts disabled, or may
 *     refuse an entry where a lock is contended (6.15 on). Entries of maps that take memory as
 *     they need it come from lists per processor, which are filled up in an interrupt (6.1 on)
 *     or, with PREEMPT_RT, by a thread; from an empty list there is none. What is refused
 *     counts as no room.
 *   Tracepoint programs are skipped where one is entered again on the same processor
 *     (`recursion_misses` of struct bpf_prog_info). Those of ours are run with preemption
 *     disabled, or once at a time by the kernel's own rules; a skip is counted.
 */

/*
 * To be called first in every program. The verifier sees the tail call when it looks for
 * them, before it finds out that it is never reached and removes it: it costs nothing.
 */
static __always_inline void use_thread_stack(void *ctx)
{
	long (*tail_call)(void *, void *, u32) = (void *)BPF_FUNC_tail_call;
	u64 reached = 0;

	/* Else clang sees that it is 0, too. */
	asm volatile("" : "+r"(reached));
	if (reached)
		tail_call(ctx, NULL, 0);
}
