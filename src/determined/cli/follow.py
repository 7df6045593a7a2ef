"""Following an experiment to its end: a table of a search, the log and the progress of a single trial."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from determined import errors
from determined.cli import logs, render
from determined.cli.live import Board, Entry

if TYPE_CHECKING:
    from determined.client.master import Master
    from determined.wire.views import ExperimentView, TrialView

Seen = TypeVar("Seen")

ENDED = frozenset(("COMPLETED", "CANCELED", "ERROR", "DELETED", "DELETE_FAILED"))
_POLL_SECONDS = 0.5
_MOST_TRIALS = 1000
_MOST_BAD = 3


def experiment(master: Master, experiment_id: int, with_logs: bool = False) -> int:
    """Follow an experiment; the exit code says how it ended. Ctrl-C only stops looking."""
    try:
        return _follow(master, experiment_id, with_logs)
    except KeyboardInterrupt:
        raise logs.detached(
            f"Experiment {experiment_id}", f"det e logs -f {experiment_id}", f"det e kill {experiment_id}"
        ) from None


def trial(master: Master, trial_id: int, wanted: logs.Wanted, form: render.Format = render.Format.TABLE) -> None:
    """Follow one trial's log. Ctrl-C only stops looking."""
    try:
        logs.follow(master, f"trial-{trial_id}", wanted, form)
    except KeyboardInterrupt:
        raise logs.detached(f"Trial {trial_id}", f"det t logs -f {trial_id}", f"det t kill {trial_id}") from None


def chosen_lines(
    master: Master, experiment_id: int, wanted: logs.Wanted, form: render.Format = render.Format.TABLE
) -> None:
    """Print the lines that are wanted of all trials' logs until the experiment ends. Ctrl-C only stops looking."""
    readers: dict[int, _ChosenLines] = {}

    def read() -> bool:
        has_ended = master.experiment(experiment_id).state in ENDED
        for each in master.experiment_trials(experiment_id, limit=_MOST_TRIALS).items:
            if each.id not in readers and each.state not in ("QUEUED", "ACTIVE"):
                readers[each.id] = _ChosenLines(master, each.id, wanted, form)
        for reader in readers.values():
            reader.read()
        return has_ended

    try:
        for has_ended in _looks(read, 2 * _POLL_SECONDS):
            if has_ended:
                return
    except KeyboardInterrupt:
        raise logs.detached(
            f"Experiment {experiment_id}", f"det e logs -f {experiment_id}", f"det e kill {experiment_id}"
        ) from None


def wait(master: Master, experiment_id: int, seconds: float = _POLL_SECONDS) -> ExperimentView:
    """The experiment, when it has ended."""
    for view in _looks(lambda: master.experiment(experiment_id), seconds):
        if view.state in ENDED:
            return view
    raise AssertionError("looking never ends by itself")


def progress(done: float) -> str:
    """0 to 1 as people read it."""
    return f"{100 * done:.0f}%"


