"""The compiled logistic factor, as vector instructions over scores."""

from typing import NamedTuple

from ..compiled.scalars import exp, log


class CompiledLogistic(NamedTuple):
    def log_factor(self, score, y):
        return -max(0.0, -y * score) - log(1.0 + exp(max(-abs(score), -700.0)))
