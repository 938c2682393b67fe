"""Commands, links and numbers of README.md and of the pages that it links to are valid."""

import csv
import re
import shlex
import statistics
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pml_nivmf import cli
from pml_nivmf.experiments import build, config, search_space

from .data import fakes

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXPERIMENTS = (ROOT / "experiment_configs" / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("*/*.md"))]
OTHERS = ("CONTRIBUTING.md", "RESULTS.md")  # one has a test of its own, the other's commands have shell variables
# Columns and rows of its first table
WHY = ("proxy_nca", "proxy_anchor", "el_nivmf", "panc_el_nivmf")
ROWS = (
    "recall_at_1",
    "mean_average_precision_at_r",
    "gallery_5_shot_nearest_neighbour",
    "gallery_5_shot_accuracy",
    "gallery_20_shot_accuracy",
)
TEXT = "\n".join(page.read_text() for page in PAGES if page.name not in OTHERS)


def commands() -> list[str]:
    """Every call of our command, in blocks and in lines; torchrun's too."""
    pattern = r"(?:pml-nivmf|-m pml_nivmf) ((?:[a-z]|--)[^`#]*?)(?=`|#|\n```|\ntorchrun|\npml-nivmf)"
    return sorted({" ".join(command.split()) for command in re.findall(pattern, TEXT)})


@pytest.mark.parametrize("command", commands())
def test_commands_are_accepted(command, tmp_path, monkeypatch):
    """The parser takes them, and what they name composes into a configuration that can be built."""
    monkeypatch.chdir(tmp_path)
    for path in ("RUN", "FOLDER", "GALLERY", "IMAGES…", "gallery.safetensors"):  # must exist
        (tmp_path / path).touch()
    options, rest = cli._parser().parse_known_args(shlex.split(command))
    assert not [word for word in rest if word.startswith("-")]
    words = [word for word in (getattr(options, "experiment", None), *getattr(options, "overrides", []), *rest) if word]
    overrides = [word for word in words if "=" in word]
    losses = [f"loss={loss}" for loss in getattr(options, "losses", [])]
    for name in set(words) - set(overrides) if command.startswith(("run", "compare", "sweep")) else ():
        build.check_objects(config.compose(name, overrides))
        for loss in losses:
            build.check_objects(config.compose(name, [*overrides, loss]))


# What makes the same commands short.
SHORT = ["general.epochs=1", "general.batch_size=8", "general.device=cpu", "general.num_workers=0"]
FEWER = {"compare": ["--seeds", "1"], "sweep": ["--reproduce-best", "1"]}
QUICK = ("list", "figures", "run")
WITH_STAND_IN = r"^(list|figures)$|glyphs|table1/.*=(FOLDER|FILE)$"  # the others need other runs or large data


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """Tiny data for each data set, and a small net instead of a pretrained one."""
    folder = tmp_path_factory.mktemp("data")
    drawings = np.random.default_rng(0).integers(0, 100, (90, 28, 28), dtype=np.uint8)
    labels = np.repeat(np.arange(30), 3)
    np.savez(folder / "drawings.npz", x_train=drawings, y_train=labels, x_test=drawings, y_test=labels)
    fakes.features(folder / "features.npz", classes=30, each=3)
    birds = fakes.fake_cub(folder / "birds")
    small_net = ["model=conv_net", "general.batch_size=4"]
    return {
        "glyphs": ["dataset.Glyphs.instances=2", "dataset.Glyphs.size=16"],
        "table1/omniglot": [f"dataset.Omniglot.npz={folder / 'drawings.npz'}"],
        "table1/features": [f"dataset.FeatureArrays.npz={folder / 'features.npz'}"],
        "cub": [f"dataset.CUB.root={birds}", *small_net],
        "image_folder": [f"dataset.ImageFolder.root={birds / 'CUB_200_2011' / 'images'}", *small_net],
    }


def in_small(command, stand_ins):
    first, *words = [word for word in shlex.split(command) if not re.search(r"=(FOLDER|FILE)$", word)]
    data = max((name for name in stand_ins if name in command), key=len, default=None)
    short = [*SHORT, *stand_ins[data]] if data else []
    one_loss = ["--losses", "cos"] if "ablation" in command else []  # of seven
    return [first, *words, *short, *FEWER.get(first, []), *one_loss]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[] if command.startswith(QUICK) else pytest.mark.slow)
        for command in commands()
        if re.search(WITH_STAND_IN, command)
    ],
)
def test_commands_run(command, stand_ins, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(in_small(command, stand_ins)) == 0
    assert capsys.readouterr().out
    if not command.startswith(("list", "figures")):
        (run, *_) = sorted(path.parent for path in tmp_path.rglob("summary.json"))
        assert cli.main(["report", str(run)]) == 0
        assert cli.main(["run", "--resume", str(run)]) == 0


def test_the_sweep_section_is_valid(tmp_path):
    (section,) = re.findall(r"```yaml\n(sweep:.*?)```", EXPERIMENTS, flags=re.DOTALL)
    experiment = tmp_path / "mine.yaml"
    experiment.write_text("groups: {dataset: glyphs}\ncompare: [proxy_nca, el_nivmf]\n" + section)
    searches = search_space.plan(str(experiment), [], [])
    assert {search.name: set(search.space) for search in searches} == {
        "proxy_nca": {"optimizers.proxy_lr", "general.epochs", "loss.ProxyNCALoss.softmax_scale"},
        "el_nivmf": {"optimizers.proxy_lr", "general.epochs", "loss.NonIsotropicVMFLoss.temperature"},
    }


def test_every_command_is_in_the_table():
    table = EXPERIMENTS[EXPERIMENTS.index("| command |") :].split("\n\n")[0]
    parser = cli._parser()
    (choices,) = (action.choices for action in parser._actions if hasattr(action, "choices") and action.choices)
    assert set(choices) <= set(re.findall(r"`pml-nivmf (\w+)", table))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not link.startswith("https://"):
            path, _, anchor = link.partition("#")
            target = page.parent / (path or page.name)
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


def test_quoted_intervals_are_those_of_the_results_page():
    results = (ROOT / "experiment_configs" / "RESULTS.md").read_text()
    quoted = re.findall(r"[+-]\d+\.\d \[[+-]\d+\.\d, [+-]\d+\.\d\]", README.replace("−", "-"))
    assert len(quoted) >= 10
    assert all(number in results for number in quoted)


def test_the_tables_of_why_are_computed_from_the_recorded_runs():
    folder = ROOT / "experiment_configs" / "results"
    runs, galleries = (list(csv.DictReader((folder / name).open())) for name in ("runs.csv", "galleries.csv"))

    def cell(rows, metric, **chosen):
        values = [100 * float(row[metric]) for row in rows if chosen.items() <= row.items()]
        mean, half = statistics.fmean(values), stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
        return f"{mean:.1f} [{mean - half:.1f}, {mean + half:.1f}]"

    of_images = partial(cell, galleries, "ece", data="cars196_maps", queries="whole", shots="all")
    methods = [("proxy_nca", method) for method in ("gallery", "weighted neighbours", "logistic regression")]
    methods += [("panc_el_nivmf", method) for method in ("gallery", "weighted neighbours")]
    expected = [cell(runs, metric, study="photographs_final", variant=loss) for metric in ROWS for loss in WHY]
    expected += [of_images(loss=loss, method=method) for loss, method in methods]
    why = README.partition("## Why")[2].partition("\n## ")[0]
    assert re.findall(r"\d+\.\d \[\d+\.\d, \d+\.\d\]", why) == expected
