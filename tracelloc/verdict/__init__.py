"""Telling leaks from caches, pools, busy and start-up memory, by births and deaths.

``survival`` finds the age from which on blocks stop dying, ``growth`` tests windows of time
and says since when, ``loss`` allows for what was lost, and ``judgement`` puts these together
for any sites and tells apart what is no leak. ``multistack`` finds leaks that are split over many
stacks, by the frames that they share (``grouping``), and stacks that leak together. ``judge``
does it all every few seconds; ``findings`` holds the answers, and what was said before.

What it cannot tell: if nothing from a site was ever freed, a leak and a container that only
grows make the same events, so the confidence stays below 0.8 and the evidence says so. A
leak needs six survivors at least, and about two minutes (four and a half where nothing is
freed) from its onset on; leaks among blocks that live long take longer, 2.5 times their
lifetime at least. Caches that fill more slowly than that look like leaks until they are full.
"""
