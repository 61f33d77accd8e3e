"""What the new tokens of a pass attend to: AttentionKeys, their tables on the device, and a PreparedPass of a tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.lazy import cached_property
from fastreader.core.tree import IntArray, PrefixTree
from fastreader.models.config.windows import Chunk, Window
from fastreader.models.passes.key_values import KeyValues, Reuse
from fastreader.models.passes.recurrent_states import PathStates, RecurrentStates
from fastreader.ops import triton_support
from fastreader.ops.tree_attention import AttentionPlan, tree_attention
from fastreader.ops.tree_attention.device_schedule import CallShape, add_schedule
from fastreader.ops.upload import Array, Upload, Uploaded

# Of each call of attention: its shape, and whether its window is a chunk.
Shapes = dict[tuple[CallShape, bool], None]


class PassTables:
    """What a pass sends to the device, schedules of attention included.

    The shapes of a model's attention calls are known from its first pass on; a schedule that was not foreseen is
    copied when it is first used.

    Args:
        shapes: of earlier passes, to which this one adds its own; None to foresee no schedule.
        upload: what takes the tables to the device; None for a separate one.

    Attributes:
        scheduled: whether the device's kernels take schedules, which are then added and noted.
    """

    def __init__(self, device: torch.device, shapes: Shapes | None = None, upload: Upload | None = None) -> None:
        self.upload = upload or Upload(device)
        self._shapes: Shapes = {} if shapes is None else shapes
        self.scheduled = triton_support.on_gpu(device)

    def add_schedules(self, plan: AttentionPlan) -> Array:
        """Add a plan's schedules for the known shapes, and return the nodes of its queries as the kernels take them."""
        if len(plan.query_node):
            for shape, chunked in self._shapes:
                used = plan.chunked(shape.window) if chunked and shape.window is not None else plan
                add_schedule(shape.schedule(used, self.upload.device), self.upload)
        return plan.query_node.astype(np.int32)

    def note(
        self,
        query: Tensor,
        value: Tensor,
        window: int | None,
        *,
        chunked: bool,
        terms: bool,
        capped: bool,
        split: bool,
    ) -> None:
        """Remember the shape of a call, [Tq, Hq, D] and [Tk, Hk, Dv]."""
        sizes = (*query.shape[1:], *value.shape[1:])
        shape = CallShape(sizes[0], sizes[2], sizes[1], sizes[3], query.dtype, window, terms, capped, split)
        self._shapes[shape, chunked] = None


@dataclass(frozen=True, eq=False)
class AttentionParams:
    """Parameters of a layer's attention scores.

    Attributes:
        scale: factor on the products of queries and keys.
        window: of the layer, in tokens or a chunk; None for full attention.
        softcap: bound on the scores, or None.
        input_precision: how float32 operands are multiplied, see `tree_attention`.
        sinks, slopes: [Hq], see `tree_attention`, or None.
    """

    scale: float
    window: Window
    softcap: float | None
    input_precision: str | None
    sinks: Tensor | None = None
    slopes: Tensor | None = None


