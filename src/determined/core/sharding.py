"""Who uploads what when ranks save one checkpoint together: pure decisions, the same on every rank."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Union

from determined.storage import digest, manifest


class Offer(NamedTuple):
    """What one rank could upload. ``folder`` is equal for ranks that offer the same folder of one machine."""

    folder: tuple[int, int, int] | None = None
    files: Mapping[str, int] = {}


def make_offer(
    ckpt_dir: Union[str, os.PathLike[str], None], selector: Callable[[str], bool] | None, machine: int
) -> Offer:
    """Look at a rank's folder, if it has one."""
    if ckpt_dir is None:
        return Offer()
    files = list_folder(pathlib.Path(ckpt_dir), selector)
    place = os.stat(ckpt_dir)
    return Offer((machine, place.st_dev, place.st_ino), files)


def list_folder(folder: pathlib.Path, selector: Callable[[str], bool] | None) -> dict[str, int]:
    """Selected files with their sizes, and selected empty folders as ``name/``.

    A link to a file counts as the file. A manifest at the top is not listed: the new checkpoint gets its own.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} to upload")
    found: dict[str, int] = {}
    for place, folders, names in os.walk(folder):
        relative = os.path.relpath(place, folder).replace(os.sep, "/")
        prefix = "" if relative == "." else f"{relative}/"
        for name in list(folders):
            if os.path.islink(os.path.join(place, name)):
                raise ValueError(f"{prefix}{name} is a link to a folder; a checkpoint holds its own files, copy it")
        if prefix and not folders and not names and (selector is None or selector(prefix)):
            found[prefix] = 0
        for name in names:
            path = prefix + name
            if path != manifest.NAME and (selector is None or selector(path)):
                found[path] = os.stat(os.path.join(place, name)).st_size
    return found


def merge_metadata(parts: Iterable[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The metadata of all ranks as one, maps merged at every level; a contradiction raises ValueError."""
    merged: dict[str, Any] | None = None
    for part in parts:
        if part is not None:
            merged = _merge({} if merged is None else merged, part, "")
    return merged


def contested(offers: Sequence[Offer]) -> list[str]:
    """Files offered from more than one folder, which must be equal; raises when they cannot be."""
    sizes: dict[str, tuple[int, int]] = {}
    folders: dict[str, set[tuple[int, int, int]]] = {}
    for rank, offer in enumerate(offers):
        for path, size in offer.files.items():
            first_rank, first_size = sizes.setdefault(path, (rank, size))
            if size != first_size:
                raise _differ(path, first_rank, rank)
            assert offer.folder is not None
            folders.setdefault(path, set()).add(offer.folder)
    for path in sizes:
        parts = path.removesuffix("/").split("/")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) in sizes:
                raise RuntimeError(
                    f"{'/'.join(parts[:depth])} is a file on rank {sizes['/'.join(parts[:depth])][0]} but a folder on "
                    f"rank {sizes[path][0]}; give each rank's files names of their own"
                )
        if path.endswith("/") and path[:-1] in sizes:
            raise _differ(path[:-1], sizes[path[:-1]][0], sizes[path][0])
    return sorted(path for path, owners in folders.items() if len(owners) > 1 and not path.endswith("/"))


def digest_files(folder: pathlib.Path | None, offer: Offer, paths: Iterable[str]) -> dict[str, str]:
    """The digests of a rank's contested files."""
    if folder is None:
        return {}
    return {path: digest.digest_file(os.path.realpath(folder / path))[1] for path in paths if path in offer.files}


def check_equal(digests: Sequence[Mapping[str, str]]) -> None:
    """Raise RuntimeError when two ranks hold different bytes under one name."""
    seen: dict[str, tuple[int, str]] = {}
    for rank, each in enumerate(digests):
        for path, text in each.items():
            first_rank, first = seen.setdefault(path, (rank, text))
            if text != first:
                raise _differ(path, first_rank, rank)


def assign(offers: Sequence[Offer]) -> list[list[str]]:
    """Which files each rank uploads: each file once, by the first rank that offers it."""
    taken: set[str] = set()
    shares: list[list[str]] = []
    for offer in offers:
        share = sorted(offer.files.keys() - taken)
        taken.update(share)
        shares.append(share)
    return shares


def _merge(into: dict[str, Any], part: Mapping[str, Any], where: str) -> dict[str, Any]:
    for key, value in part.items():
        if key not in into:
            into[key] = value
        elif isinstance(into[key], Mapping) and isinstance(value, Mapping):
            into[key] = _merge(dict(into[key]), value, f"{where}{key}.")
        elif into[key] != value:
            raise ValueError(
                f"ranks give different metadata for {where}{key}: {into[key]!r} and {value!r}; they must agree"
            )
    return into


def _differ(path: str, first: int, second: int) -> RuntimeError:
    return RuntimeError(
        f"ranks {first} and {second} upload different files named {path}; give each rank's files names of their own"
    )
