"""Which checkpoints are kept: the predecessor's rules, and what must hold whatever happens."""

from __future__ import annotations

import math
import random

import pytest

from determined.storage.retention import Kept, Policy, keep

# Two trials; of the first the checkpoint of step 300 has no validation.
FIVE = [
    Kept("a1", 1, 100, 0.9),
    Kept("a2", 1, 200, 0.3),
    Kept("a3", 1, 300, None),
    Kept("b1", 2, 100, 0.5),
    Kept("b2", 2, 200, 0.4),
]


@pytest.mark.parametrize(
    ("experiment_best", "trial_best", "trial_latest", "kept"),
    [
        (0, 0, 0, ""),
        (1, 0, 0, "a2"),
        (2, 0, 0, "a2 b2"),
        (9, 0, 0, "a1 a2 b1 b2"),
        (0, 1, 0, "a2 b2"),
        (0, 2, 0, "a1 a2 b1 b2"),
        (0, 0, 1, "a3 b2"),
        (0, 0, 2, "a2 a3 b1 b2"),
        (0, 1, 1, "a2 a3 b2"),
        (2, 1, 1, "a2 a3 b2"),
        (3, 0, 1, "a2 a3 b1 b2"),
    ],
)
def test_the_union_of_the_three_is_kept(experiment_best: int, trial_best: int, trial_latest: int, kept: str) -> None:
    policy = Policy(experiment_best, trial_best, trial_latest)
    assert keep(FIVE, policy, smaller_is_better=True) == {*kept.split()}


def test_larger_may_be_better() -> None:
    assert keep(FIVE, Policy(1, 0, 0), smaller_is_better=False) == {"a1"}
    assert keep(FIVE, Policy(0, 1, 0), smaller_is_better=False) == {"a1", "b1"}


def test_what_is_referenced_is_kept_besides() -> None:
    assert keep(FIVE, Policy(1, 0, 0), True, referenced={"b1", "elsewhere"}) == {"a2", "b1"}


def test_nan_is_never_the_best_and_of_equals_the_earlier_is() -> None:
    checkpoints = [
        Kept("nan", 1, 1, math.nan, 1.0),
        Kept("late", 1, 3, 0.5, 3.0),
        Kept("early", 1, 2, 0.5, 2.0),
        Kept("worst", 1, 4, math.inf, 4.0),
    ]
    assert keep(checkpoints, Policy(1, 1, 0), True) == {"early"}
    assert keep(checkpoints[:1], Policy(1, 1, 0), True) == set()
    assert keep(checkpoints, Policy(0, 3, 0), True) == {"early", "late", "worst"}


def test_ten_thousand_random_lives_keep_what_they_must_and_no_more() -> None:
    for seed in range(10_000):
        rng = random.Random(seed)
        policy = Policy(rng.randrange(3), rng.randrange(3), rng.randrange(3))
        smaller_is_better = rng.random() < 0.5
        trials = rng.randrange(1, 5)
        alive: dict[str, Kept] = {}
        referenced: set[str] = set()
        best: float | None = None
        for count in range(rng.randrange(1, 25)):
            metric = rng.choice([None, math.nan, math.inf, float(rng.randrange(10)), rng.random()])
            checkpoint = Kept(f"{count:03}", rng.randrange(trials), rng.randrange(100), metric, float(count))
            alive[checkpoint.uuid] = checkpoint
            if rng.random() < 0.2:
                referenced.add(rng.choice([*alive]))
            if referenced and rng.random() < 0.2:
                referenced.remove(rng.choice(sorted(referenced)))
            if metric is not None and not math.isnan(metric):
                worse = best is not None and (best < metric if smaller_is_better else best > metric)
                best = best if worse else metric
            if rng.random() < 0.5:
                continue
            shuffled = rng.sample([*alive.values()], len(alive))
            kept = keep(shuffled, policy, smaller_is_better, referenced)
            assert referenced & alive.keys() <= kept, seed
            bound = policy.save_experiment_best + trials * (policy.save_trial_best + policy.save_trial_latest)
            assert len(kept) <= bound + len(referenced & alive.keys()), seed
            for trial in range(trials):
                latest = sorted((c.steps, c.reported_at, c.uuid) for c in alive.values() if c.trial_id == trial)[
                    -policy.save_trial_latest :
                ]
                if policy.save_trial_latest:
                    assert {uuid for _, _, uuid in latest} <= kept, seed
            # Collected little by little, or all at once at the end: the same are left.
            assert keep([c for c in shuffled if c.uuid in kept], policy, smaller_is_better, referenced) == kept, seed
            alive = {uuid: c for uuid, c in alive.items() if uuid in kept}
            if best is not None and (policy.save_experiment_best or policy.save_trial_best):
                assert best in {c.metric for c in alive.values()}, seed
