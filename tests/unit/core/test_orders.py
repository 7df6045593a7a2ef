"""Ranks asked to stop agree on one batch that none of them has passed, whatever they are doing at that moment."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator

import hypothesis
import pytest
from hypothesis import strategies

from determined.core.orders import ASK, FINAL, FRAME, HOLD, NEVER, STOP, Council, Order, Orders, StopLine

PATIENCE = 20.0


class Rank:
    """A rank that trains: a loop like the trainer's, in a thread of its own."""

    def __init__(self, rank: int, size: int, connections: dict[int, socket.socket]) -> None:
        self.askers: list[int] = []
        self.orders = Orders(rank, size, connections, self.askers.append)
        self.done = 0
        self.stopped_at: int | None = None
        self.orders.start()

    def count(self) -> int:
        return self.done

    def train(self, length: int, line: StopLine, barrier: threading.Barrier | None = None) -> None:
        while self.done < length:
            while self.done < length and self.done < line.at:
                if barrier is not None:
                    barrier.wait(PATIENCE)  # A collective: no rank is further than one batch from another.
                self.done += 1
            if line.reached():
                self.stopped_at = self.done
                break
        line.finish()


@contextlib.contextmanager
def gang(size: int) -> Iterator[list[Rank]]:
    pairs = {peer: socket.socketpair() for peer in range(1, size)}
    chief = Rank(0, size, {peer: ours for peer, (ours, _) in pairs.items()})
    ranks = [chief, *(Rank(peer, size, {0: theirs}) for peer, (_, theirs) in pairs.items())]
    try:
        yield ranks
    finally:
        threads = [threading.Thread(target=rank.orders.close) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)


