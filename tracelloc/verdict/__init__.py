"""Tells leaks from caches, pools, busy and start-up memory, by births and deaths of blocks.

``growth`` finds the age from which blocks stop dying, tests windows of time,
and finds the onset of a leak. ``loss`` allows for lost events. ``judging`` combines them for any
sites and recognizes what does not leak. ``multistack`` finds leaks that are split over many
stacks, by their shared frames (``grouping``), and stacks that leak together. ``judge`` runs it all
every few seconds; ``findings`` lists the suspects and settles verdicts by earlier ones, and
``evidence`` puts them into words. ``parameters`` has all numbers, with their units and reasons.

Limits: if no block of a site was ever freed, a leak and a container that only grows produce the
same events, so the confidence stays below 0.8 and the evidence mentions it. A leak needs at least
six survivors, and about two minutes (four and a half if nothing is freed) from its onset. Leaks
among long-lived blocks take longer, at least 2.5 times their lifetime. Caches that fill more
slowly than that look like leaks until they are full.
"""
