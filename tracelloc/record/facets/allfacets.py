"""The list of all facets."""

from typing import Any, Final

from tracelloc.record.facets.facet import Facet
from tracelloc.record.facets.heap import HeapFacet
from tracelloc.record.facets.holders import HoldersFacet
from tracelloc.record.facets.objects import ObjectsFacet
from tracelloc.record.facets.pointers import PointersFacet

# In the order in which they begin when several are due.
FACETS: Final[tuple[type[Facet[Any]], ...]] = (
    PointersFacet,
    ObjectsFacet,
    HeapFacet,
    HoldersFacet,
)
