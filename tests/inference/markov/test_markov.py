"""Recursions over hidden state paths: against all paths one by one, and compiled against tensor code."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from chains_of_states import LENGTHS, TABLES, chain
from torch import Tensor

from regbayes.inference.markov.paths import filter_states, sample_paths, smooth, viterbi
from regbayes.models.markov import log_normalizers

SLICES = torch.tensor([-4.5, -1.0, -4.5, -2.0, -5.0, -4.5, -4.5, 0.0], dtype=torch.float64)
BOTH = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "tensors"])


def allowed(tables: tuple[Tensor, ...], log_slices: Tensor, t: int) -> tuple[Tensor, Tensor]:
    """Log weights of starts and steps into row t of the beam sampler: 0, or -inf."""
    start, transition = ((table > log_slices[t]).double().log() for table in tables[:2])
    return start, transition


def all_paths(
    tables: tuple[Tensor, ...], lengths: list[int], log_slices: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Of each sequence all paths [K^length, length] and their log weights [K^length], term by term."""
    start, transition, emission = tables
    result, first = [], 0
    for length in lengths:
        paths = torch.tensor(list(itertools.product(range(len(start)), repeat=length)))
        weights = torch.zeros(len(paths), dtype=torch.float64)
        for t in range(length):
            row = first + t
            initial, step = (start, transition) if log_slices is None else allowed(tables, log_slices, row)
            weights += emission[row, paths[:, t]]
            weights += initial[paths[:, 0]] if t == 0 else step[paths[:, t - 1], paths[:, t]]
        result.append((paths, weights))
        first += length
    return result


def expectations(found: list[tuple[Tensor, Tensor]], K: int) -> tuple[Tensor, Tensor, Tensor]:
    """Marginals [N, K], expected starts [K] and moves [K, K]."""
    marginals, starts, moves = [], torch.zeros(K, dtype=torch.float64), torch.zeros(K * K, dtype=torch.float64)
    for paths, weights in found:
        p = weights.softmax(0)
        rows = torch.zeros(paths.shape[1], K, dtype=torch.float64)
        marginals.append(rows.scatter_add_(1, paths.T, p.expand(paths.shape[1], -1)))
        starts += marginals[-1][0]
        for before, after in itertools.pairwise(paths.T):
            moves.index_add_(0, before * K + after, p)
    return torch.cat(marginals), starts, moves.view(K, K)


# -- against all paths -------------------------------------------------------------------------------------------------


@TABLES
def test_log_normalizers_sum_over_all_paths(kind, device):
    tables = chain(kind)
    exact = torch.stack([weights.logsumexp(0) for _, weights in all_paths(tables, LENGTHS)])
    found = log_normalizers(*(table.to(device) for table in tables), LENGTHS)
    torch.testing.assert_close(found.cpu(), exact, rtol=1e-13, atol=1e-12)


@BOTH
@TABLES
def test_smoothing_is_the_expectation_over_all_paths(kind, compiled):
    tables = chain(kind)
    found = all_paths(tables, LENGTHS)
    smoothed = smooth(*tables, LENGTHS, compiled=compiled)
    exact = *expectations(found, 3), torch.stack([weights.logsumexp(0) for _, weights in found])
    for value, expected in zip(smoothed, exact, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-10)


@BOTH
@TABLES
def test_filtering_is_smoothing_of_what_came_before(kind, compiled):
    tables = chain(kind)
    filtered, log_weights = filter_states(*tables, LENGTHS, compiled=compiled)
    first = 0
    for b, length in enumerate(LENGTHS):
        for t in range(1, length + 1):
            part = *tables[:2], tables[2][first : first + t]
            ((paths, weights),) = all_paths(part, [t])
            torch.testing.assert_close(
                filtered[first + t - 1], expectations([(paths, weights)], 3)[0][-1], rtol=1e-11, atol=1e-10
            )
        torch.testing.assert_close(log_weights[b], weights.logsumexp(0), rtol=1e-13, atol=1e-12)
        first += length


