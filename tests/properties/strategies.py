"""What properties are tested on: batches of any shape, dtype and norm, with repeats and zeros among the rows."""

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st


def bounded(examples):
    """Settings of a property: the same examples each time, and a limit per example that only a hang reaches."""
    return settings(
        max_examples=examples,
        deadline=120_000,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@st.composite
def embeddings(draw, dim=None, rows=None, exponents=(-30, 30), dtypes=FLOATS):
    """(rows, dim) with rows of norm 10^e each, some of them zero, equal, opposite or along an axis."""
    dim = draw(st.sampled_from([2, 3, 4, 7, 16, 64, 130])) if dim is None else dim
    rows = draw(st.integers(1, 6)) if rows is None else rows
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    directions = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    for row in range(rows):
        kind = draw(st.sampled_from(["random", "random", "random", "same", "opposite", "axis", "zero"]))
        if kind in ("same", "opposite"):
            directions[row] = directions[0] if kind == "same" else -directions[0]
        elif kind == "axis":
            directions[row] = 0
            directions[row, -1] = -1
        elif kind == "zero":
            directions[row] = 0
    norms = directions.norm(dim=1, keepdim=True).clamp(min=1e-300)
    powers = draw(st.lists(st.floats(*exponents), min_size=rows, max_size=rows))
    sizes = torch.tensor([10.0**power for power in powers], dtype=torch.float64).unsqueeze(1)
    return (directions / norms * sizes).to(draw(st.sampled_from(dtypes)))


@st.composite
def labelled(draw, **options):
    """(embeddings, labels, number of classes), often a single class."""
    values = draw(embeddings(**options))
    classes = draw(st.sampled_from([1, 2, 5, 30]))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=len(values), max_size=len(values)))
    return values, torch.tensor(labels), classes


def assert_finite(*tensors):
    for tensor in tensors:
        assert torch.isfinite(tensor).all(), tensor
