"""Withdraws the verdict *growing* from stacks whose live bytes have just fallen.

Verdicts are some seconds old when they are shown. A heap may lose most of its blocks meanwhile.
"""

from dataclasses import replace

import numpy as np

from tracelloc.model.figures import F64, I64, Mask, resized
from tracelloc.model.verdicts import CODE_OF, Findings, Suspect, Verdict
from tracelloc.verdict.parameters import P


def without_falling(findings: Findings, growth_per_min: I64, live_bytes: I64) -> Findings:
    """Returns findings in which growing stacks that have just freed many bytes are *deciding*.

    ``growth_per_min``, ``live_bytes``: bytes of each stack now; stacks at the end that only other
    processes have used may be missing.
    """
    sites, count = findings.sites, len(findings.codes)
    growth, live = resized(growth_per_min, count), resized(live_bytes, count)
    is_growing = sites.code == CODE_OF[Verdict.GROWING]
    falls = is_growing & (_falls(growth, live) | _fell_since(sites.alive_bytes[:count], live))
    kept: list[Suspect] = []
    for suspect in findings.suspects:
        members = [member.stack for member in suspect.members]
        is_leak = suspect.judgement.verdict is Verdict.LEAKING
        now, then = live[members].sum(), sites.alive_bytes[members].sum()
        if is_leak or not (_falls(growth[members].sum(), now) or _fell_since(then, now)):
            kept.append(suspect)
            falls[members] = False
        else:
            falls[members] = is_growing[members]
    if len(kept) == len(findings.suspects) and not falls.any():
        return findings
    return replace(
        findings,
        suspects=tuple(kept),
        suspect_of={member.stack: one for one in kept for member in one.members},
        sites=replace(
            sites.withheld(falls, Verdict.DECIDING),
            rising_only=sites.rising_only | falls,
            verdict_in_s=np.where(falls, 0.0, sites.verdict_in_s),
        ),
    )


def _fell_since(judged: F64, live: I64) -> Mask:
    """Whether a large share of the bytes that were live at the judgement has been freed."""
    fell: Mask = live < (1 - P.fall_least_share) * judged
    return fell


def _falls(growth: I64, live: I64) -> Mask:
    fell: Mask = -growth > P.fall_least_share * (live - growth)
    return fell
