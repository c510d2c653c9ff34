"""Which pairs of rows are of one document."""

import torch
from jaxtyping import Bool
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.measures.inner import pack_cells
from repsim_cli.measures.kernels import Documents


def mark_same_document(documents: Documents) -> Bool[Tensor, " cells"]:
    """Tells which packed cells are of two rows of one document. Raises Degenerate where all are."""
    left_out = pack_cells(documents[:, None] == documents)
    if bool(left_out.all()):
        raise Degenerate("no two rows are of different documents, got one document; give more documents")
    return left_out


def have_same_groups(documents: Documents, others: Documents) -> bool:
    """Tells whether rows are of one document by both lists or by neither."""
    both = torch.stack([documents, others]).unique(dim=1).shape[1]
    return both == len(documents.unique()) == len(others.unique())
