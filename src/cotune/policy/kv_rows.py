"""A KV cache whose rows can be parked, dropped and put together again between turns."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache, DynamicLayer

from cotune.errors import EngineError


class GrowingLayer(DynamicLayer):
    """A dynamic cache layer that appends in place into a buffer with room to spare.

    `DynamicLayer` copies the whole cache for every token; this one copies it only when the
    buffer is full, and then grows it by half.
    """

    def adopt(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Starts from keys and values of shape (B, heads, L, head_dim)."""
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True
        self._keys_buffer, self._values_buffer = keys, values
        self.keys, self.values = keys, values

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.keys is None or self.values is None:
            self.adopt(key_states, value_states)
            return key_states, value_states
        start, end = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        if end > self._keys_buffer.shape[-2]:
            self._keys_buffer = self._grown(self.keys, end + end // 2)
            self._values_buffer = self._grown(self.values, end + end // 2)
        self._keys_buffer[:, :, start:end] = key_states
        self._values_buffer[:, :, start:end] = value_states
        self.keys = self._keys_buffer[:, :, :end]
        self.values = self._values_buffer[:, :, :end]
        return self.keys, self.values

    @staticmethod
    def _grown(tensor: torch.Tensor, length: int) -> torch.Tensor:
        rows, heads, used, width = tensor.shape
        larger = tensor.new_empty(rows, heads, length, width)
        larger[:, :, :used] = tensor
        return larger


@dataclass
class Rows:
    """Some rows with their cached keys and values.

    Attributes:
        names: what the caller calls each row, (B,).
        fed: how many of its tokens each row has in the cache, (B,).
        mask: 1 where a cache column holds a token of the row, (B, L); other columns are padding.
        layers: (keys, values) of every layer, each (B, heads, L, head_dim).
    """

    names: list[int]
    fed: list[int]
    mask: torch.Tensor
    layers: list[tuple[torch.Tensor, torch.Tensor]]

    def select(self, positions: Sequence[int]) -> "Rows":
        """These rows only, in this order; a position may come more than once."""
        index = torch.tensor(list(positions), device=self.mask.device)
        return Rows(
            [self.names[i] for i in positions],
            [self.fed[i] for i in positions],
            self.mask[index],
            [(keys[index], values[index]) for keys, values in self.layers],
        )

    def trimmed(self) -> "Rows":
        """Without the leading columns that are padding in every row."""
        used = self.mask.any(0).nonzero()
        first = int(used[0]) if len(used) else 0
        if first == 0:
            return self
        layers = [(keys[:, :, first:], values[:, :, first:]) for keys, values in self.layers]
        return Rows(self.names, self.fed, self.mask[:, first:], layers)

    def cache(self) -> Cache:
        """A transformers cache that goes on from these rows."""
        layers = []
        for keys, values in self.layers:
            layer = GrowingLayer()
            layer.adopt(keys, values)
            layers.append(layer)
        return Cache(layers=layers)

    @staticmethod
    def of(names: list[int], fed: list[int], mask: torch.Tensor, cache: Cache) -> "Rows":
        """The rows of a cache after a forward pass."""
        layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        for layer in cache.layers:
            if not isinstance(layer, GrowingLayer) or layer.keys is None or layer.values is None:
                raise EngineError(f"a cache layer is a {type(layer).__name__} without keys")
            layers.append((layer.keys, layer.values))
        return Rows(names, fed, mask, layers)


def joined(pieces: Sequence[Rows]) -> Rows:
    """All rows of the pieces, each padded on the left to the longest."""
    if len(pieces) == 1:
        return pieces[0]
    length = max(piece.mask.shape[1] for piece in pieces)

    def left_padded(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        missing = length - tensor.shape[dim]
        if missing == 0:
            return tensor
        shape = list(tensor.shape)
        shape[dim] = missing
        return torch.cat([tensor.new_zeros(shape), tensor], dim)

    return Rows(
        [name for piece in pieces for name in piece.names],
        [fed for piece in pieces for fed in piece.fed],
        torch.cat([left_padded(piece.mask, 1) for piece in pieces]),
        [
            (
                torch.cat([left_padded(keys, 2) for keys, _ in column]),
                torch.cat([left_padded(values, 2) for _, values in column]),
            )
            for column in zip(*(piece.layers for piece in pieces), strict=True)
        ],
    )
