"""Gangs on this machine: from a NodeSpec to a named ending, with everything said kept and no secret in it."""

from __future__ import annotations

import hashlib
import io
import os
import pathlib
import signal
import tarfile
import threading

import pytest

from determined.master.pools.base import Exited, Running
from determined.wire.node_spec import ContextSpec
from determined.wire.outcome import Outcome
from determined.wire.reports import Source, UsageReport
from tests.flow.pools import NOBODY, Ground, ground
from tests.flow.processes import is_alive, say

FOREVER = "import os, signal, time\n" + say("started") + "\ntime.sleep(600)\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER


@pytest.fixture
def place(tmp_path: pathlib.Path):  # type: ignore[no-untyped-def]
    with ground(tmp_path) as made:
        yield made


def pack(folder: pathlib.Path, files: dict[str, str]) -> ContextSpec:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    (folder / f"{digest}.tar.gz").write_bytes(packed.getvalue())
    return ContextSpec(sha256=digest, path=folder / f"{digest}.tar.gz")


def test_a_script_runs_to_its_end_and_leaves_no_run_folder(place: Ground) -> None:
    id = place.start("import sys\nprint('one'); print('two', file=sys.stderr); sys.stdout.write('no end')")
    ending = place.ending(id)
    assert (ending.outcome, ending.exit_code, ending.detail) == (Outcome.COMPLETED, 0, "")
    assert sorted(place.log(id)) == ["no end", "one", "two"]
    assert {row["m"]: row["s"] for row in place.rows(id)}["two"] == "stderr"
    assert not (place.state / "runs").exists()


def test_a_failure_carries_the_users_own_traceback(place: Ground) -> None:
    ending = place.run("def f():\n    raise ValueError('a mistake of mine')\nf()\n")
    assert (ending.outcome, ending.exit_code, ending.culprit) == (Outcome.FAILED, 1, 0)
    assert ending.detail.startswith("Traceback") and ending.detail.endswith("ValueError: a mistake of mine")
    assert "determined" not in ending.detail


def test_log_policies_look_at_every_line_that_the_ranks_print(place: Ground) -> None:
    config = {
        "log_policies": [
            {"name": "disk", "pattern": ".*No space left.*", "action": "cancel_retries"},
            {"name": None, "pattern": "^step 2$", "action": None},
            {"name": "never", "pattern": "applies", "action": None},
        ]
    }
    script = "import sys\nprint('step 1'); print('step 2')\nsys.exit('OSError: No space left on device')"
    id = place.start(script, config=config)
    ending = place.ending(id)
    assert (ending.outcome, {*ending.policies}) == (Outcome.FAILED, {"disk", "^step 2$"})
    assert "log policy 'disk' applies" in place.log(id)


def test_a_task_starts_where_its_config_says(place: Ground) -> None:
    (place.code / "deep").mkdir()
    script = "import os; print(os.getcwd())"
    inside = place.start(script, entrypoint=["sh", "-c", "python ../script1.py; pwd"], work_dir="deep")
    assert place.ending(inside).outcome is Outcome.COMPLETED
    assert place.log(inside) == [str(place.code / "deep")] * 2
    elsewhere = place.start("", entrypoint=["pwd"], work_dir=str(place.folder))
    assert place.ending(elsewhere).outcome is Outcome.COMPLETED
    assert place.log(elsewhere) == [str(place.folder)]
    missing = place.run("", work_dir="not/there")
    assert missing.outcome is Outcome.FAILED
    assert missing.reason == f"work_dir is {place.code}/not/there, and there is no such folder on this machine"


def test_running_out_of_memory_is_named(place: Ground) -> None:
    assert place.run("raise MemoryError('no more')").outcome is Outcome.OUT_OF_MEMORY


def test_stopped_as_asked(place: Ground) -> None:
    id = place.start(FOREVER)
    place.number_in("started")
    place.pool.stop(id, 10.0)
    assert place.ending(id).outcome is Outcome.STOPPED


def test_patience_ends_with_the_grace_and_an_impatient_order_counts_at_once(place: Ground) -> None:
    id = place.start(STUBBORN)
    pid = place.number_in("started")
    place.pool.stop(id, 600.0)
    assert isinstance(place.pool.poll()[id], Running)
    place.pool.stop(id, 0.0)
    assert place.ending(id, 5.0).reason == "killed as asked"
    assert not is_alive(pid)


def test_an_order_given_before_the_node_process_is_there_counts(place: Ground) -> None:
    id = place.start(FOREVER)
    place.pool.stop(id, 5.0)
    assert place.ending(id).outcome is Outcome.STOPPED


def test_a_shell_lets_what_it_runs_save_and_leave(place: Ground) -> None:
    script = (
        "import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
        f"{say('started')}\nwhile True: signal.pause()\n"
    )
    id = place.start(script, entrypoint=["sh", "-c", "echo before; python script1.py; python script1.py; echo after"])
    place.number_in("started")
    place.pool.stop(id, 20.0)
    assert place.ending(id).outcome is Outcome.STOPPED
    assert place.log(id)[:2] == ["before", "saved"]


def test_a_node_process_that_is_killed_is_a_loss_and_takes_everything_along(place: Ground) -> None:
    id = place.start(FOREVER)
    rank = place.number_in("started")
    os.kill(place.node_pid(id), signal.SIGKILL)
    assert place.ending(id, 5.0).outcome is Outcome.LOST
    assert not is_alive(rank)