def duration(seconds: float) -> str:
    """Seconds in the units a person would choose."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _follow(master: Master, experiment_id: int, with_logs: bool) -> int:
    first = master.experiment(experiment_id)
    is_single = first.searcher == "single"
    board = Board(["trial", "state", "progress", "steps", "metric", "hyperparameters"])
    readers: dict[int, _LogReader] = {}
    try:
        for view in _looks(lambda: master.experiment(experiment_id), _POLL_SECONDS, board):
            trials = master.experiment_trials(experiment_id, limit=_MOST_TRIALS).items if view.trial_count else []
            board.show(_title(master, view), [] if is_single else _entries(view, trials), _news(view))
            if with_logs or is_single:
                for each in trials:
                    if each.id not in readers and each.state not in ("QUEUED", "ACTIVE"):
                        prefix = "" if is_single else f"[trial {each.id}] "
                        readers[each.id] = _LogReader(master, each.id, prefix, board)
            for reader in readers.values():
                reader.read()
            if view.state in ENDED:
                # What was written while it ended.
                for reader in readers.values():
                    reader.read()
                break
    finally:
        board.close()
    return conclude(master, view, trials)


def conclude(master: Master, view: ExperimentView, trials: Sequence[TrialView]) -> int:
    """Say how an experiment ended, and what to do with what it made."""
    took = f" after {duration(view.ended_at - view.created_at)}" if view.ended_at else ""
    print(f"Experiment {view.id} {view.state.lower()}{took}", flush=True)
    bad = [each for each in trials if each.state == "ERROR"]
    for each in bad[:_MOST_BAD]:
        print(f"trial {each.id}: {render.lines(each.error or 'failed')}", file=sys.stderr)
        print(f"  its log: det t logs {each.id}", file=sys.stderr)
    if len(bad) > _MOST_BAD:
        print(f"and {len(bad) - _MOST_BAD} more failed: det e list-trials {view.id}", file=sys.stderr)
    if view.error and not bad:
        print(render.sentences(view.error), file=sys.stderr)
    if view.what_is_missing:
        print(f"note: {render.plain(view.what_is_missing)}", file=sys.stderr)
    if view.best_trial_id is not None and view.best_metric is not None:
        print(f"best: trial {view.best_trial_id}, {render.plain(view.metric)} {render.number(view.best_metric)}")
        found = master.trial_checkpoints(view.best_trial_id, limit=1).items
        if found:
            print(f"its checkpoint: {found[0].uuid} (det c download {found[0].uuid[:8]})")
    return 0 if view.state == "COMPLETED" else 1


class _LogReader:
    """Reads on in the log of one trial, so far as there is anything new."""

    def __init__(self, master: Master, trial_id: int, prefix: str, board: Board) -> None:
        self._master = master
        self._trial_id = trial_id
        self._prefix = prefix
        self._board = board
        self._after: int | None = None

    def read(self) -> None:
        while lines := self._master.trial_logs(self._trial_id, after=self._after, limit=1000):
            for line in lines:
                self._board.print(logs.text_of(line, self._prefix))
            self._after = lines[-1].id
            if len(lines) < 1000:
                break


class _ChosenLines:
    """Reads on in the log of one trial and prints what is wanted of it; what was looked at is not looked at again."""

    def __init__(self, master: Master, trial_id: int, wanted: logs.Wanted, form: render.Format) -> None:
        self._master = master
        self._trial_id = trial_id
        self._filters = wanted.filters()
        self._tail = wanted.tail
        self._form = form
        self._after: int | None = None

    def read(self) -> None:
        newest = self._master.trial_logs(self._trial_id, tail=1)
        if not newest or newest[-1].id == self._after:
            return
        while True:
            place = {"tail": self._tail} if self._tail else {"after": self._after, "limit": 1000}
            lines = self._master.trial_logs(self._trial_id, **place, **self._filters)
            for line in lines:
                logs.show_line(line, self._form, f"[trial {self._trial_id}] ")
                self._after = line.id
            if self._tail or len(lines) < 1000:
                break
        self._tail = None
        self._after = max(self._after or 0, newest[-1].id)


def _looks(look: Callable[[], Seen], seconds: float, board: Board | None = None) -> Iterator[Seen]:
    """What is seen again and again; a master that goes away is waited for."""
    is_away = False
    pause = threading.Event()
    while True:
        try:
            seen = look()
            if is_away:
                _say("the master is back", board)
            is_away = False
            yield seen
        except errors.MasterUnreachable as error:
            if not is_away:
                _say(f"{error} What runs goes on; waiting for the master.", board)
            is_away = True
        pause.wait(seconds)


def _say(text: str, board: Board | None) -> None:
    if board is not None:
        board.say(text)
    else:
        print(render.sentences(text), file=sys.stderr, flush=True)


def _title(master: Master, view: ExperimentView) -> str:
    parts = [f"experiment {view.id} {view.name}: {view.state.lower()}", progress(view.progress)]
    if view.trial_count > 1:
        counts = ", ".join(f"{count} {state.lower()}" for state, count in view.trial_counts.items() if count)
        parts.append(counts)
    if view.best_metric is not None:
        parts.append(f"best {view.metric} {render.number(view.best_metric)} (trial {view.best_trial_id})")
    if view.seconds_left:
        parts.append(f"about {duration(view.seconds_left)} left")
    if view.state in ("QUEUED", "ACTIVE"):
        parts.append(_why(master, view))
    return " · ".join(part for part in parts if part)


def _news(view: ExperimentView) -> str:
    return f"experiment {view.id}: {view.state.lower()}"


def _why(master: Master, view: ExperimentView) -> str:
    try:
        return master.job(f"experiment-{view.id}").why
    except errors.DeterminedError:
        return ""


def _entries(view: ExperimentView, trials: Sequence[TrialView]) -> list[Entry]:
    """The trials that run first, then the best, then the others."""
    sign = 1.0 if view.smaller_is_better else -1.0

    def rank(each: TrialView) -> tuple[int, float, int]:
        running = 0 if each.state in ("RUNNING", "STARTING") else 1
        return running, sign * each.best_metric if each.best_metric is not None else float("inf"), each.id

    entries = []
    apart = dict(zip((each.id for each in trials), render.differing([each.hparams for each in trials])))
    for each in sorted(trials, key=rank):
        metric = "" if each.best_metric is None else render.number(each.best_metric)
        best = " ●" if each.id == view.best_trial_id else ""
        cells: Mapping[str, Any] = {
            "trial": each.id,
            "state": each.state.lower(),
            "progress": progress(each.progress),
            "steps": each.steps_completed,
            "metric": f"{metric}{best}",
            "hyperparameters": apart[each.id],
        }
        news = f"trial {each.id}: {each.state.lower()}"
        if each.state in ENDED and metric:
            news += f", {view.metric} {metric} after {each.steps_completed} batches"
        entries.append(Entry(str(each.id), cells, "" if each.state == "QUEUED" else news))
    return entries
