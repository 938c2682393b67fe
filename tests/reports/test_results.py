"""RESULTS.md: its numbers are those of the kept summaries, and the page in the repository is the one they give."""

import json
import statistics
from pathlib import Path

import pytest
from scipy import stats

from pml_nivmf.reports import results

HOME = Path(__file__).parents[2] / "experiment_configs"
SCORES = {"el_nivmf": [0.5, 0.52, 0.54], "proxy_nca": [0.4, 0.47, 0.42]}


@pytest.fixture
def runs(tmp_path):
    """A sweep's folder: trials without test metrics, and reproduced runs under best/."""
    for loss, scores in SCORES.items():
        for seed, score in enumerate(scores):
            folder = tmp_path / "runs" / "cars" / loss / "best" / f"seed-{seed}"
            folder.mkdir(parents=True)
            summary = {"test": {"recall_at_1": score, "NMI": 0.5}, "seconds": 2.0, "seed": seed}
            (folder / "summary.json").write_text(json.dumps(summary))
        trial = tmp_path / "runs" / "cars" / loss / "trial-0000" / "seed-0"
        trial.mkdir(parents=True)
        (trial / "summary.json").write_text(json.dumps({"validation_score": 0.9}))
    losses = [{"loss": "el_nivmf", "finished": 7, "best": {"score": 0.61, "values": {"optimizers.proxy_lr": 0.12345}}}]
    (tmp_path / "runs" / "cars" / "sweep.json").write_text(json.dumps({"losses": losses}))
    return tmp_path / "runs"


def page(runs, tmp_path, text):
    assert results.collect(runs, tmp_path / "kept") == 6
    template = tmp_path / "template.md"
    template.write_text(text)
    return results.write(template, tmp_path / "kept")


def test_table(runs, tmp_path):
    lines = page(runs, tmp_path, "before\n{{table cars recall_at_1}}\nafter").splitlines()
    assert lines[1] == "| loss | R@1 | seeds | s/run |"
    low, high = stats.t.interval(0.95, 2, loc=0.52, scale=0.02 / 3**0.5)
    assert lines[3] == f"| el_nivmf | **52.00 ± 2.00 [{100 * low:.2f}, {100 * high:.2f}]** | 3 | 2 |"
    assert lines[4].startswith("| proxy_nca | 43.00 ± ")
    assert lines[-1] == "after"


def test_columns_may_be_paths_with_titles(runs, tmp_path):
    lines = page(runs, tmp_path, "{{table cars test.NMI:Mutual_information}}").splitlines()
    assert lines[0] == "| loss | Mutual information | seeds | s/run |"
    assert "50.00 ± 0.00" in lines[2]


def test_gap_is_welchs(runs, tmp_path):
    text = page(runs, tmp_path, "{{gap cars/el_nivmf proxy_nca recall_at_1}}")
    interval = stats.ttest_ind(SCORES["el_nivmf"], SCORES["proxy_nca"], equal_var=False).confidence_interval(0.95)
    gap = statistics.fmean(SCORES["el_nivmf"]) - statistics.fmean(SCORES["proxy_nca"])
    assert text == f"{100 * gap:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def test_tuned_settings_and_values(runs, tmp_path):
    assert "| el_nivmf | 7 | 61.00 | proxy_lr 0.123 |" in page(runs, tmp_path, "{{tuned cars}}")
    assert results.write(tmp_path / "template.md", tmp_path / "kept")
    (tmp_path / "template.md").write_text("{{value cars/el_nivmf recall_at_1}}")
    assert results.write(tmp_path / "template.md", tmp_path / "kept") == "52.0 ± 5.0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{tabel cars recall_at_1}}", "unknown directive {{tabel cars recall_at_1}}: known are table"),
        ("{{value cars/nobody recall_at_1}}", "cannot be carried out"),
        ("{{value cars/el_nivmf accuracy}}", "cannot be carried out"),
    ],
)
def test_bad_directives_are_named(runs, tmp_path, text, message):
    with pytest.raises(ValueError, match=r"directive|cannot be carried out") as caught:
        page(runs, tmp_path, text)
    assert message in str(caught.value)


def test_the_page_in_the_repository_is_current():
    """`pml-nivmf results` was run after the last change of summaries or template."""
    written = results.write(HOME / "results" / "RESULTS.template.md", HOME / "results" / "runs")
    assert (HOME / "RESULTS.md").read_text() == written
