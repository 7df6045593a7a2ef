"""Unpickling that cannot run code: a fixed list of harmless constructors, and everything else refused by name.

The interpreter is the pure-Python one on purpose. Its memo is a dictionary, so that one damaged index cannot make it
allocate gigabytes, and every instruction that calls, builds or stores can be held to types we made ourselves.
"""

from __future__ import annotations

import codecs
import io
import math
import pickle
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from determined.errors import InvalidCheckpointException

MakeStorage = Callable[[tuple[Any, ...]], "StorageHandle"]

_NUMBER_OR_TEXT_DTYPE = re.compile(r"[<|=]?[biufcSU]\d{1,6}")


class RefusedPickle(pickle.UnpicklingError):
    """The pickle asks for something outside the list; the message names it."""


class StorageHandle:
    """Memory that a pickle's persistent id stands for, and the dtype it was saved under."""

    __slots__ = ("dtype", "storage")

    def __init__(self, storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
        self.storage = storage
        self.dtype = dtype


class InertObject:
    """What is left of an instance of a class we refuse to import: its attributes, without its behaviour."""

    def __init__(self, class_name: str) -> None:
        self.class_name = class_name
        self.attributes: dict[str, Any] = {}


class _Callable:
    """A constructor on the list. The pickle can call it and nothing else: there is no attribute to set."""

    __slots__ = ("call", "name")

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self.name = name
        self.call = call


class _InertClass:
    """A class of ours or our predecessor's that is replaced by its attributes."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class _StorageType:
    """A torch storage class, known by the dtype it stands for."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype


def loads(data: bytes, *, source: str, storage: MakeStorage | None = None, inert: Sequence[str] = ()) -> Any:
    """Return the object pickled in `data`; raise InvalidCheckpointException for anything that is not plain data.

    `storage` answers torch's persistent ids. Classes of modules below the prefixes in `inert` become InertObject.
    """
    return load(io.BytesIO(data), source=source, storage=storage, inert=inert)


def load(file: io.BytesIO, *, source: str, storage: MakeStorage | None = None, inert: Sequence[str] = ()) -> Any:
    """Like loads, for one pickle out of several that follow each other in a file."""
    try:
        return RestrictedUnpickler(file, storage=storage, inert=inert).load()
    except RefusedPickle as error:
        raise InvalidCheckpointException(
            f"{source} was not loaded: {error}. A checkpoint needs tensors, numbers, text, lists and dicts only; "
            "if you made this file yourself and trust it, load it with trusted=True, which may run code from it"
        ) from None
    except InvalidCheckpointException:
        raise
    except Exception as error:
        # Damaged bytes can raise nearly anything, from KeyError (the memo) to RuntimeError (torch's own checks).
        raise InvalidCheckpointException(
            f"{source} is damaged: its contents cannot be read ({type(error).__name__}: {error}). "
            "Use another checkpoint, or restore this one from a copy"
        ) from None


class RestrictedUnpickler(pickle._Unpickler):
    """A pickle interpreter that makes tensors, numpy arrays and plain data, and refuses the rest before it is done."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    # The interpreter's own, which its published type does not mention.
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, file: io.BytesIO, *, storage: MakeStorage | None = None, inert: Sequence[str] = ()) -> None:
        super().__init__(file)
        self._make_storage = storage
        self._inert = tuple(inert)

    def find_class(self, module: str, name: str) -> Any:
        allowed = _allowed().get(f"{module}.{name}")
        if allowed is not None:
            return allowed
        if self._inert and module.startswith(self._inert):
            return _InertClass(f"{module}.{name}")
        raise RefusedPickle(f"it wants to use {module}.{name}, which is not on the list of things safe to load")

    def persistent_load(self, pid: Any) -> Any:
        if (
            self._make_storage is None
            or type(pid) is not tuple
            or len(pid) < 5
            or pid[0] not in ("storage", b"storage")
        ):
            raise RefusedPickle("it refers to storage that is not part of a checkpoint")
        storage_type = pid[1]
        if type(storage_type) is not _StorageType:
            raise RefusedPickle("a tensor's storage has no known type")
        return self._make_storage((storage_type.dtype, *pid[2:]))

    # Each instruction below is the interpreter's own, held to the types above.

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        function = self.stack[-1]
        if type(function) is not _Callable or type(arguments) is not tuple:
            raise RefusedPickle(f"it wants to call {_described(function)}")
        self.stack[-1] = function.call(*arguments)

    def load_newobj(self) -> None:
        arguments = self.stack.pop()
        cls = self.stack.pop()
        self.append(_new(cls, arguments))

    def load_newobj_ex(self) -> None:
        keywords = self.stack.pop()
        arguments = self.stack.pop()
        cls = self.stack.pop()
        if keywords:
            raise RefusedPickle(f"it wants to call {_described(cls)} with named arguments")
        self.append(_new(cls, arguments))

    def load_build(self) -> None:
        state = self.stack.pop()
        _build(self.stack[-1], state)

    def load_append(self) -> None:
        value = self.stack.pop()
        self._target(list).append(value)

    def load_appends(self) -> None:
        values = self.pop_mark()
        self._target(list).extend(values)

    def load_additems(self) -> None:
        values = self.pop_mark()
        self._target(set).update(values)

    def load_setitem(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self._target(dict, OrderedDict, Counter)[key] = value

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self._target(dict, OrderedDict, Counter).update(zip(items[::2], items[1::2], strict=True))

    def _target(self, *types: type) -> Any:
        target = self.stack[-1]
        if type(target) not in types:
            raise RefusedPickle(f"it wants to store items in {_described(target)}")
        return target

    def refuse(self) -> None:
        raise RefusedPickle("it uses an instruction of the pickle format that no checkpoint needs")


for _opcode, _method in {
    pickle.REDUCE: RestrictedUnpickler.load_reduce,
    pickle.NEWOBJ: RestrictedUnpickler.load_newobj,
    pickle.NEWOBJ_EX: RestrictedUnpickler.load_newobj_ex,
    pickle.BUILD: RestrictedUnpickler.load_build,
    pickle.APPEND: RestrictedUnpickler.load_append,
    pickle.APPENDS: RestrictedUnpickler.load_appends,
    pickle.ADDITEMS: RestrictedUnpickler.load_additems,
    pickle.SETITEM: RestrictedUnpickler.load_setitem,
    pickle.SETITEMS: RestrictedUnpickler.load_setitems,
    # INST and OBJ call classes, EXT reads a process-wide table, BYTEARRAY8 and the buffers allocate before they read.
    pickle.INST: RestrictedUnpickler.refuse,
    pickle.OBJ: RestrictedUnpickler.refuse,
    pickle.EXT1: RestrictedUnpickler.refuse,
    pickle.EXT2: RestrictedUnpickler.refuse,
    pickle.EXT4: RestrictedUnpickler.refuse,
    pickle.BYTEARRAY8: RestrictedUnpickler.refuse,
    pickle.NEXT_BUFFER: RestrictedUnpickler.refuse,
    pickle.READONLY_BUFFER: RestrictedUnpickler.refuse,
}.items():
    RestrictedUnpickler.dispatch[_opcode[0]] = _method


def _new(cls: Any, arguments: Any) -> Any:
    if type(cls) is _InertClass:
        return InertObject(cls.name)
    if type(cls) is _Callable and type(arguments) is tuple:
        return cls.call(*arguments)
    raise RefusedPickle(f"it wants to make an instance of {_described(cls)}")


def _build(target: Any, state: Any) -> None:
    if type(target) is OrderedDict and type(state) is dict and set(state) <= {"_metadata"}:
        # Modules keep their version numbers there; any other attribute could stand in for one of the dict's methods.
        target.__dict__.update(state)
    elif type(target) is InertObject:
        parts = state if type(state) is tuple else (state,)
        for part in parts:
            if type(part) is dict:
                target.attributes.update({str(name): value for name, value in part.items()})
    elif type(target) is np.ndarray:
        _fill_array(target, state)
    elif isinstance(target, np.dtype) and type(state) is tuple:
        if len(state) < 2 or state[1] not in ("<", "|", "=", b"<", b"|", b"=") or any(state[2:5]):
            raise RefusedPickle("it holds a numpy array of a type other than numbers and text")
    else:
        raise RefusedPickle(f"it wants to change the state of {_described(target)}")


def _described(value: Any) -> str:
    return value.name if type(value) in (_Callable, _InertClass) else f"a {type(value).__name__}"


def _allowed() -> dict[str, Any]:
    """Build the list once, when the first pickle is read: importing this module stays cheap."""
    if not _LIST:
        calls: dict[str, Callable[..., Any]] = {
            "torch._utils._rebuild_tensor": _tensor,
            "torch._utils._rebuild_tensor_v2": _tensor,
            "torch._utils._rebuild_tensor_v3": _typed_tensor,
            "torch._utils._rebuild_parameter": _parameter,
            "torch._utils._rebuild_parameter_with_state": _parameter,
            "torch._tensor._rebuild_from_type_v2": _from_type,
            "torch.nn.parameter.Parameter": _bare_parameter,
            "torch.Tensor": _no_such_call,
            "torch._tensor.Tensor": _no_such_call,
            "torch.Size": _size,
            "torch.device": _device,
            "collections.OrderedDict": _ordered_dict,
            "collections.Counter": _counter,
            "_codecs.encode": _encode,
            "numpy.ndarray": _no_such_call,
            "numpy.dtype": _dtype,
            "copyreg._reconstructor": _reconstruct_inert,
            "copy_reg._reconstructor": _reconstruct_inert,
        }
        for numpy_module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            calls[f"{numpy_module}._reconstruct"] = _reconstruct_array
            calls[f"{numpy_module}.scalar"] = _scalar
        for builtins_module in ("builtins", "__builtin__"):
            calls[f"{builtins_module}.set"] = _set
            calls[f"{builtins_module}.frozenset"] = _frozenset
            calls[f"{builtins_module}.complex"] = _complex
            calls[f"{builtins_module}.bytearray"] = _bytearray
            calls[f"{builtins_module}.object"] = _no_such_call
        found: dict[str, Any] = {name: _Callable(name, call) for name, call in calls.items()}
        for name, value in vars(torch).items():
            if isinstance(value, torch.dtype):
                found[f"torch.{name}"] = value
        for dtype, storage_name in torch.storage._dtype_to_storage_type_map().items():
            found[f"torch.{storage_name}"] = _StorageType(dtype)
        found["torch.storage.UntypedStorage"] = found["torch.UntypedStorage"] = _StorageType(torch.uint8)
        _LIST.update(found)
    return _LIST


_LIST: dict[str, Any] = {}


def _no_such_call(*arguments: Any) -> Any:
    raise RefusedPickle("it wants to make an object in a way that no checkpoint does")


def _tensor(
    handle: Any,
    offset: Any,
    size: Any,
    stride: Any,
    requires_grad: Any = False,
    hooks: Any = None,
    metadata: Any = None,
) -> torch.Tensor:
    if type(handle) is not StorageHandle:
        raise RefusedPickle("a tensor has no storage of its own")
    return _view(handle.storage, handle.dtype, offset, size, stride, requires_grad)


def _typed_tensor(
    handle: Any,
    offset: Any,
    size: Any,
    stride: Any,
    requires_grad: Any,
    hooks: Any,
    dtype: Any,
    metadata: Any = None,
) -> torch.Tensor:
    if type(handle) is not StorageHandle or type(dtype) is not torch.dtype:
        raise RefusedPickle("a tensor has no storage or type of its own")
    return _view(handle.storage, dtype, offset, size, stride, requires_grad)


def _view(
    storage: torch.UntypedStorage, dtype: torch.dtype, offset: Any, size: Any, stride: Any, requires_grad: Any
) -> torch.Tensor:
    """A tensor over `storage` after our own check of the bounds: torch's has been wrong before."""
    numbers = (offset, *size, *stride)
    if len(size) != len(stride) or any(type(number) is not int or not 0 <= number < 2**62 for number in numbers):
        raise ValueError("a tensor has an impossible shape")
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if math.prod(size) and (last + 1) * dtype.itemsize > storage.nbytes():
        raise ValueError("a tensor reaches beyond its storage")
    tensor = torch.empty(0, dtype=dtype)
    tensor.set_(storage, offset if math.prod(size) else 0, tuple(size), tuple(stride))
    if requires_grad is True:
        tensor.requires_grad_()
    return tensor


def _parameter(data: Any, requires_grad: Any = True, hooks: Any = None, state: Any = None) -> torch.nn.Parameter:
    if type(data) is not torch.Tensor:
        raise RefusedPickle("a parameter holds no tensor")
    return torch.nn.Parameter(data.detach(), requires_grad=requires_grad is True)


def _bare_parameter(*arguments: Any) -> torch.nn.Parameter:
    return _parameter(*arguments)


def _from_type(function: Any, cls: Any, arguments: Any, state: Any) -> Any:
    """A tensor with attributes of its own: the tensor is kept, the attributes are not."""
    if type(function) is not _Callable or not function.name.startswith("torch._utils._rebuild_"):
        raise RefusedPickle(f"it wants to call {_described(function)}")
    if type(cls) is not _Callable or cls.name not in ("torch.Tensor", "torch._tensor.Tensor", _PARAMETER):
        raise RefusedPickle(f"it wants to make an instance of {_described(cls)}")
    return function.call(*arguments)


_PARAMETER = "torch.nn.parameter.Parameter"


def _size(dimensions: Any = ()) -> torch.Size:
    if type(dimensions) not in (tuple, list) or any(type(length) is not int for length in dimensions):
        raise ValueError("a shape is not made of whole numbers")
    return torch.Size(dimensions)


def _device(*arguments: Any) -> torch.device:
    if not 1 <= len(arguments) <= 2 or type(arguments[0]) is not str or any(type(a) is not int for a in arguments[1:]):
        raise ValueError("a device has no name")
    return torch.device(*arguments)


def _ordered_dict(pairs: Any = ()) -> OrderedDict[Any, Any]:
    return OrderedDict([(pair[0], pair[1]) for pair in pairs])


def _counter(counts: Any = None) -> Counter[Any]:
    if counts is not None and type(counts) is not dict:
        raise ValueError("a counter holds no counts")
    return Counter(counts)


def _set(items: Any = ()) -> set[Any]:
    return set(_items(items))


def _frozenset(items: Any = ()) -> frozenset[Any]:
    return frozenset(_items(items))


def _items(items: Any) -> Any:
    if type(items) not in (list, tuple, set, frozenset):
        raise ValueError("a set holds no items")
    return items


def _complex(real: Any = 0.0, imaginary: Any = 0.0) -> complex:
    if any(type(part) not in (int, float) for part in (real, imaginary)):
        raise ValueError("a complex number is not made of numbers")
    return complex(real, imaginary)


def _bytearray(data: Any = b"", encoding: Any = None) -> bytearray:
    # An int would allocate that many bytes.
    if encoding is not None:
        return bytearray(_encode(data, encoding))
    if type(data) is not bytes:
        raise ValueError("bytes are not bytes")
    return bytearray(data)


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Protocol 2 stores bytes as text. Only that one encoding: the codec registry runs code of others."""
    if type(text) is not str or encoding not in ("latin1", "latin-1", "iso-8859-1"):
        raise RefusedPickle(f"it wants the codec {encoding!r}")
    return codecs.latin_1_encode(text)[0]


def _dtype(name: Any, align: Any = False, copy: Any = True) -> np.dtype[Any]:
    if isinstance(name, bytes):
        name = name.decode("ascii")
    if type(name) is not str or not _NUMBER_OR_TEXT_DTYPE.fullmatch(name):
        raise RefusedPickle("it holds a numpy array of a type other than numbers and text")
    return np.dtype(name)


def _reconstruct_array(cls: Any, shape: Any, kind: Any) -> np.ndarray[Any, Any]:
    if type(cls) is not _Callable or cls.name != "numpy.ndarray":
        raise RefusedPickle("it holds a numpy array of a class of its own")
    array: np.ndarray[Any, Any] = np.ndarray((0,), dtype="b")
    return array


def _fill_array(array: np.ndarray[Any, Any], state: Any) -> None:
    """ndarray.__setstate__ after our own check of what numpy would believe."""
    if type(state) is not tuple or len(state) != 5:
        raise ValueError("a numpy array has no contents")
    _, shape, dtype, is_fortran, data = state
    if type(shape) is not tuple or any(type(length) is not int or length < 0 for length in shape):
        raise ValueError("a numpy array has an impossible shape")
    if not isinstance(dtype, np.dtype) or type(data) is not bytes or len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError("a numpy array has the wrong number of bytes")
    array.__setstate__((1, shape, dtype, bool(is_fortran), data))  # type: ignore[arg-type]


def _scalar(dtype: Any, data: Any = None) -> Any:
    if not isinstance(dtype, np.dtype) or type(data) is not bytes or len(data) != dtype.itemsize:
        raise ValueError("a numpy number has the wrong number of bytes")
    return np.frombuffer(data, dtype=dtype)[0]


def _reconstruct_inert(cls: Any, base: Any, state: Any) -> InertObject:
    if type(cls) is not _InertClass:
        raise RefusedPickle(f"it wants to make an instance of {_described(cls)}")
    return InertObject(cls.name)