def run(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "the ranks did not come to an agreement"


@pytest.mark.parametrize("seed", range(60))
def test_ranks_that_train_on_their_own_stop_at_one_batch(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.choice([2, 2, 3, 5])
    with gang(size) as ranks:
        for rank in ranks:
            rank.done = rng.randrange(200)
        lines = [rank.orders.line(rank.count) for rank in ranks]
        askers = rng.sample(ranks, rng.randint(1, size))
        run(
            [threading.Thread(target=rank.train, args=(10**9, line)) for rank, line in zip(ranks, lines, strict=True)]
            + [threading.Thread(target=rank.orders.ask) for rank in askers]
        )
        assert len({rank.stopped_at for rank in ranks}) == 1
        assert {line.settle() for line in lines} == {ranks[0].stopped_at}
        assert all(rank.done == rank.stopped_at for rank in ranks)
        assert all(len(rank.askers) == 1 for rank in ranks)


@pytest.mark.parametrize("seed", range(60))
def test_ranks_in_lock_step_stop_together_or_not_at_all(seed: int) -> None:
    rng = random.Random(seed)
    size, length = rng.choice([2, 3]), rng.choice([1, 2, 5, 50])
    with gang(size) as ranks:
        barrier = threading.Barrier(size)
        lines = [rank.orders.line(rank.count) for rank in ranks]
        trainers = [
            threading.Thread(target=rank.train, args=(length, line, barrier))
            for rank, line in zip(ranks, lines, strict=True)
        ]
        askers = [threading.Thread(target=rank.orders.ask) for rank in ranks if rng.random() < 0.6]
        together = trainers + askers
        rng.shuffle(together)
        run(together)
        # At the end of the schedule a rank may see the line in its last batch: then all of them do, or it is too late.
        assert len({rank.done for rank in ranks}) == 1
        if ranks[0].done < length:
            assert {rank.stopped_at for rank in ranks} == {ranks[0].done}


@pytest.mark.parametrize("leaver", [0, 1, 2])
@pytest.mark.parametrize("orderly", [True, False])
def test_a_rank_that_leaves_keeps_nobody_waiting(leaver: int, orderly: bool) -> None:
    with gang(3) as ranks:
        lines = [rank.orders.line(rank.count) for rank in ranks]
        stay = [rank for rank in ranks if rank.orders.rank != leaver]
        threads = [threading.Thread(target=rank.train, args=(10**9, lines[rank.orders.rank])) for rank in stay]
        if orderly:
            lines[leaver].finish()
        threads.append(threading.Thread(target=ranks[leaver].orders.close))
        threads.append(threading.Thread(target=stay[-1].orders.ask))
        if leaver == 0:  # With the chief gone each decides for itself, so each must be asked.
            threads.append(threading.Thread(target=stay[0].orders.ask))
        run(threads)
        assert all(rank.stopped_at == rank.done for rank in stay)
        if leaver != 0:
            assert stay[0].done == stay[1].done


def test_a_rank_asked_before_it_trains_stops_without_a_batch() -> None:
    with gang(2) as ranks:
        ranks[1].orders.ask()
        assert wait_until(lambda: all(rank.orders.asked for rank in ranks))
        lines = [rank.orders.line(lambda: 7) for rank in ranks]
        assert [line.settle() for line in lines] == [7, 7]


def test_a_rank_still_loading_when_others_are_asked_stops_where_they_do() -> None:
    with gang(2) as ranks:
        first = ranks[0].orders.line(ranks[0].count)
        trainer = threading.Thread(target=ranks[0].train, args=(10**9, first))
        trainer.start()
        ranks[0].orders.ask()
        assert wait_until(lambda: all(rank.orders.asked for rank in ranks))
        assert trainer.is_alive()
        second = ranks[1].orders.line(ranks[1].count)
        run([threading.Thread(target=ranks[1].train, args=(10**9, second))])
        trainer.join(PATIENCE)
        assert ranks[0].stopped_at == ranks[1].stopped_at is not None


def test_a_rank_that_finished_answers_past_its_end() -> None:
    with gang(2) as ranks:
        lines = [rank.orders.line(lambda: 10) for rank in ranks]
        lines[0].finish()
        ranks[1].orders.ask()
        assert wait_until(lambda: lines[1].at != NEVER)
        assert lines[1].settle() == 11


def test_every_line_is_agreed_on_for_itself() -> None:
    with gang(2) as ranks:
        for line in [rank.orders.line(lambda: 100) for rank in ranks]:
            line.finish()
        later = [rank.orders.line(rank.count) for rank in ranks]
        ranks[0].orders.ask()
        run([threading.Thread(target=rank.train, args=(10**9, line)) for rank, line in zip(ranks, later, strict=True)])
        assert ranks[0].stopped_at == ranks[1].stopped_at is not None


def test_a_rank_alone_stops_after_the_batch_in_flight() -> None:
    orders = Orders(0, 1, {}, lambda rank: None)
    done = 3
    line = orders.line(lambda: done)
    assert (line.at, line.settle(), line.reached()) == (NEVER, NEVER, False)
    orders.ask()
    assert line.at == 3
    done = 4  # The batch that was in flight.
    assert line.reached() and line.settle() == 4
    orders.close()


def test_orders_cut_in_pieces_are_put_together() -> None:
    ours, theirs = socket.socketpair()
    rank = Rank(1, 2, {0: theirs})
    line = rank.orders.line(lambda: 5)
    for byte in FRAME.pack(*Order(STOP, 0)) + FRAME.pack(*Order(FINAL, 0, 0, 9)):
        ours.send(bytes([byte]))
    assert wait_until(lambda: line.is_agreed)
    assert (line.settle(), rank.askers) == (9, [0])
    rank.orders.close()
    ours.close()


@hypothesis.given(strategies.data())
def test_the_council_concludes_once_for_all_who_are_present(data: strategies.DataObject) -> None:
    size = data.draw(strategies.integers(1, 5))
    holds = data.draw(strategies.lists(strategies.integers(0, 100), min_size=size, max_size=size))
    leavers = data.draw(strategies.sets(strategies.integers(0, size - 1), max_size=size))
    council = Council(size)
    events = data.draw(strategies.permutations([("ask", rank) for rank in range(size)]))
    assert [order for _, rank in events for order in council.hear(Order(ASK, rank))] == [Order(STOP, events[0][1])]
    acts = [("hold", rank) for rank in range(size) if rank not in leavers] + [("leave", rank) for rank in leavers]
    said = []
    for act, rank in data.draw(strategies.permutations(acts)):
        said += council.hear(Order(HOLD, rank, 0, holds[rank])) if act == "hold" else council.lose(rank)
    stayed = [holds[rank] for rank in range(size) if rank not in leavers]
    assert said == ([Order(FINAL, 0, 0, max(stayed))] if stayed else [])
    assert not council.is_waiting


def wait_until(condition: Callable[[], bool]) -> bool:
    pause = threading.Event()
    for _ in range(2000):
        if condition():
            return True
        pause.wait(0.005)
    return False
