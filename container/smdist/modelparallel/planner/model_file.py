# SPDX-License-Identifier: Apache-2.0
"""Importer of the user's file, whose functions `model()` and `example()` return model and batch.

An exception in the file becomes an OptionError that names the line of the file.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter, isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from sagemaker_dist.errors import OptionError, closest, raise_all
from smdist.modelparallel.planner.framework import building, is_keras

_COLLECT: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_NAME: Final = "model_file"  # name of the module in sys.modules, for any file name
_FUNCTIONS: Final = {
    "model": "return nn.Sequential(…)",
    "example": "return torch.zeros(32, 512, dtype=torch.long)",
}
_HINT: Final = "Correct the file there"
_OF_META: Final = (
    "meta",
    "item()",
    "data-dependent",
    "_local_scalar_dense",
)  # words in torch's errors about tensors without values
_ON_META: Final = (
    'The model is built under torch.device("meta"), where tensors have no values: build it without'
    " reading values of tensors, or pass --measure"
)


class UserCodeError(OptionError):
    """Error for an exception in the user's file, or in code that the file calls.

    The error's `kind` is "no_values" if the code read a value of a tensor on the meta device, and
    otherwise "raised".

    Attributes:
        file: File of the user's line, relative to the current folder; "" if unknown.
        line: Number of the line in the file; 0 if unknown.
    """

    default_kind = "raised"
    own_fields = ("file", "line")
    file, line = "", 0


class ModelFile:
    """Python file of the user that defines `model()` and `example()`.

    Raises:
        OptionError: The file cannot be read or run, or lacks one of the two functions.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._module = self._imported()
        raise_all(self._faults())

    def model(self, *, with_values: bool) -> Any:
        """Return the model, of torch or of Keras.

        Args:
            with_values: False to build it without memory for its weights: models of torch on the
                meta device, those of Keras with delayed variables.

        Raises:
            OptionError: `model()` raises an exception, or does not return a model.
        """
        with (
            self._wrapped_errors("model", on_meta=not with_values),
            building(with_values=with_values),
        ):
            made = self._module.model()
        torch = sys.modules.get("torch")
        if not is_keras(made) and not (torch and isinstance(made, torch.nn.Module)):
            what = f"model() of {self._path} returned {_shown(made)}"
            why = "it must return a torch.nn.Module or a keras.Model"
            raise OptionError(what, why, "Return the model", about="model", kind="result")
        return made

    def keras_example(self) -> Any:
        """Return the batch of one replica for a model of Keras, in the structure that it takes.

        Raises:
            OptionError: `example()` raises an exception, or returns other things than tensors and
                arrays.
        """
        import keras

        with self._wrapped_errors("example"):
            made = self._module.example()
        leaves = keras.tree.flatten(made)
        if not leaves or not all(hasattr(e, "shape") and hasattr(e, "dtype") for e in leaves):
            raise OptionError(
                f"example() of {self._path} returned {_shown(made)}",
                "a batch is a tensor or an array, or a list, tuple or dict of them, as the model"
                " takes it",
                "Return the inputs of the model, such as np.zeros([32, 512])",
                about="example",
                kind="result",
            )
        return made

    def example(self, device: str = "cpu") -> Any:
        """Call the function `example()` of the user's file, and return the batch of one replica.

        Args:
            device: Device on which the batch is built.

        Raises:
            OptionError: The user's function raises an exception, or does not return a batch.
        """
        import torch

        with self._wrapped_errors("example"), torch.device(device):
            made = self._module.example()
        parts = made.values() if isinstance(made, dict) else made
        if isinstance(made, torch.Tensor):
            parts = (made,)
        is_batch = isinstance(made, torch.Tensor | dict) or type(made) is tuple
        if not is_batch or not any(isinstance(part, torch.Tensor) for part in parts):
            raise OptionError(
                f"example() of {self._path} returned {_shown(made)}",
                "a batch is a tensor, a tuple of positional arguments or a dict of keyword"
                " arguments, with at least one tensor",
                "Return the arguments of the model, such as torch.zeros(32, 512)",
                about="example",
                kind="result",
            )
        return made

    def _imported(self) -> ModuleType:
        if not self._path.is_file():
            what = f"{self._path} cannot be read"
            is_folder, hint = self._path.is_dir(), "Pass the path of a Python file"
            why = "it is a folder" if is_folder else "the file does not exist"
            kind = "folder" if is_folder else "missing_file"
            raise OptionError(what, why, hint, about="file", kind=kind)
        spec = spec_from_file_location(_NAME, self._path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[_NAME] = module  # dataclasses and pickle search modules there
        sys.path.insert(0, str(self._path.resolve().parent))  # as `python model.py` does
        with self._wrapped_errors("file"):
            spec.loader.exec_module(module)
        return module

    def _faults(self) -> Iterator[OptionError]:
        for name, body in _FUNCTIONS.items():
            found = getattr(self._module, name, None)
            if found is None:
                others = [each for each in vars(self._module) if not each.startswith("_")]
                meant = closest(name, others) if others else ""
                hint = f"Define it: def {name}(): {body}"
                hint = f"{meant} {hint}" if meant.startswith("Did") else hint
                what, why = (
                    f"{self._path} does not define {name}()",
                    "the planner calls this function",
                )
                yield OptionError(what, why, hint, about=name, kind="missing")
            elif not _is_function(found):
                what = f"{name} of {self._path} is {_kind(found)}"
                why = "the planner calls it as a function without arguments"
                hint = f"Define a function: def {name}(): {body}"
                yield OptionError(what, why, hint, about=name, kind="not_a_function")

    @contextmanager
    def _wrapped_errors(self, part: str, *, on_meta: bool = False) -> Iterator[None]:
        """Turn an exception raised in the `with` block into a UserCodeError with the user's line.

        Args:
            part: Name of the user's function that is called, or "file" when the file is imported.
            on_meta: True if tensors are built on the meta device, that is, without values.
        """
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit: a file that exits defines no model
            file, line, code = _line_of(error, self._path)
            place = f"{file}, line {line} ({code})" if file else str(self._path)
            why = f"{type(error).__name__}: {error}".strip(": ").replace("\n", " ")
            what = place if part == "file" else f"{place} in {part}()"
            hint, kind = _HINT, "raised"
            if on_meta and _is_of_meta(error):
                hint, kind = _ON_META, "no_values"
            wrapped = UserCodeError(what, why, hint, about=part, kind=kind)
            wrapped.file, wrapped.line = file, line
            raise wrapped from error


def _is_of_meta(error: BaseException) -> bool:
    """Return True if torch raised this error because a tensor on the meta device has no values."""
    is_torchs = isinstance(error, NotImplementedError | RuntimeError)
    return is_torchs and any(word in str(error) for word in _OF_META)


def _line_of(error: BaseException, path: Path) -> tuple[str, int, str]:
    """Return the last line of the user's code in a traceback: its file, number and text.

    The file is "" if the traceback has no such line.

    Args:
        error: Exception with the traceback.
        path: File of the user.
    """
    folder = path.resolve().parent
    if isinstance(error, SyntaxError) and _is_users(error.filename or "", folder):
        return _near(error.filename or ""), error.lineno or 0, (error.text or "").strip()
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if _is_users(frame.filename, folder)]
    if not users:
        return "", 0, ""
    return _near(users[-1].filename), users[-1].lineno or 0, users[-1].line or ""


