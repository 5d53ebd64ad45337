"""What a worker's messages may contain: values of the declared types, and nothing else."""

import inspect
import json
import struct
import subprocess
import sys
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from typing_extensions import TypeAliasType

from tests.fuzz.readers import ANSWERS, ARGUMENTS
from tracelloc.errors import MalformedError
from tracelloc.files.cfi.walk import End
from tracelloc.files.dwarf import forms
from tracelloc.files.dwarf.inlines import number_of
from tracelloc.files.elf import Symbol
from tracelloc.record.worker import questions
from tracelloc.record.worker.questions import (
    QUESTIONS,
    Descriptor,
    PackedMessage,
    Signed,
    _read_all,
    reader_of,
)

U64 = npt.NDArray[np.uint64]
PAIR = np.dtype([("start", "<u8"), ("file", "<i8")])
Pairs = Annotated[npt.NDArray[np.void], PAIR]
MOST = (1 << 64) - 1
WORDS = np.array([1, MOST], np.uint64)


def received(packed: PackedMessage) -> tuple[Any, bytes]:
    return json.loads(packed.text), b"".join(packed.parts)


def read(kind: Any, message: object, data: bytes) -> Any:
    return _read_all(reader_of(kind), message, data)


def given_to(question: questions.question) -> list[Any]:
    """Arguments of a question, by the names of the parameters."""
    return [ARGUMENTS[name] for name in question.types if name != "return"]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 0), (int, MOST), (Signed, -(1 << 63)), (Signed, (1 << 63) - 1), (bool, True),
        (float, 0.5), (str, "\ud800"), (None, None), (int | None, None), (int | None, 5),
        (End, End.NO_MODULE), (list[int], [1, 2]), (tuple[str, ...], ("a", "b")),
        (tuple[int, bool], (1, False)), (Symbol, Symbol("f", 1, 2)), (bytes, b"\0\xff"),
        (dict[str, list[tuple[int, int]]], {"a": [(1, 2)], "b": []}),
        (list[Symbol | None], [Symbol("f", 1, 2), None]),
    ],
    ids=str,
)  # fmt: skip
def test_values_arrive_as_they_are(kind: Any, value: object) -> None:
    message, data = received(PackedMessage(value))
    found = read(type(None) if kind is None else kind, message, data)
    assert found == value
    assert type(found) is type(value)


def test_arrays_arrive_as_they_are() -> None:
    """Between each other, as their bytes; also of every other element, and none."""
    pairs = np.array([(1, -2), (3, -4)], PAIR)
    message, data = received(
        PackedMessage([WORDS, b"abc", np.arange(6, dtype=np.uint64)[::2], pairs, []])
    )
    assert message == [16, 3, 24, 32, []]
    words, text, some, found, _ = read(tuple[U64, bytes, U64, Pairs, list[U64]], message, data)
    assert (words.tolist(), text, some.tolist()) == ([1, MOST], b"abc", [0, 2, 4])
    assert found.dtype == PAIR
    assert found.tolist() == [(1, -2), (3, -4)]
    assert (words.dtype, words.flags.writeable) == (np.uint64, False)
    assert read(U64, 0, b"").tolist() == []
    # NDArray is an alias by statement in newer releases of numpy.
    item = TypeVar("item")
    alias = TypeAliasType("alias", np.ndarray[Any, np.dtype[item]], type_params=(item,))
    assert read(alias[np.uint64], 16, WORDS.tobytes()).tolist() == [1, MOST]


@pytest.mark.parametrize(
    ("kind", "message", "data"),
    [
        (int, -1, b""), (int, MOST + 1, b""), (int, True, b""), (int, 1.0, b""), (int, "1", b""),
        (int, None, b""), (Signed, -(1 << 63) - 1, b""), (Signed, 1 << 63, b""), (bool, 1, b""),
        (Signed, True, b""), (float, 1, b""), (float, float("nan"), b""),
        (float, float("inf"), b""), (float, True, b""), (str, None, b""), (str, ["a"], b""),
        (type(None), 0, b""), (int | None, "", b""), (End, 0, b""), (End, 8, b""),
        (End, True, b""), (End, 1.0, b""), (End, "OUTERMOST", b""), (list[int], {}, b""),
        (list[int], "12", b""), (list[int], [1, "2"], b""), (tuple[int, bool], [1], b""),
        (tuple[int, bool], [1, True, True], b""), (tuple[int, ...], [[1]], b""),
        (dict[str, int], [], b""), (dict[str, int], {"a": "b"}, b""), (Symbol, ["f", 1], b""),
        (Symbol, ["f", 1, 2, 3], b""), (Symbol, {"name": "f", "address": 1, "size": 2}, b""),
        (Symbol, ["f", -1, 2], b""), (Symbol, [7, 1, 2], b""), (Symbol, None, b""),
        (U64, 8, bytes(7)), (U64, 7, bytes(7)), (U64, 8, bytes(9)), (U64, -8, bytes(8)),
        (U64, [8], bytes(8)), (U64, True, bytes(1)), (U64, MOST, bytes(8)), (U64, 0, bytes(8)),
        (Pairs, 24, bytes(24)), (bytes, 3, b"ab"), (bytes, "ab", b"ab"), (bytes, 1, b"ab"),
        (list[U64], [8, 8], bytes(8)), (Descriptor, 0, b""),
    ],
    ids=repr,
)  # fmt: skip
def test_other_values_are_refused(kind: Any, message: object, data: bytes) -> None:
    with pytest.raises(MalformedError):
        read(kind, message, data)


