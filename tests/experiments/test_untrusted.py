"""Configurations, checkpoints and run folders from anywhere: they run nothing, reach nothing and fill nothing."""

import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import torch

from pml_nivmf import cli
from pml_nivmf.experiments import compare, run
from pml_nivmf.experiments.config import compose, load_saved
from pml_nivmf.experiments.config_files import load, parse_yaml
from pml_nivmf.experiments.errors import ConfigError
from pml_nivmf.experiments.sweeps import space as search_space

from ..data import fakes

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
MERGES = "a0: &a0 {x0: 1, y0: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}], x{i}: 1}}\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LAUGHS, "with its aliases written out it holds more than 20,000 entries"),
        (MERGES, "with its aliases written out it holds more than 20,000 entries"),
        ("loss: &a {b: *a}", r"the alias \*a refers to nothing before it, or to what it is in"),
        ("loss: *nothing", r"the alias \*nothing refers to nothing before it"),
        ("loss: " + "[" * 100_000, "nested deeper than 30 levels"),
        ("a: {" * 31, "nested deeper than 30 levels"),
        ("description: " + "x" * 2_000_000, "larger than 1,000,000 bytes"),
        ("general: {epochs: " + "9" * 10_000 + "}", "not YAML that can be read"),
        ("loss: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("loss: !!python/name:os.system", "could not determine a constructor"),
        ("\0", "not YAML that can be read"),
    ],
    ids=["laughs", "merges", "itself", "nothing", "lists", "mappings", "large", "digits", "apply", "name", "zero"],
)
def test_yaml_that_is_refused(tmp_path, text, reason):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=reason):
        compose(str(tmp_path / "bad.yaml"))


def test_aliases_as_people_use_them():
    text = "a: &a {x: 1, y: [2, 3]}\nb: *a\nc: {<<: *a, y: 4}\n"
    assert parse_yaml(text) == {"a": {"x": 1, "y": [2, 3]}, "b": {"x": 1, "y": [2, 3]}, "c": {"x": 1, "y": 4}}


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no endless file here")
def test_endless_file_is_refused():
    with pytest.raises(ConfigError, match="larger than 1,000,000 bytes"):
        load(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("general.run_dir=${oc.env:HOME}", r"only \$\{key\.of\.a\.value\} is known"),
        ("general.run_dir=${oc.env:HOME,x}", "is refused"),
        ("general.run_dir=a${oc.decode:1}", "is refused"),
        ("general.run_dir=${general.${general.device}}", "is refused"),
        ("general.run_dir=${.device}", "is refused"),
        ("general.run_dir=\\${general.device}${", "is refused"),
        ("dataset={Glyphs: {cache_dir: '${oc.env:HOME}'}}", "is refused"),
        ("evaluation.metrics=['${oc.env:HOME}']", "is refused"),
        ("loss={ProxyAnchorLoss: {margin: '${general}'}}", r"\$\{general\} must refer to a plain value"),
        ("general.run_dir=${general.run_dir}", r"\$\{general\.run_dir\} must refer to a plain value"),
        ("general.run_dir=" + "${general.device}" * 101, "101 references"),
        ("general.epochs=???", "stands for a missing value"),
        ("model.embedding_size=1000000000", "model.embedding_size is 1e.09, which is beyond reason"),
        ("model.embedding_size=1000000", "model.embedding_size must be at most 65536"),
        ("general.batch_size=99999999", "general.batch_size must be at most"),
        ("evaluation.batch_size=99999999", "evaluation.batch_size must be at most"),
        ("general.epochs=99999999", "general.epochs must be at most"),
        ("general.num_workers=99999999", "general.num_workers must be at most"),
        ("general.threads=99999999", "general.threads must be at most"),
        ("general.seed=99999999999999999999", "beyond reason"),
        ("model.embedding_size=.inf", "model.embedding_size"),
        ("loss={NonIsotropicVMFLoss: {n_samples: 1000000000000}}", "beyond reason"),
        ("model={trunk: {ConvNet: {width: 1000000000000}}}", "beyond reason"),
    ],
)
def test_values_that_are_refused(override, reason, monkeypatch):
    monkeypatch.setenv("HOME", "/secret")
    with pytest.raises(ConfigError, match=reason) as caught:
        compose("glyphs", [override])
    assert "secret" not in str(caught.value)


def test_references_to_values_are_followed():
    config = compose("glyphs", ["schedule=cosine", "general.epochs=7", "general.run_dir=x-${general.seed}"]).config
    assert config.schedule.scheduler.CosineAnnealingLR.T_max == 7
    assert config.general.run_dir == "x-0"
    assert compose("glyphs", [f"general.seed={2**40}"]).config.general.seed == 2**40


def test_grids_and_seeds_beyond_reason(tmp_path):
    space = {f"p{i}": search_space.Parameter(f"p{i}", "choice", tuple(range(10))) for i in range(12)}
    with pytest.raises(ConfigError, match="1,000,000,000,000 combinations"):
        search_space.combinations(space)
    (tmp_path / "many.yaml").write_text("seeds: 1000000000\n")
    with pytest.raises(ConfigError, match="seeds must be at most 1000"):
        compose(str(tmp_path / "many.yaml"))


def test_names_that_lead_out_of_the_run_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("..yaml", "...yaml"):  # whose stems are . and ..
        (tmp_path / name).write_text("ProxyAnchorLoss: {}\n")
        with pytest.raises(ConfigError, match="rename it"):
            compose(name)
        with pytest.raises(ConfigError, match="rename it"):
            compose("glyphs", [f"loss={name}"])
    with pytest.raises(ConfigError, match="which paths cannot be part of"):
        compare.plan("glyphs", ["proxy_nca"], 1, [], tmp_path, vary="loss.ProxyNCALoss.softmax_scale=../../x,1")


