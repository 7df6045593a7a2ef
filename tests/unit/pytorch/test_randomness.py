"""Keys for loading, and the global random streams lent and given back."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from determined.pytorch import randomness


def streams() -> list[Any]:
    """The whole state of the three global streams, comparable."""
    name, words, *rest = np.random.get_state(legacy=True)
    return [random.getstate(), torch.get_rng_state().tolist(), name, list(words), rest]


def draw() -> tuple[float, ...]:
    return (
        random.random(),
        random.gauss(0, 1),
        float(np.random.standard_normal()),
        float(torch.randn(1)),
        np.random.rand(),
    )


@given(st.lists(st.integers(), min_size=1, max_size=4), st.integers(0, 3), st.integers(-3, 3).filter(bool))
def test_a_key_changes_with_each_of_its_parts(values: list[int], place: int, change: int) -> None:
    other = list(values)
    other[place % len(values)] += change
    assert randomness.mix(*values) != randomness.mix(*other)
    assert 0 <= randomness.mix(*values) < 2**64


def test_the_order_of_a_keys_parts_matters() -> None:
    assert randomness.mix(1, 2) != randomness.mix(2, 1)
    assert randomness.mix(0) != randomness.mix(0, 0)


def test_keys_are_the_same_in_every_version() -> None:
    # A checkpoint of today must find its data tomorrow.
    assert randomness.mix(0) == 0x6E789E6AA1B965F4
    assert randomness.keyed(0, 0) == 0xE220A8397B1DCDAF


def test_close_numbers_give_unrelated_keys() -> None:
    keys = [randomness.keyed(randomness.mix(7), number) for number in range(2000)]
    assert len({key & 0xFFFFFFFF for key in keys}) == len(keys)
    ones = sum(bin(one ^ other).count("1") for one, other in itertools.pairwise(keys)) / (len(keys) - 1)
    assert 31 < ones < 33


@pytest.mark.parametrize("draws_before", [0, 1, 2])
def test_lent_streams_come_back_as_they_were(draws_before: int) -> None:
    # One normal number of a pair is kept for the next call, in numpy, Python and torch: it must survive too.
    np.random.seed(3)
    for _ in range(draws_before):
        np.random.standard_normal()
        random.gauss(0, 1)
        torch.randn(1)
    before = streams()
    with randomness.LentStreams()(11):
        for _ in range(3):
            draw()
        np.random.seed(5)
        random.seed(5)
        torch.manual_seed(5)
    assert streams() == before


def test_lent_streams_come_back_after_an_exception() -> None:
    before = streams()
    with pytest.raises(ZeroDivisionError), randomness.LentStreams()(11):
        draw()
        raise ZeroDivisionError
    assert streams() == before


def test_lent_streams_are_a_function_of_the_key() -> None:
    lent = randomness.LentStreams()
    drawn = []
    for key in (1, 2, 1):
        draw()
        with lent(randomness.mix(key)):
            drawn.append(draw())
    assert drawn[0] == drawn[2] != drawn[1]


def test_lending_and_seeding_give_the_same_numbers() -> None:
    key = randomness.mix(4)
    with randomness.LentStreams()(key):
        lent = draw()
    before = np.random.get_state()
    try:
        randomness.seed_streams(key)
        assert draw() == lent
    finally:
        np.random.set_state(before)


def test_copying_numpys_stream_does_what_swapping_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with randomness.LentStreams()(9):
        swapped = draw()
    monkeypatch.setattr(randomness, "_can_swap", False)
    np.random.standard_normal()
    before = streams()
    with randomness.LentStreams()(9):
        assert draw() == swapped
    assert streams() == before


def test_this_numpy_can_be_swapped() -> None:
    # Not a rule: where this fails, loading is 70 µs a batch slower and as exact.
    assert randomness._swapping_works()
