"""Addresses to names, lines and inlined functions."""

from tracelloc.symbols.frame import Frame, SourceMap
from tracelloc.symbols.symbolizer import Symbolizer

__all__ = ["Frame", "SourceMap", "Symbolizer"]
