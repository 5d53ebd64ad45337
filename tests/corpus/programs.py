"""Programs of known truth: what each call site allocates and frees.

Those in ``HELD_OUT`` were written before the rule's constants were chosen and were not
looked at while that was done.
"""

from collections.abc import Callable

import numpy as np

from tests.corpus.streams import (
    F64,
    NEVER,
    Random,
    Sizes,
    Stream,
    churn,
    every,
    first_in_first_out,
    kept,
    leak,
    lived,
    poisson,
    regrown,
    replaced_at_random,
    some_leak,
    until_next,
)

Sites = dict[str, Stream]
Program = Callable[[Random, float], Sites]

SPLITTING = "handle_request"  # A function below which many others leak a little each, or do not

PROGRAMS: dict[str, Program] = {}
HELD_OUT: dict[str, Program] = {}


def program(make: Program) -> Program:
    PROGRAMS[make.__name__] = make
    return make


def held_out(make: Program) -> Program:
    HELD_OUT[make.__name__] = make
    return make


def background(random: Random, end: float) -> Sites:
    """What most programs do beside: tables at the start, requests, a small cache."""
    return {
        "startup_tables": kept(random, random.uniform(0, 3, 800), (64, 8192)),
        "request_buffers": churn(random, poisson(random, 60, 0, end), 0.05, (128, 65536)),
        "sessions": churn(random, poisson(random, 4, 0, end), 8.0, (200, 2000)),
        "name_cache": replaced_at_random(random, poisson(random, 5, 0, end), 120, (100, 600)),
    }


def leak_of_all(per_s: float, size: Sizes, start: float = 0) -> Program:
    """Nothing that one function allocates is freed."""
    return lambda random, end: (
        background(random, end) | {"leak": leak(random, poisson(random, per_s, start, end), size)}
    )


def leak_of_some(per_s: float, life: float, size: Sizes, share: float, start: float = 0) -> Program:
    """A share of what one function allocates is not freed, from some time on."""

    def make(random: Random, end: float) -> Sites:
        stream = churn(random, poisson(random, per_s, 0, end), life, size)
        return background(random, end) | {"leak": some_leak(random, stream, share, start)}

    return make


def full_cache(per_s: float, entries: int, size: Sizes, start: float = 0) -> Program:
    """A cache that drops its oldest entries once it is full."""

    def make(random: Random, end: float) -> Sites:
        births = poisson(random, per_s, start, end)
        return background(random, end) | {
            "cache": first_in_first_out(random, births, entries, size)
        }

    return make


def cache_among_temporaries(entries: int, start: float = 0) -> Program:
    """One allocating function for temporaries and for a cache that fills for 90 or 100 seconds."""

    def make(random: Random, end: float) -> Sites:
        temporary = churn(random, poisson(random, 40, 0, end), 0.2, 512)
        cache = first_in_first_out(random, poisson(random, 6, start, end), entries, 512)
        return background(random, end) | {"buffers": temporary + cache}

    return make


PROGRAMS |= {
    "steady_leak": leak_of_all(3, 160),
    "slow_leak_under_churn": leak_of_some(80, 0.3, (32, 512), 0.005),
    "late_leak": leak_of_some(30, 2.0, 256, 0.05, start=250),
    # A twentieth of the requests fail; half of the failures leak.
    "error_path_leak": leak_of_some(20, 0.1, 1000, 0.025),
    "leak_among_sessions": leak_of_some(6, 20.0, 500, 0.15),
    "leak_of_most": leak_of_some(2, 5.0, 4096, 0.7),
    "late_leak_never_freed": leak_of_all(1, 900, start=200),
    # A container that grows without bounds: a leak by any other name.
    "list_never_trimmed": leak_of_all(8, (64, 256)),
    "cache_that_fills": full_cache(20, 2000, (200, 4000)),
    "slow_cache": full_cache(5, 1000, (200, 4000)),  # Takes 200 seconds to fill
    # It was full when tracing began: 500 entries, 250 seconds in it.
    "old_cache": full_cache(2, 500, 2000, start=-300),
    "mixed_cache": cache_among_temporaries(600),
    "late_mixed_cache": cache_among_temporaries(540, start=240),
}
HELD_OUT |= {
    "leak_of_large_blocks": leak_of_some(1.2, 3.0, (1e5, 1e6), 0.25),
    "leak_that_starts_with_a_release": leak_of_some(25, 0.4, 640, 0.06, start=330),
    "forgotten_boxes": leak_of_all(0.7, 5000),
}


