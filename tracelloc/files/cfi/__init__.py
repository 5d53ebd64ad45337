"""Call-frame information: how to step from a frame to its caller, per code address.

Every function of a file with unwind tables has a small program that computes, for each of its
addresses, where the caller's stack pointer, return address and saved registers are. ``module.Cfi``
finds the programs of one file. The compiled ``core`` decodes them, packs the results that the
probes can use into 64 bits, and follows the full rules in user space.

Sources: DWARF 5, section 6.4; Linux Standard Base Core 5.0, chapter 10.6 (``.eh_frame``);
System V ABI, AMD64 supplement, section 3.6.2 (register numbers). Files are hostile input:
every loop is bounded by the bytes it reads, and what can't be decoded has a named reason.
"""
