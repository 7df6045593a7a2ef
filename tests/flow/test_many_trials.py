"""Figure L2 at the size that fits here: two hundred trials report to one master, each once a second, for a minute."""

from __future__ import annotations

import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from determined.client.transport import Session
from determined.wire.outcome import Ending, Outcome
from determined.wire.reports import ExitReport, MetricsReport, ProgressReport, ReportBatch, ReportReply, Source
from determined.wire.requests import RegisterRun
from determined.wire.views import RunView
from tests.flow.cluster import Cluster, cluster

TRIALS, SECONDS = 200, 60
HEARTBEAT_EVERY = 5
MOST_BYTES = 300 << 20


class Reporter:
    """What the node process of a trial does, without the processes: it reports, and says now and then that it lives."""

    def __init__(self, started: Cluster, number: int) -> None:
        self._run: RunView = started.master.register_run(
            RegisterRun(name=f"run {number}", hparams={"number": number}, external_experiment_id=f"run-{number}")
        )
        self.trial_id = self._run.trial_id
        self._session = Session(started.master.url, self._run.session_token)
        self._lines = 0
        self.seconds: list[float] = []

    def run(self, begin_at: float) -> None:
        """A report at each full second; the moments of two hundred are spread over it."""
        pause = threading.Event()
        offset = self.trial_id % TRIALS / TRIALS
        for step in range(1, SECONDS + 1):
            pause.wait(max(begin_at + step - 1 + offset - time.monotonic(), 0.0))
            self._send(step)
            if step % HEARTBEAT_EVERY == 0:
                self._send(None)
        ending = Ending(outcome=Outcome.COMPLETED, exit_code=0)
        report = ExitReport(run_epoch=self._run.run_epoch, ending=ending, lines={Source.CHIEF: self._lines})
        self._session.post(f"/allocations/{self._run.allocation_id}/exit", report.model_dump(mode="json"))
        self._session.close()

    def _send(self, step: int | None) -> None:
        now = time.time()
        lines = []
        if step is not None:
            row = MetricsReport(
                group="training", steps_completed=step, metrics={"loss": 1 / step, "step": step}, time=now
            )
            lines = [row, ProgressReport(progress=step / SECONDS)]
        batch = ReportBatch(run_epoch=self._run.run_epoch, source=Source.CHIEF, first=self._lines, reports=lines)
        began = time.monotonic()
        reply = ReportReply.model_validate(
            self._session.post(f"/allocations/{self._run.allocation_id}/reports", batch.model_dump(mode="json"))
        )
        self.seconds.append(time.monotonic() - began)
        self._lines += len(lines)
        assert reply.acknowledged == self._lines and reply.stop is None


@pytest.mark.slow
def test_two_hundred_trials_report_for_a_minute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with cluster(tmp_path / "master", DET_MASTER_WARM_START="false") as started:
        process = psutil.Process(started.pid)
        reporters = [Reporter(started, number) for number in range(TRIALS)]
        most, over = 0, threading.Event()

        def weigh() -> None:
            nonlocal most
            while not over.wait(0.5):
                most = max(most, process.memory_info().rss)

        watcher = threading.Thread(target=weigh)
        watcher.start()
        try:
            begin_at = time.monotonic() + 1.0
            with ThreadPoolExecutor(TRIALS) as threads:
                for done in [threads.submit(reporter.run, begin_at) for reporter in reporters]:
                    done.result()
        finally:
            over.set()
            watcher.join()
        took = [seconds * 1000 for reporter in reporters for seconds in reporter.seconds]
        cuts = statistics.quantiles(took, n=100)
        used = process.cpu_times()
        with capsys.disabled():
            print(
                f"\n  {len(took)} calls of {TRIALS} trials: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, "
                f"longest {max(took):.0f} ms; the master had at most {most / 2**20:.0f} MiB and used "
                f"{(used.user + used.system) / SECONDS:.2f} cores"
            )
        assert most < MOST_BYTES
        for reporter in reporters:
            trial = started.master.trial(reporter.trial_id)
            assert (trial.state, trial.run_epoch, trial.restarts) == ("COMPLETED", 1, 0), trial
            rows = started.master.all_trial_metrics(reporter.trial_id, "training")
            assert [row.metrics["step"] for row in rows] == [*range(1, SECONDS + 1)]
