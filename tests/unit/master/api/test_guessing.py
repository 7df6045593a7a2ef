"""Passwords and guessing at them."""

from __future__ import annotations

import asyncio
import statistics
import time

import pytest

from determined import errors
from determined.master.api.passwords import Attempts, Passwords, TooMany, check_strength
from tests.unit.master.api.serving import Master

PASSWORD = "a quiet lantern"


def guess(master: Master, username: str, password: str) -> int:
    return master.ask("POST", "/auth/login", None, json={"username": username, "password": password}).status_code


def test_guessing_at_an_account_is_slowed_down_and_others_are_not(master: Master) -> None:
    master.make("POST", "/users", username="ada", password=PASSWORD)
    master.make("POST", "/users", username="bob", password=PASSWORD)
    master.app.state.address_attempts = Attempts(free=10**6)
    answers = [guess(master, "ada", f"wrong {number}") for number in range(200)]
    assert set(answers) <= {401, 429}
    assert answers.count(401) < 12 and answers[-1] == 429
    assert guess(master, "ada", PASSWORD) == 429
    assert guess(master, "bob", PASSWORD) == 200
    late = master.ask("POST", "/auth/login", None, json={"username": "ada", "password": "x"})
    assert int(late.headers["retry-after"]) >= 1


def test_guessing_from_an_address_is_slowed_down_whatever_the_account(master: Master) -> None:
    answers = [guess(master, f"user{number}", "wrong") for number in range(60)]
    assert answers.count(401) < 25 and answers[-1] == 429


def test_many_guesses_at_once_are_as_many(master: Master) -> None:
    master.make("POST", "/users", username="ada", password=PASSWORD)

    async def flood() -> list[int]:
        body = {"username": "ada", "password": "wrong"}
        paths = [master._client.post("/api/v1/auth/login", json=body) for _ in range(100)]
        return [answer.status_code for answer in await asyncio.gather(*paths)]

    assert master.run(flood()).count(401) <= 9


def test_a_wait_grows_and_ends_with_the_right_password() -> None:
    attempts = Attempts(free=2, longest_seconds=60.0)
    waits = []
    for _ in range(12):
        attempts.begin("ada")
        try:
            attempts.check("ada")
        except TooMany as refused:
            waits.append(refused.retry_after_seconds)
    assert waits == sorted(waits) and waits[-1] == 60
    attempts.check("bob")
    attempts.succeed("ada")
    attempts.check("ada")


def test_it_takes_as_long_whether_there_is_such_a_user_or_not() -> None:
    async def measure() -> tuple[float, float]:
        passwords = Passwords(12)
        stored = await passwords.hash(PASSWORD)
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(15):
            for kind, against in enumerate((stored, None)):
                begin = time.process_time()
                assert not await passwords.matches("wrong", against)
                times[kind].append(time.process_time() - begin)
        return min(times[0]), min(times[1])

    somebody, nobody = asyncio.run(measure())
    assert abs(somebody - nobody) < 0.2 * statistics.mean((somebody, nobody))


def test_a_password_is_stored_so_that_it_cannot_be_read_back() -> None:
    async def work() -> None:
        passwords = Passwords(10)
        first, second = await passwords.hash(PASSWORD), await passwords.hash(PASSWORD)
        assert first != second and PASSWORD not in first
        assert await passwords.matches(PASSWORD, first) and not await passwords.matches(PASSWORD + "x", first)
        # The cost may be raised later: what was stored before is still known.
        assert await Passwords(11).matches(PASSWORD, first)

    asyncio.run(work())


@pytest.mark.parametrize(
    "weak", ["", "a", "1234567", "password", "PASSWORD1", "aaaaaaaaaaaa", "abababababab", "determined"]
)
def test_weak_passwords_are_refused(weak: str) -> None:
    with pytest.raises(errors.BadRequest):
        check_strength(weak)