@program
def leak_in_bursts(random: Random, end: float) -> Sites:
    births = np.concatenate([t + random.uniform(0, 2, 40) for t in every(25, 5, end - 2)])
    stream = churn(random, np.sort(births), 1.0, 400)
    return background(random, end) | {"leak": some_leak(random, stream, 0.3)}


@program
def timer_leak(random: Random, end: float) -> Sites:
    return background(random, end) | {"leak": leak(random, every(10, 1, end), 2048)}


@program
def two_leaks(random: Random, end: float) -> Sites:
    stream = churn(random, poisson(random, 40, 0, end), 0.5, 100)
    return background(random, end) | {
        "leak": some_leak(random, stream, 0.1),
        "other_leak": leak(random, poisson(random, 2, 0, end), 300),
    }


@program
def leak_under_varying_load(random: Random, end: float) -> Sites:
    """The load goes up and down by three, over four minutes."""
    births = poisson(random, 45, 0, end)
    births = births[random.random(len(births)) < (2 + np.sin(births / 240 * 2 * np.pi)) / 3]
    stream = churn(random, births, 0.5, 200)
    return background(random, end) | {"leak": some_leak(random, stream, 0.04)}


@program
def reference_cycles(random: Random, end: float) -> Sites:
    """Pairs of nodes with a name each; some pairs point at each other and stay."""
    births = poisson(random, 10, 0, end)
    lives = random.exponential(0.2, len(births))
    leaked = random.random(len(births)) < 0.3
    death = np.where(leaked, NEVER, births + lives)
    sites = {
        name: Stream(births + n * 1e-5, death, np.full(len(births), size), leaked)
        for n, (name, size) in enumerate([("node", 64.0), ("name", 24.0), ("table", 320.0)])
    }
    return background(random, end) | sites


@program
def many_callers(random: Random, end: float) -> Sites:
    """One function leaks through 60 callers, each of them once in two minutes."""
    sites = background(random, end)
    for caller in range(60):
        sites[f"session_new/caller_{caller}"] = leak(random, poisson(random, 1 / 120, 0, end), 500)
        sites[f"buffer_new/caller_{caller}"] = churn(random, poisson(random, 0.2, 0, end), 3.0, 500)
    return sites


def parsers(random: Random, end: float, share: float) -> Sites:
    """Requests go through forty parsers, each with its own temporaries; a share of them stays.
    Other work allocates beside them and below, in many places as well.
    """
    sites = background(random, end)
    for n in range(40):
        stream = churn(random, poisson(random, 0.5, 0, end), 0.4, 120 + 10 * n)
        sites[f"parse_{n}/{SPLITTING}/serve"] = some_leak(random, stream, share)
        work = churn(random, poisson(random, 0.5, 0, end), 2.0, 300)
        sites[f"step_{n}/run_task/serve"] = work
    births = poisson(random, 2, 0, end)
    sites[f"look_up/{SPLITTING}/serve"] = first_in_first_out(random, births, 100, 2000)
    return sites


@program
def leak_through_many_functions(random: Random, end: float) -> Sites:
    """Each of forty functions leaks once in a hundred seconds; what they share is their caller."""
    return parsers(random, end, 0.02)


@program
def many_innocent_functions(random: Random, end: float) -> Sites:
    return parsers(random, end, 0.0)


@program
def leak_through_allocating_helper(random: Random, end: float) -> Sites:
    """As above, but the whole program allocates through one function of its own."""
    return {f"xmalloc/{name}": stream for name, stream in parsers(random, end, 0.02).items()}


@program
def caches_of_many_functions(random: Random, end: float) -> Sites:
    """Thirty functions below one caller, each with a small cache that fills for a minute."""
    sites = background(random, end)
    for n in range(30):
        births = poisson(random, 0.3, 0, end)
        sites[f"cache_{n}/{SPLITTING}/serve"] = first_in_first_out(random, births, 15, 400)
        births = poisson(random, 0.2, 0, end)
        sites[f"slots_{n}/{SPLITTING}/serve"] = replaced_at_random(random, births, 8, 400)
    return sites


@program
def lazily_made(random: Random, end: float) -> Sites:
    """Eighty functions make what they need at their first use and keep it; uses are random."""
    sites = background(random, end)
    for n in range(80):
        births = np.sort(random.exponential(60, 3))
        sites[f"instance_{n}/{SPLITTING}/serve"] = kept(random, births[births < end], 500)
    return sites


