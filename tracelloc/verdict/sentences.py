"""Why a site was judged so, in one plain sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from tracelloc.text import format_duration, format_size
from tracelloc.verdict.judgement import VERDICTS, WATCH_FIRST_S, Sites, Verdict

Blocks = Callable[[float], str]
"""How so many blocks are called."""

_SO_FAR_S: Final = 180.0
"""Before, reassuring verdicts are only said of what was seen so far."""


def explain(sites: Sites, row: int, watched_s: float, *, sampled: bool = False) -> str:
    """The evidence for one site's verdict, ``watched_s`` after tracing began.

    ``sampled``: the blocks are samples.
    """
    verdict = VERDICTS[sites.code[row]]
    if verdict is Verdict.WATCHING and watched_s < WATCH_FIRST_S:
        return f"{format_duration(math.ceil(WATCH_FIRST_S - watched_s))} more to see what this is"
    sentence = _SENTENCES[verdict](sites, row, _counted_sampled if sampled else _counted)
    return f"{sentence} so far" if verdict in _REASSURING and watched_s < _SO_FAR_S else sentence


def _counted(count: float) -> str:
    count = round(count)
    return "1 block" if count == 1 else f"{count:,} blocks"


def _counted_sampled(count: float) -> str:
    """There may be many more: that the samples are these is certain, what they stand for is not."""
    count = round(count)
    return f"at least {count:,} sampled block{'' if count == 1 else 's'}"


def _leaking(sites: Sites, row: int, blocks: Blocks) -> str:
    survivors, born = sites.survivors[row], sites.born_in_window[row]
    if sites.never_freed[row]:
        return (
            f"(nearly) nothing made here has been freed ({blocks(survivors)}) and it keeps "
            "the same pace; a container that only grows would look the same"
        )
    one_in = max(1, round(born / max(survivors, 1)))
    share = f"1 in {one_in:,}" if one_in > 1 else f"{survivors / max(born, 1):.0%}"
    lives = sites.most_live_s[row]
    others = (
        f", while the others were gone within {format_duration(_rounded(lives))}"
        if math.isfinite(lives)
        else ""
    )
    return f"of the blocks made here {share} was never freed ({blocks(survivors)}){others}"


def _growing(sites: Sites, row: int, blocks: Blocks) -> str:
    held = f"{format_size(round(sites.alive_bytes[row]))} held and rising"
    if sites.rising_only[row]:
        if sites.alive[row] <= 1.5:
            return f"{held}; one block that is made again, bigger each time"
        if sites.alive[row] >= sites.born[row]:
            return f"{held}; nothing made here was freed, but it is too uneven to be sure"
        return f"{held}; old blocks still get freed, so it may level off"
    if sites.replaces_old[row]:
        return (
            f"{held}; as many blocks from before tracing began are freed, so it may be a "
            "cache that was full then"
        )
    if sites.watch_more_s[row] > 0:
        return f"{held}; watching {format_duration(math.ceil(sites.watch_more_s[row]))} more"
    return f"{held}; {blocks(sites.survivors[row])} stay, too few or too uneven to be sure"


def _unknown(sites: Sites, row: int, _blocks: Blocks) -> str:
    lost = 1 / max(float(sites.loss_share[row]), 1e-12)
    kept = sites.born_in_window[row] / max(sites.survivors[row], 1)
    return (
        f"cannot tell: about 1 in {round(lost):,} frees was lost, and this keeps "
        f"1 in {round(max(kept, 1)):,}"
    )


def _watching(sites: Sites, row: int, blocks: Blocks) -> str:
    return f"{blocks(sites.alive[row])} stay, too few to tell"


def _start_up(sites: Sites, row: int, _blocks: Blocks) -> str:
    return f"{format_size(round(sites.alive_bytes[row]))} made in the beginning, hardly any since"


def _busy(sites: Sites, row: int, blocks: Blocks) -> str:
    share = sites.alive[row] / max(sites.born[row], 1)
    return f"{blocks(sites.born[row])} made, {share:.2%} still alive; nothing old piles up"


def _cache(sites: Sites, row: int, _blocks: Blocks) -> str:
    return (
        f"holds {format_size(round(sites.alive_bytes[row]))}; its lowest level is no longer rising"
    )


_SENTENCES: Final = {
    Verdict.LEAKING: _leaking,
    Verdict.GROWING: _growing,
    Verdict.UNKNOWN: _unknown,
    Verdict.WATCHING: _watching,
    Verdict.START_UP: _start_up,
    Verdict.BUSY: _busy,
    Verdict.CACHE_OR_POOL: _cache,
}
_REASSURING: Final = {Verdict.START_UP, Verdict.BUSY, Verdict.CACHE_OR_POOL}


def _rounded(seconds: float) -> float:
    """To two digits."""
    digits = 1 - math.floor(math.log10(seconds)) if seconds > 0 else 0
    rounded = round(seconds, digits)
    return rounded if rounded < 10 else float(round(rounded))
