"""Every public class says what it computes, what it takes, and what a PML user has to know."""

import inspect

import pytest

from pml_nivmf import distances, distributions, functional, losses

CLASSES = [
    getattr(module, name)
    for module in (distances, distributions, losses)
    for name in module.__all__
    if inspect.isclass(getattr(module, name))
]
LOSSES = [losses.NonIsotropicVMFLoss, losses.VMFProxyLoss, losses.NivMFProxyLoss, losses.JointProxyLoss]


@pytest.mark.parametrize("public", CLASSES, ids=lambda c: c.__name__)
def test_equation_and_parameters(public):
    text = inspect.getdoc(public)
    assert text
    if inspect.isabstract(public) or public.__name__.endswith(("ReferenceDistance", "CarryingDistance")):
        return
    assert "=" in text or "∫" in text, "no equation"
    own = [n for n, p in inspect.signature(public).parameters.items() if p.kind is not p.VAR_KEYWORD]
    for name in own:
        if name != "validate_args":
            assert f"{name}:" in text, f"{name} is not described"


@pytest.mark.parametrize("loss", LOSSES, ids=lambda c: c.__name__)
def test_pml_habits(loss):
    text = inspect.getdoc(loss)
    assert "Needs an optimizer" in text
    assert "Reducer input" in text
    assert loss is losses.JointProxyLoss or "Default reducer: MeanReducer" in text


@pytest.mark.parametrize("name", functional.__all__)
def test_functions(name):
    assert inspect.getdoc(getattr(functional, name))
