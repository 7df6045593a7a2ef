"""A requirements file becomes an environment, once; what the submitter has is still there."""

from __future__ import annotations

import base64
import hashlib
import pathlib
import zipfile

import pytest

from determined.wire.outcome import Outcome
from tests.flow.pools import ground
from tests.flow.processes import wait_until

SCRIPT = "import sys, tinything, determined, numpy\nprint(tinything.VALUE, sys.prefix != sys.base_prefix)\n"


def make_wheel(folder: pathlib.Path, value: str, version: str = "1.0") -> None:
    """A package of one module, as small as a wheel can be."""
    info = f"tinything-{version}.dist-info"
    files = {
        "tinything.py": f"VALUE = {value!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tinything\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digest = {
        name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for name, text in files.items()
    }
    record = "".join(f"{name},sha256={digest[name]},{len(text)}\n" for name, text in files.items())
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"tinything-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            wheel.writestr(name, text)


@pytest.mark.slow
def test_built_once_and_then_used_again(tmp_path: pathlib.Path) -> None:
    make_wheel(tmp_path / "wheels", "from the wheel")
    wanted = f"--no-index\n--find-links {tmp_path / 'wheels'}\ntinything==1.0\n"
    with ground(tmp_path) as place:
        # Two who want the same at the same time.
        ids = [place.start(SCRIPT, requirements=wanted) for _ in range(2)]
        for id in ids:
            assert place.ending(id, 120.0).outcome is Outcome.COMPLETED, place.log(id)
            assert place.log(id)[-1] == "from the wheel True"
        builders = [id for id in ids if any("Successfully installed tinything" in line for line in place.log(id))]
        assert len(builders) == 1
        again = place.start(SCRIPT, requirements=wanted, entrypoint=["sh", "-c", "true; python script1.py"])
        place.ending(again)
        assert place.log(again) == ["from the wheel True"]
        assert len(list((place.state / "environments").glob("*/complete"))) == 1


@pytest.mark.slow
def test_what_cannot_be_installed_is_the_users_failure_and_leaves_no_half(tmp_path: pathlib.Path) -> None:
    (tmp_path / "wheels").mkdir()
    wanted = f"--no-index\n--find-links {tmp_path / 'wheels'}\ntinything==1.0\n"
    with ground(tmp_path) as place:
        ending = place.run(SCRIPT, requirements=wanted)
        assert ending.outcome is Outcome.FAILED
        assert (
            "the environment for the requirements could not be built" in ending.detail and "tinything" in ending.detail
        )
        assert not list((place.state / "environments").glob("*/complete"))
        make_wheel(tmp_path / "wheels", "now there")
        id = place.start(SCRIPT, requirements=wanted)
        assert place.ending(id, 120.0).outcome is Outcome.COMPLETED, place.log(id)


@pytest.mark.slow
def test_stopped_while_it_is_built(tmp_path: pathlib.Path) -> None:
    # A source package whose building never ends.
    source = tmp_path / "source"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "forever"\nbackend-path = ["."]\n'
    )
    (source / "forever.py").write_text("import time\ntime.sleep(600)\n")
    with ground(tmp_path) as place:
        id = place.start(SCRIPT, requirements=f"--no-index\n{source}\n")
        assert wait_until(lambda: any("Processing" in line for line in place.log(id)), 60)
        place.pool.stop(id, 5.0)
        assert place.ending(id).outcome is Outcome.STOPPED
