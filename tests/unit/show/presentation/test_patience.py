"""How long reports wait for names: the last one longer, for there is no later one."""

import pytest

from tests.unit.leaks import watched
from tests.unit.reports import json_report, text_report
from tracelloc.command.run import LAST_PATIENCE_S
from tracelloc.show.presentation.naming import REPORT_PATIENCE_S, Namer


@pytest.mark.parametrize("patience_s", [REPORT_PATIENCE_S, LAST_PATIENCE_S])
def test_reports_wait_as_told(monkeypatch: pytest.MonkeyPatch, patience_s: float) -> None:
    seen = watched(100.0)
    waited: list[float | None] = []

    def prepare(_self: Namer, _snapshot: object, _indices: object, timeout_s: float) -> bool:
        waited.append(timeout_s)
        return False

    monkeypatch.setattr(Namer, "prepare", prepare)
    assert seen.namer.patience_s == REPORT_PATIENCE_S
    seen.namer.patience_s = patience_s
    list(text_report(seen.snapshot(), seen.namer, 5))
    json_report(seen.snapshot(), seen.namer, 5)
    assert waited == [patience_s] * 2
