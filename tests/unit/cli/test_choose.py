"""From what somebody typed to the thing they meant."""

from __future__ import annotations

import pytest
import typer

from determined import errors
from determined.cli import choose, logs
from determined.wire.views import WorkspaceView

WORKSPACES = [
    WorkspaceView(id=1, name="Uncategorized"),
    WorkspaceView(id=2, name="vision"),
    WorkspaceView(id=3, name="voice"),
]


@pytest.mark.parametrize(("wanted", "found"), [("2", 2), ("vision", 2), ("vis", 2), ("U", 1), ("voice", 3)])
def test_ids_names_and_unique_starts_are_found(wanted: str, found: int) -> None:
    assert choose.one("workspace", wanted, WORKSPACES, choose.by_id_and_name).id == found


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("v", "'v' fits 2 workspaces (vision, voice); write more of the name"),
        ("visoin", "there is no workspace 'visoin'; did you mean vision?"),
        ("9", "there is no workspace '9'; 'det workspace list' shows all"),
    ],
)
def test_what_is_not_found_is_explained(wanted: str, says: str) -> None:
    with pytest.raises(errors.NotFound) as caught:
        choose.one("workspace", wanted, WORKSPACES, choose.by_id_and_name)
    assert str(caught.value) == says


def test_several_ids_are_written_in_several_ways() -> None:
    assert choose.ids(["3", "5,7", "9-11", "10"]) == [3, 5, 7, 9, 10, 11]


@pytest.mark.parametrize("written", ["x", "1-", "-1", "1.5", "1-999999999"])
def test_what_is_no_id_is_a_wrong_call(written: str) -> None:
    with pytest.raises(typer.BadParameter):
        choose.ids([written])


def test_times_are_ages_or_dates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)
    assert logs.moment("10m") == 1_000_000.0 - 600
    assert logs.moment("2026-11-19T08:30:00+00:00") == 1795077000.0
    with pytest.raises(typer.BadParameter, match="is no time"):
        logs.moment("yesterday")
