"""Random numbers for loading: a key for every batch, and the global streams lent to it and given back unchanged."""

from __future__ import annotations

import random
from types import TracebackType
from typing import Any

import numpy as np
import torch

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN = 0x9E37_79B9_7F4A_7C15


def mix(*values: int) -> int:
    """One 64-bit key out of several integers; their order matters, and close values give unrelated keys."""
    key = 0
    for value in values:
        key = keyed(key ^ _scramble(value & _MASK), 1)
    return key


def keyed(key: int, number: int) -> int:
    """The key of the numbered member of a family: cheaper than ``mix``, for what happens once per batch."""
    return _scramble((key + (number + 1) * _GOLDEN) & _MASK)


def _scramble(word: int) -> int:
    """The finaliser of SplitMix64: a bijection in which every input bit reaches every output bit."""
    word = ((word ^ (word >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return word ^ (word >> 31)


def generator_for(key: int) -> torch.Generator:
    """A torch generator of its own, seeded by the key."""
    generator = torch.Generator("cpu")
    generator.manual_seed(key)
    return generator


def seed_streams(key: int) -> None:
    """Seed the global streams of torch (CPU), numpy and Python from one key.

    Torch and numpy both keep 32 bits of a seed and run the same generator on it, so each gets its own half.
    """
    torch.default_generator.manual_seed(key & 0xFFFF_FFFF)
    np.random.seed(key >> 32)
    random.seed(key)


class LentStreams:
    """The global random streams, lent to a piece of code and given back as they were.

    ``with lent(key): ...`` seeds them by the key. Not for two threads at once: the streams are the process's.
    """

    __slots__ = ("_key", "_numpy", "_python", "_python_state", "_torch", "_torch_state")

    def __init__(self) -> None:
        self._key = 0
        self._torch = torch.default_generator
        self._torch_state: torch.Tensor | None = None
        self._python_state: tuple[Any, ...] | None = None
        self._numpy = _numpy_stream()

    def __call__(self, key: int) -> LentStreams:
        self._key = key
        return self

    def __enter__(self) -> LentStreams:
        key = self._key
        self._torch_state = self._torch.get_state()
        self._python_state = random.getstate()
        self._numpy.put_aside()
        # As seed_streams, without its look-ups: this happens on every batch.
        self._torch.manual_seed(key & 0xFFFF_FFFF)
        np.random.seed(key >> 32)
        random.seed(key)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._torch_state is not None and self._python_state is not None
        self._torch.set_state(self._torch_state)
        random.setstate(self._python_state)
        self._numpy.put_back()


class _CopiedNumpyStream:
    """Puts numpy's global stream aside by copying its state, which takes about 70 µs there and back."""

    def __init__(self) -> None:
        self._state: Any = None

    def put_aside(self) -> None:
        self._state = np.random.get_state()

    def put_back(self) -> None:
        np.random.set_state(self._state)


class _NoState:
    """A bit generator's ``state`` and nothing else: the legacy stream asks it for a state and adds its own part."""

    @property
    def state(self) -> dict[str, Any]:
        return {"bit_generator": "none", "state": None}

    @state.setter
    def state(self, value: object) -> None:
        pass


class _SwappedNumpyStream:
    """Puts numpy's global stream aside by swapping its bit generator, which takes about 1 µs there and back.

    A swap forgets the second half of the last pair of normal numbers. It is read and written through the stream's own
    ``get_state`` and ``set_state`` with a bit generator that has no state, for that one's 624 words are what is slow.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._ours = np.random.MT19937(0)
        self._none = _NoState()
        self._theirs: Any = None
        self._pair: Any = None

    def put_aside(self) -> None:
        stream = self._stream
        theirs = stream._bit_generator
        stream._bit_generator = self._none
        try:
            self._pair = stream.get_state(legacy=False)
        finally:
            stream._bit_generator = theirs
        self._theirs = theirs
        np.random.set_bit_generator(self._ours)  # type: ignore[attr-defined]

    def put_back(self) -> None:
        stream, theirs = self._stream, self._theirs
        np.random.set_bit_generator(theirs)  # type: ignore[attr-defined]
        if self._pair["has_gauss"]:
            stream._bit_generator = self._none
            try:
                stream.set_state(self._pair)
            finally:
                stream._bit_generator = theirs


_can_swap: bool | None = None


def _numpy_stream() -> Any:
    global _can_swap
    if _can_swap is None:
        _can_swap = _swapping_works()
    return _SwappedNumpyStream(_legacy_stream()) if _can_swap else _CopiedNumpyStream()


def _legacy_stream() -> Any:
    """The one RandomState behind numpy's module-level functions."""
    return np.random.get_state.__self__  # type: ignore[attr-defined]


def _swapping_works() -> bool:
    """Try the swap on this numpy: it leans on two details that no release notes promise."""
    before: Any = np.random.get_state()
    try:
        np.random.seed(1)
        np.random.standard_normal()
        expected: Any = np.random.get_state(legacy=True)
        swap = _SwappedNumpyStream(_legacy_stream())
        swap.put_aside()
        np.random.seed(2)
        np.random.standard_normal(3)
        swap.put_back()
        found: Any = np.random.get_state(legacy=True)
        return all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True))
    except (AttributeError, TypeError, ValueError, KeyError):
        return False
    finally:
        np.random.set_state(before)
