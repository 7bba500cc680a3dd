"""The posterior of a model of state sequences: decoding, smoothing, filtering, prediction and simulation.

A draw g has rows of expected transition probabilities, with a last column for all new states together, and the
parameters of each state. The new states emit from the prior predictive and are left by the base weights beta. New
sequences do not change a draw (docs/derivations/sequences, "Decoding").
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...models.arrays import like, tensor_of
from ...models.base import Model
from ...models.domains import SEED, Whole, read
from ...models.host import require_room
from ...models.sequence import Sequences
from ..markov import paths as markov
from ..structures import Structure, register_structure
from .base import Posterior
from .clustering import Clustering, clustering_summaries
from .components import (
    component_size,
    counts_hyperplanes,
    draw_parameters,
    hyperplane_gain,
    log_component_density,
    log_unseen_density,
)
from .draws import SequenceDraw
from .emission_draws import draw_paths, draw_rows
from .new_data import NewData, by_draw, number_of_rows, read_totals, stream
from .stacking import stacks


class SequencePosterior(Clustering, Posterior):
    """A fitted model of state sequences.

    `samples` holds S draws: as in `PartitionPosterior`, with states for components, and `log_start` [S, K + 1] and
    `log_transitions` [S, K, K + 1], the last column for all new states. `SequenceDraw` has all names.

    Methods take sequences as `fit` does: rows X [N, D] one sequence after another with their `lengths`; NaN rows are
    missing. Methods for states use the representative draw (see `partition`), which in a truncated model may also have
    states without training steps; `discriminative` says whether its hyperplanes count as well as its likelihood (None:
    only if states repel).
    """

    record = SequenceDraw

    def assign(self, X: Any, lengths: Any = None, *, discriminative: bool | None = None) -> Any:
        """The most probable path [N] of states 0..K-1 (Viterbi); after small variance, that of least objective."""
        chain, sizes = self._chain(X, lengths, self.representative, discriminative=discriminative)
        if "log_edges" in self.samples:
            edges = self.samples["log_edges"][self.representative][:, :-1]
            chain = edges[-1], edges[:-1], chain[2]
        return like(markov.viterbi(*chain, sizes)[0], X)

    def smooth(self, X: Any, lengths: Any = None, *, discriminative: bool | None = None) -> Any:
        """p(z_t = k | the whole sequence) [N, K]."""
        chain, sizes = self._chain(X, lengths, self.representative, discriminative=discriminative)
        return like(markov.smooth(*chain, sizes).marginals, X)

    def filter(self, X: Any, lengths: Any = None, *, discriminative: bool | None = None) -> Any:
        """p(z_t = k | the sequence up to t) [N, K]."""
        chain, sizes = self._chain(X, lengths, self.representative, discriminative=discriminative)
        return like(markov.filter_states(*chain, sizes)[0], X)

    def predict_state(self, X: Any, lengths: Any = None, *, discriminative: bool | None = None) -> Any:
        """p(the state after the last step) [B, K + 1] of each of B sequences; the last column is a new state."""
        chain, sizes = self._chain(X, lengths, self.representative, discriminative=discriminative)
        last = torch.tensor(sizes, device=chain[0].device).cumsum(0) - 1
        filtered = markov.filter_states(*chain, sizes)[0][last]
        return like(filtered @ self.samples["log_transitions"][self.representative].exp(), X)

    def log_predictive_density(self, X: Any, lengths: Any = None) -> Any:
        """log of the mean over the draws of p(x_1, ..., x_T) [B] of new sequences, states summed out.

        Margin factors do not count. A model with `lags` L takes the first L rows of every sequence as given.
        """
        found = tensor_of(self.log_likelihood(X, lengths=lengths))
        return like(found.logsumexp(0) - math.log(len(found)), X)

    def log_likelihood(self, X: Any, *, lengths: Any = None) -> Any:
        """log p(x_1, ..., x_T | draw) [S, B] of sequences under each draw, as in `log_predictive_density`."""
        if "centers" in self.samples:
            raise NotImplementedError(_NO_DENSITY)
        log_densities = []
        for index in range(len(self.samples["weights"])):
            chain, sizes = self._chain(X, lengths, index, discriminative=False, unseen=True)
            log_densities.append(markov.filter_states(*chain, sizes)[1])
        return like(torch.stack(log_densities), X)

    def sample(
        self, num_steps: int, *, num_sequences: int = 1, totals: Any = None, generator: torch.Generator | None = None
    ) -> NewData:
        """Independent new sequences of `num_steps` each, one after another in X [N, D], with their states.

        A sequence has a draw g at random and follows its expected transitions; all states not yet seen are one further
        state. The parameters of each state are drawn anew for every sequence. Margin factors do not count.
        `assignments` are states 0..K-1 of the representative draw; K stands for all others. To continue given rows, and
        with `lags`, use `simulate`.

        Parameters
        ----------
        totals : of counts whose total is given, as of `MultinomialDirichlet`, one or [N]
        generator : on the device of the posterior; None: a new one of seed 0

        Raises
        ------
        NotImplementedError    of small-variance centres, which have no density, and of models with `lags`.
        """
        model, log_mixture = self.model, self.samples["log_mixture"]
        if "centers" in self.samples or model.lags:
            why = "Sequences with lags go on from rows: use simulate(given=...)." if model.lags else _NO_DENSITY
            raise NotImplementedError(why)
        steps = read("num_steps", num_steps, Whole(1))
        number = number_of_rows("num_sequences", num_sequences, steps * model.num_features, log_mixture)
        own_stream = stream(generator, log_mixture)
        sums = read_totals(totals, model.likelihood.given_totals, number * steps, log_mixture)
        draws, found = torch.randint(len(log_mixture), (number,), generator=own_stream, device=log_mixture.device), []
        for g, which in by_draw(draws):
            draw, rows = self.draw(g), (which.unsqueeze(1) * steps + torch.arange(steps, device=which.device)).flatten()
            moves = torch.cat([draw["log_transitions"], draw.get("log_unseen_row", draw["log_start"]).unsqueeze(0)])
            paths = draw_paths(draw["log_start"].expand(len(which), -1), moves, steps, own_stream)
            pairs, own = (paths + len(moves) * torch.arange(len(which), device=paths.device)[:, None]).unique(
                return_inverse=True
            )
            parameters = draw_parameters(model, draw, pairs % len(moves), own_stream)
            rows_of = {name: value[own.flatten()] for name, value in parameters.items()}
            X = model.likelihood.draw_rows(rows_of, own_stream, None if sums is None else sums[rows])
            found.append((rows, X, self.labels_of(draw)[paths.flatten()]))
        rows, X, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
        order = rows.argsort()
        return NewData(X[order], None, labels[order])

    def simulate(self, num_steps: int, *, num_sequences: int = 1, seed: int = 0, given: Any = None) -> tuple[Any, Any]:
        """(X [N, D], states [N]) of new sequences of `num_steps` each, from the representative draw.

        Parameters of its family are drawn for every state, once for all sequences; transitions have their expected
        probabilities. States not yet seen are not visited, and hyperplanes do not simulate.

        Parameters
        ----------
        given : rows [M, D] of a sequence that the new ones continue; None: they start as sequences do, which a model
            with `lags` does not describe
        """
        num_steps, num_sequences = (
            read("num_steps", num_steps, Whole(1)),
            read("num_sequences", num_sequences, Whole(1)),
        )
        seed = read("seed", seed, SEED)
        if "centers" in self.samples:
            raise NotImplementedError("Small-variance centres do not simulate. Fit with Gibbs or SVI.")
        draw, likelihood = self.representative, self.model.likelihood
        held = num_steps * (_TENSOR + 8 * num_sequences * (1 + self.model.num_features))
        sizes = {"num_steps": num_steps, "num_sequences": num_sequences}
        largest = max(sizes, key=lambda name: sizes[name])
        require_room(largest, sizes[largest], held, self.samples["log_start"].device)
        start, log_rows, chi = (
            self.samples[name][draw] for name in ("log_start", "log_transitions", "hyperparameters")
        )
        if given is not None:
            start = tensor_of(self.predict_state(given)).to(chi)[0].log()
        generator = torch.Generator(chi.device).manual_seed(seed)
        parameters = likelihood.draw(chi.contiguous(), generator)
        paths = draw_paths(start[:-1].expand(num_sequences, -1), log_rows[:, :-1], num_steps, generator)
        X, states = draw_rows(self.model, parameters, paths, given, generator), paths.flatten()
        return (X, states) if given is None else (like(X, given), like(states, given))

    def rehearse(self) -> None:
        draw = self.draw(0)
        rows = draw["log_mixture"].new_zeros(0, self.model.num_features * (1 + self.model.lags))
        log_component_density(self.model, rows, draw)
        log_unseen_density(self.model, rows, draw)
        if counts_hyperplanes(self.model, None):
            hyperplane_gain(self.model, rows, draw)

    def _chain(
        self, X: Any, lengths: Any, index: int, *, discriminative: bool | None, unseen: bool = False
    ) -> tuple[tuple[Tensor, Tensor, Tensor], list[int]]:
        """(log start [K], log transitions [K, K], log emissions [N, K]) of one draw, and the lengths of the sequences.

        Padding states cannot be entered. With `unseen` there is one more state, for all new states.
        """
        draw = self.draw(index)
        rows, sizes, observed = self.model.rows(X, lengths, min_rows=0, like=draw["log_mixture"])
        log_start, log_rows = draw["log_start"], draw["log_transitions"]
        emission = log_component_density(self.model, rows, draw)
        if unseen:
            # draws without such a row never reach a new state
            own_row = draw.get("log_unseen_row", log_start)
            log_rows = torch.cat([log_rows, own_row.unsqueeze(0)])
            emission = torch.cat([emission, log_unseen_density(self.model, rows, draw)], 1)
        else:
            log_start, log_rows = log_start[:-1], log_rows[:, :-1]
        if counts_hyperplanes(self.model, discriminative):
            emission = emission + hyperplane_gain(self.model, rows, draw)
        return (log_start, log_rows, torch.where(observed.unsqueeze(1), emission, 0.0)), sizes


_NO_DENSITY = "Small-variance centres have no density. Fit with Gibbs or SVI."
_TENSOR = 200  # least number of bytes of a tensor besides its values


def _state_size(model: Model, data: Sequences, number: int) -> int:
    """The numbers of hyperparameters and transitions."""
    return number * (component_size(model, data.X) + number)


register_structure(
    Structure(
        "sequence",
        Sequences,
        SequencePosterior,
        stacks(SequenceDraw),
        clustering_summaries,
        _state_size,
    )
)
