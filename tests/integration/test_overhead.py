"""Reported overhead, compared with what a program measures itself."""

import os
import time
from contextlib import closing
from itertools import groupby
from types import SimpleNamespace
from typing import cast

import pytest

from tests.harness import PATIENCE_S, PRELOADED, Target, Targets, Tracelloc
from tests.integration.test_attach import METHODS, NEEDS_MULTI
from tracelloc.record.kernel.bpf import Capture
from tracelloc.record.kernel.captureconfig import CaptureConfig, Method
from tracelloc.record.kernel.overhead import IDLE_PROGRAM, Meter, ProbedChild, measure_traps
from tracelloc.record.kernel.programs import program_info, statistics
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.eventcosts import EventCosts, RateMeter
from tracelloc.text import NS_PER_S

pytestmark = [pytest.mark.bpf, pytest.mark.alone]

FAMILY = 256
ROUNDS = 20


def pairs_ns(target: Target, milliseconds: int) -> float:
    done, took_ns = target.ask(str(milliseconds)).split()
    return int(took_ns) / int(done)


def traced_with_share(target: Target) -> tuple[Tracelloc, float, float]:
    """Traces until a report has the share. Returns the trace, and ns per pair before and then."""
    untraced_ns = pairs_ns(target, 100)
    tracer = Tracelloc("-p", target.pid, "--json", "--interval", "100ms")
    traced_ns = pairs_ns(target, 2500)
    # On a busy machine it may not be known by then, nor can it be while the program waits.
    deadline = time.monotonic() + PATIENCE_S
    while not has_share(tracer) and time.monotonic() < deadline:
        pairs_ns(target, 500)
    return tracer, untraced_ns, traced_ns


def test_share_of_a_program_that_only_allocates(targets: Targets) -> None:
    """Probes take nearly all of its time, and the estimate agrees."""
    target = targets.c("storm", 1, 12, 0, flags=("-O2",))
    tracer, untraced_ns, traced_ns = traced_with_share(target)
    share = tracer.await_report(lambda r: r["probe_share"] is not None)["probe_share"]
    deadline = time.monotonic() + PATIENCE_S
    while not check_rates(tracer.reports()) and time.monotonic() < deadline:
        pairs_ns(target, 500)
    assert tracer.stop() == 0
    truth = 1 - untraced_ns / traced_ns
    assert truth > 0.9
    assert 0.5 < share <= 1.0
    assert set(tracer.last()["slow_probes"]) <= {"reallocarray in libc.so.6"}
    assert check_rates(tracer.reports()) > 0


def check_rates(reports: list[dict]) -> int:
    """Compares rates with the events counted meanwhile. Returns how many were compared.

    A rate stands in all reports until it is measured again, a second later or more: before the
    first report of its run. One more report on both sides allows for clocks read earlier.
    """
    runs = [list(run) for _, run in groupby(range(len(reports)), lambda n: rate_of(reports[n]))]
    events = [report["allocations"] + report["frees"] for report in reports]
    times_s = [report["elapsed_s"] for report in reports]
    compared = 0
    for before, run, after in zip(runs, runs[1:], runs[2:], strict=False):
        start, end = run[0], after[0]
        if len(run) > 1 and len(after) > 1 and before[-1] > 0:
            longest_s = times_s[end + 1] - times_s[start - 2]
            least, most = events[end - 1] - events[start], events[end] - events[start - 1]
            assert least / longest_s <= rate_of(reports[end]) <= most
            compared += 1
    return compared


def rate_of(report: dict) -> float:
    return report["events_per_s"]


def test_share_of_a_program_with_the_preloaded_library(targets: Targets) -> None:
    """The share is estimated from the library's events: there are no probes to measure."""
    environment = os.environ | {"LD_PRELOAD": str(PRELOADED)}
    target = targets.c("storm", 1, 12, 0, flags=("-O2",), env=environment)
    tracer, untraced_ns, traced_ns = traced_with_share(target)
    assert tracer.stop() == 0
    shares = [report["probe_share"] for report in tracer.reports()]
    assert traced_ns > 3 * untraced_ns
    assert max(share for share in shares if share is not None) > 0.3


def has_share(tracer: Tracelloc) -> bool:
    text = tracer.text()
    return '"probe_share":0' in text or '"probe_share":1' in text


