// SPDX-License-Identifier: (MIT OR GPL-2.0)
/*
 * Registers of threads, read by an iterator over tasks (Documentation/bpf/bpf_iterators.rst): no
 * thread is stopped. A thread's registers are those with which it last entered the kernel: exact
 * while it waits there, a little old while it runs.
 *
 * User space passes the offsets of fields of struct task_struct, from the kernel's BTF.
 */
#include <uapi/linux/ptrace.h>

struct seq_file;
struct task_struct;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct thread_registers {
	u64 pid;
	u64 tid;
	u64 thread_pointer; /* of thread-local variables; 0 where it has no field */
	u64 signal_stack; /* memory that only the kernel may know (sigaltstack(2)) */
	struct pt_regs registers;
};

int read_registers(struct bpf_iter__task *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct task_struct *task = ctx->task;
	struct thread_registers row = {};

	if (!task)
		return 0;
	row.pid = *(u32 *)((char *)task + TGID_OFFSET);
	row.tid = *(u32 *)((char *)task + TID_OFFSET);
	if (THREAD_POINTER_OFFSET)
		row.thread_pointer = *(u64 *)((char *)task + THREAD_POINTER_OFFSET);
	row.signal_stack = *(u64 *)((char *)task + SIGNAL_STACK_OFFSET);
	bpf_probe_read_kernel(&row.registers, sizeof(row.registers), (void *)bpf_task_pt_regs(task));
	bpf_seq_write(seq, &row, sizeof(row));
	return 0;
}
