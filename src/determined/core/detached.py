"""Detached: a run that you started yourself and that reports to a master all the same. Training never waits for it."""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from determined import errors
from determined.core import uplink, upload
from determined.core.console import Console
from determined.core.run_folder import RunFolder

if TYPE_CHECKING:
    from determined.client.transport import Session
    from determined.wire.reports import StopOrder
    from determined.wire.views import RunView

_FIRST_ANSWER_SECONDS = 5.0
_FIRST_RETRY_SECONDS = 1.0
_LAST_RETRY_SECONDS = 30.0
_DRAIN_SECONDS = 10.0
_WATCH_SECONDS = 0.1
_NOT_NOW = ("store_unavailable", errors.InternalException.code, errors.DeterminedError.code)


def session_of(environ: Mapping[str, str]) -> Session | None:
    """The master that ``DET_MASTER`` names ("local": the one on this machine); None when it names none."""
    if not environ.get("DET_MASTER"):
        return None
    from determined.client import autostart
    from determined.client.credentials import Credentials, Surroundings
    from determined.client.transport import Session

    around = Surroundings.of(environ)
    local = autostart.find(around.state_folder)
    url = str(around.master)
    if url == "local":
        if local is None:
            raise errors.MasterUnreachable("DET_MASTER=local, but no master runs on this machine: start one")
        url = local.url
    trusted = environ.get("DET_MASTER_CERT_FILE") or True
    session = Session(url, timeout=_FIRST_ANSWER_SECONDS, attempts=1, verify=trusted)
    session.token = around.token or Credentials(around.config_folder).token(session.url, around.user)
    if session.token is None and local is not None and local.url.rstrip("/") == session.url:
        session.token = local.token
    return session


def is_away(error: errors.DeterminedError) -> bool:
    """Whether an error says that there is no master to talk to now, rather than what it thinks."""
    return isinstance(error, errors.MasterUnreachable) or error.code in _NOT_NOW


def spool_of(run: RunFolder) -> pathlib.Path:
    """Where this start of a run writes what a master is to hear; gone when the master has heard it."""
    return _folder(run) / f"{run.run_epoch}.spool"


def _folder(run: RunFolder) -> pathlib.Path:
    return run.path / "uplink"


class Detached:
    """The chief's connection with a master, from when the run is known until it has ended.

    A master that is away is waited for in the background. What it has not heard in the end stays in the run folder,
    and is sent at the next start of the same run, or by ``det run upload``.
    """

    def __init__(
        self,
        run: RunFolder,
        session: Session,
        console: Console,
        *,
        steps_completed: int = 0,
        stop: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._run = run
        self._session = session
        self._console = console
        self._steps_completed = steps_completed
        self._ask_to_stop = stop
        self._spool = spool_of(run)
        self._view: RunView | None = None
        self._shipper: uplink.Shipper | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def connect(self, known: RunView | None = None) -> RunView | None:
        """Make the run known to the master, unless it is; None when it does not answer now.

        Raises what it answers otherwise.
        """
        try:
            return self._register(known)
        except errors.DeterminedError as error:
            if not is_away(error):
                raise
            self._console.warn(
                f"{str(error).rstrip('.')}. The run goes on; what it reports is kept, and sent when the master is there"
            )
            self._thread = threading.Thread(target=self._wait_for_master, name="master", daemon=True)
            self._thread.start()
            return None

    def close(self, state: str) -> None:
        """Send what is left and how it ended, as far as the master is there; ``state`` is the run's."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_FIRST_ANSWER_SECONDS)
        with self._lock:
            shipper, view = self._shipper, self._view
        is_told = False
        if shipper is not None and view is not None:
            is_told = shipper.drain(_DRAIN_SECONDS) and self._tell_end(view, state)
            shipper.close()
        if is_told:
            with contextlib.suppress(OSError):
                self._spool.unlink(missing_ok=True)
                _folder(self._run).rmdir()
        elif shipper is None or not shipper.is_fenced:
            self._console.warn(f"the master has not heard everything; send it later: det run upload {self._run.path}")
        self._session.close()

    def _register(self, known: RunView | None = None) -> RunView:
        with self._lock:
            view = known or upload.register(self._run, self._session)
            if self._unsent() or view.steps_completed < self._steps_completed:
                # The master does not know how this start's beginning was come to.
                self._send_earlier(view)
                view = upload.register(self._run, self._session)
            self._view = view
            self._shipper = uplink.Shipper(
                self._session.with_token(view.session_token),
                view.allocation_id,
                view.run_epoch,
                {uplink.CHIEF: self._spool},
                on_stop=self._on_stop,
                on_fenced=self._on_fenced,
                on_problem=self._console.warn,
                watch_seconds=_WATCH_SECONDS,
                cluster_id=view.cluster_id,
            ).start()
            return view

    def _unsent(self) -> list[pathlib.Path]:
        """What earlier starts of this run could not send."""
        return [path for path in _folder(self._run).glob("*.spool") if path != self._spool]

    def _send_earlier(self, view: RunView) -> None:
        unsent = self._unsent()
        reporting = self._session.with_token(view.session_token)
        reporting.attempts = 2
        try:
            upload.send(self._run, reporting, view)
        finally:
            reporting.close()
        for path in unsent:
            with contextlib.suppress(OSError):
                path.unlink()

    def _wait_for_master(self) -> None:
        wait = _FIRST_RETRY_SECONDS
        while not self._closed.wait(wait):
            try:
                view = self._register()
            except errors.DeterminedError as error:
                if is_away(error):
                    wait = min(wait * 2, _LAST_RETRY_SECONDS)
                    continue
                self._console.warn(f"the master does not take this run: {error}")
                return
            else:
                self._console.info(f"the master is there: this is trial {view.trial_id}")
                return

    def _tell_end(self, view: RunView, state: str) -> bool:
        _, outcome, code = upload.ending_of(state)
        reporting = self._session.with_token(view.session_token)
        try:
            upload.tell_end(reporting, view, outcome, code)
        except errors.DeterminedError:
            return False
        finally:
            reporting.close()
        return True

    def _on_stop(self, order: StopOrder) -> None:
        self._ask_to_stop(f"{order.reason.value} by the master")

    def _on_fenced(self, why: str) -> None:
        self._console.warn(f"the master takes nothing of this run any more: {why}")