@BOTH
@TABLES
def test_viterbi_finds_the_largest_weight(kind, compiled):
    tables = chain(kind)
    best, scores = viterbi(*tables, LENGTHS, compiled=compiled)
    for path, score, (paths, weights) in zip(best.split(LENGTHS), scores, all_paths(tables, LENGTHS), strict=True):
        assert path.tolist() == paths[weights.argmax()].tolist()
        torch.testing.assert_close(score, weights.max(), rtol=1e-13, atol=1e-12)


@BOTH
@pytest.mark.parametrize("sliced", [False, True], ids=["", "slices"])
@pytest.mark.parametrize("kind", ["dense", "banned", "dead end", "huge"])
def test_paths_are_drawn_with_their_weights(kind, sliced, compiled):
    """Many copies of each sequence, so that one call draws them all."""
    num_copies, tables, generator = 5_000, chain(kind, lengths=[4, 1, 3]), torch.Generator().manual_seed(1)
    log_slices = (SLICES + 800 * (kind == "huge")) if sliced else None
    rows = torch.cat([part.repeat(num_copies) for part in torch.arange(8).split([4, 1, 3])])
    lengths = [4] * num_copies + [1] * num_copies + [3] * num_copies
    uniforms = torch.rand(len(rows), generator=generator, dtype=torch.float64)
    states = sample_paths(
        *tables[:2],
        tables[2][rows],
        lengths,
        uniforms,
        None if log_slices is None else log_slices[rows],
        compiled=compiled,
    )
    found = all_paths(tables, [4, 1, 3], log_slices)
    if sliced and kind in ("dense", "banned"):  # slices forbid some paths of every longer sequence, and leave some
        assert all(1 < (weights > -math.inf).sum() < len(weights) or len(weights) == 3 for _, weights in found)
    for block, (paths, weights) in zip(states.split([4 * num_copies, num_copies, 3 * num_copies]), found, strict=True):
        length, p = paths.shape[1], weights.softmax(0)
        code = (block.view(-1, length) * 3 ** torch.arange(length - 1, -1, -1)).sum(1)
        shares = code.bincount(minlength=3**length) / num_copies
        assert ((shares - p).abs() <= 5 * (p * (1 - p) / num_copies).sqrt()).all()


# -- identities --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "banned"])
def test_gradients_of_the_normalizers_are_expectations(kind, device):
    """Forbidden steps have none and leave none to the others."""
    tables = [table.to(device).requires_grad_() for table in chain(kind, lengths=[6, 1, 9, 2])]
    gradients = torch.autograd.grad(log_normalizers(*tables, [6, 1, 9, 2]).sum(), tables)
    smoothed = smooth(*tables, [6, 1, 9, 2])
    for gradient, expected in zip(gradients, (smoothed.starts, smoothed.transitions, smoothed.marginals), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-11, atol=1e-11)


@BOTH
def test_first_uniforms_choose_the_first_state_and_the_last_the_last(compiled):
    tables = chain(lengths=[1])
    tables[0][1] = -math.inf
    tables[2][0, 0] = -math.inf  # only the last state is left
    for uniform in (0.0, 0.5, 1.0):
        uniforms = torch.tensor([uniform], dtype=torch.float64)
        assert sample_paths(*tables, [1], uniforms, compiled=compiled).tolist() == [2]


