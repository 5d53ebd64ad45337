/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Which address space a thread is in. */

/* The address space of a thread, by its pid_tgid; NULL if its process is not traced. */
static __always_inline struct space *get_space(u64 id)
{
	u32 slot = 0;

	return spaces.lookup(&slot);
}

/* Whether this thread's process is traced, for programs that run for every process. */
static __always_inline bool is_traced(struct control *words, u64 id)
{
	return words->tgid == id >> 32;
}
