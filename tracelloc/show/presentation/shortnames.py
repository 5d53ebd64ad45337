"""Shortens readable names: leaves out generics, parameters and return types.

``std::vector<std::string, std::allocator<std::string> >::push_back(std::string&&)`` becomes
``std::vector<…>::push_back``, and ``<alloc::vec::Vec<u8> as core::ops::drop::Drop>::drop`` becomes
``<Vec<…> as Drop>::drop``. A name that is not understood, such as a function that returns a pointer
to a function, stays unchanged: a long name is better than a wrong one.
"""

import functools
import re
from typing import Final, NamedTuple

from tracelloc.text import LONGEST_TEXT

_DEEPEST: Final = 40

_OPENING: Final = {"<": ">", "(": ")", "[": "]", "{": "}"}
_OPERATOR: Final = re.compile(
    r"(?<![\w$])operator(?:\(\)|\[\]|<=>|->\*|<<=|>>=|->|<<|>>|\+\+|--|&&|\|\||[-+*/%^&|<>=!]=|"
    r"[-+*/%^&|~!=<>,]|\"\" ?\w+| (?:new|delete)(?:\[\])?(?!\w)| co_await(?!\w))"
)
_CONVERSION: Final = re.compile(r"(?<![\w$])operator (?=[\w(*&:])")
_PREFIX: Final = re.compile(
    r"(?:(?:vtable|VTT|typeinfo(?: name)?|guard variable|construction vtable|"
    r"TLS (?:init|wrapper) function|reference temporary #\d+|transaction clone|"
    r"non-transaction clone|template parameter object) for |"
    r"(?:non-virtual |virtual |covariant return )?thunk to |hidden alias for )"
)
_LITERAL: Final = re.compile(r"'(?:\\(?:u\{[0-9a-f]+\}|.)|[^'\\])'|\"(?:\\.|[^\"\\]){0,256}\"")
_QUALIFIERS: Final = re.compile(r"(?: const| volatile| restrict| noexcept)*(?: &&?)?")
_AFTER: Final = re.compile(r"::|\.|@|$")
_PATH: Final = re.compile(r"(?<![\w:>}])(?:[^\W\d]\w*::)+(?=[^\W\d]|\{)")
_PLAIN: Final = re.compile(r"[^\W\d]\w*(?:::[^\W\d]\w*)*")


class _Part(NamedTuple):
    """A part of a name; ``kind``: an opening bracket, "" for text, "o" for an operator."""

    kind: str
    text: str


class NotUnderstoodError(Exception):
    """A name's brackets do not match, or its parts have an unknown meaning."""


@functools.lru_cache(maxsize=4096)
def shorten(name: str) -> str:
    """Returns a name without generics, parameters and return type, or itself. Never raises."""
    if len(name) > LONGEST_TEXT or ("<" not in name and "(" not in name):
        return name
    prefix = _PREFIX.match(name)
    start = prefix.end() if prefix else 0
    try:
        return name[:start] + _short(_parts(name[start:]))
    except NotUnderstoodError:
        return name


def _short(parts: list[_Part]) -> str:
    parameters = [i for i, part in enumerate(parts) if _is_parameters(parts, i)]
    first = _name_start(parts, parameters[0]) if parameters else (0, 0)
    out: list[str] = []
    after_parameters = False
    for i in range(first[0], len(parts)):
        kind, text = parts[i]
        if i == first[0]:
            text = text[first[1] :]
        if after_parameters:
            if kind == "":
                found = _QUALIFIERS.match(text)
                text = text[found.end() :] if found else text
                if not (_AFTER.match(text) or (text == " " and _is_remark(parts[i + 1]))):
                    raise NotUnderstoodError
            elif kind not in "[{":
                raise NotUnderstoodError
        after_parameters = i in parameters
        if not after_parameters:
            out.append(_short_part(parts, i, _Part(kind, text)))
    short = "".join(out)
    if not short.strip():
        raise NotUnderstoodError
    return short


def _is_remark(part: _Part) -> bool:
    """Whether a part is a remark: ``[clone .cold]``, or ``(.cold)`` as LLVM writes it."""
    return bool(re.match(r"(?:clone )?\.\w", part.text))


def _short_part(parts: list[_Part], i: int, part: _Part) -> str:
    kind, text = part
    before = parts[i - 1] if i else _Part("", "")
    after = parts[i + 1] if i + 1 < len(parts) else _Part("", "")
    if kind == "":
        return text
    if kind == "o":  # a conversion's type can have generics
        return f"operator {_generics(text[9:], 0)}" if text[8] == " " else text
    if kind != "<":
        return kind + _generics(text, 0) + _OPENING[kind]
    if before.kind == "" and before.text.endswith("."):
        return f"<{text}>"  # a constructor of Java's, "Deflater.<init>"
    starts = not before.text or (before.kind == "" and before.text.endswith("::"))
    if before.kind in ("", "o") and starts:
        if text.startswith("impl ") or (not before.text and after.text.startswith("::")):
            return _self_type(text, whole=not before.text)
        if not before.text:
            raise NotUnderstoodError  # "<unknown>"
    return "<…>" if text else "<>"