class AttentionKeys(Protocol):
    """The keys and values that the new tokens of one pass attend to."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """Compute attention of one layer.

        Args:
            query: [N, Hq, D], of the new tokens, rotated.
            key, value: [N, Hk, D] and [N, Hk, Dv], of the new tokens.
            params: of the attention scores.

        Returns:
            [N, Hq, Dv]
        """
        ...


class RecurrentKeys(AttentionKeys, Protocol):
    """Keys and values of a pass, and the states that recurrent layers start from."""

    @property
    def states(self) -> PathStates:
        """The recurrences of the pass."""
        ...


class PackedKeys:
    """Keys packed as a forest, with the plan of one set of queries.

    Args:
        subtree_end: int32 [Tk], as in `PrefixTree`.
        query_node: int64 [Tq], the node of each query; None if query i is node i.
        query_positions, key_positions: int32 [Tq] and [Tk], depths, for layers with a window or slopes.
        impl: implementation of `tree_attention`, "auto" or by name.
        tables: what goes to the device with the tables of the same pass; None for a separate copy.
    """

    def __init__(
        self,
        subtree_end: npt.NDArray[np.int32],
        query_node: IntArray | None,
        query_positions: npt.NDArray[np.int32],
        key_positions: npt.NDArray[np.int32],
        device: torch.device,
        *,
        impl: str = "auto",
        tables: PassTables | None = None,
    ) -> None:
        self.plan = AttentionPlan(subtree_end, query_node, query_positions, key_positions)
        self.impl = impl
        self._tables = tables or PassTables(device)
        nodes = self._tables.add_schedules(self.plan) if self._tables.scheduled else query_node
        self._arrays: list[Uploaded | None] = []
        for array in (subtree_end, nodes, query_positions, key_positions):
            self._arrays.append(None if array is None else self._tables.upload.add(array))
        self._arrived: dict[torch.device, list[Tensor | None]] = {}  # layers may be on several devices

    def attend(self, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams, return_lse: bool) -> Any:
        """Return the output of `tree_attention`, with its log-sum-exps if `return_lse`."""
        chunk = params.window.tokens if isinstance(params.window, Chunk) else None
        window = None if isinstance(params.window, Chunk) else params.window
        if query.device not in self._arrived:
            self._arrived[query.device] = []
            for each in self._arrays:
                self._arrived[query.device].append(None if each is None else each.get().to(query.device))
        subtree_end, nodes, query_positions, key_positions = self._arrived[query.device]
        if self._tables.scheduled:
            self._tables.note(
                query,
                value,
                chunk or window,
                chunked=chunk is not None,
                terms=params.sinks is not None or params.slopes is not None,
                capped=params.softcap is not None,
                split=params.input_precision is not None,
            )
        assert subtree_end is not None
        return tree_attention(
            query,
            key,
            value,
            subtree_end,
            query_node=nodes,
            query_positions=query_positions,
            key_positions=key_positions,
            scale=params.scale,
            window=window,
            chunk=chunk,
            softcap=params.softcap,
            sinks=params.sinks,
            slopes=params.slopes,
            input_precision=params.input_precision,
            return_lse=return_lse,
            plan=self.plan,
            impl=self.impl,
        )


class TreeKeys:
    """Keys of a packed tree, whose new tokens attend to each other and to cached ones.

    Args:
        reuse: tokens whose keys and values are cached; None if all tokens are new.
        key_values: filled with every layer's keys and values of the whole tree; None to keep none.
        impl: implementation of the op, "auto" or by name.
        rows: int64 [A], the new tokens that have queries; None for all.
        tables: see `PackedKeys`.
    """

    def __init__(
        self,
        tree: PrefixTree,
        device: torch.device,
        reuse: Reuse | None = None,
        key_values: KeyValues | None = None,
        *,
        impl: str = "auto",
        rows: IntArray | None = None,
        tables: PassTables | None = None,
    ) -> None:
        places = None if reuse is None else reuse.computed
        if rows is not None:
            places = rows if places is None else places[rows]
        query_positions = tree.positions if places is None else tree.positions[places]
        self._keys = PackedKeys(
            tree.subtree_end, places, query_positions, tree.positions, device, impl=impl, tables=tables
        )
        self._tree, self._device = tree, device
        self._reuse = reuse
        self._key_values = key_values
        if tables is not None and reuse is not None:
            reuse.prepare(tables.upload)
        if tables is not None and key_values is not None and key_values.rows is not None:
            key_values.prepare(tables.upload)

    @cached_property
    def states(self) -> PathStates:
        """The recurrences of the pass, see `RecurrentKeys.states`."""
        parent = self._tree.parent.astype(np.int64)
        kept = None if self._key_values is None else self._key_values.states
        if self._reuse is None:
            return PathStates(parent, self._device, kept=kept)
        if kept is not None:
            kept = RecurrentStates(self._reuse.state_rows(kept.tokens), kept.tensors)
        return PathStates(self._reuse.local_parents(parent), self._device, self._reuse.states, kept)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """Compute attention of one layer, see `AttentionKeys.attend`."""
        if self._reuse is not None:
            key, value = self._reuse.join(layer, key, value)
        if self._key_values is not None:
            self._key_values.add_layer(layer, key, value)
        out: Tensor = self._keys.attend(query, key, value, params, return_lse=False)
        return out


@dataclass(frozen=True)
class SelectedRows:
    """The new tokens whose final states are needed, so that the last layer may skip the others.

    Attributes:
        indices: int64 [A], of the new tokens, ascending.
        keys: what these tokens attend to.
    """

    indices: Uploaded
    keys: AttentionKeys


@dataclass(frozen=True, eq=False)
class PreparedPass:
    """A pass over a tree's tokens, whose tables are all in one upload.

    Attributes:
        tokens: int64 [N], the computed tokens.
        positions: int64 [N].
        keys: what they attend to.
        selected: the tokens whose final states are needed; None for all.
        returned: int64 [R], which of the final states are returned; None for all.
    """

    tokens: Uploaded
    positions: Uploaded
    keys: AttentionKeys
    selected: SelectedRows | None = None
    returned: Uploaded | None = None

    @classmethod
    def of(
        cls,
        tree: PrefixTree,
        device: torch.device,
        tables: PassTables,
        *,
        impl: str = "auto",
        reuse: Reuse | None = None,
        key_values: KeyValues | None = None,
        rows: IntArray | None = None,
    ) -> PreparedPass:
        """Prepare a pass, see `TreeModel.hidden`."""
        keys = TreeKeys(tree, device, reuse, key_values, impl=impl, tables=tables)
        computed = slice(None) if reuse is None else reuse.computed
        tokens = tables.upload.add(tree.token_ids[computed])
        positions = tables.upload.add(tree.positions[computed].astype(np.int64))
        if rows is None:
            return cls(tokens, positions, keys)
        unique, inverse = np.unique(rows if reuse is None else reuse.state_rows(rows), return_inverse=True)
        if not 0 < len(unique) < len(tokens.array):
            return cls(tokens, positions, keys, returned=tables.upload.add(unique[inverse]))
        selected_keys = TreeKeys(tree, device, reuse, key_values, impl=impl, rows=unique, tables=tables)
        selected = SelectedRows(tables.upload.add(unique), selected_keys)
        return cls(tokens, positions, keys, selected, tables.upload.add(inverse))
