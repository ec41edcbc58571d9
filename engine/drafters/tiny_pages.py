"""The KV memory of a tiny drafter: a pool of pages and each request's page table."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.drafters.tiny_kernels import PAGE, Floats
from engine.errors import OutOfBlocks


@dataclass(slots=True)
class PagedRequest:
    table_row: int
    """The request's row in `PagePool.tables`."""
    length: int = 0
    """Committed rows; the rows of draft nodes follow them."""
    pages: list[int] = field(default_factory=list)


class PagePool:
    """Pages are allocated as requests grow and freed as they shrink or leave."""

    def __init__(self, pages: int, layers: int, kv_heads: int, head_dim: int) -> None:
        # Zeros: rows never written are masked by a weight of 0, and 0 · NaN would be NaN.
        self.kv: Floats = np.zeros((2, layers, pages, kv_heads, head_dim, PAGE), np.float32)
        self.tables: NDArray[np.int32] = np.zeros((1, 1), np.int32)
        self._free_pages = list(range(pages))
        self._free_table_rows = [0]

    @property
    def capacity(self) -> int:
        """Rows of all pages together."""
        return self.kv.shape[2] * PAGE

    def add(self) -> PagedRequest:
        if not self._free_table_rows:
            table_rows = len(self.tables)
            self.tables = np.pad(self.tables, ((0, table_rows), (0, 0)))
            self._free_table_rows = list(range(table_rows, 2 * table_rows))
        return PagedRequest(self._free_table_rows.pop())

    def reserve(self, requests: Sequence[PagedRequest], rows: Sequence[int]) -> None:
        """Makes room for rows[i] rows in all of the i-th request; OutOfBlocks changes nothing."""
        wanted = [
            -(-count // PAGE) - len(request.pages)
            for request, count in zip(requests, rows, strict=True)
        ]
        needed = sum(count for count in wanted if count > 0)
        if needed > len(self._free_pages):
            raise OutOfBlocks(needed, len(self._free_pages))
        for request, count in zip(requests, wanted, strict=True):
            for _ in range(count):
                self._add_page(request)

    def shrink(self, request: PagedRequest, length: int) -> None:
        """Keeps the first `length` rows, as committed ones, and the pages that they need."""
        request.length = length
        needed = -(-length // PAGE)
        self._free_pages.extend(request.pages[needed:])
        del request.pages[needed:]

    def move(self, request: PagedRequest, source: Sequence[int], target: Sequence[int]) -> None:
        """Copies rows of one request over other rows of its own."""
        table = np.array(request.pages)
        old, new = np.array(source), np.array(target)
        for rows in self.kv:
            # The slices between two index arrays put the rows' axis first on both sides.
            rows[:, table[new // PAGE], :, :, new % PAGE] = rows[
                :, table[old // PAGE], :, :, old % PAGE
            ]

    def remove(self, request: PagedRequest) -> None:
        self.shrink(request, 0)
        self._free_table_rows.append(request.table_row)

    def _add_page(self, request: PagedRequest) -> None:
        column = len(request.pages)
        if column == self.tables.shape[1]:
            self.tables = np.pad(self.tables, ((0, 0), (0, column)))
        page = self._free_pages.pop()
        self.tables[request.table_row, column] = page
        request.pages.append(page)