# -- compiled against tensor code --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0, 3000.0])
@pytest.mark.parametrize("kind", ["dense", "steep", "banned"])
def test_compiled_and_tensor_code_agree_where_probabilities_are_tiny(kind, scale):
    """Emissions and transitions e^-scale apart; with banned steps a vanished state may be the only one that goes on."""
    lengths, K = [300, 1, 40, 2, 150, 9], 6
    start, transition, emission = chain(lengths=lengths, K=K, seed=3)
    emission = scale * emission
    if kind == "steep":
        transition = scale * transition
    elif kind == "banned":
        transition[torch.rand(K, K, generator=torch.Generator().manual_seed(1)) < 0.5] = -math.inf
        transition.fill_diagonal_(-1.0)
    tables = start, transition, emission
    exact, found = (smooth(*tables, lengths, compiled=compiled) for compiled in (False, True))
    torch.testing.assert_close(tuple(found), tuple(exact), rtol=1e-10, atol=1e-9)
    torch.testing.assert_close(found.log_normalizers, log_normalizers(*tables, lengths), rtol=1e-12, atol=1e-10)
    for function in (filter_states, viterbi):
        exact, found = (function(*tables, lengths, compiled=compiled) for compiled in (False, True))
        torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-10)
    uniforms = torch.rand(len(emission), generator=torch.Generator().manual_seed(2))
    for slices in (None, torch.full((len(emission),), -2.0, dtype=torch.float64)):
        drawn = [sample_paths(*tables, lengths, uniforms, slices, compiled=compiled) for compiled in (False, True)]
        assert torch.equal(*drawn)
        own = start, transition, emission.clone()
        assert torch.equal(sample_paths(*own, lengths, uniforms, slices, in_place=True), drawn[0])


def test_numpy_set_to_raise_is_not_hit_by_tiny_probabilities():
    lengths = [30, 1, 20]
    start, transition, emission = chain(lengths=lengths)
    with np.errstate(all="raise"):
        for scale in (30.0, 300.0, 3000.0):
            tables = scale * start, scale * transition, scale * emission
            smooth(*tables, lengths, compiled=True)
            filter_states(*tables, lengths, compiled=True)
            sample_paths(*tables, lengths, torch.full((51,), 0.5), compiled=True)


@pytest.mark.parametrize("K", [7, 8, 9, 16])
def test_compiled_and_tensor_code_agree_for_any_number_of_states(K):
    """Compiled code takes states in groups of eight."""
    tables, lengths = chain(lengths=[130, 1, 70], K=K, seed=K), [130, 1, 70]
    exact, found = (smooth(*tables, lengths, compiled=compiled) for compiled in (False, True))
    torch.testing.assert_close(tuple(found), tuple(exact), rtol=1e-11, atol=1e-11)


@BOTH
def test_a_rare_state_counts_after_a_row_that_all_states_explain_badly(compiled):
    """The path is (first, second, third), though the fourth state, which is out of reach, explains the second row."""
    off = -math.inf
    steps = [[0.0, -195.0, off, off], [off, 0.0, -195.0, off], [off, off, 0.0, off], [off, off, off, 0.0]]
    start = torch.tensor([0.0, off, off, off], dtype=torch.float64)
    emission = torch.tensor([[0.0] * 4, [-210.0, -500.0, -500.0, 0.0], [off, off, 0.0, off]], dtype=torch.float64)
    smoothed = smooth(start, torch.tensor(steps, dtype=torch.float64), emission, [3], compiled=compiled)
    exact = torch.tensor([-195.0 - 500.0 - 195.0], dtype=torch.float64)
    torch.testing.assert_close(smoothed.log_normalizers, exact)
    assert smoothed.marginals.argmax(1).tolist() == [0, 1, 2]


@BOTH
def test_a_state_out_of_reach_takes_over_step_by_step(compiled):
    """Each row explains the second state e^20 times as well, and the step there has weight e^-1000."""
    start = torch.tensor([0.0, -math.inf], dtype=torch.float64)
    steps = torch.tensor([[0.0, -1000.0], [-math.inf, 0.0]], dtype=torch.float64)
    emission = torch.tensor([-20.0, 0.0], dtype=torch.float64).repeat(100, 1)
    smoothed = smooth(start, steps, emission, [100], compiled=compiled)
    log_weights = torch.cat([-1000.0 - 20.0 * torch.arange(1, 100), torch.tensor([-2000.0])]).double()
    torch.testing.assert_close(smoothed.log_normalizers, log_weights.logsumexp(0, keepdim=True))
    exact = torch.cat([torch.zeros(1), log_weights.softmax(0)[:-1].cumsum(0)]).double()
    torch.testing.assert_close(smoothed.marginals[:, 1], exact, rtol=1e-9, atol=1e-12)


