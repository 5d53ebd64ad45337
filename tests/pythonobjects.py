"""What was found of a made-up Python program's objects."""

from tracelloc.model.objects import (
    FunctionLine,
    GrowingType,
    Holder,
    Holders,
    NativeGrowth,
    ObjectCensus,
    ObjectFindings,
    TypeCount,
    TypeSuspect,
)
from tracelloc.model.verdicts import Verdict

SESSION = "app.sessions.Session"
HOLDERS = Holders(
    200,
    (
        Holder("app.sessions.RECENT[…]", "dict", 180, 0, "/srv/app/sessions.py"),
        Holder("serve() pending[…]", "list", 20, 0, "/srv/app/main.py", 9),
    ),
    0,
)


def census(time_s: float, **counts: tuple[int, int]) -> ObjectCensus:
    """One with (objects, bytes) of these types, ``Session`` among them."""
    types = [
        TypeCount(SESSION if name == "Session" else name, count, size_bytes)
        for name, (count, size_bytes) in counts.items()
    ]
    types.sort(key=lambda one: -one.size_bytes)
    count = sum(one.count for one in types)
    return ObjectCensus(time_s, 0.01, tuple(types), count, 64 * count, 0)


def growing(now_s: float, verdict: Verdict = Verdict.GROWING) -> ObjectFindings:
    """Sessions and their dictionaries have been growing for a minute."""
    first = census(now_s - 60, Session=(300, 30 << 10), dict=(1000, 100 << 10), str=(9000, 1 << 20))
    now = census(now_s, Session=(900, 90 << 10), dict=(1600, 240 << 10), str=(8900, 1 << 20))
    parts = (GrowingType("dict", now_s - 55, 600, 140 << 10),)
    lead = GrowingType(SESSION, now_s - 60, 600, 60 << 10)
    grower = FunctionLine("remember", "/srv/app/sessions.py", 92)
    native = NativeGrowth(0.0, 5 << 20, (1, 2), grower)
    suspect = TypeSuspect(lead, 900, 90 << 10, verdict, HOLDERS, parts, grower, native)
    return ObjectFindings(now, first, (suspect,), holders={SESSION: HOLDERS})
