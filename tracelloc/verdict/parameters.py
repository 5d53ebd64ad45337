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

    # The survival tail: the age from which blocks of a site stop dying (``growth``).

    tail_least_at_risk: int = 3  # Blocks: a hazard is not estimated from fewer
    tail_least_kept: float = 0.7  # Share never freed, by estimate: the tail is flat from there on
    tail_least_old: int = 4  # Blocks alive beyond the tail's age
    tail_most_deaths: float = 0.35  # For each block that is alive beyond the tail's age
    tail_least_age_s: float = 2.0  # Slices of a second don't distinguish lower ages well enough
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
    container_growth: float = 2.5  # By which a few blocks grow from half to half if they are one
    container_most_blocks: int = 20  # Blocks: more of them are not one growing container
    loss_margin: float = 3.0  # Survivors, as a multiple of what lost frees could leave behind
    mostly_freed: float = 0.5  # Surviving share of a window's blocks: below it, most are freed
    never_freed: float = 0.9  # Surviving share of a window's blocks: above it, hardly any are
    # Seconds to watch before a leak verdict: if most, some, or none of the blocks are freed.
    watch_s: tuple[float, float, float] = (110.0, 150.0, 270.0)
    watch_tails: float = 1.5  # Time to watch, in multiples of the tail's age, if that is longer
    least_confidence: float = 0.4  # Confidence from which growth is a leak
    most_confidence: float = 0.97  # Highest confidence in a leak
    most_confidence_never_freed: float = 0.80  # If nothing is freed: it may be a container

    # Blocks without any pointer to them (``unreachable``).

    unreachable_least: int = 2  # Fewest lost blocks from which a site is listed
    unreachable_called: int = 4  # Fewest lost blocks for a leak verdict
    # Lost bytes from which one block for each of `unreachable_least_parts` is enough.
    unreachable_large_bytes: float = 1 << 20
    unreachable_share: float = 0.02  # Lost blocks, as a share of the site's old ones
    # Lost blocks for the verdict "lost", of sites that do not grow or are from before tracing.
    lost_least: int = 8
    lost_share: float = 0.02  # Lost blocks for that, as a share of all
    # Lost blocks, as a share of the kept ones, from which all kept ones count as the leak: stale
    # memory contents may look like pointers to the others.
    unreachable_mostly: float = 0.25
    unreachable_collected: float = 0.5  # With a collector: least lost/kept bytes, in the older half
    unreachable_parts: int = 6  # Parts of the time since the first loss
    unreachable_least_parts: int = 3  # Parts in which blocks were lost
    # Shares of the lost blocks, from the first on, that may have a different cause.
    unreachable_fractions: tuple[float, ...] = (0.0, 0.25, 0.5)
    unreachable_spread_s: float = 8.0  # From the first lost block to the last: else one cause
    unreachable_watch_s: float = 20.0  # From the first lost block to the last, for a leak verdict
    unreachable_first_s: float = 60.0  # Seconds until such blocks are found, as reported to users
    unreachable_unseen_s: float = 30.0  # Younger blocks have not been searched for often enough
    referenced_watch_s: float = 3600.0  # To watch growth that is still pointed to: then a leak
    referenced_share: float = 0.5  # Of its memory gained since the onset: the process has doubled
    referenced_least_bytes: float = 16 << 20  # Of that gain: small processes double easily
    referenced_doubled_s: float = 300.0  # Seconds to watch in that case
    referenced_confidence: float = 0.3  # Factor of the confidence until then
    referenced_listed_s: float = 1800.0  # To watch before such growth is listed at any rate
    material_listed_s: float = 300.0  # Seconds to watch before material growth is listed
    steady_per_min: float = 1 / 600  # Listed soon, as a share of memory, if nothing is freed
    steady_least_bytes: float = 131072.0  # Least growth of that kind, in bytes per minute
    steady_listed_s: float = 90.0  # Seconds to watch before such growth is listed
    steady_collected_s: float = 120.0  # The same with a garbage collector, and then, at least,
    steady_collected: float = 0.2  # the share of the process's memory that has grown so
    steady_least_blocks: int = 30  # Blocks that this requires
    steady_confidence: float = 0.15  # Least confidence in such growth
    minor_confidence: float = 0.03  # Factor of the confidence in growth that is not listed yet
    material_per_min: float = 1 / 60  # Material, as a share of memory: it doubles within an hour
    material_least_bytes: float = 65536.0  # Least material growth, in bytes per minute

    # When a leak began (``growth``).

    onset_same_pace: float = 0.6  # Share of the later pace from which the site already leaked
    onset_bulk: float = 8.0  # Multiple of a slice's usual bytes: more is start-up memory
    onset_slower: float = 0.4  # Largest pace before the onset, as a share of the pace after it
    onset_deviation: float = 1.3  # Standard errors below steady growth at which an onset is assumed

    # Verdicts other than leaks (``judging``).

    first_verdict_s: float = 60.0  # Before, little can be said about sites that do not grow
    floor_step: float = 1.08  # By which a rising floor rises from quarter to quarter at least
    floor_last_step: float = 1.02  # The same in the last eighth: ended growth doesn't count
    floor_rise: float = 1.25  # Least factor by which it rises from the first to the third quarter
    floor_least_rise_bytes: int = 2048  # From the first to the third quarter
    floor_from_s: float = 30.0  # Seconds: before, nearly every floor rises
    floor_least_lifetime: float = 0.05  # Of the time watched: less mean lifetime is churning
    floor_few_blocks: int = 8  # Live blocks: so few are not churning, whatever their lives
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
    full_lifetime_s: float = 1.0  # A site with a shorter mean lifetime is busy, however steady
    unclear_age_s: float = 10.0  # Seconds: older blocks are old survivors if no tail was found
    unclear_least_old: int = 2  # Old survivors from which a site is not yet called innocent
    unclear_below_old: int = 12  # Old survivors that suffice to judge a site
    # Frees of blocks from before tracing per survivor: the site may be a cache that was full when
    # tracing began, as the blocks that it replaces were never seen to be allocated.
    old_cache_frees: float = 0.5
    lost_events_confidence: float = 0.7  # Factor of the confidence once events were lost
    sampling_confidence_loss: float = 0.5  # In relative errors of n samples, 1 / sqrt(n)
    lifetime_quantile: float = 0.99  # Of freed blocks: within the reported lifetime

    # Lost events (``loss``, ``judge``).

    loss_least_births: int = 1000  # Births of sites busy enough to show the share of losses
    loss_quantile: float = 0.25  # Of busy sites' surviving shares, by births: this is loss
    loss_most_share: float = 0.1  # A larger surviving share is not loss: the site keeps blocks
    loss_settled_s: float = 30.0  # Seconds: only older blocks show losses
    gap_ns: int = 60 * NS_PER_S  # Losses that follow each other more closely are one gap
    lasting_gap_ns: int = 120 * NS_PER_S  # A longer gap is permanent: its share is allowed for

    # Verdicts over time, and their order (``findings``).

    hold_ns: int = 9 * NS_PER_S  # Nanoseconds between the two looks at which a leak has to hold
    lapse_ns: int = 60 * NS_PER_S  # For which a leak in bursts may look uneven, or it is retracted
    so_far_s: float = 180.0  # Seconds: before, reassuring verdicts say "so far"
    fall_least_share: float = 0.25  # Of its bytes, lost in a minute: it grows no longer
    suspect_least_confidence: float = 0.1  # Confidence from which a growing site is a suspect

    # Leaks that are split over many stacks (``grouping``).

    prefix_depths: tuple[int, ...] = (1, 2, 3, 5, 8, 12)  # Innermost frames that are added up
    sum_least_new: int = 4  # Live blocks from the newer half of the time, for a sum to judge
    sum_explained: float = 0.7  # Of a sum's rate: if its suspects explain it, they are reported
    sum_alike: float = 0.8  # Of a sum's stacks: so many suspects count as nearly all
    sum_enough_births: int = 20  # Births that suffice to decide that a stack does not leak
    part_least_age_s: float = 30.0  # Seconds: an older block may be part of a leak
    part_lifetimes: float = 4.0  # The same in lifetimes, within which nearly all have died
    innocent_least_blocks: int = 12  # Live blocks: from then on, cache or start-up is reliable
    node_least_stacks: int = 4  # Stacks of a function for it to be judged as one site
    node_many_suspects: int = 8  # Suspects below one function from which they count as one leak

    # Stacks that leak together: parts of one object (``multistack``).

    tied_own_frames: int = 4  # Innermost frames that stacks of one object need not share
    tied_onset_s: float = 10.0  # Seconds within which onsets agree
    tied_onset_part: float = 0.05  # Share of the time since the onset, if that is longer
    tied_settled_s: float = 30.0  # Seconds: younger blocks may still be freed
    tied_least_slices: int = 8  # With survivors in both, before two stacks are compared
    tied_chi_squared: float = 0.35  # Per degree of freedom; 1 is expected of independent leaks
    tied_ratio: float = 0.02  # Deviation of a ratio from a whole number: objects have whole parts

    # Budgets: how often, and how much at a time.

    judge_every_ns: int = 5 * NS_PER_S  # Nanoseconds between two looks
    sites_at_a_time: int = 500  # Sites judged at a time: some 10 ms
    most_suspects: int = 200  # Suspects that are described
    most_sums: int = 1000  # Sums judged per look
    most_flagged: int = 100  # Suspect sums that are considered, by rate
    tied_most_stacks: int = 50  # Leaking stacks that are compared with each other, by rate
    tied_at_a_time: int = 10  # Stacks compared at a time: some milliseconds


P: Final = VerdictParameters()  # The parameters in use
