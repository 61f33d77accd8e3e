"""PreparedPass: what the host prepares of a tree, so that its pass needs only the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fastreader.core.tree import IntArray, PrefixTree
from fastreader.models.passes.attention import SelectedRows
from fastreader.models.passes.key_values import KeyValues, Reuse
from fastreader.models.passes.packed_keys import AttentionKeys, TreeKeys
from fastreader.models.passes.pass_tables import PassTables
from fastreader.ops.upload import Uploaded


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
