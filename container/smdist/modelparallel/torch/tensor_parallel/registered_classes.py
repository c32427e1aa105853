# SPDX-License-Identifier: Apache-2.0
"""Classes of modules that are replaced by other classes when their layers are to be split.

SMP v1 splits a class of modules through another class that is registered for it. Here any class is
split as it is, so that the other class may be any module, too, such as a layer of `smp.nn`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, TypeVar

from torch import nn

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.torch.tensor_parallel.marks import chosen

_ARGUMENTS: Final = "_smp_arguments"  # attribute of modules with the arguments of their constructor
Hook = Callable[..., Any]
Class = TypeVar("Class", bound=type[nn.Module])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Registration:
    """Class that replaces another one, and the hooks between them; as in `tp_register`."""

    dist_module: type[nn.Module]
    init_hook: Hook | None
    forward_hook: Hook | None
    return_hook: Hook | None


_registered: dict[type[nn.Module], _Registration] = {}


def tp_register(
    dist_module: type[nn.Module],
    init_hook: Hook | None = None,
    forward_hook: Hook | None = None,
    return_hook: Hook | None = None,
) -> Callable[[Class], Class]:
    """Return a class decorator that registers a class to use instead, with tensor parallelism.

    Args:
        dist_module: Class whose layers are split in place of those of the decorated class.
        init_hook: Function that gets the arguments of the decorated class's constructor, and
            returns those of `dist_module` as a tuple and a dict; by default the same ones.
        forward_hook: The same for the arguments of the forward function.
        return_hook: Function that gets the output of `dist_module`, and returns that of the
            decorated class; by default the same one.

    Raises:
        OptionError: `dist_module` is no class of modules, or a hook is not callable.
    """

    def register(module_class: Class) -> Class:
        tp_register_with_module(module_class, dist_module, init_hook, forward_hook, return_hook)
        return module_class

    raise_all(_faults(dist_module, init_hook, forward_hook, return_hook))
    return register


def tp_register_with_module(
    module_cls: type[nn.Module],
    dist_module: type[nn.Module],
    init_hook: Hook | None = None,
    forward_hook: Hook | None = None,
    return_hook: Hook | None = None,
) -> None:
    """Register a class of modules to use in place of another one, with tensor parallelism.

    With a degree above 1, `smp.DistributedModel` replaces the modules of the first class, but not
    of its subclasses, that are to be split (`smp.tensor_parallelism`). New modules have weights of
    their own, from their constructor. The class has to be registered before its modules are made.

    Args:
        module_cls: Class of modules to replace.
        dist_module: Class of the new modules.
        init_hook: As in `smp.tp_register`.
        forward_hook: As in `smp.tp_register`.
        return_hook: As in `smp.tp_register`.

    Raises:
        OptionError: An argument is no class of modules, or a hook is not callable.
    """
    faults = _faults(dist_module, init_hook, forward_hook, return_hook)
    if not _is_class(module_cls):
        faults.insert(0, _no_class("module_cls", module_cls))
    raise_all(faults)
    if module_cls not in _registered:
        _record_arguments(module_cls)
    _registered[module_cls] = _Registration(
        dist_module=dist_module,
        init_hook=init_hook,
        forward_hook=forward_hook,
        return_hook=return_hook,
    )


def replace_registered(model: nn.Module) -> nn.Module:
    """Replace the modules of registered classes that are to be split; return the model.

    The result is a new module if the model itself is of a registered class.

    Raises:
        OptionError: A module was made before its class was registered, or has no values.
    """
    if not _registered:
        return model
    wanted = chosen(model)
    found = [
        (name, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if type(module) in _registered and wanted.get(name, False)
    ]
    new = {id(module): _replacement(name, module) for name, module in found}
    for name, module in found:
        if not name:
            return new[id(module)]
        around, _, key = name.rpartition(".")
        parent = model.get_submodule(around)
        if parent._modules.get(key) is module:  # not inside of one that has been replaced
            parent._modules[key] = new[id(module)]
    return model


def _replacement(name: str, module: nn.Module) -> nn.Module:
    registration, arguments = _registered[type(module)], vars(module).get(_ARGUMENTS)
    if arguments is None or any(parameter.is_meta for parameter in module.parameters()):
        why = "its class is registered for tensor parallelism, so it has to be made anew"
        raise OptionError(
            f"{name!r} was made before its class was registered, or without values",
            why,
            "Register the class first, and make the module with values",
            about=name or "module",
            kind="unsupported",
        )
    args, kwargs = arguments
    if registration.init_hook is not None:
        args, kwargs = registration.init_hook(*args, **kwargs)
    made = registration.dist_module(*args, **kwargs)
    reference = next((p for p in module.parameters() if p.is_floating_point()), None)
    if reference is not None:
        made.to(device=reference.device, dtype=reference.dtype)
    made.train(module.training)
    _set_forward(made, registration)
    return made


def _set_forward(module: nn.Module, registration: _Registration) -> None:
    """Let a new module take the arguments of the old one, and return its output."""
    before, after = registration.forward_hook, registration.return_hook
    plain = type(module)
    if before is None and after is None:
        return

    class Registered(plain):  # type: ignore[misc, valid-type]
        """Module in place of another one, with its arguments and output."""

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            """Return the output that the replaced module would have."""
            if before is not None:
                args, kwargs = before(*args, **kwargs)
            output = super().forward(*args, **kwargs)
            return output if after is None else after(output)

    Registered.__name__ = f"Registered{plain.__name__}"
    module.__class__ = Registered


def _record_arguments(module_class: type[nn.Module]) -> None:
    """Let modules of a class keep the arguments of their constructor."""
    plain = module_class.__init__

    @wraps(plain)
    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        if type(self) is module_class:
            vars(self)[_ARGUMENTS] = (args, kwargs)

    module_class.__init__ = init  # type: ignore[method-assign]


def _faults(dist_module: object, *hooks: object) -> list[OptionError]:
    faults = [] if _is_class(dist_module) else [_no_class("dist_module", dist_module)]
    names = ("init_hook", "forward_hook", "return_hook")
    for name, hook in zip(names, hooks, strict=True):
        if hook is not None and not callable(hook):
            why = "it is called with the arguments or the output of a module"
            faults.append(OptionError(f"{name} is {hook!r}", why, "Pass a function", about=name))
    return faults


def _is_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module)


def _no_class(name: str, value: object) -> OptionError:
    why = "modules of one class are replaced by modules of the other"
    hint = "Pass a subclass of torch.nn.Module, not a module"
    return OptionError(f"{name} is {value!r}", why, hint, about=name)
