"""Compares a model's logits over random rounds with the stock model's, computed from scratch."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from engine.families import stock_logits
from engine.model import PackedModel, Segment
from policies.tree import ROOT
from tests.engine.families import VOCAB
from tests.engine.kv import integrity

ROUNDS = 4


@dataclass
class Client:
    """One request, driven at random as a scheduler might."""

    name: str
    prompt: list[int]
    committed: list[int] = field(default_factory=list)
    nodes: list[tuple[int, int]] = field(default_factory=list)
    """(parent, token) of the uncommitted tail rows."""

    def path(self, node: int) -> list[int]:
        """Tail rows from the first below the committed ones down to `node`."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.nodes[node][0]
        return path[::-1]

    def context(self, node: int) -> list[int]:
        return self.committed + [self.nodes[step][1] for step in self.path(node)]

    def add_chunk(self, rng: np.random.Generator) -> Segment:
        start = len(self.committed)
        chunk = self.prompt[start : start + int(rng.integers(1, 40))]
        self.nodes = [(place - 1, token) for place, token in enumerate(chunk)]
        return self._segment(0, mask=None)

    def grow_tree(self, rng: np.random.Generator) -> Segment:
        """Adds nodes, possibly below nodes of an earlier forward."""
        old = len(self.nodes)
        for node in range(old, old + int(rng.integers(1, 6))):
            token = int(rng.integers(VOCAB))
            parent = int(rng.integers(ROOT, node))
            self.nodes.append((parent, token))
        mask = np.zeros((len(self.nodes) - old, len(self.nodes)), np.bool_)
        for row in range(old, len(self.nodes)):
            mask[row - old, self.path(row)] = True
        return self._segment(old, mask)

    def _segment(self, old: int, mask: NDArray[np.bool_] | None) -> Segment:
        rows = range(old, len(self.nodes))
        depths = [len(self.path(row)) for row in rows]
        return Segment(
            self.name,
            np.array([token for _, token in self.nodes[old:]], np.int32),
            np.array([len(self.committed) + depth - 1 for depth in depths], np.int32),
            mask,
            np.arange(len(rows), dtype=np.int32),
        )

    def settle(self, model: PackedModel, rng: np.random.Generator, *, is_chunk: bool) -> None:
        """Commits a whole chunk or one path of the tree; sometimes rolls back."""
        last = len(self.nodes) - 1 if is_chunk else int(rng.integers(ROOT, len(self.nodes)))
        path = self.path(last)
        tokens = [self.nodes[node][1] for node in path]
        model.kv.commit(self.name, path, tokens)
        self.committed += tokens
        self.nodes = []
        if rng.random() < 0.3:
            del self.committed[int(rng.integers(len(self.committed) + 1)) :]
            model.kv.truncate(self.name, len(self.committed))


def from_scratch(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    return stock_logits(model, torch.tensor(tokens))


def largest_error(model: PackedModel, stock: PreTrainedModel, rng: np.random.Generator) -> float:
    """Over rounds of chunks, trees that grow over two forwards, commits and rollbacks."""
    clients = [
        Client(f"r{number}", rng.integers(0, VOCAB, length).tolist())
        for number, length in enumerate((1, 12, 30, 75))
    ]
    for client in clients:
        model.kv.open(client.name, [])
    errors = []
    for _ in range(ROUNDS):
        chunking = [len(client.committed) < len(client.prompt) for client in clients]
        for forward in range(2):
            segments, expected = [], []
            for client, chunks in zip(clients, chunking, strict=True):
                if chunks and forward > 0:
                    continue
                old = len(client.nodes)
                segments.append(client.add_chunk(rng) if chunks else client.grow_tree(rng))
                for node in range(old, len(client.nodes)):
                    expected.append(from_scratch(stock, client.context(node)))
            if segments:
                logits = model.forward(segments)
                errors.append(float((logits - torch.stack(expected)).abs().max()))
        for client, chunks in zip(clients, chunking, strict=True):
            client.settle(model, rng, is_chunk=chunks)
        integrity.check(model.kv)
    return max(errors)
