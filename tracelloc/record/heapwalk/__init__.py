"""Walks the heap of a running process: every block of its malloc library, in use or free.

The heap's structures are read from outside (process_vm_readv(2)) while the process runs; nothing
is stopped, probed or written. Structures are found by what they contain, without symbols. Whatever
reads memory raises OSError, TargetError and PrivilegeError, here and in ``reachability``.
"""
