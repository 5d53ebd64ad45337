"""Call trees of hand-made stacks."""

from collections.abc import Mapping, Sequence

import numpy as np

from tracelloc.show.presentation.calltree import CallTree, Merger, Step
from tracelloc.show.presentation.profile import Metric


def build_tree(
    stacks: Sequence[tuple[int, Sequence[Step], Mapping[Metric, int]]], root: Step
) -> CallTree:
    """A tree of (stack index, its steps from the root on, its weights)."""
    merger = Merger(root)
    ends = np.array([merger.add(path)[-1] for _, path, _ in stacks], np.int64)
    weights = {
        metric: np.array([weight.get(metric, 0) for *_, weight in stacks], np.int64)
        for metric in Metric
    }
    return CallTree.from_merged(merger.merged(), ends, [index for index, *_ in stacks], weights)
