"""The optimizer starts without torch._dynamo, and whoever needs the real one gets it, at any time."""

from __future__ import annotations

import subprocess
import sys

import pytest

PREAMBLE = """
import sys, torch
from determined.pytorch import startup

def loaded():
    return "torch._dynamo.eval_frame" in sys.modules

def step():
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer

torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
"""

# What is tested is what a process has imported, so each needs one of its own: they are few, for each takes seconds.
STORIES = {
    "first the optimizer, then torch.compile": """
assert startup.defer_dynamo() and startup.defer_dynamo()
import copy, inspect, pickle
from torch.optim.lr_scheduler import CosineAnnealingLR
optimizer = step()
CosineAnnealingLR(optimizer, 10).step()
copy.deepcopy(optimizer), pickle.dumps(optimizer.state_dict()), pickle.dumps(model), inspect.getmodule(step)
assert hasattr(torch, "_dynamo") and "torch._dynamo" in sys.modules
assert not torch.compiler.is_compiling() and not loaded()
stand_in = sys.modules["torch._dynamo"]
wrapped = [inspect.unwrap(f) for f in (torch.optim.Optimizer.zero_grad, torch.optim.Optimizer.add_param_group)]
assert all(vars(f)["__dynamo_disable"] is f for f in wrapped)

@torch.compiler.disable
def disabled(x):
    return x + 1

assert loaded() and disabled(torch.ones(1)) == 2
assert all("__dynamo_disable" not in vars(f) for f in wrapped)
import torch._dynamo
assert torch._dynamo is sys.modules["torch._dynamo"] is not stand_in
assert stand_in.graph_break is torch._dynamo.graph_break and isinstance(stand_in, type(sys))
compiled = torch.compile(model, backend="eager", fullgraph=True)
assert torch.equal(compiled(torch.ones(2, 4)), model(torch.ones(2, 4)))

@torch.compile(backend="eager")
def whole_step(x):
    loss = model(x).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss

whole_step(torch.ones(2, 4)), step()
assert all(vars(f)["__dynamo_disable"] is not f for f in wrapped)
""",
    "first everything else, then the optimizer": """
import threading
assert not startup.defer_dynamo(False) and "torch._dynamo" not in sys.modules
version, torch.__version__ = torch.__version__, "9.9.0"
assert not startup.defer_dynamo() and "torch._dynamo" not in sys.modules
torch.__version__ = version

assert startup.defer_dynamo()
sys.modules["torch._dynamo.config"] = None
for _ in range(2):
    try:
        torch._dynamo.optimize
    except ImportError:
        pass
    else:
        raise AssertionError("torch._dynamo cannot have loaded")
del sys.modules["torch._dynamo.config"]

stand_in = sys.modules["torch._dynamo"]
results = []
def through_attribute():
    results.append(torch._dynamo.config)
def through_import():
    import torch._dynamo.config as config
    results.append(config)
threads = [threading.Thread(target=work, daemon=True) for work in (through_attribute, through_import) * 3]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
assert len(results) == 6 and len(set(map(id, results))) == 1
assert loaded() and not any("startup" in type(finder).__module__ for finder in sys.meta_path)
import torch._dynamo.config as config
from torch._dynamo import config as again
assert config is again is torch._dynamo.config is sys.modules["torch._dynamo.config"]
assert config.__spec__.name == "torch._dynamo.config" and config.__spec__.origin == config.__file__
stand_in.config.suppress_errors = True
stand_in.something = 5
assert config.suppress_errors and torch._dynamo.something == 5
config.suppress_errors = False

compiled = torch.compile(model, backend="eager")
assert torch.equal(compiled(torch.ones(2, 4)), model(torch.ones(2, 4)))
step()
exported = torch.export.export(model, (torch.ones(2, 4),))
assert torch.equal(exported.module()(torch.ones(2, 4)), model(torch.ones(2, 4)))
""",
}


@pytest.mark.parametrize("story", STORIES)
def test_in_a_fresh_process(story: str) -> None:
    done = subprocess.run([sys.executable, "-c", PREAMBLE + STORIES[story]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
