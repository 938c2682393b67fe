"""The section on certainty: does it tell right from wrong, does it drop for degraded images, what do proxies say?"""

from ..html import join, tag
from ..run_folders import Found
from .certainty import certainty
from .degradation import degradation
from .proxies import proxies
from .section import Section

_INTRODUCTION = (
    "Three certainties compete. The norm ‖z‖ of an image's embedding, which for probabilistic losses is the "
    "concentration of its von Mises-Fisher; the similarity to the nearest neighbour; and PPK, minus the expected "
    "likelihood distance to it, which uses both. Only the norm says something of an image before anything is retrieved."
)


def uncertainty(found: Found) -> Section | None:
    """None for runs that left nothing of the kind."""
    groups = [group for group in found.groups if all(run.uncertainty for run in group.runs)]
    if not groups:
        return None
    parts = [tag("p", _INTRODUCTION), certainty(groups), degradation(groups), proxies(groups)]
    return Section("Uncertainty", join(parts))
