/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* uprobe programs carry a version word that kernels since 5.0 do not look at. */
#ifndef TRACELLOC_LINUX_VERSION_H
#define TRACELLOC_LINUX_VERSION_H
#define KERNEL_VERSION(major, minor, patch) (((major) << 16) + ((minor) << 8) + (patch))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 10, 0)
#endif
