from collections.abc import Callable
from types import CodeType

def call_apart(function: Callable[[], object], code: CodeType | None) -> object: ...
