/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* The address space of a thread. */

/*
 * The current thread: tgid << 32 | tid, in tracelloc's PID namespace. (A thread outside of that
 * namespace, or in one below it, has its initial ids.)
 */
static __always_inline u64 current_id(void)
{
#ifdef PID_NAMESPACE_INODE
	struct bpf_pidns_info ids = {};

	if (!bpf_get_ns_current_pid_tgid(PID_NAMESPACE_DEVICE, PID_NAMESPACE_INODE, &ids,
					 sizeof(ids)))
		return (u64)ids.tgid << 32 | ids.pid;
#endif
	return bpf_get_current_pid_tgid();
}

/* The address space of a thread, by its pid_tgid; NULL if its process is not traced. */
static __always_inline struct space *get_space(u64 id)
{
#ifdef FOLLOW
	u32 tgid = id >> 32;
	u32 at = tgid & (NEAR_SPACES - 1);
	u64 *near = near_spaces.lookup(&at);
	u64 found = near ? *(volatile u64 *)near : 0;
	u32 slot = (u32)found - 1;

	if (found >> 32 != tgid) {
		u32 *known = space_of.lookup(&tgid);

		slot = known ? *known : MAX_SPACES;
	}
#else
	u32 slot = 0;
#endif

	return spaces.lookup(&slot);
}

/* Whether this thread's process is traced, for programs that run for every process. */
static __always_inline bool is_traced(struct control *words, u64 id)
{
#ifdef FOLLOW
	return get_space(id);
#else
	return words->tgid == id >> 32;
#endif
}
