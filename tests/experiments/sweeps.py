"""Sweep sections, and trainings that take no time."""

import math

from pml_nivmf.experiments import search_space, sweep

SWEEP = """
sweep:
  trials: 6
  pruner: none
  space:
    optimizers.proxy_lr: {log_uniform: [0.001, 1.0]}
    general.epochs: {int: [1, 3]}
    schedule: {choice: [default, cosine]}
    loss.ProxyAnchorLoss.alpha: {uniform: [8, 64]}
"""
GRID = """
sweep:
  sampler: grid
  space:
    optimizers.proxy_lr: {choice: [0.01, 0.1]}
    loss.ProxyAnchorLoss.alpha: {choice: [16, 32]}
    schedule.scheduler: {choice: [{}, {CosineAnnealingLR: {T_max: 3}}]}
"""
COMBINATIONS = [(lr, alpha, n) for lr in (0.01, 0.1) for alpha in (16, 32) for n in (0, 1)]  # of the grid


class Trainings:
    """Replaces `run.start` by a score that follows from the configuration, and lists the configurations."""

    def __init__(self):
        self.configs = []
        self.score = lambda config: -abs(math.log10(config.optimizers.proxy_lr) + 1)

    def __call__(self, config, folder, overwrite, trial):
        self.configs.append(config)
        status, score = "finished", self.score(config)
        for epoch in range(1, config.general.epochs + 1):
            if trial({"epoch": epoch, f"validation_{config.evaluation.select}": score}):
                status = "pruned"
                break
        return {"status": status, "validation_score": score}

    def grid(self):
        settings = [(c.optimizers.proxy_lr, c.loss.ProxyAnchorLoss.alpha, c.schedule.scheduler) for c in self.configs]
        return sorted((lr, alpha, len(scheduler)) for lr, alpha, scheduler in settings)


def search(experiment, folder, losses=("proxy_anchor",), trials=None, storage=None, overrides=()):
    plans = search_space.plan(experiment, losses, overrides, trials)
    return sweep.run_searches(plans, folder, storage or f"sqlite:///{folder / 'study.db'}", False, 1)


def parameters(result):
    return [trial.params for trial in result.trials]
