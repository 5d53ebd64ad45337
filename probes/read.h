/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* BPF helpers that bcc does not declare, or handles slowly. */

/*
 * bpf_probe_read_user under another name: for each call under its own name, bcc reads all of
 * /proc/kallsyms to check that the kernel has it, which takes as long as compiling.
 */
static int (*read_user)(void *to, u32 size_bytes, const void *from) =
	(void *)BPF_FUNC_probe_read_user;

/* The cookie of the probe that was hit; event.h has its bits. */
static u64 (*attach_cookie)(void *ctx) = (void *)BPF_FUNC_get_attach_cookie;

/* The current processor. A program does not migrate. */
static u32 (*processor_id)(void) = (void *)BPF_FUNC_get_smp_processor_id;

/* The probe's address, also at the function's return. For programs of sessions. */
static u64 (*probe_address)(void *ctx) = (void *)BPF_FUNC_get_func_ip;

/* The word at an address; 0 if it can't be read. */
static __always_inline u64 word_at(u64 address)
{
	u64 word = 0;

	read_user(&word, sizeof(word), (void *)address);
	return word;
}
