# %% [markdown]
# # Anatomy of a non-isotropic von Mises-Fisher distribution
#
# A von Mises-Fisher distribution (vMF) on the sphere has a mean direction μ and one concentration κ: it is round. The
# non-isotropic one (nivMF) has a concentration for every dimension, K = diag(κ₁ … κ_M). This page shows on the ordinary
# sphere, M = 3, what K does.

# %%
import torch

from pml_nivmf.distances import NivMFDistance, pack_nivmf
from pml_nivmf.distributions import NonIsotropicVonMisesFisher, VonMisesFisher
from pml_nivmf.reports import figures

torch.manual_seed(0)
ahead = torch.tensor([0.0, 0.0, 1.0])  # μ

# %% [markdown]
# ## Equal concentrations: a vMF
#
# With K = κ·I the nivMF is the vMF.

# %%
round_one = VonMisesFisher(ahead, 20.0)
points = round_one.sample((1000,))
same = NonIsotropicVonMisesFisher(ahead, torch.full((3,), 20.0))
print(f"largest difference in log-density: {(same.log_prob(points) - round_one.log_prob(points)).abs().max():.1e}")

# %% [markdown]
# ## Unequal concentrations: widths
#
# The density compares Kx with Kμ. A step along axis m away from μ is stretched by κ_m, so a *large* κ_m makes the
# distribution *narrow* along m. What matters is κ_m relative to the concentration along μ itself, here κ₃: near μ
#
# 1/variance along m ≈ κ_m²/κ₃ + M·(κ_m²/κ₃² − 1),
#
# and the approximation is best for narrow distributions. The last line may be surprising: a larger concentration along
# μ makes the distribution *wider* in the other directions.

# %%
print("K                  spread of samples along x₁, x₂      formula")
for concentration in ([80.0, 80.0, 80.0], [160.0, 80.0, 80.0], [240.0, 120.0, 80.0], [80.0, 80.0, 160.0]):
    k = torch.tensor(concentration)
    samples = NonIsotropicVonMisesFisher(ahead, k).sample((20_000,))
    spread = samples[:, :2].square().mean(0).sqrt()
    formula = (k[:2] ** 2 / k[2] + 3 * (k[:2] ** 2 / k[2] ** 2 - 1)) ** -0.5
    name = f"diag({', '.join(f'{value:.0f}' for value in concentration)})"
    print(f"{name:<18} {spread[0]:.3f}, {spread[1]:.3f}                        {formula[0]:.3f}, {formula[1]:.3f}")

# %% [markdown]
# ## What a class gains
#
# Two images at the same angle from the class mean, one displaced along a loose axis, one along a tight axis. The cosine
# cannot tell them apart. The nivMF can: this class varies along x₁ and does not along x₂.

# %%
sine, cosine = 0.4, 0.84**0.5
images = torch.tensor([[sine, 0.0, cosine], [0.0, sine, cosine]])
proxy = pack_nivmf(ahead[None], torch.tensor([[15.0, 40.0, 20.0]]))
distances = NivMFDistance()(images, proxy).flatten()  # −log ρ
print(f"cosines {images[0] @ ahead:.3f} and {images[1] @ ahead:.3f}")
print(f"distances {distances[0]:.2f} along x₁ and {distances[1]:.2f} along x₂")

# %% [markdown]
# ## μ off the axes
#
# K stretches along the coordinate axes. If μ is not one of them, μ is a parameter but not the centre: the mode moves
# towards axes with small concentrations, and the mean direction differs from both.

# %%
aside = torch.tensor([0.48, 0.36, 0.8])
tilted = NonIsotropicVonMisesFisher(aside, torch.tensor([10.0, 20.0, 20.0]))
for name, vector in (("mean", tilted.mean), ("mode", tilted.mode)):
    degrees = torch.rad2deg(torch.acos(torch.nn.functional.normalize(vector, dim=0) @ aside))
    print(f"{name} {[round(value, 2) for value in vector.tolist()]}, {degrees:.1f}° from μ")

# %% [markdown]
# ## Pictures
#
# Each sphere is coloured by its density; the dot is μ, crosses are the coordinate axes.


# %%
def sphere(concentration: list[float], loc: torch.Tensor) -> tuple[str, NonIsotropicVonMisesFisher]:
    density = NonIsotropicVonMisesFisher(loc.double(), torch.tensor(concentration).double(), validate_args=False)
    return f"$K = \\mathrm{{diag}}({', '.join(f'{value:.0f}' for value in concentration)})$", density


shapes = {
    "κ₁ grows": dict(sphere([value, 20.0, 20.0], ahead) for value in (10.0, 20.0, 60.0)),
    "κ along μ grows": dict(sphere([20.0, 20.0, value], ahead) for value in (10.0, 20.0, 40.0)),
    "μ off the axes": dict(sphere([value, 20.0, 20.0], aside) for value in (10.0, 20.0, 60.0)),
}
for path in figures.save(figures.densities_on_sphere(shapes), "figures/anatomy_of_a_nivmf"):
    print(path)

# %% [markdown]
# ## What to conclude, and what not

# %%
print(
    "Shown: a nivMF is narrow where its concentration is large relative to that along the mean direction. "
    "Do not conclude that classes in 128 dimensions look like this: there K is learned, and it may stay close to round."
)
