r"""Distances between two von Mises-Fisher distributions with natural parameters z = κ_z·μ_z and p = κ_p·μ_p.

Everything is written with ‖z‖², ⟨z, p⟩ and ‖p‖² only, so nothing is singular at z = 0, and with densities relative to
the uniform density on the sphere: r(κ) = log C_M(κ) − log C_M(0). The omitted constant is the same for every pair.
"""

from torch import Tensor

from .pairing import Pairing, squared_norm, unit_vectors
from .vmf import normalizer_change, relative_log_normalizer_of_square, second_moment_terms


def relative_ppk_distance(
    query: Tensor, reference: Tensor, gamma: float, pairing: Pairing, whole: bool = True, method: str = "exact"
) -> Tensor:
    r"""−log of the probability product kernel ∫ ζ_z^γ ζ_p^γ over the sphere, without (1 − 2γ)·log C_M(0):

    −γ·(r(κ_z) + r(κ_p)) + r(γ·‖z + p‖).

    r(γ‖z+p‖) is computed as r(γκ_z) plus a change, because both are large and their difference matters.
    `whole=False` leaves out r(γκ_z) − γ·r(κ_z), which is the same for every reference. `method` is that of log C_M.
    """
    dim = query.shape[-1]
    query_squared = squared_norm(query)
    reference_squared = squared_norm(reference)
    base = pairing.per_query(gamma**2 * query_squared)
    delta = gamma**2 * (2 * pairing.product(query, reference) + reference_squared)
    change = normalizer_change(base, delta, dim, method)
    distance = change - gamma * relative_log_normalizer_of_square(reference_squared, dim, method)
    if not whole:
        return distance
    per_query = relative_log_normalizer_of_square(gamma**2 * query_squared, dim, method)
    per_query = per_query - gamma * relative_log_normalizer_of_square(query_squared, dim, method)
    return distance + pairing.per_query(per_query)


def kl_distance(
    query: Tensor, reference: Tensor, form: str, pairing: Pairing, whole: bool = True, method: str = "exact"
) -> Tensor:
    """KL(vMF(z) ‖ vMF(p)) = log C(κ_z) − log C(κ_p) + A_M(κ_z)·(κ_z − κ_p·cos), `form="exact"`;

    `form="paper"` drops the factor A_M(κ_z), as the paper prints it. A_M(κ_z)·κ_p·cos = (A_M(κ_z)/κ_z)·⟨z, p⟩.
    `whole=False` leaves out what is the same for every reference, log C(κ_z) + A_M(κ_z)·κ_z. `method` is that of log C.
    """
    dim = query.shape[-1]
    query_squared = squared_norm(query)
    slope = unit_vectors(query)
    if form == "exact":  # A_M(κ_z)·μ_z, regular at z = 0
        slope = second_moment_terms(query_squared, dim)[0].unsqueeze(-1) * query
    of_reference = relative_log_normalizer_of_square(squared_norm(reference), dim, method)
    distance = -of_reference - pairing.product(slope, reference)
    if not whole:
        return distance
    of_query = relative_log_normalizer_of_square(query_squared, dim, method)
    return distance + pairing.per_query(of_query + (slope * query).sum(-1))
