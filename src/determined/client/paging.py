"""Walks through a list page by page, without gaps and without anything twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from determined.wire.views import Page

T = TypeVar("T")

_PAGE = 200


def every(fetch: Callable[[str | None, int], Page[T]], limit: int | None = None) -> Iterator[T]:
    """All things that ``fetch(after, limit)`` gives, or the first ``limit`` of them; each page when it is needed."""
    after: str | None = None
    left = limit
    while left is None or left > 0:
        page = fetch(after, _PAGE if left is None else min(left, _PAGE))
        yield from page.items
        after = page.next
        if after is None:
            return
        left = None if left is None else left - len(page.items)
