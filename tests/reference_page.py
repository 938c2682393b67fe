"""Writes pml_nivmf/REFERENCE.md from signatures, docstrings and objects: `python -m tests.reference_page`.

The form is that of PML's documentation: paper, signature, equation, parameters, other info, default distance, default
reducer, reducer input. What an object can tell itself, such as its default reducer, is asked of an object.
"""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss

from pml_nivmf import data, distances, distributions, functional, losses, metrics, models

PAGE = Path(__file__).parents[1] / "pml_nivmf" / "REFERENCE.md"
KIRCHHOF = "[Kirchhof et al., ECCV 2022](https://arxiv.org/abs/2207.03784)"
JEBARA = "[Jebara, Kondor & Howard, JMLR 2004](https://www.jmlr.org/papers/volume5/jebara04a/jebara04a.pdf)"
PAPERS = {
    **dict.fromkeys(["NonIsotropicVMFLoss", "NivMFProxyLoss", "VMFProxyLoss", "JointProxyLoss"], KIRCHHOF),
    **dict.fromkeys(["ExpectedLikelihoodNivMFDistance", "NivMFDistance", "KLDistance"], KIRCHHOF),
    **dict.fromkeys(["PPKDistance", "ExpectedLikelihoodDistance", "BhattacharyyaDistance"], f"{JEBARA}; {KIRCHHOF}"),
    "NonIsotropicVonMisesFisher": KIRCHHOF,
}
SECTIONS: dict[str, ModuleType] = {
    "Losses": losses,
    "Distances": distances,
    "Distributions": distributions,
    "Functions": functional,
    "Metrics": metrics,
    "Data sets": data,
    "Models": models,
}
# Small objects of every loss, to be asked.
OBJECTS: dict[str, Callable[[], torch.nn.Module]] = {
    "NonIsotropicVMFLoss": lambda: losses.NonIsotropicVMFLoss(3, 4),
    "NivMFProxyLoss": lambda: losses.NivMFProxyLoss(3, 4),
    "VMFProxyLoss": lambda: losses.VMFProxyLoss(3, 4),
    "JointProxyLoss": lambda: losses.JointProxyLoss(losses.VMFProxyLoss(3, 4), ProxyAnchorLoss(3, 4)),
}
INTRODUCTION = """\
# Reference

Written by `python -m tests.reference_page` from signatures, docstrings and objects; a test holds it current. All losses
and distances take the keywords of PML's base classes, too. Notation: M is the embedding size, z an image's raw
embedding, ζ_z its von Mises-Fisher distribution, p or ρ a class's, C_M the vMF's normalizer, A_M the mean resultant
length.
"""


def page() -> str:
    parts = [INTRODUCTION]
    for title, module in SECTIONS.items():
        links = ", ".join(f"[{name}](#{name.lower()})" for name in public_names(module))
        parts.append(f"**{title}** (`{module.__name__}`): {links}\n")
    for title, module in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [entry(module, name) for name in public_names(module)]
    return "\n".join(parts)


def public_names(module: ModuleType) -> list[str]:
    """Classes and functions; constants and exceptions speak for themselves."""
    members = {name: getattr(module, name) for name in module.__all__}
    return [
        name
        for name, value in members.items()
        if callable(value) and not (inspect.isclass(value) and issubclass(value, Exception))
    ]


def entry(module: ModuleType, name: str) -> str:
    """Everything about one class or function."""
    public = getattr(module, name)
    parts = [f"### {name}\n"]
    if name in PAPERS:
        parts.append(f"{PAPERS[name]}\n")
    parts.append(f"```python\n{signature_of(public, f'{module.__name__}.{name}')}\n```\n")
    parts.append(described(public))
    if inspect.isclass(public):
        parts += methods(public)
    return "\n".join(part for part in parts if part)


def described(public: Callable) -> str:
    """The docstring, its arguments as a list; what follows them, and facts of an object in place of its claims."""
    before, parameters, after = parse(inspect.getdoc(public) or "", parameter_names(public))
    parts = [escaped(before) + "\n"] if before else []
    if parameters:
        parts.append("**Parameters**:\n")
        parts += [f"- **{name.replace('*', chr(92) + '*')}**: {escaped(text)}" for name, text in parameters]
        parts.append("")
    if public.__name__ in OBJECTS:
        after = re.sub(r"Needs an optimizer.*", "", after, flags=re.DOTALL).strip()
        parts.append(facts(OBJECTS[public.__name__]()))
    return "\n".join([*parts, escaped(after) + "\n"] if after else parts)