def test_other_types_and_all_questions() -> None:
    for kind in (object, Any, Exception, set[int], type, list[object], type | None):
        with pytest.raises(KeyError):
            reader_of(kind)
    with pytest.raises(ValueError, match="too many"):
        reader_of(int | str)
    # What is fuzzed begins with an answer that some question accepts.
    for question in QUESTIONS.values():
        parameters = inspect.signature(question._function).parameters
        assert question.types.keys() == {*parameters, "return"} - {"self"}
        for kind in question.types.values():
            reader_of(kind)
    for answer in ANSWERS:
        size, _ = struct.unpack_from("<II", answer)
        message, data = json.loads(answer[8 : 8 + size]), answer[8 + size :]
        accepted = []
        for name, question in QUESTIONS.items():
            try:
                question.answer(message, data, given_to(question))
            except MalformedError:
                continue
            accepted.append(name)
        assert accepted, message
    # It takes long to import, and only workers read code.
    program = (
        "import sys, tracelloc.record.session.session, tracelloc.record.worker.unwindtables\n"
        "print('capstone' in sys.modules, 'tracelloc.record.worker.service' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
    )
    assert found.stdout == "False False\n"


def test_arguments_arrive_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor is the received one."""
    monkeypatch.setattr(questions, "QUESTIONS", {})

    class File:
        @questions.question()
        def look(self, count: int, words: U64, file: Descriptor) -> None: ...

    question = questions.QUESTIONS["look"]
    given = [7, WORDS, Descriptor(3)]
    packed = PackedMessage(given)
    assert packed.descriptors == [3]
    count, words, file = question.arguments(*received(packed), [99])
    assert (count, words.tolist(), file) == (7, WORDS.tolist(), Descriptor(99))
    for bad in (given[:2], [*given, 1]):
        with pytest.raises(MalformedError):
            question.arguments(*received(PackedMessage(bad)), [99])
    with pytest.raises(MalformedError):
        question.arguments(*received(packed), [])


@pytest.mark.parametrize(
    ("name", "possible", "not_possible"),
    [
        ("symbols", [["f", 0x1000, 1], ["g", 0x2000, MOST]], [["f", 0x1001, 1], None]),
        ("symbols", [None, None], [None]),
        ("variables", [None, ["v", 0, 0]], [["v", 0x1001, 0], None]),
        ("data_layout", [[[1, 2]], 0, 1], [[], 0, 0]),
        ("chains", [[[], []], [None, None], None], [[[]], [None, None], None]),
        ("chains", [[[], [["f", None, None, False]]], [None, None], ""], [[[], []], [None], None]),
        ("variable_places", [["/a.c", 1], [None, None]], [["/a.c", 1]]),
        ("facts", [[[MOST - 1, 1, 0, True]], True, None, False, True, [], [[], None], []],
         [[[MOST, 1, 0, True]], True, None, False, True, [], [[], None], []]),
        ("facts", [[], True, "ab", False, True, [], [["a"], "b"], []],
         [[[0, 1, MOST, True]], True, None, False, True, [], [[], None], []]),
        ("functions", [{}, {"alloc": []}, {}], [{}, {"other": []}, {}]),
        ("offsets", [[15, True], [99, False]], [[16, True], None]),
        ("offsets", [None, None], [None]),
        ("usdt", [["a", 0, 0, [None], 0, False]],
         [["a", 0, 0, [[0, 99, 255, 0, True, 0, 8, False]], 0, False]]),
        ("usdt", [], [["a", 0, 0, [[0, 255, 255, 64, True, 0, 8, False]], 0, False]]),
        ("usdt", [], [["a", 0, 0, [[0, 255, 255, 0, True, 0, 9, False]], 0, False]]),
        ("rows", [np.zeros(3, np.uint64), None], [np.zeros(2, np.uint64), None]),
        ("all_rows", [WORDS, WORDS, 0.0, None], [WORDS, WORDS[:1], 0.0, None]),
        ("stacks", [[[WORDS, 1, 0, False]], WORDS, WORDS],
         [[[WORDS[:0], 1, 0, False]], WORDS, WORDS]),
        ("stacks", [[[np.zeros(127, np.uint64), 7, 2, True]], WORDS[:0], WORDS[:0]],
         [[[np.zeros(128, np.uint64), 7, 2, True]], WORDS[:0], WORDS[:0]]),
        ("stacks", [[[WORDS, 1, 0, False]], WORDS, WORDS],
         [[[WORDS, 1, 0, False]], WORDS, WORDS[:1]]),
        ("stacks", [[[WORDS, 1, 0, False]], WORDS, WORDS], [[], WORDS, WORDS]),
        ("stacks", [[[WORDS, 1, 0, False]], WORDS, WORDS],
         [[[WORDS, 1, 0, False]] * 2, WORDS, WORDS]),
    ],
)  # fmt: skip
def test_answers_that_do_not_fit(name: str, possible: object, not_possible: object) -> None:
    question = QUESTIONS[name]
    question.answer(*received(PackedMessage(possible)), given_to(question))
    with pytest.raises(MalformedError, match=r"^it can't be true$"):
        question.answer(*received(PackedMessage(not_possible)), given_to(question))


@pytest.mark.parametrize("value", [-1, 1 << 64, b"text"])
def test_lines_that_cannot_be_are_none(value: forms.Value) -> None:
    """DWARF may have them in signed forms, and of 128 bits; the other lines are answered still."""
    assert number_of((forms.SDATA, value)) is None
    assert number_of((forms.SDATA, MOST)) == MOST
