/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Empty on purpose: bcc brings this header itself, or nothing here uses it. */