@BOTH
def test_a_rare_step_among_many_likely_ones_has_its_weight(compiled):
    """At any of 466 times; the sum of the weights is 4e-316, which a double holds to eight digits."""
    off, likely, rare = -math.inf, math.log(0.5), -410.0
    steps = torch.tensor([[likely, rare, off], [off, likely, off], [off, off, 0.0]], dtype=torch.float64)
    start, emission = torch.tensor([0.0, off, off], dtype=torch.float64), torch.zeros(467, 3, dtype=torch.float64)
    emission[-1, 0], emission[:, 2] = off, -50.0  # nothing is in the third state, whose steps are the likeliest
    log_weights = filter_states(start, steps, emission, [467], compiled=compiled)[1]
    exact = torch.tensor([465 * likely + rare + math.log(466)], dtype=torch.float64)
    torch.testing.assert_close(log_weights, exact, rtol=1e-13, atol=0)


@BOTH
@pytest.mark.parametrize("gap", [100.0, 480.0, 520.0, 1000.0, 1e4])
def test_a_vanished_state_may_be_all_that_counts_later(gap, compiled):
    """Two states that are never left: first one is e^-gap times as likely, then it is e^gap2 times as likely."""
    stay = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]], dtype=torch.float64)
    start, lengths = torch.full((2,), math.log(0.5), dtype=torch.float64), [3, 3]
    rows = [[0.0, -gap], [0.0, 0.0], [-gap - 2.0, 0.0], [0.0, -gap], [0.0, 0.0], [-gap + 2.0, 0.0]]
    emission = torch.tensor(rows, dtype=torch.float64)
    smoothed = smooth(start, stay, emission, lengths, compiled=compiled)
    p = 1 / (1 + math.exp(-2.0))
    exact = torch.tensor([[1 - p, p], [p, 1 - p]], dtype=torch.float64).repeat_interleave(3, 0)
    torch.testing.assert_close(smoothed.marginals, exact, rtol=1e-9, atol=1e-9)
    for uniform in (0.05, 0.95):
        uniforms = torch.full((6,), uniform, dtype=torch.float64)
        states = sample_paths(start, stay, emission, lengths, uniforms, compiled=compiled)
        assert states.tolist() == [int(uniform > 1 - p)] * 3 + [int(uniform > p)] * 3
    slices = torch.full((6,), -1.0, dtype=torch.float64)
    assert sample_paths(start, stay, emission, lengths, uniforms, slices, compiled=compiled).tolist() == [1] * 6


@BOTH
def test_a_step_too_rare_for_a_double_is_taken_where_nothing_else_explains_the_data(compiled):
    """Where both states explain the second row, the step is as likely before as after it."""
    rare = torch.tensor([[0.0, -1000.0], [-1000.0, 0.0]], dtype=torch.float64)
    start, emission = torch.zeros(2, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    emission[0, 1] = emission[2, 0] = -5000.0
    smoothed = smooth(start, rare, emission, [3], compiled=compiled)
    torch.testing.assert_close(smoothed.marginals, torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]).double())
    torch.testing.assert_close(smoothed.transitions, torch.tensor([[0.5, 1.0], [0.0, 0.5]], dtype=torch.float64))
    torch.testing.assert_close(smoothed.log_normalizers, torch.tensor([math.log(2) - 1000.0], dtype=torch.float64))


