"""DistributedContext: objects travel in rank order, on one machine or several; nobody waits for a lost rank."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from determined import errors
from determined.core import beats, link
from determined.core.ranks import DistributedContext

PATIENCE = 20.0


def offset() -> int:
    """One that no other test process uses: names and ports of gangs are derived from it."""
    return os.getpid() % 20000


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def on_all(size: int, act: Callable[[DistributedContext], Any], machines: int = 1, **options: Any) -> list[Any]:
    """What ``act`` returns on every rank, or the error it raises; ranks are threads."""
    local = size // machines
    options = {"port_offset": offset(), **options}
    results: list[Any] = [None] * size

    def live(rank: int) -> None:
        try:
            with DistributedContext(
                rank=rank,
                size=size,
                local_rank=rank % local,
                local_size=local,
                cross_rank=rank // local,
                cross_size=machines,
                **options,
            ) as context:
                results[rank] = act(context)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=live, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


@pytest.fixture(params=["unix", "tcp"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "unix":
        return {}
    return {"force_tcp": True, "chief_ip": "127.0.0.1", "pub_port": free_port(), "port_offset": 0}


@pytest.mark.parametrize("size", [1, 2, 5])
def test_objects_arrive_in_rank_order(size: int, options: dict[str, Any]) -> None:
    def act(context: DistributedContext) -> Any:
        mine = {"rank": context.get_rank(), "bulk": b"x" * (context.get_rank() * 300_000)}
        return context.gather(mine), context.allgather(mine), context.broadcast(mine), context.gather("again")

    everything = [{"rank": rank, "bulk": b"x" * (rank * 300_000)} for rank in range(size)]
    for rank, (gathered, allgathered, broadcast, again) in enumerate(on_all(size, act, **options)):
        assert gathered == (everything if rank == 0 else None)
        assert allgathered == everything
        assert broadcast == everything[0]
        assert again == (["again"] * size if rank == 0 else None)


def test_ranks_of_one_machine_exchange_without_the_others() -> None:
    def act(context: DistributedContext) -> Any:
        if context.cross_rank == 1:  # The other machine has no part in this.
            context.allgather_local("warm")
        return (
            context.gather_local(context.rank),
            context.allgather_local(context.rank),
            context.broadcast_local(context.rank),
            context.get_num_agents(),
        )

    results = on_all(4, act, machines=2, chief_ip="127.0.0.1", pub_port=free_port(), port_offset=0)
    assert results == [
        ([0, 1], [0, 1], 0, 2),
        (None, [0, 1], 0, 2),
        ([2, 3], [2, 3], 2, 2),
        (None, [2, 3], 2, 2),
    ]


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_a_rank_that_is_gone_is_named_at_once_on_all(leaver: int, options: dict[str, Any]) -> None:
    left = threading.Event()

    def act(context: DistributedContext) -> Any:
        context.allgather(None)
        if context.rank == leaver:
            context.close()
            left.set()
            return None
        assert left.wait(PATIENCE)
        return context.allgather(None)

    results = on_all(3, act, **options)
    for rank, result in enumerate(results):
        if rank != leaver:
            assert isinstance(result, link.PeerLost), result
            assert f"lost the connection to rank {leaver}" in str(result)


def test_ranks_that_make_different_calls_are_told_so() -> None:
    results = on_all(2, lambda context: context.allgather(1) if context.rank else context.gather(1))
    assert "rank 1 called allgather while rank 0 called gather" in str(results[0])


def test_a_forked_child_does_not_hide_the_death_of_its_rank() -> None:
    read, write = os.pipe()

    def fork_and_leave(context: DistributedContext) -> Any:
        if context.rank == 1:
            child = os.fork()
            if child == 0:
                os.close(write)
                os.read(read, 1)  # Lives on, like a data-loading worker, until the test ends.
                os._exit(0)
            return child
        return context.allgather(None)

    with contextlib.ExitStack() as stack:
        stack.callback(os.close, read)
        lost, child = on_all(2, fork_and_leave)
        os.close(write)
        os.waitpid(child, 0)
        assert isinstance(lost, link.PeerLost)


def test_strangers_are_turned_away() -> None:
    port = free_port()
    stranger: list[bytes] = []

    def intrude() -> None:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as other:
                other.sendall(b"\x80\x04" + bytes(200))
                other.settimeout(PATIENCE)
                stranger.append(other.recv(1000))
                with contextlib.suppress(ConnectionResetError):
                    stranger.append(other.recv(1000))
                return

    thread = threading.Thread(target=intrude, daemon=True)
    thread.start()
    meeting = link.Meeting.at("127.0.0.1", [port], "the token")
    reception = link.Reception(meeting)
    received: list[Any] = []
    chief = threading.Thread(target=lambda: received.append(reception.receive([1], [link.DATA])), daemon=True)
    chief.start()
    thread.join(PATIENCE)
    (connection,) = link.join(meeting, 1, [link.DATA])
    chief.join(PATIENCE)
    assert len(stranger[0]) == 16 and stranger[1:] in ([b""], [])  # A challenge, then the door.
    connection.close()
    received[0][link.DATA][1].close()


def test_a_port_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(errors.InternalException, match=r"cannot listen at 127.0.0.1.*port_offset"):
            link.Reception(link.Meeting.at("127.0.0.1", [taken.getsockname()[1]], ""))


def test_the_next_port_is_taken_where_all_know_the_row() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        meeting = link.Meeting.at("127.0.0.1", [taken.getsockname()[1], free_port()], "x")
        received: list[Any] = []
        reception = link.Reception(meeting)
        chief = threading.Thread(target=lambda: received.append(reception.receive([1], [link.DATA])), daemon=True)
        chief.start()
        # Whoever holds the first port never answers; hanging up is as good as a refusal.
        hang_up = threading.Thread(target=lambda: taken.accept()[0].close(), daemon=True)
        hang_up.start()
        (connection,) = link.join(meeting, 1, [link.DATA])
        chief.join(PATIENCE)
        connection.close()
        received[0][link.DATA][1].close()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"rank": 0}, "give all of"),
        ({"rank": 2, "size": 2}, "rank is 2"),
        ({"size": 4}, "chief_ip is needed"),
        ({"local_size": 4}, "local_size is 4, more than size"),
    ],
)
def test_impossible_places_are_refused(place: dict[str, int], message: str) -> None:
    whole = {"rank": 0, "size": 2, "local_rank": 0, "local_size": 2, "cross_rank": 0, "cross_size": 1}
    with pytest.raises(ValueError, match=message):
        DistributedContext(**(place if len(place) == 1 and "rank" in place else {**whole, **place}))  # type: ignore[arg-type]


def test_a_context_alone_is_trivial_and_closes_twice() -> None:
    context = DistributedContext()
    assert (context.get_rank(), context.get_local_rank(), context.get_size(), context.get_num_agents()) == (0, 0, 1, 1)
    stuff = object()
    assert context.gather(stuff) == context.allgather(stuff) == [stuff] and context.broadcast(stuff) is stuff
    context.close()
    context.close()
    with pytest.raises(errors.InternalException, match="closed"):
        context.gather(1)


def test_torchruns_environment_gives_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.InternalException, match=r"WORLD_SIZE.*launch.torch_distributed"):
        DistributedContext.from_torch_distributed()
    numbers = {
        "RANK": 0,
        "WORLD_SIZE": 1,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "GROUP_RANK": 0,
        "GROUP_WORLD_SIZE": 1,
    }
    for name, number in numbers.items():
        monkeypatch.setenv(name, str(number))
    assert DistributedContext.from_torch_distributed().size == 1


class Horovod:
    """The part of Horovod's module that is asked."""

    rank = local_rank = cross_rank = staticmethod(lambda: 0)
    size = local_size = cross_size = staticmethod(lambda: 1)


