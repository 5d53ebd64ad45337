"""The numbers that verdicts depend on, with their units and what each is for.

They were chosen on programs with known results (``PROGRAMS`` in ``tests/corpus/programs.py`` and
the recordings in ``tests/data/streams``) and checked on ``HELD_OUT``, which was written before
and not consulted meanwhile. ``python -m tests.bench.verdicts`` measures precision, recall and
the time to a verdict again; change a number only with its results.

A *site* is a call stack, or several that are judged as one. The *floor* is the least that was
live from some moment on. Times are on the target's clock, since tracing began.
"""

from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.text import NS_PER_S


@dataclass(frozen=True, slots=True)
class VerdictParameters:
    """One set of numbers; ``P`` is the one in use."""

    # The survival tail: the age from which blocks of a site stop dying (``survivaltail``).

    tail_least_at_risk: int = 3  # Blocks: a hazard is not estimated from fewer
    # Share of blocks never freed, by estimate, from which a tail counts as flat.
    tail_least_kept: float = 0.7
    tail_least_old: int = 4  # Blocks alive beyond the tail's age
    # Deaths beyond the tail's age, for each block that is alive beyond it.
    tail_most_deaths: float = 0.35
    # Seconds: slices of a second don't distinguish lower ages well enough.
    tail_least_age_s: float = 2.0
    tail_most_age_share: float = 0.4  # The tail's age, as a share of the time watched

    # Windows of time in which survivors accumulate (``growth``).

    window_parts: int = 6  # Generations: parts of a window in which survivors are counted
    window_least_parts: int = 5  # Parts with survivors, for a window to show growth
    # Starts of windows, as shares of the time watched.
    window_fractions: tuple[float, ...] = (0.0, 1 / 3, 1 / 2, 2 / 3, 3 / 4)
    # Seconds: lengths of further windows, for leaks that begin late in a long session.
    window_lengths_s: tuple[float, ...] = (320.0, 200.0, 130.0, 60.0, 30.0)
    least_survivors: int = 6  # Blocks that survive in a window
    least_new_survivors: int = 2  # Blocks that survive in a window's newer half
    least_pace: float = 0.7  # Survivors of a window's second half, as a share of the first half's
    noise: float = 1.3  # Standard errors that count as chance
    most_load_correction: float = 3.0  # Factor by which a falling load may excuse fewer survivors
    # Factor by which a few blocks grow from half to half if they are one container.
    container_growth: float = 2.5
    container_most_blocks: int = 20  # Blocks: more of them are not one growing container
    loss_margin: float = 3.0  # Survivors, as a multiple of what lost frees could leave behind
    # Surviving share of a window's blocks: below it, the site frees most of them.
    mostly_freed: float = 0.5
    # Surviving share of a window's blocks: above it, the site frees almost none.
    never_freed: float = 0.9
    # Seconds to watch before a leak verdict: if most, some, or none of the blocks are freed.
    watch_s: tuple[float, float, float] = (110.0, 150.0, 270.0)
    # Time to watch, in multiples of the survival tail's age, if that is longer.
    watch_tails: float = 1.5
    least_confidence: float = 0.4  # Confidence from which growth is a leak
    most_confidence: float = 0.97  # Highest confidence in a leak
    # Highest confidence if nothing is freed: a container that only grows looks the same.
    most_confidence_never_freed: float = 0.80

    # Blocks without any pointer to them (``unreachable``).

    unreachable_least: int = 2  # Fewest lost blocks from which a site is listed
    unreachable_called: int = 4  # Fewest lost blocks for a leak verdict
    # Lost bytes from which one block for each of `unreachable_least_parts` is enough.
    unreachable_large_bytes: float = 1 << 20
    unreachable_share: float = 0.02  # Lost blocks, as a share of the site's old ones
    # Lost blocks for the verdict "lost", of sites that do not grow or are from before tracing.
    lost_least: int = 8
    # Lost blocks for that, as a share of all.
    lost_share: float = 0.02
    # Lost blocks, as a share of the kept ones, from which all kept ones count as the leak: stale
    # memory contents may look like pointers to the others.
    unreachable_mostly: float = 0.25
    # With a garbage collector: least lost/kept ratio, in bytes, in the older half.
    unreachable_collected: float = 0.5
    unreachable_parts: int = 6  # Parts of the time since the first loss
    unreachable_least_parts: int = 3  # Parts in which blocks were lost
    # Shares of the lost blocks, from the first on, that may have a different cause.
    unreachable_fractions: tuple[float, ...] = (0.0, 0.25, 0.5)
    # Seconds from the first lost block to the last: blocks lost at once have one cause.
    unreachable_spread_s: float = 8.0
    # Seconds from the first lost block to the last for a leak verdict.
    unreachable_watch_s: float = 20.0
    unreachable_first_s: float = 60.0  # Seconds until such blocks are found, as reported to users
    # Seconds: younger blocks have not been searched for often enough.
    unreachable_unseen_s: float = 30.0
    # Seconds to watch before growth is a leak if its blocks are still pointed to.
    referenced_watch_s: float = 3600.0
    # Share of the process's memory gained since the onset: the process has doubled.
    referenced_share: float = 0.5
    # Least amount that it must have gained: small processes double easily.
    referenced_least_bytes: float = 16 << 20
    referenced_doubled_s: float = 300.0  # Seconds to watch in that case
    referenced_confidence: float = 0.3  # Factor of the confidence until then
    # Seconds to watch before such growth is listed whatever its rate.
    referenced_listed_s: float = 1800.0
    material_listed_s: float = 300.0  # Seconds to watch before material growth is listed
    # Growth per minute, as a share of the process's memory, that is listed soon if nothing is
    # freed, as in a list that is never emptied.
    steady_per_min: float = 1 / 600
    steady_least_bytes: float = 131072.0  # Least growth of that kind, in bytes per minute
    steady_listed_s: float = 90.0  # Seconds to watch before such growth is listed
    steady_collected_s: float = 120.0  # The same with a garbage collector, and then, at least,
    steady_collected: float = 0.2  # the share of the process's memory that has grown so
    steady_least_blocks: int = 30  # Blocks that this requires
    steady_confidence: float = 0.15  # Least confidence in such growth
    minor_confidence: float = 0.03  # Factor of the confidence in growth that is not listed yet
    # Growth per minute, as a share of the process's memory, that is material: it would double
    # within an hour.
    material_per_min: float = 1 / 60
    material_least_bytes: float = 65536.0  # Least material growth, in bytes per minute

    # When a leak began (``growth``).

    onset_same_pace: float = 0.6  # Share of the later pace from which the site already leaked
    # Multiple of a slice's usual bytes: more in one slice is start-up memory.
    onset_bulk: float = 8.0
    onset_slower: float = 0.4  # Largest pace before the onset, as a share of the pace after it
    onset_deviation: float = 1.3  # Standard errors below steady growth at which an onset is assumed

    # Verdicts other than leaks (``judging``).

    # Seconds: before, little can be said about sites that do not grow.
    first_verdict_s: float = 60.0
    # Least factor by which a rising floor rises from one quarter of the time to the next.
    floor_step: float = 1.08
    # Least growth factor in the last eighth, so that ended growth doesn't count.
    floor_last_step: float = 1.02
    floor_rise: float = 1.25  # Least factor by which it rises from the first to the third quarter
    # Bytes by which it rises from the first to the third quarter.
    floor_least_rise_bytes: int = 2048
    floor_from_s: float = 30.0  # Seconds: before, nearly every floor rises
    # Mean lifetime, as a share of the time watched: a site with a shorter one is churning.
    floor_least_lifetime: float = 0.05
    # Live blocks up to which a site is not churning, whatever its lifetimes.
    floor_few_blocks: int = 8
    # One container that grows: it is reallocated, so no block of it is ever old.
    container_least_rise_bytes: int = 256 << 10
    container_watch_s: float = 90.0  # Least seconds from its first block on
    container_least_slices: int = 8
    container_least_kept: float = 0.98  # Share of its most bytes that it never falls below
    container_even_rise: float = 0.5  # Least share of an even rise in each quarter of the time
    container_step: float = 1.2  # Least factor of a step of one that grows by factors
    # The longest pause after the last step, in pauses before it: it grows by two or less.
    container_pause: float = 2.5
    container_confidence: float = 0.5
    start_up_s: float = 15.0  # Seconds: the shortest start-up
    start_up_part: float = 0.15  # Share of the time watched that is start-up, if that is longer
    start_up_bulk: float = 0.8  # Share of live bytes that comes from the start-up
    start_up_kept: float = 0.7  # Share of start-up blocks that are kept
    busy_lifetime_s: float = 12.0  # Seconds: a site with a shorter mean lifetime is busy
    busy_freed: float = 0.97  # Freed share of blocks above which a site is busy
    full_floor: float = 0.85  # Share of its most live bytes that a full cache never falls below
    # Seconds: a site with a shorter mean lifetime is busy, however steady it is.
    full_lifetime_s: float = 1.0
    unclear_age_s: float = 10.0  # Seconds: older blocks are old survivors if no tail was found
    unclear_least_old: int = 2  # Old survivors from which a site is not yet called innocent
    unclear_below_old: int = 12  # Old survivors that suffice to judge a site
    # Frees of blocks from before tracing per survivor: the site may be a cache that was full when
    # tracing began, as the blocks that it replaces were never seen to be allocated.
    old_cache_frees: float = 0.5
    lost_events_confidence: float = 0.7  # Factor of the confidence once events were lost
    # Confidence lost to sampling, in relative errors of n samples, 1 / sqrt(n).
    sampling_confidence_loss: float = 0.5
    # Share of freed blocks that did not exceed the reported lifetime.
    lifetime_quantile: float = 0.99

    # Lost events (``loss``, ``judge``).

    # Births that make a site busy enough to show the share of lost frees.
    loss_least_births: int = 1000
    # Quantile of the busy sites' surviving shares, by births, that counts as loss.
    loss_quantile: float = 0.25
    # Surviving share above which it is not loss: these sites keep blocks.
    loss_most_share: float = 0.1
    loss_settled_s: float = 30.0  # Seconds: only older blocks show losses
    # Nanoseconds: losses that follow each other more closely are one gap.
    gap_ns: int = 60 * NS_PER_S
    # Nanoseconds: a longer gap is permanent, and its share of frees is allowed for.
    lasting_gap_ns: int = 120 * NS_PER_S

    # Verdicts over time, and their order (``findings``).

    hold_ns: int = 9 * NS_PER_S  # Nanoseconds between the two looks at which a leak has to hold
    # Nanoseconds for which a leak in bursts may look uneven before it is retracted.
    lapse_ns: int = 60 * NS_PER_S
    so_far_s: float = 180.0  # Seconds: before, reassuring verdicts say "so far"
    # Share of its live bytes that a growing stack must lose within a minute to be no longer so.
    fall_least_share: float = 0.25
    suspect_least_confidence: float = 0.1  # Confidence from which a growing site is a suspect

    # Leaks that are split over many stacks (``grouping``).

    # Innermost frames by which stacks are added up.
    prefix_depths: tuple[int, ...] = (1, 2, 3, 5, 8, 12)
    # Live blocks from the newer half of the time, for a sum to be worth judging.
    sum_least_new: int = 4
    # Share of a sum's rate: if its own suspects explain it, they are reported instead.
    sum_explained: float = 0.7
    # Share of a sum's stacks that must be suspects, for nearly all of them to count as such.
    sum_alike: float = 0.8
    sum_enough_births: int = 20  # Births that suffice to decide that a stack does not leak
    part_least_age_s: float = 30.0  # Seconds: an older block may be part of a leak
    # Least age of such a block, in lifetimes within which nearly all blocks of its stack died.
    part_lifetimes: float = 4.0
    # Live blocks from which a verdict of cache or start-up is reliable.
    innocent_least_blocks: int = 12
    node_least_stacks: int = 4  # Stacks of a function for it to be judged as one site
    node_many_suspects: int = 8  # Suspects below one function from which they count as one leak

    # Stacks that leak together: parts of one object (``multistack``).

    tied_own_frames: int = 4  # Innermost frames that stacks of one object need not share
    tied_onset_s: float = 10.0  # Seconds within which onsets agree
    # Share of the time since the onset within which onsets agree, if that is longer.
    tied_onset_part: float = 0.05
    tied_settled_s: float = 30.0  # Seconds: younger blocks may still be freed
    # Least number of time slices with survivors before two stacks are compared.
    tied_least_slices: int = 8
    # Chi-squared per degree of freedom; 1 is expected of independent leaks.
    tied_chi_squared: float = 0.35
    # Relative deviation of a ratio from a whole number: objects have whole parts.
    tied_ratio: float = 0.02

    # Budgets: how often, and how much at a time.

    judge_every_ns: int = 5 * NS_PER_S  # Nanoseconds between two looks
    sites_at_a_time: int = 500  # Sites judged at a time: some 10 ms
    most_suspects: int = 200  # Suspects that are described
    most_sums: int = 1000  # Sums judged per look
    most_flagged: int = 100  # Suspect sums that are considered, by rate
    tied_most_stacks: int = 50  # Leaking stacks that are compared with each other, by rate
    tied_at_a_time: int = 10  # Stacks compared at a time: some milliseconds


P: Final = VerdictParameters()  # The parameters in use
