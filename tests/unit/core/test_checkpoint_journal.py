"""Which checkpoint is the latest, which the best, and which may go."""

from __future__ import annotations

import math
import pathlib

from hypothesis import given
from hypothesis import strategies as st

from determined.core.checkpoint_journal import Entry, Journal, Retention, best, is_better, to_delete


def make(path: pathlib.Path, *steps: int) -> Journal:
    journal = Journal(path)
    for step in steps:
        journal.publish(f"at-{step}", step, float(step), None)
    return journal


def ids(journal: Journal, *without: str) -> list[str]:
    everything = {f"at-{step}" for step in range(1000)} | {f"new-{step}" for step in range(1000)}
    return [entry.storage_id for entry in journal.entries(everything - set(without))]


def test_what_is_published_last_is_the_latest(tmp_path: pathlib.Path) -> None:
    make(tmp_path / "j", 10, 20, 30)
    journal = Journal(tmp_path / "j")
    assert ids(journal) == ["at-10", "at-20", "at-30"]
    assert ids(journal, "at-30") == ["at-10", "at-20"]  # deleted, or never appeared


def test_what_was_resumed_is_the_latest_again(tmp_path: pathlib.Path) -> None:
    journal = make(tmp_path / "j", 10, 20, 30)
    journal.resume("at-10", 10, 99.0)
    assert ids(journal)[-1] == "at-10"
    assert ids(Journal(tmp_path / "j"))[-1] == "at-10"
    journal.publish("new-15", 15, 100.0, None)
    assert ids(Journal(tmp_path / "j"))[-1] == "new-15"


def test_a_validation_rates_the_checkpoint_of_its_step_on_the_line_that_goes_on(tmp_path: pathlib.Path) -> None:
    journal = make(tmp_path / "j", 10, 20)
    journal.learn({20: 0.5})
    journal.resume("at-10", 10, 99.0)
    journal.publish("new-20", 20, 100.0, None)
    journal.learn({20: 0.25})
    values = {entry.storage_id: entry.value for entry in journal.entries({"at-10", "at-20", "new-20"})}
    assert values == {"at-10": None, "at-20": 0.5, "new-20": 0.25}


def test_a_value_survives_a_restart(tmp_path: pathlib.Path) -> None:
    journal = Journal(tmp_path / "j")
    for number, value in enumerate([0.5, math.nan, -math.inf]):
        journal.publish(f"at-{number}", number, 0.0, value)
    values = [entry.value for entry in Journal(tmp_path / "j").entries({"at-0", "at-1", "at-2"})]
    assert repr(values) == repr([0.5, math.nan, -math.inf])


def test_a_line_torn_by_a_crash_is_passed_over(tmp_path: pathlib.Path) -> None:
    make(tmp_path / "j", 10)
    with open(tmp_path / "j", "ab") as file:
        file.write(b'{"checkpoint":"at-20","steps_co')
    journal = Journal(tmp_path / "j")
    journal.publish("at-30", 30, 0.0, None)
    assert ids(Journal(tmp_path / "j")) == ["at-10", "at-30"]


def test_nan_never_wins() -> None:
    entries = [Entry(str(value), 0, 0.0, value) for value in (math.nan, 2.0, 1.0, math.inf)]
    assert [entry.storage_id for entry in best(entries, True)] == ["1.0", "2.0", "inf", "nan"]
    assert [entry.storage_id for entry in best(entries, False)] == ["inf", "2.0", "1.0", "nan"]
    assert not is_better(math.nan, 5.0, True)
    assert is_better(5.0, math.nan, True)
    assert is_better(5.0, None, True)
    assert not is_better(5.0, 5.0, False)


@given(
    st.lists(st.one_of(st.none(), st.floats(allow_nan=True)), max_size=12),
    st.integers(0, 4),
    st.integers(0, 4),
    st.booleans(),
)
def test_a_policy_keeps_what_it_says(values: list[float | None], most: int, latest: int, smaller: bool) -> None:
    entries = [Entry(f"c{number}", number, 0.0, value) for number, value in enumerate(values)]
    gone = {entry.storage_id for entry in to_delete(entries, Retention(most, latest, "m", smaller))}
    kept = [entry for entry in entries if entry.storage_id not in gone]
    assert kept[-max(latest, 1) :] == entries[-max(latest, 1) :]
    assert {entry.storage_id for entry in best(entries, smaller)[:most]} <= {entry.storage_id for entry in kept}
    assert len(kept) <= max(latest, 1) + most
