"""Files about several processes: whose each stack is, and what leaks in which of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.leaks import HANDLERS, LEAK, watched
from tests.unit.profiles import small
from tests.unit.show.export.test_export_formats import TOP, decoded, go_pprof, saved, written
from tracelloc.model.process import Target
from tracelloc.model.verdicts import Verdict
from tracelloc.show.export.flamegraph import page_data
from tracelloc.show.presentation.combined import difference, joined_profile, profile_of
from tracelloc.show.presentation.profile import Metric, Profile

YOUNG_S, OLD_S = 100.0, 400.0


def family() -> Profile:
    """A process whose suspects are sure, after one whose are not, and one without any."""
    young, old = watched(YOUNG_S), watched(OLD_S)
    parts = [
        replace(profile_of(young.snapshot(), young.namer), target=Target(41, "young")),
        profile_of(old.snapshot(), old.namer),
        replace(small(), target=Target(43, "none")),
    ]
    return joined_profile(parts)


def test_stacks_keep_their_figures_and_suspects_their_paths() -> None:
    profile = family()
    parts = [profile_of(w.snapshot(), w.namer) for w in (watched(YOUNG_S), watched(OLD_S))]
    parts.append(small())
    for metric in Metric:
        assert profile.total(metric) == sum(part.total(metric) for part in parts)
    assert len(profile.samples) == sum(len(part.samples) for part in parts)
    assert len({sample.stat.index for sample in profile.samples}) == len(profile.samples)
    sizes = [sample.stat.live_bytes for sample in profile.samples]
    assert sizes == sorted(sizes, reverse=True)
    data = page_data(family(), Metric.BYTES)
    children = {
        (node - up, data["names"][data["name"][symbol]]): node
        for node, (up, symbol) in enumerate(zip(data["up"], data["symbol"], strict=True))
    }
    for suspect in data["suspects"]:
        node = 0
        for name in suspect["path"]:
            node = children[node, name]
        assert node


def test_suspects_are_the_best_of_all_first() -> None:
    content = json.loads(written(".json", family()))
    suspects = content["suspects"]
    names = {stack["stack_id"]: stack["frames"] for stack in content["stacks"]}
    roots = [content["frames"][names[s["stack_id"]][-1]]["module"] for s in suspects]
    assert roots == ["server-42", "server-42", "young-41", "young-41"]
    assert [s["verdict"] for s in suspects] == ["leaking"] * 2 + ["growing"] * 2
    own = [s for w in (OLD_S, YOUNG_S) for s in watched(w).findings.suspects]
    rates = [round(s.judgement.rate_bytes_per_min, 1) for s in own]
    assert [s["rate_bytes_per_min"] for s in suspects] == rates
    (group,) = [s["group"] for s in suspects[:2] if s["group"]]
    assert len({member["stack_id"] for member in group["stacks"]} & set(names)) == HANDLERS
    verdicts = {stack["stack_id"]: stack["verdict"] for stack in content["stacks"]}
    single = next(s for s in suspects if s["group"] is None)
    assert verdicts[single["stack_id"]] == Verdict.LEAKING.value
    # Its process comes second: its numbers follow the first one's.
    young = watched(YOUNG_S)
    first = profile_of(young.snapshot(), young.namer).samples
    assert single["stack_id"] == LEAK + max(sample.stat.index for sample in first) + 1


@pytest.mark.long
def test_pprof_says_whose_each_stack_is(tmp_path: Path) -> None:
    profile = family()
    path = saved(tmp_path / "all.pb.gz", profile)
    message = decoded(path.read_bytes())
    text = list(message.string_table)
    pids = [each.num for s in message.sample for each in s.label if text[each.key] == "pid"]
    assert pids == [sample.pid for sample in profile.samples]
    assert set(pids) == {41, 42, 43}
    for pid in (41, 42, 43):
        live_bytes = sum(s.stat.live_bytes for s in profile.samples if s.pid == pid)
        top = go_pprof(tmp_path, *TOP, "-nodecount=0", f"-tagfocus=pid={pid}", path)
        assert f"accounting for {live_bytes}B" in top
    assert [s.pid for s in difference(profile, profile).samples].count(43) == len(small().samples)
    assert "pid" not in decoded(written(".pb.gz", small())).string_table
