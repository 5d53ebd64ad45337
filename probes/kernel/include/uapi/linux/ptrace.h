/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* The registers that a uprobe program gets as its context, in the kernel's order. */
#ifndef TRACELLOC_UAPI_LINUX_PTRACE_H
#define TRACELLOC_UAPI_LINUX_PTRACE_H
#if defined(__aarch64__) || defined(__TARGET_ARCH_arm64)
struct pt_regs {
	unsigned long regs[31];
	unsigned long sp;
	unsigned long pc;
	unsigned long pstate;
};
#else
struct pt_regs {
	unsigned long r15;
	unsigned long r14;
	unsigned long r13;
	unsigned long r12;
	unsigned long bp;
	unsigned long bx;
	unsigned long r11;
	unsigned long r10;
	unsigned long r9;
	unsigned long r8;
	unsigned long ax;
	unsigned long cx;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
	unsigned long ip;
	unsigned long cs;
	unsigned long flags;
	unsigned long sp;
	unsigned long ss;
};
#endif
#endif