def _is_parameters(parts: list[_Part], i: int) -> bool:
    """Whether a pair of parentheses holds a function's parameters. Raises if unclear."""
    kind, text = parts[i]
    if kind != "(" or text.startswith("anonymous "):
        return False
    before = parts[i - 1] if i else _Part("", "")
    if before.kind in ("o", ">", "[") or before.kind in ("<", "{"):
        return True
    if before.kind == "(":
        raise NotUnderstoodError  # "(*f)(int)", and what else?
    if before.text.endswith(("decltype", "decltype ")) or _is_remark(parts[i]):
        return False
    if not before.text or not (before.text[-1].isalnum() or before.text[-1] in "_$"):
        raise NotUnderstoodError
    return True


def _name_start(parts: list[_Part], end: int) -> tuple[int, int]:
    """Returns where the name begins whose parameters are at ``end``, behind the return type."""
    for i in range(end - 1, -1, -1):
        kind, text = parts[i]
        if kind == "" and " " in text:
            if i > 0 and parts[i - 1].kind == "o" and text == " ":
                continue  # "operator< <int>"
            at = text.rindex(" ") + 1
            return (i, at) if at < len(text) else (i + 1, 0)
    return (0, 0)


def _self_type(text: str, *, whole: bool) -> str:
    """Shortens ``<T as Trait>``, ``<impl Trait for T>`` or ``<T>`` to last words of paths."""
    parts = _parts(text)
    generic = len(parts) == 2 and parts[1].kind == "<"
    if whole and (len(parts) == 1 or generic) and _PLAIN.fullmatch(parts[0].text):
        return parts[0].text + ("<…>" if generic else "")
    return f"<{_types(parts, 0)}>"


def _types(parts: list[_Part], depth: int) -> str:
    """Returns types with only the last words of their paths."""
    if depth > _DEEPEST:
        raise NotUnderstoodError
    out: list[str] = []
    for i, (kind, text) in enumerate(parts):
        before = parts[i - 1] if i else _Part("", "")
        if kind == "":
            glued = before.kind != "" and text.startswith("::")
            is_path = glued and "," not in text and " " not in text
            out.append(text if is_path else _PATH.sub("", text))
        elif kind == "<":
            is_list = before.kind == "" and bool(re.search(r"(?:\w|::)$", before.text))
            is_list = is_list and not re.search(r"\bfor$", before.text)
            out.append("<…>" if is_list else f"<{_types(_parts(text), depth + 1)}>")
        elif kind in "([":
            out.append(kind + _types(_parts(text), depth + 1) + _OPENING[kind])
        else:
            out.append(kind + text + _OPENING.get(kind, ""))
    return "".join(out).replace("::<…>", "<…>")


def _generics(text: str, depth: int) -> str:
    """Returns text in other brackets without its generics."""
    if depth > _DEEPEST or "<" not in text:
        return text
    out: list[str] = []
    for kind, inner in _parts(text):
        if kind in ("", "o"):
            out.append(inner)
        elif kind == "<":
            out.append("<…>" if inner else "<>")
        else:
            out.append(kind + _generics(inner, depth + 1) + _OPENING[kind])
    return "".join(out)


def _parts(text: str) -> list[_Part]:
    """Splits at the outermost brackets. Raises if they do not match."""
    parts: list[_Part] = []
    at = begin = 0
    while at < len(text):
        character = text[at]
        if character == "o" and (found := _operator(text, at)):
            if at > begin:
                parts.append(_Part("", text[begin:at]))
            parts.append(_Part("o", found))
            at = begin = at + len(found)
        elif character in _OPENING:
            end = closing_bracket(text, at)
            if at > begin:
                parts.append(_Part("", text[begin:at]))
            parts.append(_Part(character, text[at + 1 : end]))
            at = begin = end + 1
        elif character in ")]}" or (character == ">" and text[at - 1 : at] != "-"):
            raise NotUnderstoodError
        else:
            at += _skip(text, at)
    if begin < len(text):
        parts.append(_Part("", text[begin:]))
    return parts


def _operator(text: str, at: int) -> str:
    """Returns ``operator<`` or ``operator int*`` at ``at``, without parameters; else empty."""
    found = _OPERATOR.match(text, at)
    if found:
        return found[0]
    found = _CONVERSION.match(text, at)
    if not found:
        return ""
    end = found.end()
    while end < len(text) and text[end] != "(":
        end = closing_bracket(text, end) + 1 if text[end] in "<[{" else end + _skip(text, end)
    if text.startswith("(anonymous ", end):
        raise NotUnderstoodError
    return text[at:end]


def _skip(text: str, at: int) -> int:
    """Returns the letters at ``at`` to skip together: an arrow, a literal ``'<'``, or one."""
    if text[at] in "'\"":
        found = _LITERAL.match(text, at)
        return len(found[0]) if found else 1
    return 2 if text.startswith("->", at) else 1


def closing_bracket(text: str, at: int) -> int:
    """Returns where the bracket at ``at`` closes, or raises. In parentheses ``<`` may be "less"."""
    stack: list[str] = []
    while at < len(text):
        character = text[at]
        if character == "o" and (found := _OPERATOR.match(text, at)):
            at += len(found[0])
            continue
        if character in _OPENING:
            stack.append(character)
        elif character in ")]}":
            while stack and stack[-1] == "<":
                stack.pop()
            if not stack or _OPENING[stack.pop()] != character:
                raise NotUnderstoodError
        elif character == ">" and stack[-1] == "<":
            stack.pop()
        if not stack:
            return at
        at += _skip(text, at)
    raise NotUnderstoodError
