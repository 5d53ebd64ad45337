"""Judgements in words: a verdict's figures, with a sentence that gives the evidence for it."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tracelloc.model.verdicts import VERDICTS, Findings, Judgement, JudgingBasis, Sites, Verdict
from tracelloc.text import NS_PER_S, format_duration, format_percent, format_size
from tracelloc.verdict.parameters import P

Blocks = Callable[[float], str]  # Formats a count of blocks
_FEW: Final = 0.25  # Share of a stack's blocks below which a search says nothing about the others

_NOT_LOOKED_AT: Final = Judgement(Verdict.DECIDING, evidence="not judged yet")


def stack_judgement(findings: Findings, stack: int) -> Judgement:
    """Returns a stack's judgement; a suspect's member gets the suspect's, with its own rate."""
    suspect = findings.suspect_of.get(stack)
    if suspect is not None:
        member = next(member for member in suspect.members if member.stack == stack)
        return replace(suspect.judgement, rate_bytes_per_min=member.rate_bytes_per_min)
    if stack >= len(findings.codes):
        return _NOT_LOOKED_AT
    return judgement_of(findings.sites, stack, findings.moment, int(findings.retracted[stack]))


def judgement_of(sites: Sites, row: int, moment: JudgingBasis, retracted: int) -> Judgement:
    """Returns the judgement of the site in a row: its figures and its evidence in words."""
    return Judgement(
        verdict=VERDICTS[sites.code[row]],
        rate_bytes_per_min=float(sites.rate_bytes_per_min[row]),
        since_ns=moment.start_ns + round(float(sites.since_s[row]) * NS_PER_S),
        confidence=float(sites.confidence[row]),
        evidence=explain(sites, row, moment),
        verdict_in_s=float(sites.verdict_in_s[row]),
        never_freed=bool(sites.never_freed[row]),
        survivors=round(float(sites.survivors[row])),
        retracted=retracted,
        searched=int(sites.asked[row]),
        unreachable=int(sites.unreachable[row]),
    )


def explain(sites: Sites, row: int, moment: JudgingBasis) -> str:
    """Returns a sentence with the evidence for the verdict on the site in a row."""
    watched_s = moment.watched_s
    verdict = VERDICTS[sites.code[row]]
    if verdict is Verdict.DECIDING and watched_s < P.first_verdict_s:
        return f"verdict in {format_duration(math.ceil(P.first_verdict_s - watched_s))}"
    blocks = _counted_sampled if moment.sampled else _counted
    is_unproven = bool(sites.asked[row]) and sites.unreachable[row] < P.unreachable_least
    if verdict is Verdict.GROWING and moment.swapped_bytes and is_unproven:
        return (
            f"live bytes are rising; {format_size(moment.swapped_bytes)} of the process are "
            "swapped out, so it can't be told whether anything still points to it"
        )
    sentence = _SENTENCES[verdict](sites, row, blocks)
    may_be_in_kernel = verdict in (Verdict.GROWING, Verdict.EARLIER) and sites.unreachable[row] > 0
    if moment.kernel_queue and may_be_in_kernel and not is_unproven:
        return f"{sentence}, but requests of {moment.kernel_queue} in the kernel may hold some"
    if verdict is Verdict.GROWING and sites.unreachable[row] >= P.unreachable_least:
        return f"live bytes are rising; {_unreachable(sites, row, ' so far')}"
    return f"{sentence} so far" if verdict in _REASSURING and watched_s < P.so_far_s else sentence


def _counted(count: float) -> str:
    count = round(count)
    return "1 block" if count == 1 else f"{count:,} blocks"


def _counted_sampled(count: float) -> str:
    """Formats a count of sampled blocks: how many blocks each stands for is an estimate."""
    count = round(count)
    return f"at least {count:,} sampled block{'' if count == 1 else 's'}"


def _unreachable(sites: Sites, row: int, until: str = "") -> str:
    lost, asked = int(sites.unreachable[row]), int(max(sites.asked[row], sites.unreachable[row]))
    of = f"{lost:,} of {asked:,}" if lost < asked else f"all {asked:,}"
    return f"{of} old blocks are unreachable{until}: no pointer to them is left"


