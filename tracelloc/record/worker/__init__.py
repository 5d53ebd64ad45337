"""Reading the target's files in processes of their own, which have no rights and may die.

``zygote`` starts them, ``client`` asks them; ``workerfile`` (names), ``targetfile`` (functions) and
``unwindtables`` are a file as they are asked about, ``walks`` call stacks. ``service`` is what runs
in them, with ``readfile``, ``readcode`` and ``readstacks``; ``channel`` is between both.
"""
