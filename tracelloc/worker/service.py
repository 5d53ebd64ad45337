"""What runs in the worker: one question after the other about files that it is given.

Files are known by numbers that the other end chooses, and are given as descriptors: their own
and that of their debug file. Runs without rights (``tracelloc.confined``), so everything that is
imported has to be imported before. A question may take so much CPU time, then it ends the process.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import cached_property
from typing import Any, Final

import numpy as np

from tracelloc.dwarf.decoder import DwarfDecoder, open_decoder
from tracelloc.elf import ElfFile, NotElfError, RawTable, SymbolTable
from tracelloc.elf.debugfiles import belongs_to, embedded_symbols, references_of
from tracelloc.elf.plt import plt_functions
from tracelloc.elf.sections import SectionError, load_zstd
from tracelloc.worker.channel import receive_question, send

load_zstd()

_CPU_S: Final = 120.0
"""For one question."""


class ReadFile:
    """A file of code, and its debug file if it has one. Its methods answer the questions."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf
        self._debug: ElfFile | None = None
        self._decoders: dict[bool, DwarfDecoder] = {}

    def describe(self) -> list[Any]:
        """Whether it has a symbol table, whether lines, and what it says of its debug file."""
        return [
            self._own_table is not None,
            _has_lines(self._elf),
            *astuple(references_of(self._elf)),
        ]

    def add_debug_file(self, descriptor: int, *, by_name: bool) -> list[bool]:
        """Whether a file is this one's debug file, and if so, has lines; it is then kept."""
        try:
            debug = ElfFile(descriptor)
        except NotElfError:
            return [False, False]
        if not belongs_to(debug, references_of(self._elf), by_name=by_name):
            debug.close()
            return [False, False]
        self._debug = debug
        return [True, _has_lines(debug)]

    @cached_property
    def _own_table(self) -> RawTable | None:
        return self._elf.table(".symtab")

    @cached_property
    def _embedded(self) -> ElfFile | None:
        return embedded_symbols(self._elf)

    @cached_property
    def _table(self) -> SymbolTable:
        tables = list(self._elf.tables())
        if self._own_table is None:
            if self._embedded is not None:
                tables.extend(self._embedded.tables())
            if self._debug is not None:
                tables.extend(self._debug.tables())
        stubs = plt_functions(self._elf)
        if stubs:
            tables.append(RawTable.made_up(stubs))
        return SymbolTable(tables)

    def count(self) -> list[Any]:
        """How many functions have names, whether a symbol table is embedded, what is not read."""
        return [len(self._table), self._embedded is not None, self._elf.troubles]

    def symbols(self, addresses: Sequence[int]) -> list[Any]:
        """Per address the name, address and size of its function."""
        found = self._table.find_all(np.array(addresses, np.uint64))
        return [None if symbol is None else astuple(symbol) for symbol in found]

    def decode(self, *, of_debug: bool) -> str | None:
        """Makes ready to answer ``chains``. Why that can't be."""
        elf = self._debug if of_debug else self._elf
        decoder = "it has no debug file" if elf is None else open_decoder(elf)
        if isinstance(decoder, str):
            return decoder
        self._decoders[of_debug] = decoder
        return None

    def chains(self, addresses: Sequence[int], *, of_debug: bool) -> list[Any]:
        """Chains, the paths of .dwo files, and why not all is known."""
        decoder = self._decoders[of_debug]
        chains = decoder.chains(addresses)
        plain = [[astuple(frame) for frame in chain] for chain in chains]
        return [plain, decoder.split_paths, decoder.reason]

    def close(self) -> None:
        """Closes what was given."""
        for elf in (self._elf, self._debug):
            if elf is not None:
                elf.close()


def _has_lines(elf: ElfFile) -> bool:
    try:
        return elf.open_section(".debug_line") is not None
    except SectionError:
        return False


class FileService:
    """The files that were given, by number."""

    def __init__(self) -> None:
        self._files: dict[int, ReadFile] = {}

    def answer(self, question: Sequence[Any], descriptors: Sequence[int]) -> Any:
        """The answer to ``[number, what, ...]``. Raises anything."""
        number, what, *more = question
        if what == "open":
            self._files[number] = ReadFile(ElfFile(descriptors[0]))
            return None
        if what == "close":
            file = self._files.pop(number, None)
            return None if file is None else file.close()
        file = self._files[number]
        answers: dict[str, Callable[[], Any]] = {
            "describe": file.describe,
            "count": file.count,
            "symbols": lambda: file.symbols(more[0]),
            "debug": lambda: file.add_debug_file(descriptors[0], by_name=more[0]),
            "decode": lambda: file.decode(of_debug=more[0]),
            "chains": lambda: file.chains(more[0], of_debug=more[1]),
        }
        return answers[what]()


def serve() -> None:
    """Answers what comes over standard input, a socket, until the other end has gone."""
    service = FileService()
    with socket.socket(fileno=0) as channel:
        while True:
            try:
                question, descriptors = receive_question(channel)
            except OSError:
                return
            # The default action of its signal is the end.
            signal.setitimer(signal.ITIMER_PROF, _CPU_S)
            try:
                answer = {"answer": service.answer(question, descriptors)}
            except MemoryError:
                os._exit(errno.ENOMEM)
            except Exception as error:  # noqa: BLE001 - whatever it is, this file has no names
                answer = {"error": f"{type(error).__name__}: {error}"}
            send(channel, answer)
            signal.setitimer(signal.ITIMER_PROF, 0)
