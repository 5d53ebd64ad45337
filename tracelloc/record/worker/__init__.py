"""Reads the target's files in separate processes, which have no privileges and may crash.

``zygote`` starts them, ``client`` asks them over a ``channel``, ``service`` runs in them. What can
be asked is written once: methods with ``@question`` (``questions``) of ``SymbolFileReader`` and
``CodeFileReader``, about one file, and of ``KnownFiles``, about all files. ``targetfile``
(functions, names) and ``unwindtables`` represent a file for the caller.
"""
