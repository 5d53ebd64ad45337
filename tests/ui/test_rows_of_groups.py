"""Which rows stacks become, as a plain loop over the stacks would have it."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from tracelloc.model.verdicts import CODE_OF, VERDICTS, Verdict
from tracelloc.show.filters import NamedStack
from tracelloc.ui.groups import GroupKey, grouped
from tracelloc.ui.stacknames import Labels
from tracelloc.ui.view import ViewSelection

STACKS = 400


def selection_of(rng: np.random.Generator) -> tuple[ViewSelection, dict[str, Any]]:
    """Random stacks, some of which have no name yet. The second part: their figures."""
    labels = Labels(lambda: None)
    labels.grow(STACKS)
    for stack in np.flatnonzero(rng.random(STACKS) < 0.8).tolist():
        labels.put(stack, f"f{rng.integers(60)} ← main")
    figures = {
        "live_bytes": rng.integers(1, 9, STACKS) * 100,
        "live_count": rng.integers(1, 4, STACKS),
    }
    verdicts = rng.choice([CODE_OF[Verdict.DECIDING], CODE_OF[Verdict.BUSY]], STACKS)
    selection = SimpleNamespace(
        snapshot=SimpleNamespace(
            totals=range(STACKS), findings=None, are_earlier=np.zeros(STACKS, np.bool_)
        ),
        settings=SimpleNamespace(expanded=frozenset()),
        figures=SimpleNamespace(**figures),
        change=None,
        growth=rng.integers(-9, 9, STACKS),
        verdicts=verdicts,
        names=SimpleNamespace(labels=labels),
        namer=SimpleNamespace(stack=lambda *_: NamedStack((), ())),
    )
    return cast(ViewSelection, selection), figures


def expected(selection: ViewSelection, order: list[int], ranks: Any) -> list[tuple[int, ...]]:
    figures, labels, verdicts = selection.figures, selection.names.labels, selection.verdicts
    assert verdicts is not None
    whole = int(figures.live_bytes.sum())
    others, alone, equal = [], [], dict[tuple[str, int], list[int]]()
    for stack in order:
        few = figures.live_count[stack] == 1 and figures.live_bytes[stack] < 0.01 * whole
        if few and VERDICTS[verdicts[stack]] is Verdict.DECIDING:
            others.append(stack)
        elif labels.fresh[stack]:
            equal.setdefault((labels[stack], int(verdicts[stack])), []).append(stack)
        else:
            alone.append(stack)
    rows = [tuple(others), *map(tuple, equal.values()), *((stack,) for stack in alone)]
    sums = {row: int(figures.live_bytes[list(row)].sum()) for row in rows}
    place = {stack: at for at, stack in enumerate(order)}
    return sorted(rows, key=lambda row: (ranks[row[0]], -sums[row], len(row) > 1, place[row[0]]))


def test_rows_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        selection, figures = selection_of(rng)
        order = rng.permutation(STACKS)[:300]
        ranks = rng.integers(0, 3, STACKS)
        rows = grouped(selection, order, ranks, figures["live_bytes"], STACKS).order
        found = [
            tuple(row.members.tolist()) if isinstance(row, GroupKey) else (row,) for row in rows
        ]
        wanted = expected(selection, order.tolist(), ranks)
        assert found == wanted
        assert sorted(sum(found, ())) == sorted(order.tolist())
        assert [row.rate for row in rows if isinstance(row, GroupKey)] == [
            int(selection.growth[list(row)].sum()) for row in wanted if len(row) > 1
        ]
        few = grouped(selection, order, ranks, figures["live_bytes"], 10).order
        assert list(few) == list(rows[:10])


def test_equal_labels_have_equal_numbers_also_once_they_have_expired() -> None:
    labels = Labels(lambda: None)
    labels.grow(3)
    for n in range(3000):
        labels.put(0, f"f{n}")
        labels.expire()
    assert len(labels.texts) <= 1024 + 6 + 1
    labels.put(1, "f2999")
    assert labels.numbers[0] == labels.numbers[1] != labels.numbers[2] == 0
    assert labels.texts[labels.numbers[0]] == labels[0] == "f2999"
    assert labels.fresh.tolist() == [False, True, False]
