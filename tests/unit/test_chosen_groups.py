"""Which sums of call stacks are reported, given how they were judged."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial

import numpy as np

from tracelloc.model.verdicts import CODE_OF, Sites, Verdict
from tracelloc.verdict.findings import Group
from tracelloc.verdict.grouping import Groups, choose
from tracelloc.verdict.multistack import most_specific

BUSY, GROWING, LEAKING = (CODE_OF[v] for v in (Verdict.BUSY, Verdict.GROWING, Verdict.LEAKING))


def sites_of(*judged: tuple[int, float]) -> Sites:
    """Sites of (verdict, blocks a minute)."""
    columns = {field.name: np.zeros(len(judged)) for field in fields(Sites)}
    return replace(
        Sites(**columns),  # type: ignore[arg-type]
        code=np.array([code for code, _ in judged], np.uint8),
        blocks_per_min=np.array([rate for _, rate in judged]),
        rate_bytes_per_min=np.array([rate for _, rate in judged]),
        confidence=np.full(len(judged), 0.5),
        rising_only=np.zeros(len(judged), np.bool_),
    )


def chosen(outer: tuple[int, float], inner: tuple[int, float]) -> list[int]:
    """The groups that are reported: 0 has four stacks, and 1 has two of these."""
    groups = Groups(np.arange(4), np.array([0, 0]), np.array([4, 2]), [(0, 0), (1, 0)])
    stacks = sites_of(*[(BUSY, 0.0)] * 4)
    return choose(groups, sites_of(outer, inner), stacks, np.zeros(2, np.bool_))


def test_what_only_grows_does_not_hide_what_leaks() -> None:
    assert chosen((GROWING, 100.0), (LEAKING, 10.0)) == [1]
    assert chosen((LEAKING, 100.0), (LEAKING, 10.0)) == [0]
    assert chosen((GROWING, 100.0), (GROWING, 10.0)) == [0]
    assert chosen((GROWING, 100.0), (GROWING, 80.0)) == [1]


def test_nor_from_the_other_end_of_the_stacks() -> None:
    group = partial(Group, bytes_kept=np.ones(2), frame=None, retracted=0)
    leaking = group(sites_of((LEAKING, 10.0)), np.array([0, 1]), sharing=2)
    growing = group(sites_of((GROWING, 100.0)), np.array([0, 1]), sharing=2)
    parts = np.ones(4, np.bool_)
    assert most_specific([leaking], [growing], parts) == [leaking]
    assert most_specific([growing], [leaking], parts) == [growing]
    more = replace(leaking, sites=sites_of((LEAKING, 1000.0)))
    assert most_specific([growing], [more], parts) == [more]
