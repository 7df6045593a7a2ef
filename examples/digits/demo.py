"""The demo: a search for good hyperparameters with the stock command line, and what to do with what it found.

It starts a master of its own, which keeps everything in the folder that DET_MASTER_DIR names (here: `.demo` in the
checkout), and stops it at the end.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
DET = pathlib.Path(sys.executable).with_name("det")
USE_IT = """\
import sys
import digits, torch
from train import DigitsTrial
from determined import pytorch

trial = pytorch.load_trial_from_checkpoint_path(sys.argv[1], trial_class=DigitsTrial)
images, labels = digits.load()[1].tensors
trial.model.eval()
with torch.no_grad():
    right = (trial.model(images).argmax(1) == labels).float().mean()
print(f"the downloaded model is right about {right:.1%} of {len(labels)} digits that it never trained on")
"""


def main() -> None:
    home = pathlib.Path(os.environ.setdefault("DET_MASTER_DIR", str(CHECKOUT / ".demo" / "master")))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.chdir(HERE)
    try:
        demonstrate(home)
    except KeyboardInterrupt:
        sys.exit("\ninterrupted")
    finally:
        subprocess.run([DET, "master", "down"], stdout=subprocess.DEVNULL)


def demonstrate(home: pathlib.Path) -> None:
    began = time.monotonic()
    say("Search: sixteen ways to train a convnet on handwritten digits. Most are given up early.")
    det("experiment", "create", "adaptive.yaml", ".", "--follow")
    took = time.monotonic() - began
    experiment = str(answer("experiment", "list", "--limit", "1", "--json")[0]["id"])

    say("The trials, the best first.")
    det("experiment", "list-trials", experiment, "--sort-by", "best_metric", "--limit", "5")

    best = answer("experiment", "describe", experiment, "--json")["best_trial_id"]
    say(f"Trial {best} is the best. Download its checkpoint, and use the model in any Python program.")
    target = home.parent / "best"
    shutil.rmtree(target, ignore_errors=True)
    det("trial", "download", str(best), "--best", "-o", os.path.relpath(target))
    print(USE_IT, end="", flush=True)
    run([sys.executable, "-c", USE_IT, str(target)])

    place = os.path.relpath(home, CHECKOUT)
    print(f"\nThe search took {took:.0f} s. Its master is stopped now; all it knows is in {place}. To look again:")
    print(f"  DET_MASTER_DIR={place} .venv/bin/det experiment describe {experiment}")


def det(*words: str) -> None:
    """Run one command as a user would, in sight."""
    print(f"$ det {' '.join(words)}", flush=True)
    run([str(DET), *words])


def answer(*words: str) -> list[dict]:
    """What a command says, as JSON."""
    return json.loads(subprocess.run([DET, *words], stdout=subprocess.PIPE, check=True).stdout)


def run(command: list[str]) -> None:
    code = subprocess.run(command).returncode
    if code:
        sys.exit(code)


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    main()
