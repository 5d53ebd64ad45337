/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Instruction encodings for classic BPF; the probes write none by hand. */
