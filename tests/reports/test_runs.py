"""Run folders and their settings: which runs belong together, how they differ, and how to repeat them."""

import json

import pytest

from pml_nivmf.reports.run_folders import differing, read_runs
from pml_nivmf.reports.view import commands, described

from .fake_runs import comparison, write_run


def test_groups_and_names(tmp_path):
    folder = comparison(tmp_path / "a", seeds=11, artifacts=False)
    (write_run(folder / "unfinished" / "seed-0", {"L": {}}, artifacts=False) / "summary.json").unlink()
    trial = write_run(folder / "trial-1", {"L": {}}, artifacts=False)
    (trial / "summary.json").write_text(json.dumps({"status": "pruned"}))
    runs = read_runs([folder])
    assert [group.name for group in runs.groups] == ["el_nivmf", "proxy_nca"]
    assert sorted(run.summary["seed"] for run in runs.groups[0].runs) == list(range(11))
    assert runs.skipped == {"unfinished": 1, "without test results (trials of a sweep)": 1}
    assert runs.name == "a"
    assert read_runs([folder / "el_nivmf"]).name == "a el_nivmf"
    chosen = read_runs([folder / "proxy_nca" / "seed-1", folder / "el_nivmf", folder / "proxy_nca"])
    assert [(group.name, len(group.runs)) for group in chosen.groups] == [("proxy_nca", 11), ("el_nivmf", 11)]


def test_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = "pml-nivmf run mine.yaml --plugin mine.py general.epochs=2"
    shown = commands(read_runs([write_run(tmp_path / "my run", {"Mine": {}}, command=command, artifacts=False)]))
    assert (shown["recorded"], shown["page"]) == ([command], "pml-nivmf report 'my run'")


def test_differences():
    first = {"loss": {"A": {"x": 1}}, "general": {"seed": 0, "epochs": 3}, "model": {"trunk": {"T": {"w": 1, "d": 2}}}}
    second = {"loss": {"B": {}}, "general": {"seed": 1, "epochs": 3}, "model": {"trunk": {"T": {"w": 4}}}}
    differences = {"loss": [{"A": {"x": 1}}, {"B": {}}], "model.trunk.T.w": [1, 4], "model.trunk.T.d": [2, None]}
    assert differing([first, second]) == differences
    assert differing([first, first]) == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"Joint": {"one": {"A": {}}, "two": {"B": {"x": 0.1}}}}, "Joint (one (A), two (B (x: 0.1)))"),
        ({"width": 2, "depth": None}, "width: 2, depth: –"),
        ([1, True, "a"], '[1, true, "a"]'),
        ("a: b", "a: b"),
    ],
)
def test_described(value, text):
    assert described(value) == text
