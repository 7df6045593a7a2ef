"""DistributedContext: who this process is among the ranks of its gang, and how they exchange objects.

Needs no torch. Ranks of one machine meet at a Unix socket, ranks of several at the chief's TCP port.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import zlib
from collections.abc import Mapping
from typing import Any

from determined import errors
from determined.core import link

logger = logging.getLogger("determined.core")

_PORTS_TRIED = 16


class DistributedContext:
    """The place of this process in its gang, and gather, allgather and broadcast over all ranks or this machine's.

    The chief is rank 0; the local chief is the rank with local rank 0. Give all six numbers or none. Every call is
    collective: all ranks make it, in the same order. A rank that is gone makes the others' calls raise at once.
    """

    def __init__(
        self,
        *,
        rank: int | None = None,
        size: int | None = None,
        local_rank: int | None = None,
        local_size: int | None = None,
        cross_rank: int | None = None,
        cross_size: int | None = None,
        chief_ip: str | None = None,
        pub_port: int = 12360,
        pull_port: int = 12376,
        port_offset: int = 0,
        force_tcp: bool = False,
    ) -> None:
        rendezvous = f"{chief_ip}|{pub_port}|{pull_port}|{port_offset}"
        self._take_place(rank, size, local_rank, local_size, cross_rank, cross_size)
        self._meet(chief_ip, [pub_port + port_offset], rendezvous, force_tcp)

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> DistributedContext:
        """The place that torchrun's environment gives: RANK, WORLD_SIZE, LOCAL_RANK and so on."""
        place = _numbers(
            os.environ, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"
        )
        chief_ip = chief_ip or os.environ.get("DET_CHIEF_IP") or os.environ.get("MASTER_ADDR")
        return cls._made(place, chief_ip, _rendezvous(os.environ))

    @classmethod
    def from_horovod(cls, hvd: Any, chief_ip: str | None = None) -> DistributedContext:
        """The place that Horovod gives; ``hvd`` is the module (``horovod.torch``, ...), initialized."""
        place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
        return cls._made(place, chief_ip or os.environ.get("DET_CHIEF_IP"), _rendezvous(os.environ))

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> DistributedContext:
        """The place that DeepSpeed's launcher gives: RANK, WORLD_SIZE, LOCAL_RANK, CROSS_RANK and so on."""
        rank, size, local_rank = _numbers(os.environ, "RANK", "WORLD_SIZE", "LOCAL_RANK")
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or size)
        cross_rank = int(os.environ.get("CROSS_RANK") or os.environ.get("GROUP_RANK") or rank // local_size)
        cross_size = int(os.environ.get("CROSS_SIZE") or os.environ.get("GROUP_WORLD_SIZE") or size // local_size)
        chief_ip = chief_ip or os.environ.get("DET_CHIEF_IP") or os.environ.get("MASTER_ADDR")
        place = [rank, size, local_rank, local_size, cross_rank, cross_size]
        return cls._made(place, chief_ip, _rendezvous(os.environ))

    @classmethod
    def from_tf_config(cls, chief_ip: str | None = None) -> tuple[DistributedContext, Any]:
        """The place that TF_CONFIG gives, one rank per machine, and the TensorFlow strategy that fits it."""
        import tensorflow as tf

        task = json.loads(os.environ.get("TF_CONFIG") or "{}")
        workers = [name for role in ("chief", "worker") for name in task.get("cluster", {}).get(role, [])]
        if len(workers) < 2:
            several = len(tf.config.list_physical_devices("GPU")) > 1
            return cls(), tf.distribute.MirroredStrategy() if several else tf.distribute.get_strategy()
        # Before the connections: TensorFlow wants its strategy first.
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        chiefs = len(task["cluster"].get("chief", []))
        rank = int(task["task"]["index"]) + (chiefs if task["task"]["type"] == "worker" else 0)
        place = [rank, len(workers), 0, 1, rank, len(workers)]
        chief_ip = chief_ip or os.environ.get("DET_CHIEF_IP") or workers[0].rpartition(":")[0]
        return cls._made(place, chief_ip, "tf|" + "|".join(workers)), strategy

    @classmethod
    def _made(cls, place: list[int], chief_ip: str | None, rendezvous: str) -> DistributedContext:
        """A context that meets where this rendezvous says: no fixed port that another gang may be using."""
        self = cls.__new__(cls)
        self._take_place(*place)
        first = 12360
        if rendezvous:
            first += _PORTS_TRIED * (zlib.crc32(rendezvous.encode()) % 1000)
        self._meet(chief_ip, range(first, first + _PORTS_TRIED), rendezvous, False)
        return self

    def _take_place(self, *place: int | None) -> None:
        given = [number for number in place if number is not None]
        if given and len(given) != len(place):
            raise ValueError(
                "give all of rank, size, local_rank, local_size, cross_rank and cross_size, or none of them"
            )
        rank, size, local_rank, local_size, cross_rank, cross_size = given or (0, 1, 0, 1, 0, 1)
        for name, index, count in (
            ("rank", rank, size),
            ("local_rank", local_rank, local_size),
            ("cross_rank", cross_rank, cross_size),
        ):
            if not 0 <= index < count:
                raise ValueError(f"{name} is {index}, but there are {count}: it must be from 0 to {count - 1}")
        if local_size > size:
            raise ValueError(f"local_size is {local_size}, more than size, which is {size}")
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        self.cross_rank, self.cross_size = cross_rank, cross_size

    def _meet(self, chief_ip: str | None, ports: Any, rendezvous: str, force_tcp: bool) -> None:
        self._closed = False
        self.orders: dict[int, socket.socket] = {}
        everyone = link.Star(0, [0], {})
        self._everyone = self._neighbours = everyone
        if self.size == 1:
            return
        one_machine = self.size == self.local_size
        if not one_machine and not chief_ip:
            raise ValueError(
                f"chief_ip is needed: the {self.size} ranks are on several machines ({self.local_size} on this one)"
            )
        if one_machine and not force_tcp:
            meeting = link.Meeting.on_this_machine(rendezvous)
        else:
            meeting = link.Meeting.at(chief_ip or "127.0.0.1", ports, rendezvous)
        data, self.orders = _connect(meeting, self.rank, list(range(self.size)), [link.DATA, link.ORDERS])
        self._everyone = link.Star(self.rank, range(self.size), data)
        if one_machine:
            self._neighbours = self._everyone
        elif self.local_size > 1:
            # Ranks of one machine may exchange something that the other machines have no part in.
            nearby = link.Meeting.on_this_machine(f"{rendezvous}|machine {self.cross_rank}")
            (local,) = _connect(nearby, self.local_rank, list(range(self.local_size)), [link.DATA])
            first = self.rank - self.local_rank
            self._neighbours = link.Star(self.local_rank, range(first, first + self.local_size), local)

    def get_rank(self) -> int:
        """The rank of this process among all; 0 is the chief."""
        return self.rank

    def get_local_rank(self) -> int:
        """The rank of this process among those of its machine."""
        return self.local_rank

    def get_size(self) -> int:
        """How many ranks there are."""
        return self.size

    def get_num_agents(self) -> int:
        """On how many machines the ranks are."""
        return self.cross_size

    def shard_batch_size(self, n: int) -> int:
        """This rank's share of a batch of ``n`` records: at least 1, rounded down with a warning."""
        if n % self.size and self.rank == 0:
            logger.warning(
                f"a batch of {n} does not divide into {self.size} ranks: each takes {max(n // self.size, 1)}, "
                f"{max(n // self.size, 1) * self.size} together"
            )
        return max(n // self.size, 1)

    def gather(self, stuff: Any) -> list[Any] | None:
        """Every rank's object, in rank order, on the chief; None elsewhere."""
        return self._everyone.gather(stuff)

    def gather_local(self, stuff: Any) -> list[Any] | None:
        """Every object of this machine's ranks on its local chief; None elsewhere."""
        return self._neighbours.gather(stuff)

    def allgather(self, stuff: Any) -> list[Any]:
        """Every rank's object, in rank order, on every rank."""
        return self._everyone.allgather(stuff)

    def allgather_local(self, stuff: Any) -> list[Any]:
        """Every object of this machine's ranks, on each of them."""
        return self._neighbours.allgather(stuff)

    def broadcast(self, stuff: Any) -> Any:
        """The chief's object, on every rank."""
        return self._everyone.broadcast(stuff)

    def broadcast_local(self, stuff: Any = None) -> Any:
        """The local chief's object, on every rank of this machine."""
        return self._neighbours.broadcast(stuff)

    def close(self) -> None:
        """Leave the gang; closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._everyone.close()
        self._neighbours.close()
        for connection in self.orders.values():
            connection.close()

    def __enter__(self) -> DistributedContext:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connect(
    meeting: link.Meeting, member: int, members: list[int], channels: list[int]
) -> list[dict[int, socket.socket]]:
    if member == 0:
        found = link.Reception(meeting).receive(members[1:], channels)
        return [found[channel] for channel in channels]
    return [{0: connection} for connection in link.join(meeting, member, channels)]


def _rendezvous(environ: Mapping[str, str]) -> str:
    """What all ranks of this attempt, and no others, have in common."""
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    return "|".join(environ.get(name, "") for name in names)


def _numbers(environ: Mapping[str, str], *names: str) -> list[int]:
    missing = [name for name in names if not environ.get(name)]
    if missing:
        raise errors.InternalException(
            f"{', '.join(missing)} not set: start this script with torchrun or "
            "`python -m determined.launch.torch_distributed`, or use DistributedContext(...) with the numbers"
        )
    return [int(environ[name]) for name in names]
