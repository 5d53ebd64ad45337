"""Telling leaks from caches, pools, busy and start-up memory, by births and deaths.

``cohorts`` keeps the figures, ``survival`` finds the age from which on blocks stop dying,
``rule`` tests windows of time, ``others`` tells apart what is no leak, ``grouping`` finds
leaks that are split over many stacks, ``judge`` puts these together every few seconds,
``sentences`` says why, and ``judgement`` holds the answers.
"""
