// Takes a record of the library's thread table (probes/preloaded/threadtable.h) while a signal handler
// of the same thread takes one, too: in the middle of the system call that asks for another thread.
#define PRELOAD_INJECTED
#define system_call real_system_call
#include "kernel.h"
#undef system_call

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static long system_call(long number, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f);
#include "threadtable.h"

static volatile int is_in_handler, place;
static struct thread *of_handler;

/* Where the thread's record is taken, others have ended: those before `place` only by now. */
static long system_call(long number, u64 a, u64 tid, u64 c, u64 d, u64 e, u64 f)
{
	(void)number, (void)a, (void)c, (void)d, (void)e, (void)f;
	if (is_in_handler)
		return -ESRCH;
	if (tid != (u64)place)
		return 0;
	is_in_handler = 1;
	of_handler = take_thread(own_tid());
	is_in_handler = 0;
	return -ESRCH;
}

int main(void)
{
	u32 tid = (u32)getpid();

	/* What the C library knows of a thread is before its thread pointer on 64-bit Arm. */
#ifdef __aarch64__
	const u64 step = -4;
#else
	const u64 step = 4;
#endif

	while (own_tid() != tid)
		tid_offset += step;
	for (place = 1; place < 4; place++) {
		memset(records, 0, sizeof(records));
		for (int n = 0; n < 4; n++)
			records[(tid + n) & (THREADS - 1)].tid = n + 1;
		if (take_thread(tid) != of_handler || of_handler != find_thread(tid)) {
			printf("two records, place %d\n", place);
			return 1;
		}
	}
	puts("one record");
	return 0;
}
