/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Leaving the lane to probes, from one call of an allocator to the next, when what the process
 * reports would not be all from then on. The thread that finds that out says so (LANE_LEAVING), and
 * waits until no thread is in a call; none begins one meanwhile. Then (LANE_LEFT) the profiler takes
 * what has been reported, puts its probes in place and wants no more events, so that all go on. A
 * signal handler that interrupts a call makes its own within that, and is not waited for by itself.
 *
 * Who begins a call writes `inside` of its ring before it reads `leaving`; who leaves writes
 * `leaving`, makes all threads pass a memory barrier, and reads `inside`: one of both sees
 * the other.
 */

/* Pauses after which what a thread has written is seen by all, for want of a barrier. */
#define LEAVE_PAUSES 10000

static inline void note_in_ring(struct lane_ring *ring, int is_inside)
{
	if (likely(ring != ring_at(0)))
		*(volatile u32 *)&ring->inside = is_inside;
	else
		__atomic_fetch_add(&ring->inside, is_inside ? 1 : -1, __ATOMIC_SEQ_CST);
}

/* The process is about to do what ends the lane's being exact. Waits until there are probes. */
static __attribute__((noinline)) void leave(u32 why)
{
	struct lane_control *control = guard.control;
	u64 begun = __builtin_ia32_rdtsc();
	u32 stays = LANE_STAYS;

	if (!control)
		return;
	control->why_not = why;
	if (!is_wanted(control))
		return;
	/* Probes don't know which blocks are sampled. */
	if (me.inside || control->samples) {
		if (why == LANE_NO_CLOCK)
			__atomic_store_n(&control->holder, 0, __ATOMIC_SEQ_CST);
		return;
	}
	if (__atomic_compare_exchange_n(&control->leaving, &stays, LANE_LEAVING, 0,
					__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
		if (may_call(control) && control->registered)
			system_call(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0, 0, 0, 0);
		else
			for (u32 n = 0; n < LEAVE_PAUSES; n++)
				__builtin_ia32_pause();
		for (u32 n = 0; guard.area && n < LANE_RINGS; n++)
			for (u32 tries = 0; *(volatile u32 *)&ring_at(n)->inside; tries++) {
				if (!is_wanted(control))
					return;
				wait_a_while(control, tries, begun);
			}
		control->leaving = LANE_LEFT;
	}
	for (u32 tries = 0; is_wanted(control); tries++)
		wait_a_while(control, tries, begun);
}

/* A call is about to begin while the process leaves. Signal handlers may come and go here. */
static __attribute__((noinline)) void wait_outside(struct lane_control *control)
{
	u64 begun = __builtin_ia32_rdtsc();

	do {
		note_in_ring(me.noted, 0);
		note_inside(-1);
		for (u32 tries = 0; *(volatile u32 *)&control->leaving && is_wanted(control); tries++)
			wait_a_while(control, tries, begun);
		note_inside(1);
		note_in_ring(me.noted, 1);
	} while (*(volatile u32 *)&control->leaving && is_wanted(control));
}

/*
 * Whether the call that this one seems to be within has ended without returning: an exception or
 * longjmp(3) has left it. The stack was deeper then.
 */
static inline int is_left(u64 frame)
{
	return frame >= me.outermost && me.outermost >= me.low && frame < me.high;
}

/* A call begins that may be reported; `frame` is its function's. */
static inline void begin_call(const u64 *frame)
{
	struct lane_control *control = guard.control;

	note_inside(1);
	if (unlikely(!control) || control->samples || unlikely(!is_wanted(control)))
		return;
	if (unlikely(me.inside != 1) && is_left((u64)frame))
		me.inside = 1;
	if (unlikely(me.inside != 1))
		return;
	me.outermost = (u64)frame;
	if (unlikely(me.noted != NULL))
		note_in_ring(me.noted, 0); /* of the call that was left */
	if (unlikely(!me.ring || !guard.area) && !take_ring())
		return;
	me.noted = me.ring;
	note_in_ring(me.noted, 1);
	if (unlikely(*(volatile u32 *)&control->leaving))
		wait_outside(control);
}

static inline void end_call(void)
{
	if (me.noted && me.inside == 1) {
		note_in_ring(me.noted, 0);
		me.noted = NULL;
	}
	/* Else a call within this one was taken for the only one. */
	if (likely(me.inside))
		note_inside(-1);
}

static __attribute__((noinline)) void begin_rare_call(const u64 *frame)
{
	begin_call(frame);
}

static __attribute__((noinline)) void end_rare_call(void)
{
	end_call();
}
