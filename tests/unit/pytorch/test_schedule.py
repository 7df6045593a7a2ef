"""Schedules say ahead of time what asking at every batch would have said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from determined.pytorch import Batch, Epoch
from determined.pytorch.schedule import Schedule

periods = st.none() | st.builds(
    lambda kind, value: kind(value),
    st.sampled_from([Batch, Epoch]),
    st.integers(0, 12) | st.lists(st.integers(1, 30), max_size=5) | st.sampled_from([range(2, 30, 7), {3, 4}]),
)
schedules = st.builds(
    Schedule,
    max_length=st.integers(1, 40).map(Batch) | st.integers(1, 6).map(Epoch),
    validation_period=periods,
    checkpoint_period=periods,
    reporting_period=periods,
    epoch_len=st.integers(1, 9),
)


@given(schedules)
def test_jumping_from_boundary_to_boundary_visits_what_asking_every_batch_finds(schedule: Schedule) -> None:
    asked = [schedule.boundary(at) for at in range(1, schedule.end + 1)]
    jumped = []
    done = 0
    while not schedule.is_over(done):
        jumped.append(schedule.next(done))
        done = jumped[-1].at
    assert jumped == [boundary for boundary in asked if boundary is not None]
    assert done == schedule.end


def test_the_documented_example_stops_where_it_should() -> None:
    schedule = Schedule(Batch(10), Epoch(1), Batch(4), Batch([3, 7]), epoch_len=8)
    done, visits = 0, []
    while not schedule.is_over(done):
        boundary = schedule.next(done)
        visits.append((boundary.at - done, boundary.validate, boundary.checkpoint, boundary.report))
        done = boundary.at
    assert visits == [
        (3, False, False, True),
        (1, False, True, False),
        (3, False, False, True),
        (1, True, True, False),
        (2, False, False, False),
    ]


def test_epochs_never_end_without_a_length() -> None:
    schedule = Schedule(Batch(50), Epoch(1), Epoch(1), Batch(20), epoch_len=None)
    assert [schedule.next(at).at for at in (0, 20, 40)] == [20, 40, 50]