@BOTH
def test_states_far_better_but_out_of_reach_do_not_count(compiled):
    """The only state that can be reached has e^-10000 of the largest emission."""
    start, transition, emission = chain(lengths=[50])
    start[2], transition[:2, 2] = -math.inf, -math.inf
    near = smooth(start, transition, emission, [50], compiled=compiled)
    emission[:, 2] = 1e4
    far = smooth(start, transition, emission, [50], compiled=compiled)
    torch.testing.assert_close(near.transitions, far.transitions, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(near.log_normalizers, far.log_normalizers, rtol=1e-12, atol=1e-12)


# -- input -------------------------------------------------------------------------------------------------------------


@BOTH
def test_single_precision_goes_in_and_out(compiled):
    """Computed in double: float32 input gives what its exact double copy gives, rounded."""
    tables, uniforms = [table.float() for table in chain(lengths=[200, 3])], torch.linspace(0, 1, 203)
    double = [table.double() for table in tables]
    for value, exact in zip(
        smooth(*tables, [200, 3], compiled=compiled), smooth(*double, [200, 3], compiled=compiled), strict=True
    ):
        assert value.dtype == torch.float32
        assert torch.equal(value, exact.float())
    drawn = [sample_paths(*arguments, [200, 3], uniforms, compiled=compiled) for arguments in (tables, double)]
    assert torch.equal(*drawn)
    assert viterbi(*tables, [200, 3], compiled=compiled)[1].dtype == torch.float32
    assert filter_states(*tables, [200, 3], compiled=compiled)[0].dtype == torch.float32


@BOTH
@pytest.mark.parametrize("shift", [-2000.0, 0.0, 2000.0])
def test_starts_may_weigh_on_another_scale_and_rows_need_not_be_contiguous(shift, compiled):
    start, transition, emission = chain(lengths=LENGTHS)
    plain = smooth(start, transition, emission, LENGTHS, compiled=compiled)
    tables = start + shift, transition.T.contiguous().T, emission.T.contiguous().T
    shifted = smooth(*tables, LENGTHS, compiled=compiled)
    torch.testing.assert_close(tuple(shifted[:3]), tuple(plain[:3]), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(shifted.log_normalizers, plain.log_normalizers + shift, rtol=1e-13, atol=1e-11)
    best, scores = viterbi(start, transition, emission, LENGTHS, compiled=compiled)
    torch.testing.assert_close(viterbi(*tables, LENGTHS, compiled=compiled), (best, scores + shift))


@BOTH
@pytest.mark.parametrize("value", [-math.inf, math.nan, math.inf])
def test_a_sequence_without_a_path_is_named(value, compiled):
    tables = chain(lengths=[4, 1, 3])
    tables[2][6] = value
    uniforms = torch.full((8,), 0.5)
    message = "No path of sequence 2 has a positive finite weight"
    for function in (filter_states, smooth, viterbi):
        with pytest.raises(FloatingPointError, match=message):
            function(*tables, [4, 1, 3], compiled=compiled)
    with pytest.raises(FloatingPointError, match=message):
        sample_paths(*tables, [4, 1, 3], uniforms, compiled=compiled)
    slices = torch.tensor(6 * [-100.0] + [100.0, -100.0])  # which forbid a step of sequence 2
    with pytest.raises(FloatingPointError, match=message):
        sample_paths(*chain(lengths=[4, 1, 3]), [4, 1, 3], uniforms, slices, compiled=compiled)


@BOTH
def test_an_emission_that_is_no_number_is_told(compiled):
    tables = chain(lengths=[4, 3])
    tables[2][5, 1] = math.nan
    with pytest.raises(FloatingPointError, match="No path of sequence 1"):
        filter_states(*tables, [4, 3], compiled=compiled)


def test_shapes_are_checked():
    start, transition, emission = chain(lengths=[8])
    full, short = torch.full((8,), 0.5), torch.full((7,), 0.5)
    for message, function, arguments in [
        ("lengths add up to 7, but there are 8 rows", smooth, (start, transition, emission, [4, 3])),
        ("every sequence needs at least one row", smooth, (start, transition, emission, [8, 0])),
        (r"log_start has shape \[2\]; expected \[3\]", viterbi, (start[:2], transition, emission, [8])),
        (r"log_transition has shape \[2, 3\]", filter_states, (start, transition[:2], emission, [8])),
        (r"uniforms has shape \[7\]", sample_paths, (start, transition, emission, [8], short)),
        (r"log_slices has shape \[7\]", sample_paths, (start, transition, emission, [8], full, short)),
    ]:
        with pytest.raises(ValueError, match=message):
            function(*arguments)