def test_horovod_gives_the_place() -> None:
    assert DistributedContext.from_horovod(Horovod).size == 1


def test_a_batch_is_shared_out(caplog: pytest.LogCaptureFixture) -> None:
    context = DistributedContext()
    context.size = 4
    assert (context.shard_batch_size(64), caplog.text) == (16, "")
    assert context.shard_batch_size(10) == 2
    assert "does not divide into 4 ranks" in caplog.text
    assert context.shard_batch_size(3) == 1


@contextlib.contextmanager
def beats_file(folder: pathlib.Path, ranks: int) -> Iterator[str]:
    path = str(folder / "beats")
    beats.make(path, ranks)
    yield path


def test_beats_are_seen_by_whoever_opened_the_file(tmp_path: pathlib.Path) -> None:
    with beats_file(tmp_path, 2) as path:
        watcher = beats.open_all(path, 2)
        beat = beats.open_beats(path, 1)
        beat[0] = 12345
        assert watcher.tolist() == [0, 12345]
        assert beats.batches_done(12345 + (3 << beats.COUNT_BITS)) == 12345
        with pytest.raises(errors.InternalException, match="room for 2 ranks, not 3"):
            beats.open_beats(path, 2)
    private = beats.open_beats(None, 0)
    private[0] = 1
    assert private.tolist() == [1]
