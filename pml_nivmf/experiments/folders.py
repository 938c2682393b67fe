"""Folders of runs, named after the experiment and what overrides change: different runs, different folders."""

import re
from collections.abc import Sequence
from pathlib import Path

from .config import MACHINE, YAML, Composed, ConfigError
from .schema import GROUPS


def experiment_name(name_or_path: str) -> str:
    """The name of a packaged experiment, or the stem of a user's file."""
    return Path(name_or_path).stem if name_or_path.endswith(YAML) else name_or_path


def short_override(text: str) -> str:
    """`general.epochs=3` as epochs-3, a variant such as `model=resnet50` and a path by its own name."""
    key, _, value = text.partition("=")
    path, name = Path(value.strip('"')), key.rpartition(".")[2]
    of_paths = {"root": path.name, "npz": path.stem, "weights_file": path.stem}
    words = [of_paths[name]] if name in of_paths else [value] if key in GROUPS else [name, value]
    return re.sub(r"[^\w.+-]+", "_", "-".join(words))


def results_folder(folder: str | None, name_or_path: str, overrides: Sequence[str], *parents: str) -> Path:
    """FOLDER/NAME or, without it, runs/NAME-OVERRIDES, such as runs/glyphs-epochs-3; own images by their folder."""
    roots = [short_override(text) for text in overrides if text.startswith("dataset.ImageFolder.root=")]
    name = roots[-1] if roots and name_or_path == "own_images" else experiment_name(name_or_path)
    if folder:
        return Path(folder) / name
    changed = [text for text in overrides if text.partition("=")[0] not in ("loss", "general.seed", *MACHINE)]
    words = [name, *(word for word in map(short_override, sorted(changed)) if word != name)]
    return Path("runs", *parents) / "-".join(words)


def check_run(folder: Path) -> None:
    """Refuse a folder that is not a run's; name a run in it, as a comparison's folder has many."""
    if not (folder / "config.yaml").exists():
        inside = next((f"; a run in it is {path.parent}" for path in sorted(folder.rglob("config.yaml"))), "")
        raise ConfigError(f"{folder} is not a run folder (config.yaml is missing){inside}")


def run_folder(composed: Composed, name_or_path: str, overrides: Sequence[str]) -> Path:
    """The folder of a single run."""
    general = composed.config.general
    if general.run_dir is not None:
        return Path(general.run_dir).expanduser()  # shells do not expand ~ after `=`
    return results_folder(None, name_or_path, overrides) / Path(composed.loss_variant).stem / f"seed-{general.seed}"
