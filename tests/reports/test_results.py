"""RESULTS.md: its numbers are those of recorded runs, and finished run folders can be recorded."""

import json
import shutil
import statistics
from pathlib import Path

import pytest
import yaml
from scipy import stats

from pml_nivmf import cli
from pml_nivmf.experiments import config
from pml_nivmf.reports import results

HOME = Path(__file__).parents[2] / "experiment_configs"
SCORES = {"el_nivmf": [0.5, 0.52, 0.54], "proxy_nca": [0.4, 0.47, 0.42]}
BEST = {"optimizers.proxy_lr": 0.12345, "model.embedding_size": 64}
TRIED = [{"state": "complete", "score": 0.61, "values": BEST}, {"state": "pruned", "score": 0.2, "values": {}}]


def write_run(folder, score, seed, command="pml-nivmf sweep x", **test):
    folder.mkdir(parents=True)
    summary = {"seed": seed, "best_epoch": 3, "validation_score": 0.6, "seconds": 2.0}
    summary |= {"test": {"recall_at_1": score, "NMI": None} | test}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "environment.json").write_text(json.dumps({"git_commit": "0123456789", "command": command}))
    (folder / "config.yaml").write_text(yaml.safe_dump({"dataset": {"FeatureArrays": {"npz": "/data/cars.npz"}}}))


@pytest.fixture
def study(tmp_path):
    """A search with its best settings run again, and a trial without test metrics."""
    for loss, scores in SCORES.items():
        for seed, score in enumerate(scores):
            write_run(tmp_path / "main" / "any" / loss / "best" / f"seed-{seed}", score, seed)
    trial = tmp_path / "main" / "any" / "el_nivmf" / "trial-0000" / "seed-0"
    trial.mkdir(parents=True)
    (trial / "summary.json").write_text(json.dumps({"validation_score": 0.9}))
    search = {"experiment": "x", "sampler": "grid", "seeds_per_trial": 1, "score": "validation_recall_at_1"}
    best = {"trial": 2, "score": 0.61, "values": BEST}
    el_nivmf = {"loss": "el_nivmf", "finished": 7, "best": best, "trials": TRIED}
    losses = [el_nivmf, {"loss": "cos", "finished": 7, "best": None, "trials": []}]
    (tmp_path / "main" / "any" / "sweep.json").write_text(json.dumps(search | {"losses": losses}))
    return tmp_path / "main"


GALLERIES = """data,loss,method,shots,queries,accuracy
cars,a,gallery,all,whole,0.8
cars,a,gallery,all,whole,0.6
"""


@pytest.fixture
def page(study, tmp_path):
    """A function that renders a template with the runs of the study."""

    def render(template):
        results.write(tmp_path, results.collect_runs(study), {"main": results.collect_tuned(study)})
        (tmp_path / "galleries.csv").write_text(GALLERIES)
        (tmp_path / "RESULTS.template.md").write_text(template)
        return results.write_page(tmp_path)

    return render


def test_table_of_variants(page):
    lines = page('before\n{{ table("main/cars", "recall_at_1", "NMI:Mutual information") }}\nafter').splitlines()
    low, high = stats.t.interval(0.95, 2, loc=0.52, scale=0.02 / 3**0.5)
    assert lines[1] == "| loss | R@1 | Mutual information | seeds | s/run |"
    assert lines[3] == f"| el_nivmf | **52.00 ± 2.00 [{100 * low:.2f}, {100 * high:.2f}]** | – | 3 | 2 |"
    assert lines[4].startswith("| proxy_nca | 43.00 ± ")
    assert lines[-1] == "after"


def test_gap_has_welchs_interval(page):
    first, second = SCORES.values()
    interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    gap = statistics.fmean(first) - statistics.fmean(second)
    expected = f"{100 * gap:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"
    assert page('{{ gap("main/cars", "el_nivmf", "proxy_nca", "recall_at_1") }}') == expected


def test_numbers_of_galleries(page):
    rows = 'galleries | selectattr("method", "eq", "gallery") | map(attribute="accuracy") | map("float") | list'
    assert page(f"{{{{ Estimate.of({rows}).parts(1)[0] }}}}") == "70.0 ± 14.1"
    assert page('{{ gap("gallery all/cars", "a", "a", "accuracy") }}').startswith("+0.0 [")


@pytest.mark.parametrize("call", ['table("main/birds", "NMI")', 'gap("main/cars", "a", "b", "NMI")'])
def test_missing_runs_are_an_error(page, call):
    with pytest.raises(ValueError, match="there are no runs of"):
        page(f"{{{{ {call} }}}}")


def test_collecting_adds_and_replaces(study, tmp_path, monkeypatch):
    """`--collect` on a copy of the recorded results: rows of an old study stay, a run recorded twice is one row."""
    monkeypatch.setattr(config, "config_folder", lambda: tmp_path)
    shutil.copytree(HOME / "results", tmp_path / "results")
    before, _ = results.read(tmp_path / "results")
    write_run(tmp_path / "new" / "x" / "cos" / "seed-1", 0.3, 1, "pml-nivmf run x dataset.npz=/a/b.npz -v", other=0.1)
    for _ in range(2):
        assert cli.main(["results", "--collect", str(study), str(tmp_path / "new")]) == 0
    runs, searches = results.read(tmp_path / "results")
    assert len(runs) == len(before) + 7
    assert [run["study"] for run in runs[-7:]] == ["main"] * 6 + ["new"]
    row = {"variant": "cos", "commit": "0123456", "overrides": "dataset.npz=b.npz", "other": "0.1", "NMI": ""}
    assert row.items() <= runs[-1].items()
    assert runs[-2]["other"] == ""
    chosen = {"trials": 7, "score": 0.61, "values": BEST, "tried": TRIED}
    assert searches["main"]["cars"]["losses"] == {"el_nivmf": chosen}
    assert (tmp_path / "RESULTS.md").read_text() == (HOME / "RESULTS.md").read_text(), "recorded runs are as before"

    path = study / "any" / "sweep.json"
    path.write_text(path.read_text().replace("el_nivmf", "el_vmf"))
    assert cli.main(["results", "--collect", str(study)]) == 0
    assert results.read(tmp_path / "results")[1]["main"]["cars"]["losses"] == dict.fromkeys(
        ["el_nivmf", "el_vmf"], chosen
    )


def test_the_page_in_the_repository_is_current():
    assert (HOME / "RESULTS.md").read_text() == results.write_page(HOME / "results")
