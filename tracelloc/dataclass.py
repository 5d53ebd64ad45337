"""Data classes as the standard library's, made in a sixth of the time.

tracelloc has some 300, and half of the time of its imports went into compiling six methods for
each. Here, only ``__init__`` is compiled, for the first instance. ``frozen`` makes instances
hashable, and is enforced by the type checker alone.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import asdict, field, fields, is_dataclass, replace
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["asdict", "dataclass", "field", "fields", "is_dataclass", "replace"]
T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type[T] | None = None, *, frozen: bool = False, eq: bool = True, slots: bool = False,
        kw_only: bool = False,
    ) -> type[T] | Callable[[type[T]], type[T]]:  # fmt: skip
        """``dataclasses.dataclass`` with the options that are used here."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, eq=eq, slots=slots, kw_only=kw_only)
        # For a class without a docstring, a signature would be computed.
        cls.__doc__ = cls.__doc__ or cls.__name__
        made = dataclasses.dataclass(
            cls, init=False, repr=False, eq=False, slots=slots, kw_only=kw_only
        )
        added = {"__init__": _compiled_later(made, slots=slots), "__repr__": _represent}
        added |= _comparison(made, frozen=frozen) if eq else {}
        for name, method in added.items():
            # A class with ``__eq__`` of its own has None for ``__hash__``.
            if made.__dict__.get(name) is None:
                setattr(made, name, method)
        return made


def _compiled_later(cls: type, *, slots: bool) -> Callable[..., None]:
    def init(self: Any, *given: Any, **named: Any) -> None:
        if cls.__init__ is init:  # type: ignore[misc]
            every = {each.name: each for each in fields(cls)}
            body: dict[str, Any] = {"__doc__": cls.__doc__, **every}
            body["__annotations__"] = {name: each.type for name, each in every.items()}
            if hasattr(cls, "__post_init__"):
                body["__post_init__"] = None
            like = type(cls.__name__, (), body)
            like = dataclasses.dataclass(like, repr=False, eq=False, slots=slots)
            cls.__init__ = like.__init__  # type: ignore[misc]
        cls.__init__(self, *given, **named)  # type: ignore[misc]

    return init


def _comparison(cls: type, *, frozen: bool) -> dict[str, Any]:
    names = [each.name for each in fields(cls) if each.compare]
    values: Callable[[Any], Any] = attrgetter(*names) if names else lambda _: ()
    if len(names) == 1:
        value = values

        def values(self: Any) -> Any:
            return (value(self),)

    def is_equal(self: Any, other: object) -> Any:
        is_same = other.__class__ is self.__class__
        return values(self) == values(other) if is_same else NotImplemented

    def hash_of(self: Any) -> int:
        return hash(values(self))

    return {"__eq__": is_equal, "__hash__": hash_of if frozen else None}


@recursive_repr()
def _represent(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"
