"""Headers of line programs: parameters and file names. DWARF 5, 6.2.4; DWARF 4, 6.2.4."""

from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.files.dwarf import forms
from tracelloc.files.dwarf.forms import (
    U16,
    DwarfError,
    Encoding,
    initial_length,
    offset_at,
    string_in,
    string_of,
    uleb,
)
from tracelloc.files.dwarf.info import DebugInfo

_LNCT_PATH: Final = 1
_LNCT_DIRECTORY: Final = 2
_LARGEST_PROGRAM_BYTES: Final = 1 << 26
_MOST_NAMES: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class _Name:
    """A name in a line program's header, read on demand."""

    text: bytes | int  # The name, or its offset in a string section
    form: int
    directory: int  # Number of the directory that contains the file


@dataclass(frozen=True, slots=True)
class LineHeader:
    """The parameters for running a line program, and its tables of files."""

    version: int
    data: bytes  # The header and the program
    start: int  # Offset of the first instruction in `data`
    instruction_bytes: int  # Unit of address advances, in bytes
    line_base: int
    line_range: int
    opcode_base: int
    operand_counts: bytes  # Number of operands of each standard opcode, from opcode 1 on
    directories: tuple[_Name, ...]
    files: tuple[_Name, ...]


def read_header(info: DebugInfo, offset: int) -> LineHeader:
    """Reads the header at an offset of .debug_line. Raises DAMAGE."""
    if info.line is None:
        raise DwarfError("there is no section .debug_line")
    length, offset_size, at = initial_length(info.line.read(offset, 12), 0)
    size = at + length
    if size > _LARGEST_PROGRAM_BYTES:
        raise DwarfError(f"a line program of {size} bytes is too large")
    data = info.line.read(offset, size)
    if len(data) < size:
        raise DwarfError("a line program is cut short")
    (version,) = U16.unpack_from(data, at)
    at += 2
    if not 2 <= version <= 5:
        raise DwarfError(f"a line program is of the unknown version {version}")
    address_size = 8
    if version >= 5:
        address_size = data[at]
        at += 2
    header_bytes = offset_at(data, at, offset_size)
    at += offset_size
    start = at + header_bytes
    instruction_bytes = data[at]
    at += 2 if version >= 4 else 1  # also the instructions per bundle, which is not used
    line_base, line_range, opcode_base = data[at + 1], data[at + 2], data[at + 3]
    at += 4
    if address_size != 8 or start > len(data) or opcode_base == 0 or line_range == 0:
        raise DwarfError("the header of a line program makes no sense")
    counts = data[at : at + opcode_base - 1]
    at += len(counts)
    if version >= 5:
        encoding = Encoding(version, offset_size, address_size)
        directories, at = _table(data, at, encoding)
        files, at = _table(data, at, encoding)
    else:
        directories, files = _old_tables(data, at)
    info.budget.spend(len(directories) + len(files))
    return LineHeader(
        version, data, start, instruction_bytes, line_base - 256 * (line_base >> 7), line_range,
        opcode_base, counts, tuple(directories), tuple(files),
    )  # fmt: skip


def _old_tables(data: bytes, at: int) -> tuple[list[_Name], list[_Name]]:
    """Reads the tables of DWARF 2 to 4: inline names, ended by an empty one."""
    directories: list[_Name] = []
    files: list[_Name] = []
    while True:
        text, at = string_in(data, at)
        if not text:
            break
        directories.append(_Name(text, forms.STRING, 0))
        _check_count(len(directories))
    while True:
        text, at = string_in(data, at)
        if not text:
            return directories, files
        directory, at = uleb(data, at)
        _, at = uleb(data, at)  # time of last change
        _, at = uleb(data, at)  # size
        files.append(_Name(text, forms.STRING, directory))
        _check_count(len(files))


def _table(data: bytes, at: int, encoding: Encoding) -> tuple[list[_Name], int]:
    """Reads a table of DWARF 5, which describes its own columns."""
    columns = []
    column_count = data[at]
    at += 1
    for _ in range(column_count):
        kind, at = uleb(data, at)
        form, at = uleb(data, at)
        columns.append((kind, form))
    count, at = uleb(data, at)
    if count and not any(encoding.sizes.get(form, 1) for _, form in columns):
        raise DwarfError("a table of names has rows without content")
    _check_count(count)
    names = []
    for _ in range(count):
        text: bytes | int = b""
        text_form, directory = forms.STRING, 0
        for kind, form in columns:
            real, value, at = encoding.read(data, at, form)
            if kind == _LNCT_PATH:
                text, text_form = value, real
            elif kind == _LNCT_DIRECTORY and isinstance(value, int):
                directory = value
        names.append(_Name(text, text_form, directory))
    return names, at


def _check_count(count: int) -> None:
    if count > _MOST_NAMES:
        raise DwarfError("a line program has too many file names")


def _text(info: DebugInfo, name: _Name) -> str | None:
    if isinstance(name.text, bytes):
        return name.text.decode(errors="replace")
    if name.form == forms.LINE_STRP:
        return string_of(info.line_str, name.text)
    return string_of(info.str, name.text) if name.form == forms.STRP else None


def file_name(info: DebugInfo, header: LineHeader, number: int, comp_dir: str) -> str | None:
    """Returns the path of a file by its number, absolute if its directories are known.
    ``comp_dir``: the unit's directory, number 0 before DWARF 5, which then numbers files from 1.
    """
    is_old = header.version < 5
    at = number - is_old
    if not 0 <= at < len(header.files):
        return None
    name = _text(info, header.files[at])
    if name is None or name.startswith("/"):
        return name
    directory_number = header.files[at].directory
    at = directory_number - is_old
    directory = ""
    if 0 <= at < len(header.directories):
        directory = _text(info, header.directories[at]) or ""
    if (is_old or directory_number) and not directory.startswith("/"):
        directory = _join(comp_dir, directory)
    return _join(directory, name)


def _join(directory: str, name: str) -> str:
    if not directory or not name:
        return directory or name
    return directory + name if directory.endswith("/") else f"{directory}/{name}"