def parse(doc: str, names: list[str]) -> tuple[str, list[tuple[str, str]], str]:
    """(text before the arguments, [(argument, its text)], text after them)."""
    before: list[str] = []
    after: list[str] = []
    parameters: list[tuple[str, str]] = []
    indent = -1  # of the argument that is being read
    for line in doc.splitlines():
        found = re.match(r"( *)(\*{0,2}(\w+)): (.*)", line)
        depth = len(line) - len(line.lstrip())
        if found and found[3] in names and depth <= 4:
            parameters.append((found[2], found[4]))
            indent = depth
        elif indent >= 0 and line.strip() and depth > indent:
            parameters[-1] = (parameters[-1][0], f"{parameters[-1][1]}\n  {line.strip()}")
        elif line.strip() != "Args:":
            indent = -1
            (after if parameters else before).append(line)
    return "\n".join(before).strip(), parameters, "\n".join(after).strip()


def parameter_names(public: Callable) -> list[str]:
    """Of a function; of a class, of all constructors that **kwargs may hand arguments to."""
    if not inspect.isclass(public):
        return list(inspect.signature(public).parameters)
    inits = [vars(base)["__init__"] for base in public.__mro__ if inspect.isfunction(vars(base).get("__init__"))]
    return list(dict.fromkeys(name for init in inits for name in inspect.signature(init).parameters if name != "self"))


def signature_of(public: Callable, name: str, width: int = 100) -> str:
    """With defaults, without annotations; one argument a line where it is longer than `width`."""
    parameters = list(inspect.signature(public).parameters.values())
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters if p.name != "self"]
    shown = [str(parameter).replace("'", '"') for parameter in plain]
    if any(p.kind is p.KEYWORD_ONLY for p in parameters) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        shown.insert(next(i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), "*")
    line = f"{name}({', '.join(shown)})"
    return line if len(line) <= width else f"{name}(\n    " + ",\n    ".join(shown) + ",\n)"


def methods(public: type) -> list[str]:
    """Those of the class itself, and where to find the others."""
    own = [method(public, name) for name in own_methods(public)]
    above = {base.__name__ for base in public.__mro__[1:]}
    bases = [name for module in SECTIONS.values() for name in public_names(module) if name in above]
    inherited = [f"Methods of {', '.join(f'[{name}](#{name.lower()})' for name in bases)} as well.\n"] if bases else []
    return ["**Methods**:\n", *own, *inherited] if own else inherited


def own_methods(public: type) -> list[str]:
    """Public methods and properties that the class itself defines and describes."""
    kept = (inspect.isfunction, lambda value: isinstance(value, property))
    members = {name: value for name, value in vars(public).items() if any(is_kept(value) for is_kept in kept)}
    return [name for name, value in members.items() if not name.startswith("_") and value.__doc__]


def method(public: type, name: str) -> str:
    value = vars(public)[name]
    shown = name if isinstance(value, property) else signature_of(value, name, width=1000)
    before, parameters, after = parse(inspect.getdoc(value) or "", parameter_names(getattr(value, "fget", value)))
    listed = [f"- **{name}**: {escaped(text)}" for name, text in parameters]
    parts = [f"`{shown}`  \n{escaped(before)}", "\n".join(listed), escaped(after)]
    return "\n\n".join(part for part in parts if part) + "\n"


def facts(loss: torch.nn.Module) -> str:
    """What PML's documentation says of every loss."""
    trained = ", ".join(f"`{name}`" for name, parameter in loss.named_parameters() if parameter.requires_grad)
    lines = [f"- Needs an optimizer: {trained} are parameters (see `param_groups`)."]
    if not isinstance(loss, losses.JointProxyLoss):  # whose two losses have their own
        lines.append(f"- Default distance: `{default_distance(loss)}`.")
    lines.append(f"- Default reducer: `{type(loss.reducer).__name__}`.")
    lines += [f'- Reducer input: `{name}`, reduction type "{kind}".' for name, kind in reducer_input(loss).items()]
    return "\n".join(["**Other info**:\n", *lines, ""])


def default_distance(loss: torch.nn.Module) -> str:
    return type(loss.distance).__name__


def reducer_input(loss: torch.nn.Module) -> dict[str, str]:
    """Names and reduction types of the sub-losses."""
    embeddings, labels = torch.randn(3, 4), torch.arange(3)
    computed = loss.compute_loss(embeddings, labels, None, embeddings, labels)
    return {name: entry["reduction_type"] for name, entry in computed.items()}


def escaped(text: str) -> str:
    """`<k>` is no HTML."""
    return text.replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
