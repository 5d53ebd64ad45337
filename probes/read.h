/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Helpers that bcc has no good name for. */

/*
 * bpf_probe_read_user by another name: for each call by that one, bcc reads all of
 * /proc/kallsyms to see whether the kernel has it, which takes as long as compiling.
 */
static int (*read_user)(void *to, u32 size_bytes, const void *from) =
	(void *)BPF_FUNC_probe_read_user;

/* What the probe that was hit is for: bits of event.h. */
static u64 (*attach_cookie)(void *ctx) = (void *)BPF_FUNC_get_attach_cookie;

/* The processor this runs on; it stays on that one. */
static u32 (*processor_id)(void) = (void *)BPF_FUNC_get_smp_processor_id;

/* Where the probe is, also at the function's return. For programs of sessions. */
static u64 (*probe_address)(void *ctx) = (void *)BPF_FUNC_get_func_ip;
