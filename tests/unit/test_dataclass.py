"""Data classes do what the standard library's do."""

import dataclasses
from typing import Any

import pytest

from tracelloc import dataclass as ours


def made(module: Any, **options: bool) -> list[type]:
    """Classes made by the decorator of a module: the standard library or ours."""

    @module.dataclass(**options)
    class Point:
        """With a secret, and something that does not count."""

        x: int
        secret: str = module.field(default="", repr=False)
        note: list[int] = module.field(default_factory=list, compare=False)

    @module.dataclass(**options)
    class Single:
        x: Any

    @module.dataclass(**options)
    class Child(Single):
        y: int = 2

        def __repr__(self) -> str:
            return "child"

    @module.dataclass(**options)
    class Empty:
        pass

    @module.dataclass(**options)
    class Own:
        x: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    return [Point, Single, Child, Empty, Own]


def behaviour(kinds: list[type]) -> list[object]:
    """Equality, hashes, representation and fields of instances of the classes."""
    point, single, child, empty, own = kinds
    some = [
        point(x=1), point(x=1, secret="s"), point(x=1, note=[3]), single(x=1), single(x=(1,)),
        child(x=1), child(x=1, y=3), empty(), own(x=1), own(x=2),
    ]  # fmt: skip
    some.append(single(x=some[3]))
    found: list[object] = [[one == other for other in some] for one in some]
    for one in some:
        try:
            found.append([hash(one) == hash(other) for other in some])
        except TypeError as error:
            found.append(str(error).rpartition(".")[2])
        found += [repr(one).rpartition("<locals>.")[2], hasattr(one, "__dict__")]
        found.append([each.name for each in dataclasses.fields(one)])
        found.append(dataclasses.replace(one) == one)
    return found


@pytest.mark.parametrize(
    "options", [{}, {"frozen": True}, {"frozen": True, "slots": True}, {"eq": False},
                {"slots": True, "kw_only": True}], ids=str,
)  # fmt: skip
def test_they_behave_as_the_standard_librarys(options: dict[str, bool]) -> None:
    assert behaviour(made(ours, **options)) == behaviour(made(dataclasses, **options))


def test_init_is_compiled_for_the_first_instance() -> None:
    point, _, child, *_ = made(ours, slots=True)
    later = point.__init__, child.__init__
    assert point.__init__ is later[0]
    point(x=1)
    assert point.__init__ is not later[0]
    assert child.__init__ is later[1]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        point()