@program
def some_callers(random: Random, end: float) -> Sites:
    """Fourteen callers, each leaking enough to be noticed alone."""
    sites = background(random, end)
    for caller in range(14):
        stream = churn(random, poisson(random, 3, 0, end), 0.5, 200)
        sites[f"session_new/caller_{caller}"] = some_leak(random, stream, 0.08)
        sites[f"wrapper/caller_{caller}"] = churn(random, poisson(random, 1, 0, end), 3.0, 500)
    sites["wrapper/leaky"] = leak(random, poisson(random, 0.5, 0, end), 300)
    return sites


@program
def quiet_server(random: Random, end: float) -> Sites:
    return background(random, end)


@program
def random_cache(random: Random, end: float) -> Sites:
    births = poisson(random, 15, 0, end)
    return background(random, end) | {"cache": replaced_at_random(random, births, 900, 1024)}


@program
def slow_mixed_cache(random: Random, end: float) -> Sites:
    """Temporaries, and a cache that fills for 150 seconds."""
    temporary = churn(random, poisson(random, 30, 0, end), 0.5, 256)
    cache = replaced_at_random(random, poisson(random, 8, 0, end), 700, 256)
    return background(random, end) | {"buffers": temporary + cache}


@program
def late_pool(random: Random, end: float) -> Sites:
    """Comes into use after 200 seconds and grows for 150."""
    return background(random, end) | {"pool": kept(random, every(0.5, 200, 350), 4096)}


@program
def pool(random: Random, end: float) -> Sites:
    """Grows to its high-water mark within two minutes and stays."""
    births = np.sort(random.exponential(30, 300))
    return background(random, end) | {"pool": kept(random, births, 4096)}


@program
def tables_read_at_start(random: Random, end: float) -> Sites:
    return background(random, end) | {
        "tables": kept(random, np.sort(random.uniform(0, 25, 5000)), (64, 2048))
    }


@program
def arena_per_minute(random: Random, end: float) -> Sites:
    births = poisson(random, 20, 0, end)
    return background(random, end) | {"arena": until_next(random, births, every(60, 60, end), 800)}


@program
def sawtooth(random: Random, end: float) -> Sites:
    births = poisson(random, 30, 0, end)
    return background(random, end) | {"queue": until_next(random, births, every(35, 20, end), 300)}


@program
def generations(random: Random, end: float) -> Sites:
    """Most die young, some live for half a minute, few for two minutes."""
    births = poisson(random, 30, 0, end)
    mean = random.choice([0.2, 15.0, 60.0], len(births), p=[0.9, 0.08, 0.02])
    lives = mean * random.exponential(1, len(births))
    return background(random, end) | {"objects": lived(random, births, lives, 128)}


@program
def log_regrown(random: Random, end: float) -> Sites:
    births = every(3, 1, end)
    return background(random, end) | {"log": regrown(births, 4096 + 1000 * np.arange(len(births)))}


@program
def buffers_that_double(random: Random, end: float) -> Sites:
    births = 2.0 ** np.arange(0, np.log2(end), 0.5)
    return background(random, end) | {
        "vector": regrown(births, 1024 * 2.0 ** np.arange(len(births)))
    }


@program
def thread_caches(random: Random, end: float) -> Sites:
    """Eight threads start one after the other; each fills a cache of its own."""
    parts = [
        first_in_first_out(random, poisson(random, 4, start, end), 150, 256)
        for start in np.linspace(0, 80, 8)
    ]
    cache = parts[0]
    for part in parts[1:]:
        cache += part
    return background(random, end) | {"thread_cache": cache}


@program
def jobs(random: Random, end: float) -> Sites:
    """Each job's blocks live until it ends, after 10 to 90 seconds."""
    parts = []
    for start in poisson(random, 0.15, 0, end):
        length = random.uniform(10, 90)
        births = poisson(random, 4, start, min(start + length, end))
        parts.append(
            Stream(births, np.full(len(births), start + length), np.full(len(births), 700.0))
        )
    stream = parts[0]
    for part in parts[1:]:
        stream += part
    return background(random, end) | {"jobs": stream}


@program
def rising_load(random: Random, end: float) -> Sites:
    births = poisson(random, 40, 0, end)
    births = births[random.random(len(births)) < 0.2 + 0.8 * births / end]
    return background(random, end) | {"work": churn(random, births, 6.0, 1500)}


@program
def interned_names(random: Random, end: float) -> Sites:
    """New names become rarer (Heaps' law), none is ever freed."""
    count = int(60 * end**0.5)
    births = (np.arange(1, count) / 60) ** 2
    return background(random, end) | {"names": kept(random, births[births < end], (16, 64))}