def test_what_a_startup_hook_exports_the_ranks_find(place: Ground) -> None:
    context = pack(
        place.folder,
        {
            "startup-hook.sh": 'echo "from the hook"\nexport FROM_HOOK="two words"\n',
            "sub/main.py": "import os\nprint(os.environ['FROM_HOOK'], os.getcwd() == os.environ['PWD_SEEN'])\n",
        },
    )
    id = place.start("", context=context, entrypoint=["sh", "-c", "export PWD_SEEN=$(pwd); python sub/main.py"])
    assert place.ending(id).outcome is Outcome.COMPLETED, place.log(id)
    assert place.log(id) == ["from the hook", "two words True"]
    assert place.rows(id)[0]["g"] == "node"


def test_a_hook_that_fails_is_a_failure_with_its_words(place: Ground) -> None:
    context = pack(place.folder, {"startup-hook.sh": "echo no such data\nfalse\n"})
    ending = place.run("", context=context)
    assert ending.outcome is Outcome.FAILED
    assert "startup-hook.sh failed" in ending.reason and "no such data" in ending.detail


def test_code_that_is_not_what_was_submitted_does_not_run(place: Ground) -> None:
    context = pack(place.folder, {"main.py": "print('ran')"})
    assert context.path is not None
    context.path.write_bytes(pack(place.folder, {"main.py": "print('other')"}).path.read_bytes())  # type: ignore[union-attr]
    ending = place.run("", context=context, entrypoint=["python", "main.py"])
    assert ending.outcome is Outcome.FAILED and "damaged" in ending.reason


def test_no_secret_is_in_the_log_or_the_ending(place: Ground) -> None:
    secrets = ["swordfish", "hunter22", "a-token-of-mine", "deep\nkey-line-2"]
    id = place.start(
        "import os\nprint(os.environ['MY_PASSWORD'], os.environ['DET_SESSION_TOKEN'], os.environ['PLAIN'])\n"
        "raise ValueError('hunter22 and key-line-2')",
        master=NOBODY,
        environment={"MY_PASSWORD": "swordfish", "PLAIN": "seen"},
        config={"data": {"secrets": {"api": "hunter22", "list": ["deep\nkey-line-2"]}}},
    )
    ending = place.ending(id)
    assert place.log(id)[0] == "******** ******** seen"
    told = place.log_file(id).read_text() + ending.model_dump_json()
    assert "ValueError: ******** and ********" in told
    assert not any(line in told for secret in secrets for line in secret.splitlines() if len(line) > 4)


def test_started_twice_is_once_and_a_new_master_finds_it(place: Ground) -> None:
    gang = place.gang(f"import os\nopen('count', 'a').write('x')\n{FOREVER}")
    place.pool.start(gang)
    place.pool.start(gang)
    place.number_in("started")
    pool = place.again()
    pool.start(gang)
    assert pool.poll()[gang.allocation_id] == Running()
    ended = threading.Event()
    pool.watch(ended.set)
    pool.stop(gang.allocation_id, 5.0)
    assert ended.wait(10)
    place.ending(gang.allocation_id)
    pool.start(gang)
    assert isinstance(pool.poll()[gang.allocation_id], Exited)
    assert (place.code / "count").read_text() == "x"


def test_a_master_that_is_away_costs_nothing_and_nothing_is_lost(place: Ground) -> None:
    script = (
        "import json, os, pathlib\n"
        "folder = json.loads(open(os.environ['DET_NODE_SPEC']).read())['allocation_folder']\n"
        "report = {'kind': 'metrics', 'group': 'training', 'metrics': {'x': float('nan')}, 'time': 1}\n"
        "with open(pathlib.Path(folder) / 'chief.spool', 'w') as spool:\n"
        "    for number in range(1500):\n"
        "        spool.write(json.dumps({**report, 'steps_completed': number}) + '\\n')\n"
        "    spool.write('torn by a cra')\n"
    )
    id = place.start(script, master=NOBODY)
    ending = place.ending(id)
    assert (ending.outcome, ending.lines) == (Outcome.COMPLETED, {"chief": 1500, "node": 1})
    batches = place.pool.unshipped(id, {Source.CHIEF: 400})
    chief = [batch for batch in batches if batch.source is Source.CHIEF]
    assert [batch.first for batch in chief] == [400, 1400]
    assert [report.steps_completed for batch in chief for report in batch.reports] == list(range(400, 1500))  # type: ignore[union-attr]
    usage = batches[-1].reports[-1]
    assert isinstance(usage, UsageReport) and usage.usage["memory_bytes"] > 1 << 20 and usage.usage["cpu_percent"] > 0
    place.pool.forget(id)
    assert id not in place.pool.poll() and not place.at(id).path.exists()


def test_a_rank_knows_its_task(place: Ground) -> None:
    id = place.start(
        "import determined, os\ninfo = determined.get_cluster_info()\n"
        "print(info.task_id, info.allocation_id, os.environ['DET_ALLOCATION_ID'], os.environ['DET_TRIAL_ID'])",
        kind="trial",
        master=NOBODY,
        trial={"trial_id": 7, "seed": 1},
    )
    place.ending(id)
    assert place.log(id) == ["trial-1 trial-1.1 trial-1.1 7"]
