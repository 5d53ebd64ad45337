"""Reads the target's files in separate processes, which have no privileges and may crash.

``zygote`` starts them, ``client`` asks them. ``workerfile`` (names), ``targetfile`` (functions) and
``unwindtables`` represent a file for the caller, ``walks`` call stacks. ``service`` runs
in the workers, with ``readfile``, ``readcode`` and ``readstacks``; ``channel`` connects both sides.
"""