def _is_users(name: str, folder: Path) -> bool:
    """Return True if a source file is in the folder of the model file, and is not of a library."""
    path = Path(name)
    is_below = path.is_absolute() and path.is_relative_to(folder)
    return is_below and "site-packages" not in path.parts and path != Path(__file__)


def _near(name: str) -> str:
    """Return a path relative to the current folder, or the path itself if it is elsewhere."""
    path = Path(name)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _is_function(found: object) -> bool:
    """Return True if an object can be called without arguments, and is no class and no model."""
    torch = sys.modules.get("torch")
    is_model = is_keras(found) or (torch is not None and isinstance(found, torch.nn.Module))
    if not callable(found) or isinstance(found, type) or is_model:
        return False
    try:
        signature(found).bind()
    except TypeError:
        return False
    except ValueError:  # some built-in functions have no signature
        return True
    return True


def _kind(found: object) -> str:
    """Return a description of an object for an error message.

    An example is "a function with the parameters x".

    Args:
        found: Object to describe.
    """
    if isfunction(found):
        needed = [
            name
            for name, each in signature(found).parameters.items()
            if each.default is Parameter.empty and each.kind not in _COLLECT
        ]
        return f"a function with the parameters {', '.join(needed)}"
    return f"the class {found.__name__}" if isinstance(found, type) else _shown(found)


def _shown(value: object) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 80 else f"an object of {type(value).__name__}"
