"""Tables of stacks: CSV and Parquet, and the queries of the manual."""

import re
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from tests.unit.profiles import small
from tracelloc.model.process import Target
from tracelloc.show import manual
from tracelloc.show.export import EXPORTERS
from tracelloc.show.presentation.combined import joined_profile
from tracelloc.show.presentation.profile import Metric, Profile

QUERIES = manual.text_of("queries.sql").split("\n\n")[1:]


def of(number: int) -> Profile:
    """One of 20 processes: on 4 machines, in 10 pods, of 2 programs."""
    found = small()
    target = Target(
        100 + number, "server", executable=f"/opt/{number % 2}", host=f"node-{number % 4}",
        namespace="shop", pod=f"web-{number // 2}", container="nginx",
    )  # fmt: skip
    samples = [
        replace(one, verdict="leaking" if one.stat.index == 1 else None) for one in found.samples
    ]
    return replace(found, target=target, samples=samples)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, numbers in (("before", range(10)), ("after", range(20))):
        whole = joined_profile([of(number) for number in numbers])
        for suffix in (".parquet", ".csv"):
            with open(f"stacks-{name}{suffix}", "wb") as file:
                file.writelines(EXPORTERS[suffix].write(whole, Metric.BYTES))
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_queries_of_the_manual() -> None:
    assert len(QUERIES) == 6
    for name in ("before", "after"):
        Path(f"stacks-{name}.csv").rename(f"{name}.csv")
    (shown,) = re.findall(
        r"^```sql\n(.*?)^```$", manual.text_of("exports"), re.MULTILINE | re.DOTALL
    )
    assert shown.strip() in QUERIES[0]
    growth, suspects, change, pods, of_main, often = (duckdb.sql(one).fetchall() for one in QUERIES)
    # Each process has 60 - 5 bytes a minute of growth; 15 processes of each program in both files.
    assert sorted(growth) == [("/opt/0", 15 * 55), ("/opt/1", 15 * 55)]
    assert suspects == [("grow", "src/grow.cpp", 7, 4, 30 * 400)]
    assert [bytes_ for _, bytes_ in change] == [4000, 3000, 160, 0]
    assert ("shop", "web-3", "nginx", 4 * 716, 4 * 4) in pods
    assert len(pods) == 10
    assert of_main[0] in {(f"node-{n % 4}", 100 + n, 2 * 700) for n in range(10)}
    assert len(of_main) == 20
    assert ("temporary", 30 * 7, 0) in often


@pytest.mark.usefixtures("folder")
def test_both_formats_are_one_table() -> None:
    rows = "SELECT * EXCLUDE (time), epoch_ms(time::TIMESTAMP) FROM {} ORDER BY ALL"
    parquet = duckdb.sql(rows.format("'stacks-after.parquet'"))
    text = duckdb.sql(rows.format("read_csv('stacks-after.csv', nullstr = '')"))
    assert parquet.columns == text.columns
    assert len(parquet.fetchall()) == 20 * len(small().samples)
    assert parquet.fetchall() == text.fetchall()
    sizes = [row[0] for row in duckdb.sql("SELECT bytes FROM 'stacks-after.parquet'").fetchall()]
    assert sizes == sorted(sizes, reverse=True)
