"""One machine's share of an allocation as a master orders it: from its NodeSpec to the note about its ending.

The master may go away at any time. Nothing here waits for it: what it does not hear now it finds in the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from determined import errors
from determined.wire.allocation_folder import AllocationFolder
from determined.wire.node_spec import NodeSpec
from determined.wire.outcome import Ending, Outcome
from determined.worker import entrypoint, environment, gang, log_file, logs, processes, workspace
from determined.worker.node import Node
from determined.worker.usage import Usage

if TYPE_CHECKING:
    from determined.core.uplink import Shipper

# How long we try, at our end, to tell the master; after that it reads the files.
_FAREWELL_SECONDS = 5.0
_HELD_LINES = 40


class _Stopped(Exception):
    """Asked to stop before the ranks were started."""


def run(
    spec: NodeSpec,
    environ: Mapping[str, str],
    python: str,
    *,
    lock: int | None = None,
    sweepers: Sequence[str] = (),
    start_rank: gang.Start = gang.start_cold,
) -> int:
    """Run it to its end and return the exit code. ``python`` is the interpreter of this process.

    ``lock`` is the folder's lock, taken already; without one it is taken here, and 0 returned at once if it is held.
    ``sweepers`` are the addresses of services that sweep.
    """
    assert spec.allocation_folder is not None
    folder = AllocationFolder(spec.allocation_folder)
    if lock is None:
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = folder.take_lock()
        if lock is None:
            return 0
    if folder.outcome.exists():
        return 0
    share = _Share(spec, folder, _task_environment(spec, environ), python, lock, sweepers, start_rank)
    with share.node.taking_signals():
        folder.pid.write_text(str(os.getpid()))
        grace_seconds = folder.read_stop()
        if grace_seconds is not None:  # Asked before there was anybody to send a signal to.
            share.node.stop.order(grace_seconds)
        ending = share.run()
        share.leave(ending)
        folder.pid.unlink(missing_ok=True)  # From here on it may soon be somebody else's.
    return ending.exit_code


class _Share:
    """What this machine does for the allocation."""

    def __init__(
        self,
        spec: NodeSpec,
        folder: AllocationFolder,
        environ: dict[str, str],
        python: str,
        lock: int,
        sweepers: Sequence[str],
        start_rank: gang.Start,
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._python = spec.python or python
        self._shipper: Shipper | None = None
        self._usage: Usage | None = None
        secrets = [*spec.secrets, *log_file.secrets_of({**environ, **spec.environment}, spec.config)]
        if spec.master is not None:
            secrets.append(spec.master.session_token)
        log = log_file.LogFile(spec.log_file or folder.path / "task.jsonl", spec.node_rank, secrets)
        self._log = log
        self.node = Node(
            spec,
            [],
            environ,
            log=log,
            # A trial's folder outlives the allocation; of other tasks nothing is kept but the log.
            logs_folder=(spec.run_folder if spec.trial is not None else folder.path) / "logs",
            scratch=folder.scratch,
            lock=lock,
            sweepers=sweepers,
            start_rank=start_rank,
            on_start=self._begin_reporting,
        )
        self.node.stop.read_grace = folder.read_stop

    def run(self) -> Ending:
        """Prepare, run the ranks, and say how it ended. All errors become an ending."""
        node = self.node
        try:
            self._prepare()
            return node.run()
        except _Stopped:
            return Ending(outcome=Outcome.STOPPED, exit_code=0, reason="stopped as asked, before it began")
        except errors.DeterminedError as error:
            node.say(str(error))
            return Ending(outcome=Outcome.FAILED, exit_code=1, reason=str(error), detail=str(error))
        except OSError as error:
            reason = f"the machine could not prepare it: {error}"
            node.say(reason)
            return Ending(outcome=Outcome.FAILED, exit_code=1, reason=reason, detail=reason)

    def leave(self, ending: Ending) -> None:
        """End everything, leave the note, tell the master if it is there."""
        self.node.leave()
        if self._usage is not None:
            self._usage.finish()
        spools = {"chief": self._folder.chief_spool, "node": self._folder.node_spool}
        ending = ending.model_copy(
            update={
                "reason": self._log.mask(ending.reason),
                "detail": self._log.mask(ending.detail),
                "lines": {name: _lines(path) for name, path in spools.items()},
                "policies": self.node.policies.matched,
            }
        )
        with contextlib.suppress(OSError):  # A full disk: the lock tells that it is over.
            ending.write(self._folder.outcome)
        self._log.close()
        if self._shipper is not None:
            self._shipper.drain(_FAREWELL_SECONDS)
            self._shipper.close()
            if not self._shipper.is_fenced:
                self._say_goodbye(ending)

    def _prepare(self) -> None:
        spec, node = self._spec, self.node
        if spec.context is not None:
            shutil.rmtree(spec.code_folder, ignore_errors=True)
            spec.code_folder.parent.mkdir(parents=True, exist_ok=True)
            workspace.unpack(spec.context, spec.code_folder)
        else:
            # Something that was sent without code still starts somewhere.
            spec.code_folder.mkdir(parents=True, exist_ok=True)
        if spec.work_dir is not None:
            node.folder = spec.code_folder / spec.work_dir.expanduser()
            if not node.folder.is_dir():
                raise errors.DeterminedError(f"work_dir is {node.folder}, and there is no such folder on this machine")
        self._check_stop()
        python = self._python
        if spec.requirements is not None:
            root = spec.environments_folder or _own_cache(node.environ)
            python = environment.provide(spec.requirements, python, root, self._run_aside, self._check_stop)
            node.start_rank = gang.start_cold
        _put_first(node.environ, python)
        command = entrypoint.understand(spec.entrypoint, python)
        if spec.python is not None and command.words[0] == spec.python:
            command = command._replace(words=[python, *command.words[1:]])
        node.command, node.is_shell = command.words, command.is_shell
        hook = spec.code_folder / workspace.STARTUP_HOOK
        if spec.context is not None and hook.is_file():
            self._run_hook(hook)
        self._check_stop()

    def _check_stop(self) -> None:
        if self.node.stop.is_asked or self.node.stop.replaced_because:
            raise _Stopped

    def _run_aside(self, command: list[str], environ: Mapping[str, str], folder: pathlib.Path) -> str | None:
        """Run a program of the preparation, its output in the log; None, or the end of what it said if it failed."""
        said: list[bytes] = []
        own = {**self.node.environ, **environ}
        self.node.carry_marker(own)
        self.node.household.tend()
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=own,
                cwd=folder,
                start_new_session=True,
                # There is one thread yet, so running code between fork and exec is safe.
                preexec_fn=processes.dying_with_parent(),
            )
        except OSError as error:
            return f"cannot start {command[0]}: {error.strerror}"
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        lines = logs.Lines()
        while True:
            ended = process.poll() is not None
            data = process.stdout.read()
            if data:
                found = lines.feed(data)
                said = [*said, *found][-_HELD_LINES:]
                self._log.write(found, rank=None, stdtype="stdout", source="node")
            elif ended:
                break
            else:
                time.sleep(0.02)
            if self.node.stop.is_asked:
                processes.kill_group(process.pid)
                process.wait()
                raise _Stopped
        rest = lines.finish()
        self._log.write(rest, rank=None, stdtype="stdout", source="node")
        return None if process.returncode == 0 else b"\n".join([*said, *rest]).decode(errors="replace") or "no output"

    def _run_hook(self, hook: pathlib.Path) -> None:
        """Run the hook the way a shell sources a file: what it exports the ranks find in their environment."""
        kept = self.node.scratch / "hook.environment"
        shell = shutil.which("bash") or "sh"
        script = f'set -a; . "./{hook.name}"; set +a; env -0 > "$0"'
        problem = self._run_aside([shell, "-e", "-c", script, str(kept)], self._spec.environment, hook.parent)
        if problem is not None:
            raise errors.DeterminedError(f"{hook.name} failed:\n{problem}")
        pairs = (pair.partition("=") for pair in kept.read_text(errors="surrogateescape").split("\0") if pair)
        before = {**self.node.environ, **self._spec.environment}
        self.node.hook_environment = {
            name: value
            for name, _, value in pairs
            if before.get(name) != value and name not in ("_", "SHLVL", "PWD", "OLDPWD")
        }

    def _begin_reporting(self) -> None:
        """The ranks are there, so there may be threads."""
        gpus = self._spec.master.slot_ids if self._spec.master is not None else []
        self._usage = Usage(self._folder.node_spool, self._spec.node_rank, list(gpus))
        self._usage.start()
        master = self._spec.master
        if master is None or not master.url:  # Whoever ordered it reads the folder.
            return
        from determined.client.autostart import whereabouts
        from determined.client.transport import Session
        from determined.core.uplink import Shipper

        session = Session(
            master.url,
            master.session_token,
            verify=master.cert_file or True,
            server_name=master.cert_name,
            moved=whereabouts(master.folder) if master.folder is not None else None,
        )
        self._shipper = Shipper(
            session,
            master.allocation_id,
            master.run_epoch,
            {"chief": self._folder.chief_spool, "node": self._folder.node_spool},
            on_stop=lambda order: self.node.stop.order(order.grace_seconds),
            on_fenced=lambda why: self.node.stop.replace(f"ended because another attempt has taken its place: {why}"),
            cluster_id=master.cluster_id,
        ).start()

    def _say_goodbye(self, ending: Ending) -> None:
        """A hint, so that the master need not find out by itself."""
        master = self._spec.master
        if master is None:
            return
        from determined.client.transport import Session
        from determined.wire.reports import ExitReport, Source

        report = ExitReport(
            run_epoch=master.run_epoch,
            node_rank=self._spec.node_rank,
            ending=ending,
            lines={Source(name): count for name, count in ending.lines.items()},
        )
        session = Session(
            master.url,
            master.session_token,
            timeout=_FAREWELL_SECONDS,
            attempts=1,
            verify=master.cert_file or True,
            server_name=master.cert_name,
        )
        with contextlib.suppress(errors.DeterminedError, OSError):
            session.post(f"/allocations/{master.allocation_id}/exit", report.model_dump(mode="json"))
        session.close()


def _task_environment(spec: NodeSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """What the ranks find around them: ours without what is about us, and who they are."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("DET_") or name in ("DET_DEBUG", "DET_HOUSEHOLD")
    }
    known: dict[str, object] = {}
    if spec.master is not None:
        known |= {
            "DET_MASTER": spec.master.url,
            "DET_CLUSTER_ID": spec.master.cluster_id,
            "DET_AGENT_ID": spec.master.agent_id,
            "DET_SLOT_IDS": json.dumps(spec.master.slot_ids),
            "DET_TASK_ID": spec.master.task_id,
            "DET_TASK_TYPE": spec.master.task_type,
            "DET_ALLOCATION_ID": spec.master.allocation_id,
            "DET_RESOURCES_ID": f"{spec.master.allocation_id}.{spec.node_rank}",
            "DET_SESSION_TOKEN": spec.master.session_token,
            "DET_MASTER_CERT_FILE": spec.master.cert_file,
            "DET_MASTER_CERT_NAME": spec.master.cert_name,
        }
    if spec.trial is not None:
        known |= {
            "DET_TRIAL_ID": spec.trial.trial_id,
            "DET_EXPERIMENT_ID": spec.trial.experiment_id,
            "DET_TRIAL_SEED": spec.trial.seed,
            "DET_HPARAMS": json.dumps(spec.trial.hparams),
            "DET_STEPS_COMPLETED": spec.trial.steps_completed,
            "DET_TRIAL_RUN_ID": spec.master.run_epoch if spec.master is not None else 0,
        }
    return kept | {name: str(value) for name, value in known.items() if value is not None}


def _put_first(environ: dict[str, str], python: str) -> None:
    """A shell that says `python` means this one."""
    folder = pathlib.Path(python).parent
    if (folder.parent / "pyvenv.cfg").is_file():
        environ["PATH"] = os.pathsep.join(filter(None, [str(folder), environ.get("PATH", os.defpath)]))
        environ["VIRTUAL_ENV"] = str(folder.parent)


def _own_cache(environ: Mapping[str, str]) -> pathlib.Path:
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(base).expanduser() / "resolute" / "environments"


def _lines(path: pathlib.Path) -> int:
    try:
        with open(path, "rb") as file:
            return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))
    except OSError:
        return 0
