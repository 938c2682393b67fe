"""Configurations and checkpoints run no code and do not read the environment."""

import pickle

import pytest
import torch

from pml_nivmf.experiments import checkpoint
from pml_nivmf.experiments.config import ConfigError, compose, parse_saved

RESOLVERS = ["'${oc.env:HOME}'", "'${${general.device}:HOME}'", "'${general.${oc.env:HOME}}'", '"\\x24{oc.env:HOME}"']


@pytest.mark.parametrize("text", ["!!python/object/apply:os.system [ls]", "!!python/name:os.system"])
def test_yaml_makes_no_objects(tmp_path, text):
    (tmp_path / "bad.yaml").write_text(f"loss: {text}")
    with pytest.raises(ConfigError, match="could not determine a constructor"):
        compose(str(tmp_path / "bad.yaml"))


@pytest.mark.parametrize("value", RESOLVERS)
@pytest.mark.parametrize("key", ["general.run_dir={}", "evaluation.metrics=[{}]", "dataset={{Glyphs: {{root: {}}}}}"])
def test_resolvers_do_not_run(key, value):
    with pytest.raises(ConfigError, match="only references to other values"):
        compose("glyphs", [key.format(value)])
    with pytest.raises(ConfigError, match="the checkpoint: only references to other values"):
        parse_saved(f"general: {{run_dir: {value}}}", "the checkpoint")


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_pickles_in_checkpoints_do_not_run(tmp_path, save):
    save({"epoch": Payload(tmp_path / "it-ran")}, tmp_path / checkpoint.NEWEST)
    with pytest.raises(ValueError, match="cannot be read"):
        checkpoint.load(tmp_path)
    assert not (tmp_path / "it-ran").exists()
