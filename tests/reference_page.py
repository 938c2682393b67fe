"""Write pml_nivmf/REFERENCE.md from signatures and docstrings: `python -m tests.reference_page`."""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from pml_nivmf import data, distances, distributions, experiments, functional, inference, losses, metrics, models

PAGE = Path(__file__).parents[1] / "pml_nivmf" / "REFERENCE.md"
SECTIONS: dict[str, ModuleType] = {
    "Losses": losses,
    "Distances": distances,
    "Distributions": distributions,
    "Functions": functional,
    "Inference": inference,
    "Metrics": metrics,
    "Data sets": data,
    "Models": models,
    "Trained runs": experiments,
}
INTRODUCTION = """\
# Reference

`python -m tests.reference_page` writes this page from signatures and docstrings; a test checks that it is current.
All losses and distances also take the keywords of PML's base classes. Notation: M is the embedding size, z the raw
embedding of an image, ζ_z its von Mises-Fisher distribution, p or ρ the distribution of a class, C_M the normalizer of
the vMF, A_M the mean resultant length. "The paper" is
[Kirchhof et al., ECCV 2022](https://arxiv.org/abs/2207.03784); the probability product kernel is that of
[Jebara, Kondor & Howard, JMLR 2004](https://www.jmlr.org/papers/volume5/jebara04a/jebara04a.pdf).
"""


def page() -> str:
    parts = [INTRODUCTION]
    for title, module in SECTIONS.items():
        parts.append(f"**{title}** (`{module.__name__}`): {links(public_names(module))}\n")
    for title, module in SECTIONS.items():
        parts += [f"## {title}\n", *(entry(module, name) for name in public_names(module))]
    return "\n".join(parts)


def public_names(module: ModuleType) -> list[str]:
    """Classes and functions; constants and exceptions need no entry."""
    members = {name: getattr(module, name) for name in module.__all__}
    return [n for n, v in members.items() if callable(v) and not (inspect.isclass(v) and issubclass(v, Exception))]


def links(names: list[str]) -> str:
    return ", ".join(f"[{name}](#{name.lower()})" for name in names)


def entry(module: ModuleType, name: str) -> str:
    """Everything about one class or function."""
    public = getattr(module, name)
    signature = signature_of(public, f"{module.__name__}.{name}")
    parts = [f"### {name}\n", f"```python\n{signature}\n```\n", f"{markdown(public)}\n"]
    if inspect.isclass(public):
        listed = [getattr(section, name) for section in SECTIONS.values() for name in public_names(section)]
        bases = [base for base in public.__mro__[1:] if base in listed]
        inherited = {ancestor for base in bases for ancestor in base.__mro__}
        own = [text for ancestor in public.__mro__ if ancestor not in inherited for text in methods(ancestor)]
        parts += ["**Methods**:\n", *own] if own else []
        parts += [f"Inherits from {links([base.__name__ for base in bases])}.\n"] if bases else []
    return "\n".join(parts)


def methods(defining: type) -> Iterator[str]:
    """Public methods and properties that a class of this package defines and documents."""
    for name, value in vars(defining).items() if defining.__module__.startswith("pml_nivmf.") else []:
        value = value.__func__ if isinstance(value, classmethod) else value
        if (inspect.isfunction(value) or isinstance(value, property)) and name[0] != "_" and value.__doc__:
            shown = name if isinstance(value, property) else signature_of(value, name, width=1000)
            yield f"`{shown}`  \n{markdown(value)}\n"


def markdown(public: Callable | property) -> str:
    """The docstring, with its arguments as a list. `<k>` is not HTML."""
    doc = (inspect.getdoc(public) or "").replace("<", "&lt;").replace("Args:\n", "**Parameters**:\n\n")
    argument = rf"^( *)(\*{{0,2}})({'|'.join(parameter_names(public))}): (.*(?:\n\1 +\S.*)*)"
    return re.sub(argument, _list_item, doc, flags=re.MULTILINE)


def _list_item(argument: re.Match[str]) -> str:
    stars, name, text = argument[2].replace("*", "\\*"), argument[3], argument[4]
    return f"- **{stars}{name}**: " + re.sub(r"\n +", "\n  ", text)


def parameter_names(public: Callable | property) -> list[str]:
    """Of a function; of a class, the arguments of all constructors that **kwargs may reach."""
    bases = public.__mro__ if inspect.isclass(public) else []
    functions = [vars(base)["__init__"] for base in bases if inspect.isfunction(vars(base).get("__init__"))]
    functions += [public] if inspect.isfunction(public) else []
    return list(dict.fromkeys(name for function in functions for name in inspect.signature(function).parameters))


def signature_of(public: Callable, name: str, width: int = 100) -> str:
    """With defaults, without annotations; each argument on its own line where the whole is longer than `width`."""
    parameters = [p for p in inspect.signature(public).parameters.values() if p.name not in ("self", "cls")]
    shown = [str(p.replace(annotation=p.empty)).replace("'", '"') for p in parameters]
    shown = [re.sub(r"<[\w.]*?(\w+) object at \w+>", r"\1()", text) for text in shown]  # defaults without a repr
    keyword_only = [i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY]
    if keyword_only and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        shown.insert(keyword_only[0], "*")
    line = f"{name}({', '.join(shown)})"
    return line if len(line) <= width else f"{name}(\n    " + ",\n    ".join(shown) + ",\n)"


if __name__ == "__main__":
    PAGE.write_text(page())
