"""No pickle runs anything, whatever it asks for and in whichever file of a checkpoint it hides."""

from __future__ import annotations

import collections
import io
import pathlib
import pickle
import pickletools
import random
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from determined.errors import InvalidCheckpointException
from determined.pytorch import archive, legacy_checkpoint, pickles


class Calls:
    """Pickles as a call of function(*arguments)."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function = function
        self.arguments = arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


def call_by_name(name: str, *arguments: Any) -> bytes:
    """A pickle of protocol 2 that calls a global by its name, whether or not it exists here."""
    module, _, attribute = name.rpartition(".")
    body = pickle.dumps(arguments, protocol=2)[2:-1]
    return b"\x80\x02c" + module.encode() + b"\n" + attribute.encode() + b"\n" + body + b"R."


NAMES = """
os.system posix.system nt.system os.popen os.execv os.spawnv os.fork os.remove os.unlink os.rename os.putenv os.kill
subprocess.Popen subprocess.call subprocess.run subprocess.check_call subprocess.check_output subprocess.getoutput
builtins.eval builtins.exec builtins.compile builtins.__import__ builtins.open builtins.getattr builtins.setattr
builtins.map builtins.filter builtins.type builtins.vars builtins.globals builtins.input builtins.breakpoint
builtins.print builtins.memoryview builtins.list builtins.dict builtins.range __builtin__.eval __builtin__.apply
importlib.import_module importlib.reload importlib.util.spec_from_file_location runpy.run_path runpy.run_module
codecs.open codecs.decode codecs.encode codecs.register _codecs.decode _codecs.lookup operator.methodcaller
operator.attrgetter operator.itemgetter functools.partial functools.reduce itertools.starmap pickle.loads pickle.load
_pickle.loads dill.loads cloudpickle.loads joblib.load marshal.loads shelve.open types.FunctionType types.CodeType
shutil.rmtree shutil.copyfile pathlib.Path pathlib.PosixPath pathlib.Path.touch tempfile.mktemp pty.spawn
socket.create_connection urllib.request.urlopen ctypes.CDLL ctypes.util.find_library webbrowser.open timeit.timeit
cProfile.run profile.run pdb.run bdb.Bdb code.InteractiveInterpreter doctest.testfile logging.config.dictConfig
multiprocessing.Process threading.Thread sqlite3.connect zipimport.zipimporter atexit.register signal.signal
sys.settrace sys.exit sys.modules gc.get_objects inspect.getattr_static weakref.finalize string.Formatter
copyreg.__newobj__ copyreg.add_extension copyreg.pickle copyreg.constructor numpy.load numpy.fromfile numpy.memmap
numpy.lib.npyio.load numpy.lib._npyio_impl.load numpy.testing._private.utils.runstring numpy.core.multiarray.fromfile
numpy.random._pickle.__randomstate_ctor numpy.ma.core._mareconstruct numpy.frompyfunc numpy.vectorize
torch.load torch.serialization.load torch.storage._load_from_bytes torch.hub.load torch.jit.load torch.ops.load_library
torch.utils.cpp_extension.load torch._utils._import_dotted_name torch.classes.load_library torch.package.PackageImporter
torch.utils.collect_env.run torch.utils._config_module.ConfigModule.load_config torch.nn.Linear torch.save
torch.serialization._get_layout torch.utils.data.DataLoader torch.distributed.init_process_group
torch._dynamo.optimize torch._inductor.codecache.PyCodeCache.load collections.namedtuple collections.defaultdict
collections.UserDict collections.abc.Mapping site.addsitedir os.path.exists nonexistent.module.thing
""".split()


def gadgets(canary: pathlib.Path) -> dict[str, bytes]:
    """Pickles that would create `canary`, or call something that could."""
    import functools
    import operator
    import os
    import runpy

    script = canary.with_suffix(".py")
    touch = f"__import__('os').mkdir({str(canary)!r})"
    script.write_text(touch)
    evil = canary.with_suffix(".pickle")
    evil.write_bytes(pickle.dumps(Calls(eval, touch)))
    text = pickle.dumps(str(canary), 2)[2:-1]
    found = {
        "eval": pickle.dumps(Calls(eval, touch)),
        "exec": pickle.dumps(Calls(exec, touch)),
        "open": pickle.dumps(Calls(open, str(canary), "w")),
        "system": pickle.dumps(Calls(os.system, f"mkdir '{canary}'")),
        "call": pickle.dumps(Calls(subprocess.call, ["mkdir", str(canary)])),
        "mkdir": pickle.dumps(Calls(pathlib.Path.mkdir, Calls(pathlib.Path, str(canary)))),
        "run_path": pickle.dumps(Calls(runpy.run_path, str(script))),
        "getattr": b"\x80\x02cbuiltins\ngetattr\ncbuiltins\n__import__\nX\x02\x00\x00\x00os\x85RX\x05\x00\x00\x00mkdir"
        b"\x86R" + text + b"\x85R.",
        "methodcaller": pickle.dumps(Calls(operator.methodcaller("mkdir"), pathlib.Path(canary))),
        "partial": pickle.dumps(Calls(functools.partial(os.mkdir, str(canary)))),
        "map": pickle.dumps(Calls(tuple, Calls(map, eval, [touch]))),
        "reduce": pickle.dumps(Calls(functools.reduce, eval, [touch, {}])),
        "nested torch.load": pickle.dumps(Calls(torch.load, str(evil), None, None)),
        "load_from_bytes": pickle.dumps(Calls(torch.storage._load_from_bytes, evil.read_bytes())),
        "numpy.load": pickle.dumps(Calls(np.load, str(evil), None, True)),
        "nested loads": pickle.dumps(Calls(pickle.loads, evil.read_bytes())),
        "instance": b"(V" + touch.encode() + b"\nibuiltins\neval\n.",
        "object": b"(cbuiltins\neval\n" + pickle.dumps(touch, 2)[2:-1] + b"o.",
        "new object": b"\x80\x02cbuiltins\neval\n" + pickle.dumps((touch,), 2)[2:-1] + b"\x81.",
        "stack global": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93" + pickle.dumps((touch,), 2)[2:-1] + b"R.",
        "extension": b"\x80\x02\x82\x01.",
        "function defaults": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN}X\x0c\x00\x00\x00__defaults__)s\x86b.",
        "class attribute": b"\x80\x02ccollections\nOrderedDict\nN}X\x04\x00\x00\x00itemK\x01s\x86b.",
        "dict method": b"\x80\x02ccollections\nOrderedDict\n)R}X\x05\x00\x00\x00itemsK\x01sb.",
        "append to a tensor": b"\x80\x02ctorch\nSize\n)RK\x01a.",
        "item of a set": b"\x80\x02cbuiltins\nset\n](K\x01e\x85RK\x01K\x02s.",
        "call of a result": b"\x80\x02ctorch\nfloat32\n)R.",
        "type of a tensor": b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(cbuiltins\neval\nN)NtR.",
        "rebuild by eval": call_by_name("torch._tensor._rebuild_from_type_v2", 1, 2, ("x",), None),
        "reconstructor": b"\x80\x02ccopyreg\n_reconstructor\ncbuiltins\nobject\ncbuiltins\nobject\nN\x87R.",
        "codec": call_by_name("_codecs.encode", "x", "zlib"),
        "object array": call_by_name("numpy.dtype", "O8", False, True),
        "huge bytearray": call_by_name("builtins.bytearray", 1 << 40),
        "bytearray8": b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00.",
        "huge memo": b"\x80\x02Nr\xff\xff\xff\xff.tuple",
        "empty": b"",
        "nonsense": b"\xff\xfe\xfd",
        "no stop": b"\x80\x02K\x01",
        "endless marks": b"(" * 5000 + b".",
    }
    found.update({name: call_by_name(name, touch) for name in NAMES})
    return found


@pytest.fixture
def canary(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "it-ran"


EVENTS: list[str] = []
WATCH: list[bool] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if WATCH and event in (
        "pickle.find_class",
        "os.system",
        "subprocess.Popen",
        "exec",
        "compile",
        "os.exec",
        "socket",
    ):
        EVENTS.append(f"{event} {arguments!r}"[:200])


sys.addaudithook(_audit)


@pytest.fixture
def watched() -> Iterator[None]:
    pickles._allowed()  # building the list once may import things, as does the first use of this codec
    "x".encode("raw_unicode_escape")
    EVENTS.clear()
    WATCH.append(True)
    yield
    WATCH.clear()


HARMLESS = {"huge memo"}  # it holds None under a large number, and that is all that comes of it


def test_the_gadgets_work_where_nothing_stops_them(canary: pathlib.Path) -> None:
    ran = []
    working = "eval exec call mkdir run_path getattr methodcaller partial map reduce instance object stack-global"
    for name in working.split():
        pickle.loads(gadgets(canary)[name.replace("-", " ")])
        assert canary.exists(), name
        ran.append(name)
        canary.rmdir()
    assert len(ran) == 13


def test_no_gadget_runs_in_the_unpickler(canary: pathlib.Path, watched: None) -> None:
    all_gadgets = gadgets(canary)
    WATCH.append(True)
    EVENTS.clear()
    assert len(all_gadgets) > 150
    for name, data in all_gadgets.items():
        if name in HARMLESS:
            assert pickles.loads(data, source=name) is None
            continue
        with pytest.raises(InvalidCheckpointException):
            pickles.loads(data, source=name)
        with pytest.raises(InvalidCheckpointException):
            pickles.loads(data, source=name, inert=("determined.",))
    assert EVENTS == []
    assert not canary.exists()


def test_no_gadget_runs_in_any_file_of_a_checkpoint(
    canary: pathlib.Path, tmp_path: pathlib.Path, watched: None
) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    state = folder / "state_dict.pth"
    all_gadgets = gadgets(canary)
    EVENTS.clear()
    for name, data in all_gadgets.items():
        _write_zip(state, data)
        with pytest.raises(InvalidCheckpointException):
            legacy_checkpoint.read(folder)
        if name in HARMLESS:
            continue
        with pytest.raises(InvalidCheckpointException):
            archive.read(state)
        state.write_bytes(_stream(data))
        with pytest.raises(InvalidCheckpointException):
            legacy_checkpoint.read(folder)
        archive.write({"models_state_dict": []}, state)
        for counters in legacy_checkpoint.COUNTER_FILES:
            (folder / counters).write_bytes(data)
            with pytest.raises(InvalidCheckpointException):
                legacy_checkpoint.read(folder)
            (folder / counters).unlink()
    assert EVENTS == []
    assert not canary.exists()


def _write_zip(path: pathlib.Path, data: bytes) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", data)
        file.writestr("archive/version", "3\n")


def _stream(data: bytes) -> bytes:
    head = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True}]
    return b"".join(pickle.dumps(part, protocol=2) for part in head) + data + pickle.dumps([], protocol=2)


def test_a_refusal_names_what_was_asked_for_and_the_way_to_trust_it() -> None:
    with pytest.raises(InvalidCheckpointException, match=r"os\.system.*trusted=True"):
        pickles.loads(call_by_name("os.system", "true"), source="state_dict.pth")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_plain_data_and_random_states_survive_at_every_protocol(protocol: int) -> None:
    values = {
        "numbers": [0, -1, 2**80, 1.5, float("inf"), 1 + 2j, True, None],
        "text": "ünï",
        "bytes": b"\x00\xff" * 200,
        "nested": ({"a": [(), [], {}]}, {1, 2}, frozenset({3}), OrderedDict(x=1), collections.Counter("aab")),
        "numpy": np.random.RandomState(3).get_state(),
        "python": random.Random(3).getstate(),
        "array": np.arange(12, dtype=np.float32).reshape(3, 4).T,
        "scalars": [np.float64(2.5), np.int32(-3), np.bool_(True)],
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cuda", 1),
    }
    if protocol == 5:
        del values["numpy"], values["array"]  # numpy then pickles through a function of its own, which no file has
    data = pickle.dumps(values, protocol=protocol)
    loaded = pickles.loads(data, source="test")
    assert str(loaded) == str(values)
    assert {name: type(value) for name, value in loaded.items()} == {name: type(v) for name, v in values.items()}


def test_classes_of_the_predecessor_become_their_attributes() -> None:
    data = b"\x80\x02cdetermined.pytorch._trial\nState\n)\x81}X\x05\x00\x00\x00stepsK\x07sb."
    loaded = pickles.loads(data, source="test", inert=("determined.",))
    assert isinstance(loaded, pickles.InertObject)
    assert loaded.attributes == {"steps": 7}
    with pytest.raises(InvalidCheckpointException, match="State"):
        pickles.loads(data, source="test")


def test_a_tensor_that_reaches_beyond_its_storage_is_refused() -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.arange(10)}, buffer)
    with zipfile.ZipFile(buffer) as file:
        name = next(name for name in file.namelist() if name.endswith("data.pkl"))
        data = file.read(name)
    handle = pickles.StorageHandle(torch.zeros(10, dtype=torch.int64).untyped_storage(), torch.int64)
    assert pickles.loads(data, source="test", storage=lambda pid: handle)["a"].shape == (10,)
    shape_at = next(at for opcode, value, at in pickletools.genops(data) if at and value == 10 and at > data.find(b"Q"))
    damaged = data[: shape_at + 1] + b"\x0b" + data[shape_at + 2 :]
    with pytest.raises(InvalidCheckpointException, match="beyond its storage"):
        pickles.loads(damaged, source="test", storage=lambda pid: handle)


def test_every_single_damaged_byte_is_an_error_of_ours_or_harmless_data() -> None:
    data = pickle.dumps({"state": {"step": 3, "mean": [0.5] * 4, "name": "adam"}, "groups": [{"lr": 0.1}]}, protocol=2)
    for at in range(len(data)):
        for bit in range(8):
            damaged = data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
            try:
                pickles.loads(damaged, source="test")
            except InvalidCheckpointException:
                continue
