"""Commands, links and pictures of the documentation lead somewhere."""

import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pml_nivmf import cli
from pml_nivmf.experiments import build, config
from pml_nivmf.experiments.sweeps import plan as sweep_plan

from .data import fakes

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "pml_nivmf").glob("*.md"))]
# The words in capitals that stand for a user's own paths and numbers.
USERS_OWN = {"FOLDER", "FILE", "RUN_DIR", "RUN", "URL", "HOST", "PATH", "NAME"}


def commands(text: str) -> list[str]:
    """Everything that is written like a call of our command, in blocks and in lines."""
    found = re.findall(r"(?:pml-nivmf|-m pml_nivmf) ((?:[a-z]|--)[^`#]*?)(?=`|#|\n```|\ntorchrun|\npml-nivmf)", text)
    return sorted({" ".join(command.split()) for command in found})


def test_commands_are_found():
    found = commands(README)
    assert {"list", "bench", "figures", "compare glyphs"} <= set(found)
    assert any(command.startswith("run --resume") for command in found), "of torchrun, too"


@pytest.mark.parametrize("command", commands(README))
def test_commands_are_accepted(command):
    """The parser takes them, and what they name composes into a configuration that can be built."""
    options, rest = cli._parser().parse_known_args(shlex.split(command))
    assert not [text for text in rest if text.startswith("-")]
    words = [getattr(options, "experiment", None), *getattr(options, "overrides", []), *rest]
    words = [word for word in words if word]
    names = [word for word in words if "=" not in word]
    overrides = [word for word in words if "=" in word]
    assert set(re.findall(r"\b[A-Z_]{3,}\b", command)) <= USERS_OWN | {"CUB"}
    for name in names if command.split()[0] in ("run", "compare", "sweep") else []:
        composed = config.compose(name, overrides)
        build.check_objects(composed)
        for loss in (getattr(options, "losses", None) or "").split(","):
            if loss:
                config.compose(name, [*overrides, f"loss={loss}"])


# Of the same commands, in small: what replaces a user's paths, and what makes an experiment short.
SHORT = ["general.epochs=1", "general.batch_size=8", "general.device=cpu", "general.num_workers=0"]
FEWER = {"compare": ["--seeds", "1"], "sweep": ["--reproduce-best", "1"], "figures": ["--format", "png", "--dpi", "20"]}
QUICK = ("list", "figures", "run")


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """Tiny data for each data set, and a small net in place of a pretrained one."""
    folder = tmp_path_factory.mktemp("data")
    drawings = np.random.default_rng(0).integers(0, 100, (90, 28, 28), dtype=np.uint8)
    labels = np.repeat(np.arange(30), 3)
    np.savez(folder / "drawings.npz", x_train=drawings, y_train=labels, x_test=drawings, y_test=labels)
    fakes.features(folder / "features.npz", classes=30, each=3)
    birds = fakes.fake_cub(folder / "birds")
    small_net = ["model=conv_net", "general.batch_size=4"]
    return {
        "glyphs": [f"dataset.Glyphs.cache_dir={folder}", "dataset.Glyphs.instances=2", "dataset.Glyphs.size=16"],
        "table1/omniglot": [f"dataset.Omniglot.npz={folder / 'drawings.npz'}"],
        "table1/features": [f"dataset.FeatureArrays.npz={folder / 'features.npz'}"],
        "cub": [f"dataset.CUB.root={birds}", *small_net],
        "image_folder": [f"dataset.ImageFolder.root={birds / 'CUB_200_2011' / 'images'}", *small_net],
    }


def in_small(command, stand_ins):
    first, *words = [word for word in shlex.split(command) if not re.search(r"=(FOLDER|FILE)$", word)]
    data = max((name for name in stand_ins if name in command), key=len, default=None)
    short = [*SHORT, *stand_ins[data]] if data else []
    one_loss = ["--losses", "cos"] if "ablation" in command else []  # seven losses take the same way
    return [first, *words, *short, *FEWER.get(first, []), *one_loss]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[] if command.startswith(QUICK) else pytest.mark.slow)
        for command in commands(README)
        if not command.startswith(("bench", "report", "run --resume"))
    ],
)
def test_commands_run(command, stand_ins, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(in_small(command, stand_ins)) == 0
    assert capsys.readouterr().out
    if not command.startswith(("list", "figures")):  # what was run can be reported, and resumed
        (run, *_) = sorted(path.parent for path in tmp_path.rglob("summary.json"))
        assert cli.main(["report", str(run)]) == 0
        assert cli.main(["run", "--resume", str(run)]) == 0


def test_the_sweep_section_is_one(tmp_path):
    (section,) = re.findall(r"```yaml\n(sweep:.*?)```", README, flags=re.DOTALL)
    experiment = tmp_path / "mine.yaml"
    experiment.write_text("groups: {dataset: glyphs}\ncompare: [proxy_nca, el_nivmf]\n" + section)
    plan = sweep_plan.make_plan(str(experiment), [], [])
    assert {loss.name: set(loss.space) for loss in plan.losses} == {
        "proxy_nca": {"optimizers.proxy_lr", "general.epochs", "loss.ProxyNCALoss.softmax_scale"},
        "el_nivmf": {"optimizers.proxy_lr", "general.epochs", "loss.NonIsotropicVMFLoss.temperature"},
    }


def test_every_command_is_in_the_table():
    table = README[README.index("| command |") :].split("\n\n")[0]
    parser = cli._parser()
    (choices,) = (action.choices for action in parser._actions if hasattr(action, "choices") and action.choices)
    assert set(choices) - {"results"} <= set(re.findall(r"`pml-nivmf (\w+)", table))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    text = page.read_text()
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links or page.name == "CONTRIBUTING.md"
    for link in links:
        if link.startswith("#"):
            assert link[1:] in anchors, link
        elif not link.startswith("https://"):
            assert (page.parent / link).exists(), link


def test_numbers_of_the_departures(capsys, tmp_path, monkeypatch):
    """What the README quotes, the example prints."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "09_where_we_depart.py"), run_name="__main__")
    printed = capsys.readouterr().out
    quoted = {
        "100 and 202": ["100.0000", "202.3"],
        "3.97; 0.355": ["3.967", "0.3546"],
        "0.883; 0.345": ["0.8830", "0.3448"],
    }
    quoted |= {"15.8": ["15.8"], "6.61": ["6.605"]}
    for text, numbers in quoted.items():
        assert f"| {text} |" in README
        assert all(number in printed for number in numbers), text


def test_results_in_brief_are_those_of_the_results_page():
    results = (ROOT / "experiment_configs" / "RESULTS.md").read_text()
    brief = README[README.index("## Results in brief") : README.index("## Experiments")].replace("−", "-")
    quoted = re.findall(r"[+-]\d\.\d \[[+-]\d\.\d, [+-]\d\.\d\]", brief)
    assert len(quoted) == 6
    assert all(number in results for number in quoted)


def test_the_picture_is_small_and_one_of_ours():
    (path,) = (ROOT / "examples" / "figures").iterdir()
    assert path.stat().st_size < 150_000
    assert f"examples/figures/{path.name}" in README
    with Image.open(path) as image:
        assert image.size[0] == round(6.9 * 120)


def test_the_readme_is_short():
    assert len(README.splitlines()) < 400