# checkpoints ----------------------------------------------------------------------------------------------------


class _Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("untrusted")
    fakes.features(folder / "features.npz")
    (folder / "tiny.yaml").write_text(
        f"""
groups: {{model: features}}
dataset: {{FeatureArrays: {{npz: {folder / "features.npz"}}}}}
model: {{embedding_size: 16}}
evaluation: {{metrics: [mean_average_precision_at_r], recall_at: [1]}}
general: {{epochs: 2, batch_size: 8, device: cpu}}
"""
    )
    run.start(compose(str(folder / "tiny.yaml")).config, folder / "run")
    return folder / "run"


@pytest.fixture
def unfinished(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "summary.json").unlink()
    return folder


def tampered(folder, **changes):
    for path in (folder / "checkpoints").iterdir():
        state = torch.load(path, weights_only=True)
        torch.save(state | changes, path)


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_pickles_in_checkpoints_do_not_run(unfinished, tmp_path, save):
    sign = tmp_path / "it-ran"
    for path in (unfinished / "checkpoints").iterdir():
        save({"epoch": _Payload(sign)}, path)
    with pytest.warns(UserWarning, match="cannot be read"):
        run.resume(unfinished)  # from the beginning
    assert not sign.exists()


@pytest.mark.parametrize("content", ["pickle", "half", "nothing", "foreign"])
def test_best_weights_that_cannot_be_read(unfinished, tmp_path, content, capsys):
    best, sign = unfinished / "best.pt", tmp_path / "it-ran"
    if content == "pickle":
        torch.save({"trunk": _Payload(sign)}, best)
    elif content == "half":
        best.write_bytes(best.read_bytes()[:2000])
    elif content == "foreign":
        torch.save({"trunk": {}, "embedder": {"weight": torch.ones(3)}, "loss": {}}, best)
    else:
        best.unlink()
    assert cli.main(["run", "--resume", str(unfinished)]) == 2
    assert str(best) in capsys.readouterr().err
    assert not sign.exists()
    assert not (unfinished / "summary.json").exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": LAUGHS}, "more than 20,000 entries"),
        ({"config": "general: {run_dir: '${oc.env:HOME}'}"}, "is refused"),
        ({"config": "nonsense: 1"}, "unknown key 'nonsense'"),
        ({"embedder": {}}, "does not fit the configuration of its run"),
        ({"optimizers": {}}, "does not fit the configuration of its run"),
        ({"rng": {"torch": 1}}, "does not fit the configuration of its run"),
        ({"progress": {"histories": []}}, "does not fit the configuration of its run"),
        ({"progress": {"history": [{"a); ATTACH DATABASE 'x' AS y; --": 1.0}]}}, "which is no metric"),
        (
            {"sampler": {"labels": torch.zeros(1, dtype=torch.long).expand(10**11)}},
            r"shape \(100000000000,\), expected",
        ),
        ({"epoch": -(10**9)}, "it is of epoch -1000000000, but its history has 2"),
        ({"epoch": "1"}, "it is of epoch '1', but its history has 2"),
    ],
    ids=[
        *("laughs", "resolver", "config", "weights", "optimizers", "generators", "progress", "column"),
        *("sampler", "epoch", "text"),
    ],
)
def test_checkpoints_with_something_else_in_them(unfinished, changes, reason):
    tampered(unfinished, **changes)
    with pytest.raises(ConfigError, match=reason):
        run.resume(unfinished)


def test_checkpoints_that_unpack_to_more_than_they_are_are_not_unpacked(unfinished):
    path = sorted((unfinished / "checkpoints").iterdir())[-1]
    torch.save(torch.load(path, weights_only=True) | {"more": torch.zeros(10**6)}, path)
    with zipfile.ZipFile(path) as plain:
        entries = {entry: plain.read(entry) for entry in plain.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for entry, content in entries.items():
            packed.writestr(entry, content)
    torch.load(path, weights_only=True)  # torch does
    with pytest.warns(UserWarning, match=f"{path.name} cannot be read"):
        run.resume(unfinished)  # from the one before


@pytest.mark.parametrize("name", ["records", "tensorboard", "checkpoints"])
def test_links_out_of_a_run_folder_are_refused(unfinished, tmp_path, name):
    shutil.rmtree(unfinished / name)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "epoch-00001.pt").write_text("another's")
    (unfinished / name).symlink_to(tmp_path / "elsewhere")
    config = load_saved(unfinished / "config.yaml")
    for go in (lambda: run.resume(unfinished), lambda: run.start(config, unfinished, overwrite=True)):
        with pytest.raises(ConfigError, match=f"{name} is a link out of the run folder"):
            go()
    assert [path.read_text() for path in (tmp_path / "elsewhere").iterdir()] == ["another's"]


def test_a_link_as_lock_does_not_empty_what_it_leads_to(unfinished, tmp_path):
    (tmp_path / "precious").write_text("kept")
    (unfinished / ".lock").unlink()
    (unfinished / ".lock").symlink_to(tmp_path / "precious")
    config = load_saved(unfinished / "config.yaml")
    for go in (lambda: run.resume(unfinished), lambda: run.start(config, unfinished, overwrite=True)):
        with pytest.raises(ConfigError, match=r"\.lock is a link, which is not followed: remove it"):
            go()
    assert (tmp_path / "precious").read_text() == "kept"
