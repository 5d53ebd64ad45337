/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* What bcc asks of a kernel configuration before it compiles anything. */
#ifndef TRACELLOC_LINUX_KCONFIG_H
#define TRACELLOC_LINUX_KCONFIG_H
#define CONFIG_64BIT 1
#define CONFIG_BPF_SYSCALL 1
#endif