@pytest.mark.parametrize("method", METHODS)
def test_traps(method: Method) -> None:
    """Costs have the right order. The smallest of several rounds counts: other load only adds."""
    config = CaptureConfig(events_size_bytes=4096, stacks_size_bytes=4096)
    with closing(Capture(config, method)) as capture:
        capture.load()
        rounds = [measure_traps(method, capture.program, neighbours=True) for _ in range(5)]
    for costs in rounds:
        assert 0 < costs.cheap_ns <= costs.stepped_ns
        assert costs.return_ns >= 0
        assert costs.neighbour_ns >= 0
    assert min(costs.neighbour_ns or 0 for costs in rounds) < min(c.cheap_ns for c in rounds)


@NEEDS_MULTI
def test_family() -> None:
    """The estimate includes the probes of other processes in the same library.

    Other load disturbs single rounds, so one of them has to agree with the truth.
    """
    with closing(
        Capture(CaptureConfig(events_size_bytes=4096, stacks_size_bytes=4096), Method.MULTI)
    ) as capture:
        capture.load()
        for left in reversed(range(ROUNDS)):
            estimate_ns, truth_ns, alone_ns = family_ns(capture)
            if truth_ns > alone_ns and estimate_ns == pytest.approx(truth_ns, rel=0.5):
                break
            assert left, (estimate_ns, truth_ns, alone_ns)


def family_ns(capture: Capture) -> tuple[float, float, float]:
    """Returns ns per hit: estimated and true with other processes' probes, and without them."""
    costs = measure_traps(Method.MULTI, capture.program, neighbours=True)
    fd = capture.program(IDLE_PROGRAM)
    with ProbedChild() as child, ProbedChild() as other, statistics():
        untraced_ns = child.ask("cost")
        points = [other.point()] * FAMILY
        siblings = other.probed(Method.MULTI, capture.program, *points)
        probes = child.probed(Method.MULTI, capture.program, child.point())
        families = [[point] for point in [points[0], *points]]
        meter = Meter(lambda: [child.process], {"free_call": fd}, families)
        before = program_info(fd)
        truth_ns = child.ask("cost") - untraced_ns
        after, used = program_info(fd), meter.used(costs)
        siblings.close()
        alone_ns = child.ask("cost") - untraced_ns
        probes.close()
    hits = after.run_cnt - before.run_cnt
    trap_ns = costs.cheap_ns + FAMILY * costs.neighbour_ns
    assert used[0] == pytest.approx(after.run_time_ns - before.run_time_ns + hits * trap_ns)
    return used[0] / hits, truth_ns, alone_ns


def test_rate() -> None:
    rate = RateMeter()
    assert rate.per_second(2 * NS_PER_S, 100) == 50
    rate.record_count(0, 0)
    rate.record_count(NS_PER_S // 2, 10)
    assert rate.per_second(NS_PER_S // 2, 10) == 20
    rate.record_count(2 * NS_PER_S, 400)
    rate.record_count(2 * NS_PER_S + 1, 500)
    assert rate.per_second(3 * NS_PER_S, 500) == 200


def test_costs_of_the_preloaded_library() -> None:
    """The share includes CPU time per event, and waits, which use no processor."""
    costs, cpu_ns = EventCosts(), iter([0, *(NS_PER_S * share for share in (0.8, 1.6, 2.4, 3.2))])
    process = cast("Process", SimpleNamespace(cpu_ns=lambda: next(cpu_ns)))
    costs.record_counts(0, 0, (40.0, 0.0), process)
    costs.record_counts(NS_PER_S, 5_000_000, (40.0, 0.0), process)
    assert costs.rate.per_second(NS_PER_S, 5_000_000) == 5e6
    assert costs.share(NS_PER_S, 5e6, None) == pytest.approx(0.2 / 0.8)
    costs.record_counts(2 * NS_PER_S, 10_000_000, (40.0, 0.2 * NS_PER_S), process)
    assert costs.share(2 * NS_PER_S, 5e6, 0.1) == pytest.approx(0.1 + 0.4 / 1.0)
    costs.record_counts(3 * NS_PER_S, 15_000_000, (40.0, 0.0), process)
    assert costs.share(3 * NS_PER_S, 5e6, None) == pytest.approx(0.2 / 0.8)
    costs.record_counts(4 * NS_PER_S, 15_000_000, None, process)
    assert costs.share(4 * NS_PER_S, 5e6, 0.1) == 0.1
