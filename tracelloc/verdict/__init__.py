"""Telling leaks from caches, pools, busy and start-up memory, by births and deaths.

``survivaltail`` finds the age from which on blocks stop dying, ``growth`` tests windows of time
and says since when, ``loss`` allows for what was lost, and ``judgement`` combines them for any
sites and recognizes what does not leak. ``multistack`` finds leaks that are split over many
stacks, by the frames that they share (``grouping``), and stacks that leak together. ``judge``
runs it all every few seconds; ``findings`` holds the answers, and what was said before.
``parameters`` has all numbers, with their units and reasons.

What it cannot tell: if nothing from a site was ever freed, a leak and a container that only
grows make the same events, so the confidence stays below 0.8 and the evidence says so. A
leak needs six survivors at least, and about two minutes (four and a half where nothing is
freed) from its onset on; leaks among blocks that live long take longer, 2.5 times their
lifetime at least. Caches that fill more slowly than that look like leaks until they are full.
"""