# ---- held out ----


@held_out
def leak_per_connection(random: Random, end: float) -> Sites:
    """Each connection allocates five blocks and forgets one, when it ends."""
    start = poisson(random, 1.5, 0, end)
    length = random.exponential(15, len(start))
    births = np.repeat(start, 5) + random.uniform(0, 0.01, 5 * len(start))
    death = np.repeat(start + length, 5)
    leaked = np.arange(len(births)) % 5 == 4
    stream = Stream(births, np.where(leaked, NEVER, death), np.full(len(births), 300.0), leaked)
    return background(random, end) | {"leak": stream}


@held_out
def error_storm(random: Random, end: float) -> Sites:
    """Errors come in storms of ten seconds, twice a minute."""
    births = poisson(random, 30, 0, end)
    storm = (births % 30) < 10
    leaked = storm & (random.random(len(births)) < 0.1)
    death = np.where(leaked, NEVER, births + random.exponential(0.2, len(births)))
    stream = Stream(births, death, np.full(len(births), 350.0), leaked)
    return background(random, end) | {"leak": stream}


@held_out
def extension_under_churn(random: Random, end: float) -> Sites:
    """Reference counts gone wrong in one of forty objects of an interpreter."""
    births = poisson(random, 120, 0, end)
    lives = random.choice([0.01, 0.5, 10.0], len(births), p=[0.8, 0.18, 0.02])
    stream = lived(random, births, lives * random.exponential(1, len(births)), (32, 512))
    return background(random, end) | {"leak": some_leak(random, stream, 0.02)}


@held_out
def day_and_night(random: Random, end: float) -> Sites:
    """The load falls to a quarter in the second half; the leak goes on."""
    births = poisson(random, 50, 0, end)
    births = births[random.random(len(births)) < np.where(births < end / 2, 1.0, 0.25)]
    return background(random, end) | {
        "leak": some_leak(random, churn(random, births, 0.5, 200), 0.05)
    }


@held_out
def clock_cache(random: Random, end: float) -> Sites:
    """Entries that are asked for again stay longer: half live four times as long."""
    births = poisson(random, 12, 0, end)
    lives = np.where(random.random(len(births)) < 0.5, 25.0, 100.0)
    lives = lives * random.uniform(0.7, 1.3, len(births))
    return background(random, end) | {"cache": lived(random, births, lives, (500, 3000))}


@held_out
def expiring_cache(random: Random, end: float) -> Sites:
    births = poisson(random, 9, 0, end)
    return background(random, end) | {
        "cache": lived(random, births, np.full(len(births), 120.0), 900)
    }


@held_out
def connection_pool(random: Random, end: float) -> Sites:
    births = np.sort(np.concatenate([random.uniform(0, 5, 40), random.uniform(100, 110, 60)]))
    return background(random, end) | {"pool": kept(random, births, 16384)}


@held_out
def batches(random: Random, end: float) -> Sites:
    """Every 45 seconds a batch is read within ten seconds, kept, and dropped at the next."""
    births = np.sort(
        np.concatenate([t + random.uniform(0, 10, 400) for t in every(45, 3, end - 10)])
    )
    return background(random, end) | {"batch": until_next(random, births, every(45, 45, end), 256)}


@held_out
def heavy_tailed(random: Random, end: float) -> Sites:
    """Pareto lifetimes, shape 1.5, at least a tenth of a second."""
    births = poisson(random, 30, 0, end)
    lives = 0.1 * (1 - random.random(len(births))) ** (-1 / 1.5)
    return background(random, end) | {"objects": lived(random, births, lives, 200)}


@held_out
def warm_up_then_level(random: Random, end: float) -> Sites:
    """Compiled code: many at first, fewer and fewer, for three minutes."""
    births = np.sort(random.exponential(50, 2500))
    return background(random, end) | {"code": kept(random, births[births < end], (200, 4000))}


@held_out
def sessions_of_a_minute(random: Random, end: float) -> Sites:
    return background(random, end) | {
        "long_sessions": churn(random, poisson(random, 5, 0, end), 60.0, 1200)
    }


def load_steps(end: float) -> F64:
    """When the load steps up and down."""
    return every(90, 45, end)


@held_out
def stepping_load(random: Random, end: float) -> Sites:
    births = poisson(random, 40, 0, end)
    high = np.searchsorted(load_steps(end), births) % 2 == 1
    births = births[high | (random.random(len(births)) < 0.3)]
    return background(random, end) | {"work": churn(random, births, 10.0, 800)}
