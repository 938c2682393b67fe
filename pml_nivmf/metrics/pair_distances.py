"""Mean and variance of the distances between all pairs of points, a block of pairs at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 2**22  # distances held at once: 32 MB


@dataclass(frozen=True)
class Moments:
    """Of a set of numbers: how many, their mean, and the sum of squared deviations from it."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def variance(self) -> float:
        """The population's: divided by the count."""
        return self.squares / self.count

    def __add__(self, other: "Moments") -> "Moments":
        """Of the union, without the cancellation of Σx² − n·mean² [Chan, Golub & LeVeque 1983]."""
        count = self.count + other.count
        if count == 0:
            return self
        gap = other.mean - self.mean
        mean = self.mean + gap * other.count / count
        return Moments(count, mean, self.squares + other.squares + gap**2 * self.count * other.count / count)


def pair_moments(points: Tensor) -> Moments:
    """Of the Euclidean distances ‖p_i − p_j‖, i < j, of `points` (items, size); none for a single point."""
    total = Moments()
    for distances in _blocks(points.double()):
        if distances.numel():
            mean = distances.mean()
            total += Moments(distances.numel(), float(mean), float((distances - mean).square().sum()))
    return total


def _blocks(points: Tensor) -> Iterator[Tensor]:
    points = points - points.mean(dim=0)  # nothing changes, but squared norms no longer dwarf squared distances
    rows = max(1, _BLOCK // len(points))
    for start in range(0, len(points), rows):
        distances = torch.cdist(points[start : start + rows], points[start:])
        yield distances[torch.ones_like(distances, dtype=torch.bool).triu(1)]
