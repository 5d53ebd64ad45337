/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Reading the target's memory. */

/*
 * bpf_probe_read_user by another name: for each call by that one, bcc reads all of
 * /proc/kallsyms to see whether the kernel has it, which takes as long as compiling.
 */
static int (*read_user)(void *to, u32 size_bytes, const void *from) =
	(void *)BPF_FUNC_probe_read_user;