def _leaking(sites: Sites, row: int, blocks: Blocks) -> str:
    if sites.unreachable[row] >= P.unreachable_least:
        return _unreachable(sites, row)
    survivors, born = sites.survivors[row], sites.born_in_window[row]
    if sites.never_freed[row]:
        return (
            f"almost nothing allocated here has been freed ({blocks(survivors)}), at a steady "
            "pace; a container that only grows would look the same"
        )
    one_in = max(1, round(born / max(survivors, 1)))
    share = f"1 in {one_in:,}" if one_in > 1 else format_percent(survivors / max(born, 1), 0)
    lives = sites.most_live_s[row]
    others = (
        f"; the others were freed within {format_duration(_rounded(lives))}"
        if math.isfinite(lives)
        else ""
    )
    return f"{share} of the blocks allocated here has not been freed ({blocks(survivors)}){others}"


def _why_unsure(sites: Sites, row: int, blocks: Blocks) -> str:
    if sites.unreachable[row] >= P.unreachable_least:
        return _unreachable(sites, row)
    if sites.rising_only[row]:
        return _why_rising(sites, row)
    if sites.replaces_old[row]:
        return "as many blocks from before tracing are freed: it may be a cache that was full then"
    if sites.verdict_in_s[row] > 0:
        return f"verdict in about {format_duration(math.ceil(sites.verdict_in_s[row]))}"
    if sites.asked[row]:
        return _still_pointed_to(sites, row, blocks)
    kept = float(sites.survivors[row])
    why = "too few" if kept < P.innocent_least_blocks else "at too uneven a pace"
    return f"{blocks(kept)} not freed, {why} to be sure"


def _still_pointed_to(sites: Sites, row: int, blocks: Blocks) -> str:
    asked, alive = float(sites.asked[row]), float(sites.alive[row])
    if asked < _FEW * alive:
        return f"too early to tell: {asked:,.0f} of {blocks(alive)} are old enough"
    freed = "none was freed, but " if sites.never_freed[row] else ""
    return f"{freed}the program still points to all of it, as to a cache or a table that grows"


def _why_rising(sites: Sites, row: int) -> str:
    if sites.alive[row] <= 1.5:
        return "one block, reallocated larger each time"
    if sites.alive[row] >= sites.born[row]:
        return "nothing allocated here was freed, but its pace is too uneven to be sure"
    return "old blocks are still freed, so it may level off"


def _unknown(sites: Sites, row: int, _blocks: Blocks) -> str:
    if not sites.loss_share[row]:
        return "cannot tell: this stack was cut short and may stand for several call sites"
    lost = 1 / max(float(sites.loss_share[row]), 1e-12)
    kept = sites.born_in_window[row] / max(sites.survivors[row], 1)
    return (
        f"cannot tell: about 1 in {round(lost):,} frees was lost, and 1 in "
        f"{round(max(kept, 1)):,} blocks allocated here is still live"
    )


def _deciding(sites: Sites, row: int, blocks: Blocks) -> str:
    if sites.rising_only[row]:
        return "live bytes fell within the last minute, after they had been rising"
    return f"{blocks(sites.alive[row])} live, too few to tell"


def _busy(sites: Sites, row: int, blocks: Blocks) -> str:
    # Rounded down: 100 % would mean that none is live.
    thousandths = math.floor(1000 * (1 - sites.alive[row] / max(sites.born[row], 1)))
    freed = format_percent(max(thousandths, 0) / 1000)
    return f"short-lived: {freed} of {blocks(sites.born[row])} are freed"


def _earlier(sites: Sites, row: int, blocks: Blocks) -> str:
    said = "allocated before tracing"
    if not sites.asked[row]:
        return said
    if not sites.unreachable[row]:
        return f"{said}; the program still points to all of it"
    return f"{said}; {_lost(sites, row, blocks)}"


def _lost(sites: Sites, row: int, blocks: Blocks) -> str:
    lost = format_size(round(sites.unreachable_bytes[row]))
    return f"{blocks(sites.unreachable[row])} are lost ({lost}): nothing points to them"


_SENTENCES: Final = {
    Verdict.LEAKING: _leaking,
    Verdict.GROWING: lambda *site: f"live bytes are rising; {_why_unsure(*site)}",
    Verdict.UNKNOWN: _unknown,
    Verdict.DECIDING: _deciding,
    Verdict.START_UP: lambda sites, row, _blocks: (
        f"{format_size(round(sites.alive_bytes[row]))} allocated at the start, hardly any since"
    ),
    Verdict.BUSY: _busy,
    Verdict.CACHE: lambda *_: "stable: its low point no longer rises",
    Verdict.EARLIER: _earlier,
    Verdict.LOST: _lost,
}
_REASSURING: Final = {Verdict.START_UP, Verdict.BUSY, Verdict.CACHE}


def _rounded(seconds: float) -> float:
    rounded = round(seconds, 1 - math.floor(math.log10(seconds)) if seconds > 0 else 0)
    return rounded if rounded < 10 else float(round(rounded))
