"""Mutants: one line of the code broken at a time, and the tests that must notice it.

    python tests/mutants.py                 # all of them (`make mutants`)
    python tests/mutants.py hinge ridge     # those of files whose path has one of these words

Tests run on a copy of the package, so that the checkout is never broken. A mutant whose line is not there any more is
an error: move it to what took the line's place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("models", "inference", "estimators", "datasets", "plots", "cli", "testing")


# a file and the arguments of pytest that name the tests: lines of the file, and what each is broken to
MUTANTS: dict[tuple[str, str], dict[str, str]] = {
    ("estimators/clusters.py", "estimators/test_estimators_as_peers.py -k 'without_a_mean or are_a_mixture'"): {
        "raise AttributeError(str(error) or message)": "raise NotImplementedError(str(error) or message)",
    },
    ("estimators/clusters.py", "estimators/test_estimators_from_files.py -k first_ones"): {
        "), self.posterior_.num_labels": "), 1",
    },
    ("inference/posterior/clustering.py", "inference/posterior/test_posterior.py -k 'labels_where or no_row'"): {
        'draw["log_mixture"][:-1].exp() * len(labels) >= 1': 'draw["log_mixture"][:-1].exp() > 1',
        "            found = torch.zeros_like(found)\n": "            pass\n",
        'bool(draw["num_seen"] > len(labels))': "False",
        "            labels[own] = own\n": "            pass\n",
    },
    ("inference/posterior/draws.py", "test_grid.py -k single_precision"): {
        'log_odds: Required[Annotated[Tensor, "float:K", NONE]]': 'log_odds: Required[Annotated[Tensor, "K", NONE]]',
    },
    ("inference/posterior/partition.py", "inference/posterior/test_left_out.py -k tempered"): {
        "self._mean(data.X) + share * change": "self._mean(data.X) + change",
        '            found = torch.einsum("s,s...->...", self.samples["share"], each)\n        else': (
            "            found = each[0]\n        else"
        ),
    },
    ("inference/posterior/left_out.py", "inference/posterior/test_left_out.py -k 'kinks'"): {
        "less[n] -= 1": "less[n] = 0",
        "in (supports, inside, torch.zeros_like(inside))": "in (inside, torch.zeros_like(inside))",
    },
    ("inference/posterior/left_out.py", "inference/posterior/test_left_out.py -k 'without or weight or components'"): {
        "leverage / (1 - leverage).clamp(min=_LEAST)": "leverage",
        "(times * part.expand_as(scores) for part in seen)": "(part.expand_as(scores) for part in seen)",
    },
    ("inference/posterior/scores.py", "models/test_targets.py -k own_units"): {
        "coding.decode(loss.draw_target(mean + spread, generator), loss)": "loss.draw_target(mean + spread, generator)",
    },
    ("models/targets/base.py", "models/test_targets.py -k 'without_a_target'"): {
        "(lost := gaps & ~missing)": "(lost := gaps & missing)",
    },
    ("models/targets/tasks.py", "models/test_targets.py -k change_the_units"): {
        "return self.each.keeps_units": "return True",
    },
    ("inference/backend.py", "test_grid.py -k settings"): {
        "host.usual_torch(), each_once()": "each_once()",
    },
    ("inference/small_variance/assignment.py", "test_grid.py -k settings"): {
        "buffer = torch.empty(K * step, dtype=single)": "buffer = torch.empty(K * step)",
    },
    ("testing/normalization.py", "models/test_likelihoods.py -k law_or_stream"): {
        "if not alone": "if False",
        "5 * error": "1e9 + error",
    },
    ("plots/components.py", "plots/test_plots.py -k 'lines or label'"): {
        "intercept -= ": "intercept += ",
        "[min(first, second) : max(first, second)]": "",
        "weights.shape[1] not in {1, len(classes)}": "False",
        "(has_others & (names == -1))": "(names == -1)",
        "np.isnan(names) |": "",
        "np.append(np.searchsorted(known, names), -1)": "np.searchsorted(known, names)",
        "labels[labels >= 0]": "labels",
    },
    ("plots/topics.py", "plots/test_plots_features.py -k few_words"): {
        "min(_NUM_WORDS, V)": "_NUM_WORDS",
        'read("num_words", ': 'read("num", ',
    },
    ("plots/trace.py", "plots/test_plots.py -k trace"): {
        "if not alone and len(values)": "if not alone",
    },
    ("inference/posterior/features.py", "inference/posterior/test_feature_posterior.py -k cannot_be"): {
        'model.loss.target == "level"': "False",
    },
    ("inference/posterior/scores.py", "inference/posterior/test_posterior.py -k 'likelihoods_of or ordered'"): {
        "if self.model.coding is None:\n            raise": "if False:\n            raise",
        "self.model.loss.is_likelihood and coding is not None": "coding is not None",
    },
    ("inference/posterior/multi_label.py", "inference/posterior/test_label_posterior.py -k named"): {
        '"^[XY] "': '"^X "',
    },
    ("models/arrays.py", "inference/posterior/test_label_posterior.py -k named"): {
        'Y.ndim == 1 and columns == "tasks"': "Y.ndim == 1",
        "{num_tasks or 'M'} {columns}": "M tasks",
    },
    ("inference/distributed/sources.py", "inference/distributed/test_sources.py -k names_map_rows"): {
        "use map_rows(posterior.predict, X)": "",
    },
    ("plots/features.py", "plots/test_plots_features.py -k without"): {
        "if not psi.shape[1]": "if False",
    },
    ("models/shares.py", "models/test_shares.py"): {
        "(largest + total.log())": "largest",
        "(log_weights - largest).exp()": "log_weights.exp()",
        "shares / total": "shares",
    },
    ("models/losses/base.py", "models/test_losses.py -k 'refined_in_chunks or defaults_agree'"): {
        "score * (score / variance) / 2 - self": "-self",
        "radius / shrinkage": "radius / (3 * shrinkage)",
        "_refined(alone[rows], targets[rows])": "_refined(alone[rows], targets[: len(alone[rows])])",
    },
    ("models/arrays.py", "models/test_arrays.py"): {
        "(low >= -limit) & (high": "(high",
        "& (high <= limit)": "",
    },
    ("testing/targets.py", "models/test_targets.py -k wrong_inverse"): {
        "_SHIFTS = (-3.0, -0.1, -0.01, 0.01, 0.1, 3.0)": "_SHIFTS = (-3.0, -0.1, 0.1, 3.0)",
        '"another row\'s": y.roll(1, 0)': "",
    },
    ("testing/targets.py", "models/test_targets.py -k disagree"): {
        "torch.equal(chosen, coding.decode(scores, loss))": "True",
        'known[known.abs() != 1] if model.loss.target == "sign" else known[:0]': "known[:0]",
    },
    ("inference/small_variance/descent.py", "inference/small_variance/test_small_variance.py -k of_many_columns"): {
        "return state if state.objective < whole.objective else whole": "return whole",
    },
    ("inference/running/agreement.py", "inference/running/test_agreement.py"): {
        " and below < _FAR_BELOW": "",
        "found.disagrees and ": "",
        '        if sweeps.schedule.on_interrupt == "raise":\n            raise\n': "",
    },
    ("inference/compiled/decorators.py", "inference/compiled/test_compiled.py -k garbage"): {
        "            gc.disable()\n": "",
        "self.collects = gc.isenabled()": "self.collects = True",
        "if self.collects and not COMPILATION.depth": "if self.collects",
    },
    ("models/numbers.py", "estimators/test_estimators.py -k default_device"): {
        "torch.from_numpy(as_array(name, values, hint))": "torch.as_tensor(as_array(name, values, hint))",
    },
    ("models/targets/classes.py", "inference/posterior/test_posterior.py -k on_the_host"): {
        '[[-1.0], [1.0]], device="cpu")': "[[-1.0], [1.0]])",
    },
    ("inference/posterior/label_calibration.py", "estimators/test_estimators.py -k default_device"): {
        "dtype=views.dtype, device=views.device)": "dtype=views.dtype)",
    },
    ("cli/sources.py", "cli/test_cli.py -k swallows"): {
        "            if unpacked.num_quotes % 2:\n": "            if False:\n",
    },
    ("cli/__init__.py", "cli/test_cli.py -k 'code_of_its or standard_output'"): {
        "    atexit._run_exitfuncs()\n": "",
        "os._exit(code)": "os._exit(1)",
        "if sys.stdout is None": "if False",
    },
    ("estimators/reading.py", "estimators/test_estimators.py -k of_objects"): {
        "        y = _numbers_of(y)\n": "        pass\n",
        "        found = _numbers_of(found)\n": "        pass\n",
    },
    ("estimators/search.py", "estimators/test_estimators_cv.py -k without_a_group"): {
        "not missing_in(found).any()": "True",
    },
    ("inference/compiled/clock.py", "inference/compiled/test_compiled.py -k timed_apart"): {
        "        if not self.depth:\n            self.begun": "        if True:\n            self.begun",
    },
    ("inference/running/engine.py", "inference/running/test_side_by_side.py -k compilation_makes"): {
        " - COMPILATION.seconds": "",
    },
    ("inference/running/sweeps.py", "inference/gibbs/test_gibbs.py -k different_places"): {
        "self.kernel.init_further if index else None": "None",
    },
    ("inference/gibbs/scans/founders.py", "inference/gibbs/test_ddpm.py -k 'prices_follow or takes_a_hyperplane'"): {
        "            kept.copy_(left)\n": "",
        "            left.copy_(taken)\n": "",
        "self.gains[n, : int": "self.gains[0, : int",
    },
    ("inference/gibbs/scans/_numba_collapsed.py", "inference/gibbs/test_ddpm.py -k scores_with_their"): {
        "gains[m, chosen] = gains[m, size - 1]": "gains[m, chosen] = gains[m, 0]",
        "reserve[chosen, p, 0] = reserve[size - 1, p, 0]": "reserve[chosen, p, 0] = reserve[0, p, 0]",
        "reserve, closed, size)": "reserve, closed, size - 1)",
        "    return size - 1\n": "    return size\n",
    },
    ("inference/gibbs/scans/_numba_collapsed.py", "inference/gibbs/test_ddpm.py -k by_its_gain"): {
        "chosen += below <= uniform * total": "chosen += below <= 0.0 * total",
    },
    ("inference/gibbs/scans/_numba_direct.py", "inference/gibbs/test_direct.py -k tiny_weights"): {
        "has_tiny = _has_tiny(base, prior)": "has_tiny = False",
    },
    ("inference/gibbs/scans/_numba_moves.py", "inference/gibbs/test_direct.py -k compiled_scan"): {
        "share = weights[k] * exp(": "share = exp(",
    },
    ("inference/gibbs/scans/_numba_moves.py", "inference/gibbs/test_ddpm.py -k collapsed_conditional"): {
        "log(total / size)": "log(total)",
    },
    ("inference/running/engine.py", "inference/running/test_checkpoints.py -k changed_state_of_a_warm_up"): {
        "labelled = due or ended or": "labelled = due and",
    },
    ("inference/gibbs/topics.py", "inference/running/test_checkpoints.py -k changed_state_of_a_warm_up"): {
        'require_shape("word_counts",': '("word_counts",',
    },
    ("inference/svi/topics/documents.py", "inference/running/test_changed_states.py -k trust"): {
        'require_shape("topics",': '("topics",',
    },
    ("inference/running/engine.py", "inference/running/test_changed_states.py -k trust"): {
        "found.shape[:1] not in ((0,), (sizes[axis],))": "False",
    },
    ("inference/running/engine.py", "inference/distributed/test_source_checkpoints.py -k ends"): {
        "self.sweeps.finished if ended else self.sweeps.drawn": "self.sweeps.drawn",
    },
    ("inference/gibbs/label_sets/kernel.py", "inference/gibbs/test_gibbs_multi_label.py -k computed_once"): {
        "        prepare=prepare_labels,\n": "",
    },
    ("inference/seeding.py", "inference/gibbs/test_gibbs.py -k different_places"): {
        ".argmax(1)": ".argmin(1) * 0",
    },
    ("models/feature_maps/random_fourier.py", "models/test_feature_maps.py -k 'features or scale or frequencies'"): {
        "torch.linalg.qr(blocks).Q * blocks.norm(dim=1, keepdim=True)": "blocks",
        "* blocks.norm(dim=1, keepdim=True)": "* num_columns**0.5",
    },
    ("models/feature_maps/rbf.py", "models/test_feature_maps.py -k 'features or scale'"): {
        "(total / size).sqrt()": "total.sqrt()",
        "max(2.0, size / 10)": "max(2.0, size / 5)",
        "max(2.0, size": "max(1.0, size",
        "and total > 0 else": "else",
    },
    (
        "models/feature_maps/nystroem.py",
        "models/test_feature_maps.py inference/distributed/test_ranks.py -k 'landmark or Nystroem'",
    ): {
        "- start).sort()": ").sort()",
        "return all_rows(X[own.to(X.device)])": "return X[own.to(X.device)]",
        "landmarks.square().sum(1) / 2": "landmarks.square().sum(1)",
        ".rsqrt()": ".reciprocal()",
        ".where(kept, 0.0)": "",
    },
    ("estimators/hyperplanes.py", "estimators/test_estimators_cv.py -k classifier_of_linear_svc"): {
        "return model.weight_scale**2 *": "return model.weight_scale *",
        "data.rows(labels.argsort(stable=True))": "data",
    },
    ("estimators/paths.py", "estimators/test_estimators_cv.py -k decisions_at_each_temperature"): {
        "posterior.num_components == 1": "posterior.num_components >= 1",
    },
    ("models/latent_features.py", "estimators/test_estimators_features.py -k missing"): {
        "(X * counted).double()": "X.double()",
        "found.masked_fill(found.isnan(), 0.0)": "found.masked_fill(found.isnan(), 1.0)",
        "observed * weights.to(rows).unsqueeze(1)": "observed",
    },
    ("models/distributions/inverse_gaussian.py", "models/test_distributions.py -k inverse"): {
        "(mean * root).mul_(mean)": "mean * root",
        "mul_(a + root) > root": "mul_(a + root) > a",
        "+ 3 * value.log()": "+ 2 * value.log()",
    },
    ("models/distributions/sampling.py", "models/test_distributions.py -k split_counts"): {
        "levels[-1][:, ::2] + levels[-1][:, 1::2]": "2 * levels[-1][:, ::2] + levels[-1][:, 1::2]",
        "torch.cat([first, count - first])": "torch.cat([first, first])",
        "halves[law[row], 2 * part] / whole[law[row], part]": "halves[0, 2 * part] / whole[0, part]",
    },
    ("models/likelihoods/multinomial.py", "inference/posterior/test_sample.py -k counts_have"): {
        "totals[some], own, probs[some]": "totals[some], 0 * own, probs[some]",
    },
    ("models/distributions/polya_gamma.py", "models/test_distributions.py -k polya"): {
        "3 - 5 * r.square()": "3 + 5 * r.square()",
        "(4 if steep else 8 * _TAIL)": "(4 if steep else 7 * _TAIL)",
        "torch.where(waiting, proposal, X), waiting": "proposal, waiting",
        "torch.where(chosen, levy, X[left])": "levy",
        "torch.where(chosen, inverse_gaussian(u[left].reciprocal(), generator), X[left])": (
            "inverse_gaussian(u[left].reciprocal(), generator)"
        ),
        "u, u, value=0.5)": "u, u, value=0.4)",
    },
    ("models/losses/hinge.py", "models/test_losses.py -k Hinge"): {
        "slack.abs(), generator), y)": "slack.abs() + 0.1, generator), y)",
        "add_(self.strength).mul_(y)": "sub_(self.strength).mul_(y)",
        "div_(2).add_(slack)": "div_(2).sub_(slack)",
        "reach = 2 * strength * variance": "reach = strength * variance",
        "return -2.0 * self.strength * max(": "return -self.strength * max(",
    },
    ("models/sparse.py", "models/test_arrays.py -k sparse"): {
        "(rows @ ones).squeeze(1)).to(kind, copy=True)": "(rows @ ones).squeeze(1)).to(kind)",
        "return self._compressed @ other": "return self._compressed @ other.flip(0)",
    },
    ("estimators/rows.py", "estimators/test_estimators.py -k sparse"): {
        "_mixed(np.full(len(bits), _FACTOR), columns), bits), columns)": "bits, bits), bits)",
    },
    ("models/sparse.py", "models/test_likelihoods.py -k sums_of_many_groups"): {
        "index_add_(0, own, values": "index_add_(0, own.flip(0), values",
        "yield function(X[rows])": "yield X[rows]",
    },
    ("models/likelihoods/_numba_counts.py", "models/test_likelihoods.py -k 'conformance and PoissonGamma'"): {
        "rate = shape - total, rate - 1.0": "rate = shape - total, rate",
        "self.components[1, k] += sign": "self.components[1, k] += 1.0",
        "2, out, scratch[0])": "1, out, scratch[0])",
    },
    ("inference/compiled/decorators.py", "inference/compiled/test_compiled.py -k machine_code"): {
        "hashlib.sha256(named + files)": "hashlib.sha256(named)",
        '{form.__module__}:{form.__qualname__} ".encode()': '".encode()',
    },
    (
        "inference/gibbs/features/columns.py",
        "inference/gibbs/test_gibbs_features.py -k 'bits_are_the_programs or their_weights or swaps'",
    ): {
        "by_entries + both[1] - both[0]": "by_entries + both[0] - both[1]",
        "(1 - share) * torch.minimum(least, pi)": "(1 - share) * least",
        "bits & (number > first)": "bits & (number >= 0)",
        "(counts[one] - counts[other])": "(counts[other] - counts[one])",
    },
    ("inference/bits/shared_projection.py", "inference/distributed/test_ranks.py -k 'find_what and SVI and tasks'"): {
        " or ranks() is not None": "",
    },
    ("inference/gibbs/projection.py", "inference/distributed/test_ranks.py -k same_projection"): {
        "all_sum(square))": "square)",
    },
    ("inference/gibbs/topics.py", "inference/distributed/test_topic_ranks.py -k 'keep_the or topics_of_all'"): {
        "words = all_sum(data.word_counts(": "words = (data.word_counts(",
        "documents, told = all_sums(*own)": "documents, told = own",
        "or ranks() is not None or": "or",
        "uniforms((len(assignments),), own_stream(generator))": "uniforms((len(assignments),), generator)",
    },
    ("models/priors/topics.py", "inference/distributed/test_topic_ranks.py -k concentrations_see"): {
        "numbers, total_numbers = all_sums(*own)": "numbers, total_numbers = own",
        "most = int(all_largest(self.totals": "most = int((self.totals",
        "index_add(0, value.long(), number)": "index_add(0, value.long(), number.sign())",
    },
    ("inference/running/shards.py", "inference/distributed/test_faults.py -k cannot_save"): {
        'exchange("" if failure is None else str(failure))': "[]",
        "_on_all(lambda: None if shard.number else write_file(path, kind, rest), exchange)": (
            "None if shard.number else write_file(path, kind, rest)"
        ),
    },
    ("inference/truncation.py", "inference/distributed/test_ranks.py -k in_use"): {
        "used = all_sum(": "used = (",
    },
    ("inference/distributed/together.py", "inference/distributed/test_ranks.py -k 'one_rank_refuses or a_function'"): {
        "        those.objects(str(error))\n        raise": "        raise",
        '_ADDRESS.sub("", repr(model))': "repr(model)",
    },
    ("inference/distributed/sources.py", "inference/distributed/test_sources.py -k where_rows_are_read"): {
        "if source.reads(path):": "if False:",
    },
    ("inference/distributed/tables.py", "inference/distributed/test_sources.py -k where_rows_are_read"): {
        "self.path in path.parents": "False",
        "return path in files or": "return",
    },
    ("inference/distributed/stream.py", "inference/svi/test_svi_stream.py -k order_of_their"): {
        "number < expected / 2": "number < 2",
        "elif in_turn and": "elif",
    },
    ("inference/running/shards.py", "inference/distributed/test_faults.py -k 'topics'"): {
        "Table(of_shard[index], axis, split)": "Table(of_shard[index], axis)",
        "- own.start for end": "for end",
    },
    ("inference/gibbs/moves/sides.py", "inference/distributed/test_exact_ranks.py -k 'states_that_repel and hinge'"): {
        " - log_normalizers.sum()))": ") - log_normalizers.sum())",
    },
    ("inference/classifiers/scored.py", "inference/distributed/test_exact_ranks.py -k components_that_repel"): {
        "counts() == 0": "counts.own == 0",
    },
    ("inference/gibbs/partition.py", "inference/distributed/test_ranks.py -k 'same_components and DDPM'"): {
        "tally, statistics, told, others = all_sums(*own, told,": "tally, statistics, told, others = (*own, told,",
        "(tally, Prepared.of(data.points, model.likelihood).prior + statistics": "(tally, own[1]",
    },
    ("inference/gibbs/scans/components.py", "inference/distributed/test_exact_ranks.py -k paths"): {
        "total, statistics = all_sums(own, statistics)": "total, statistics = own, statistics",
    },
    ("inference/gibbs/features/columns.py", "inference/distributed/test_exact_ranks.py -k columns"): {
        "level - (ends - parts)[own]": "level",
        "N * (owner - own)": "N * (own - owner)",
        "clamp(max=len(ends) - 1)": "clamp(max=0)",
        "share = -torch.expm1(-ends[-1])": "share = -torch.expm1(-failed[-1])",
    },
    ("inference/gibbs/features/state.py", "inference/distributed/test_exact_ranks.py -k 'features and blocked'"): {
        "int(data.total_weight)": "data.num_data",
    },
    ("inference/gibbs/features/parameters.py", "inference/distributed/test_exact_ranks.py -k 'features and blocked'"): {
        "all_sums(*(torch.stack(own[name]) for name in shared))": "(torch.stack(own[name]) for name in shared)",
        "of_rows + torch.stack(part)": "of_rows + 2 * torch.stack(part)",
    },
    ("inference/gibbs/features/start.py", "inference/distributed/test_ranks.py -k same_features"): {
        "not all_any(state.features[:, k])": "not state.features[:, k].any()",
    },
    (
        "inference/gibbs/features/rows.py",
        "inference/gibbs/test_gibbs_features.py -k 'bits_of_a_row or lone_row or row_alone'",
    ): {
        "- (given.data.num_data - others)": "- (given.data.num_data + 1 - others)",
        "torch.log1p(a * ratio)).sum(1) / 2": "torch.log1p(a * ratio)).sum(1)",
        "(total - drawn.sum(0)) / number": "total - drawn.sum(0)",
        "< after - before else present": "< 0 else present",
    },
    ("models/likelihoods/base.py", "models/test_likelihoods.py -k 'covariances_of_all_rows or has_no_covariance'"): {
        "U * weights[rows].double().unsqueeze(1))": "U)",
        "all_sum(found) / num_rows, column_variances": "all_sum(found), column_variances",
        " * varies * varies.unsqueeze(1)": "",
    },
    ("models/likelihoods/full_gaussian.py", "models/test_likelihoods.py -k covariances_of_all_rows"): {
        "_SHRUNK = 0.9": "_SHRUNK = 1.0",
        "expected.diagonal().copy_(told_or_one(covariances.diagonal()))": "told_or_one(covariances.diagonal())",
    },
    ("models/likelihoods/base.py", "models/test_models.py -k constant_columns"): {
        "if (constant := variances == 0).any():": "if (constant := variances < 0).any():",
    },
    ("inference/backend.py", "estimators/test_estimators_as_peers.py -k constant_column_is_told_once"): {
        "each_once(), whose_rows": "whose_rows",
    },
    (
        "inference/small_variance/features/kernel.py",
        "inference/small_variance/test_small_variance_restarts.py -k take_longer",
    ): {
        "return 16": "return 4",
    },
    ("inference/gibbs/_numba_topics.py", "inference/gibbs/test_gibbs_topics.py -k without_a_target"): {
        "(counts[k] + beta) * factor[k]\n": "factor[k]\n",
        "if rest < _LOST * total:": "if False:",
    },
    ("inference/gibbs/_numba_topics.py", "inference/gibbs/test_gibbs_topics.py -k 'compiled_scan_visits and hinge'"): {
        "(tokens.word_counts[word, k] - 1 + tokens.beta)": "(tokens.word_counts[word, k] + tokens.beta)",
        "((count - 1 + alpha) * (size + rest))": "((count + alpha) * (size + rest))",
        "    weights[old] = 0.0\n": "",
        "rest = total - weights[old]": "rest = total",
        "own * row[old], work, row": "own, work, row",
    },
    (
        "inference/gibbs/features/_numba_collapsed.py",
        "inference/gibbs/test_gibbs_features.py -k 'bits_of_a_row or lone_row'",
    ): {
        "half, sign, gain = 0.5 - old": "half, sign, gain = 0.5",
        "_OTHER, targets, n) - _margin": "_OTHER, targets, n) + _margin",
    },
    ("inference/bits/rows.py", "inference/gibbs/test_gibbs_features.py -k bits_are_the_programs"): {
        "(weight * counted, shift * counted)": "(weight, shift * counted)",
        "row.square(), alpha=0.5)": "row.square())",
    },
    ("inference/bits/loadings.py", "inference/gibbs/test_gibbs_features.py -k loadings_and_precisions"): {
        "law.rate + seen[name][1]": "law.rate",
    },
    ("inference/bits/shared_projection.py", "inference/test_projection_steps.py -k bits_are_set"): {
        "gain + double._gain(base, step)": "gain",
        "base = scores - found[d, k] * step": "base = scores",
    },
    (
        "inference/gibbs/label_sets/coupled.py",
        "inference/gibbs/test_gibbs_multi_label.py -k 'log_joint or exact_law or negatives'",
    ): {
        "told + log_weights + ": "told + ",
    },
    ("models/config.py", "models/test_outsider.py -k number"): {
        "            found.checked()\n": "            found\n",
    },
    ("models/config.py", "models/test_domains.py -k read_again"): {
        " or isinstance(value, Config | list | dict)": "",
        "is not value or": "is None or",
    },
    ("models/losses/logistic.py", "models/test_losses.py -k Logistic"): {
        "torch.tanh(width / 2) / (2 * width)": "torch.tanh(width) / (2 * width)",
        "(y * score_mean - width) / 2": "(y * score_mean + width) / 2",
        "math.pi / 8 * score_var": "math.pi / 4 * score_var",
    },
    ("models/losses/epsilon_insensitive.py", "models/test_losses.py -k Epsilon"): {
        "- 2 * self.epsilon)": "- self.epsilon)",
        "(y + self.epsilon) * lower": "(y - self.epsilon) * lower",
        "(1 + rate * self.epsilon) < rate": "(1 + self.epsilon) < rate",
        "torch.log1p(-level) / rate": "torch.log1p(-level)",
    },
    ("models/priors/dirichlet_process.py", "models/test_priors.py models/test_dirichlet_process.py"): {
        "- torch.lgamma(alpha + sizes.sum())": "+ torch.lgamma(alpha + sizes.sum())",
        "shape + num_components - (": "shape + num_components + (",
        "len(log_rest), -log_rest.sum())": "len(log_rest), log_rest.sum())",
    },
    (
        "models/priors/hyper.py",
        "models/test_priors.py models/test_dirichlet_process.py models/test_indian_buffet_process.py",
    ): {
        "new_tensor(shape + count), prior_rate + rate": "new_tensor(shape), prior_rate + rate",
        "drawn / (prior_rate + rate)": "drawn / (2 * prior_rate + rate)",
        "torch.digamma(shape) - rate.log(), kl": "torch.digamma(shape) + rate.log(), kl",
        "pyro.sample(name, _as_site(law))": "pyro.sample(name, law)",
    },
    ("models/priors/pitman_yor.py", "models/test_priors.py inference/test_kernels.py -m 'not slow'"): {
        "torch.lgamma(1 - d)).sum()": "torch.lgamma(1 + d)).sum()",
        '(1 - h["discount"])': '(1 + h["discount"])',
        "alpha / d + num_components": "alpha / d",
    },
    ("models/priors/sticks.py", "models/test_priors.py models/test_dirichlet_process.py"): {
        "b + after[..., :-1]": "b + after[..., 1:]",
    },
    ("models/priors/hierarchical_dirichlet_process.py", "models/test_hdp.py"): {
        "return K * gamma.log()": "return (K + 1) * gamma.log()",
        "(gamma - 1) * _log(base)[T - 1]": "gamma * _log(base)[T - 1]",
    },
    ("inference/gibbs/_numba_sums.py", "inference/gibbs/test_gibbs_sequence.py -k compiled_moves"): {
        "before = moves.shape[1]": "before = 0",
    },
    ("inference/gibbs/prepared.py", "inference/gibbs/test_gibbs.py -k sums_of_kept_statistics"): {
        "self.family.statistics(X).double()": "X.double()",
        "labels.contiguous().numpy()": "(labels * 0).numpy()",
    },
    ("inference/gibbs/prepared.py", "inference/gibbs/test_gibbs.py -k kept_statistics"): {
        "natural.double().T": "natural.double().flip(1).T",
    },
    ("models/likelihoods/diagonal_gaussian.py", "models/test_likelihoods.py -k Diagonal"): {
        "offset = counts.sum(1) -": "offset = counts[:, 0] -",
        "* (kap * precision).rsqrt()": "* precision.rsqrt()",
        "linear.addmm_(U.square()": "linear.addmm_(U",
    },
    ("models/priors/franchise.py", "models/test_hdp.py"): {
        "torch.searchsorted(ends, opened, right=True)": "torch.searchsorted(ends, opened)",
        "alpha=num_states": "alpha=num_states + 1",
        "(own + seated) < own": "(own + seated) < seated",
        "1 - stickiness / means[:K].diagonal()": "1 - stickiness",
        "tables.sum() - s.sum()": "tables.sum() + s.sum()",
    },
    (
        "inference/gibbs/allocations.py",
        "inference/gibbs/test_split_merge.py -k 'odds_of or merge_leaves or places or no_hyperplane'",
    ): {
        "reserved.reshape(len(reserved), *weights.shape[1:])": "reserved[:0].reshape(0, *weights.shape[1:])",
        "else at.weights[~kept]": "else state.reservoir",
        "torch.nonzero(self.counts(at) == 0)": "torch.nonzero(self.counts(at) >= 0)",
        "torch.where(at.assignments == second, first, at.assignments)": "at.assignments",
    },
    (
        "inference/gibbs/points.py",
        "inference/gibbs/test_split_merge.py inference/gibbs/test_gibbs.py -k 'odds_of or log_joint or "
        "concentration or prior_of_a_state'",
    ): {
        "at.hyper) + self.law.prior.log_density(at.hyper)": "at.hyper)",
        "divided[:, first] -= moved": "pass",
        "joined.hyper) - self.law.log_prior(counts, joined.hyper)": "joined.hyper)",
        "hyper=self.law.prior.draw(": "hyper=(lambda hyper, *_: hyper)(",
    },
    (
        "inference/gibbs/paths.py",
        "inference/gibbs/test_split_merge_sequences.py inference/gibbs/test_gibbs_sequence.py -m 'not slow' -k "
        "'odds or share or log_joint'",
    ): {
        "+ math.lgamma(len(kept) - len(base) + 2)": "",
        "+ self.law.log_base(base, at.hyper) + math": "+ math",
        "((sizes - 1) * shares.log()).sum()": "(sizes * shares.log()).sum()",
        "** (1 / _KEPT)": "** _KEPT",
        "(_KEPT - 1) * (log_kept - total.log())": "(_KEPT + 1) * (log_kept - total.log())",
        "joined.hyper) - left.log().sum()": "joined.hyper)",
        "share * total, (1 - share) * total": "(1 - share) * total, share * total",
    },
    (
        "inference/gibbs/moves/split_merge.py",
        "inference/gibbs/test_split_merge.py -m 'not slow' -k 'two_tests or odds or places or undoes'",
    ): {
        "log_ratio - division.log_screen": "log_ratio",
        "division.log_screen - log_ratio": "division.log_screen + log_ratio",
        "log_ratio + log_gain - log_screen": "log_ratio + log_gain",
        "exchange(division.blocks[[1, 2, 3]], present": "exchange(division.blocks[[2, 1, 3]], present",
        "-log_gain, log_odds": "log_gain, log_odds",
    },
    ("inference/gibbs/moves/block_fits.py", "inference/gibbs/test_split_merge.py -k 'one_bound'"): {
        "smoothed(torch.zeros_like(scale), scale,": "smoothed(torch.zeros_like(scale), 2 * scale,",
    },
    ("inference/gibbs/moves/block_classifiers.py", "inference/gibbs/test_split_merge.py -k 'one_bound or left_out'"): {
        "-2 * least_bound(self.scored)": "0.1 * least_bound(self.scored)",
    },
    ("inference/gibbs/moves/union.py", "inference/gibbs/test_split_merge.py -m 'not slow' -k 'odds'"): {
        "return parts[0] + parts[1] - parts[2]": "return parts[0] + parts[1]",
        "log_places.expand(len(free)) + self.log_evidence(side)": "log_places.expand(len(free))",
        "+ log_gain - self.sides.log_probability(": "+ log_gain + self.sides.log_probability(",
        "- division.blocks[[0]].log_ratio(": "+ division.blocks[[0]].log_ratio(",
        "self.z.log_density(moved) - self.z.log_density(at)": "self.z.log_density(moved)",
    },
    (
        "inference/gibbs/moves/block_classifiers.py",
        "inference/gibbs/test_split_merge.py -m 'not slow' -k 'quadrature or exchange or odds'",
    ): {
        "+ log_prior(weights, scored.weight_scale)": "",
        "candidates[:num_left, 0] = present": "pass",
        "- log_weights[:num_left].sum()": "",
        "(len(ratios) - 2 * num_left) * math.log(": "len(ratios) * math.log(",
    },
    ("inference/running/processes.py", "inference/running/test_side_by_side.py"): {
        "known and known.news(0, len(known.draws))": "None",
        "torch.set_default_dtype(dtype)": "pass",
        "chain.news(self._step, self._num_draws)": "chain.news(0, 0)",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)": "pass",
        "self._report(ended=True, error=error)": "self._report(ended=True)",
    },
    ("inference/classifiers/natural.py", "inference/classifiers/test_natural.py -k not_looked"): {
        "largest + gain - _NO_SHARE": "largest - _NO_SHARE",
        "gain if loss_weights is None else gain * loss_weights": "gain if True else gain * loss_weights",
        "_NO_SHARE = 40.0": "_NO_SHARE = 8.0",
    },
    ("inference/classifiers/natural.py", "inference/test_weights.py -k 'loss_of or losses_have'"): {
        "PseudoObservation(*(times * part for part in observed)), times * bound": (
            "PseudoObservation(*(times * part for part in observed)), bound"
        ),
        "PseudoObservation(*(times * part for": "PseudoObservation(*(part for",
    },
    ("inference/svi/factors.py", "inference/test_weights.py -k a_loss_of_weight"): {
        "log_weights, points.loss_weights)": "log_weights)",
    },
    ("inference/markov/scans.py", "inference/markov/test_scans.py"): {
        "add(message.T + steps[0], 0)": "steps[0]",
        "chosen[-1].gather(0, after)": "chosen[-1]",
        "steps.masked_fill(lasts[rows], 0.0)": "steps",
        "_times(one, later, torch.logsumexp)": "_times(later, one, torch.logsumexp)",
        ".masked_fill(lasts[rows], 0.0).sum(0)": ".sum(0)",
        "found[2::2] = times(pairs[: len(found[2::2])], each[2::2])": "found[2::2] = each[2::2]",
    },
    ("inference/gibbs/topics.py", "inference/gibbs/test_gibbs_topics.py -k one_place"): {
        "counts[n, assignments[m]] -= 1": "counts[n, assignments[m]] -= 0",
        "bisect_left(some, -place, key=neg)": "len(some)",
        "scores = ((counts[n] @ eta).unsqueeze(1) + eta) / length": "scores = (counts[n] @ eta).unsqueeze(1) / length",
    },
    ("models/priors/topics.py", "inference/gibbs/test_gibbs_topics.py -k one_by_one"): {
        "counts.new_ones(counts.numel(), dtype=torch.float64)": "(counts > 1).flatten().double()",
    },
    ("inference/classifiers/ridge.py", "inference/classifiers/test_ridge.py"): {
        "(trace + square) / weight_scale**2": "(trace - square) / weight_scale**2",
        "add_(weight_scale**-2)": "add_(weight_scale**2)",
        "(1 + (first < second).to(matrices))": "(first < second).to(matrices)",
        "self.mean.unsqueeze(1) + step": "self.mean.unsqueeze(1) + 2 * step",
        "log_det.sum(1, keepdim=True) - (square": "log_det.sum(1, keepdim=True) - (2 * square",
        "mean = precision[:, k].mean(1": "mean = precision[:, k].sum(1",
        ".any(1)).squeeze(1)": ".all(1)).squeeze(1)",
    },
    ("inference/classifiers/row_space.py", "inference/classifiers/test_ridge.py"): {
        "add_(1.0)": "add_(2.0)",
        "start + self._across(": "start - self._across(",
        "(start @ self.features.T) - slack": "(start @ self.features.T)",
        "return self.weight_scale**2 * (self.root": "return (self.root",
        "nu**4 * known": "nu**2 * known",
        "- len(self.features)  #": "#",
        "+ square + self._log_det": "+ square",
        "* self.root.T).square()": ").square()",
        "_log_det.expand(gap.shape[2]).sum()": "_log_det.sum()",
    },
    ("inference/gibbs/moves/block_fits.py", "inference/gibbs/test_block_fits.py"): {
        "toward.mean(2, keepdim=True)": "toward.amax(2, keepdim=True)",
        "slope + toward * center": "slope - toward * center",
        "all_sum(bound) - laws.kl(": "all_sum(bound) + laws.kl(",
    },
    ("inference/classifiers/_numba_hyperplanes.py", "inference/gibbs/test_block_fits.py"): {
        "scale + toward * tile[3, n]": "scale - toward * tile[3, n]",
        "bound = -_divergence(": "bound = _divergence(",
        "trial_bound > bound[k]": "trial_bound < bound[k]",
        "min(1.5 * step, 0.75)": "min(1.5 * step, 1.0)",
        "step /= 4.0": "step /= 2.0",
        "value = rows.power * ": "value = ",
        "- P * (math.log(precision) + 1.0)": "- P * math.log(precision)",
        "inverse[p, q] /= tril[p, p]": "inverse[p, q] *= 1.0",
        "(1.0 - share) * log_factor": "log_factor",
        "trial_bound += _lead(": "trial_bound = _lead(",
        "+ step * goal[k, i, n]": "+ goal[k, i, n]",
    },
    ("inference/classifiers/_numba_hyperplanes.py", "inference/classifiers/test_scored.py -k tensor_code"): {
        "        back(tril, noise[k])\n": "",
        "noise[k, p] += mean[p]": "noise[k, p] += 0.0",
        "side = 1.0 if owners[start + n] == labels[k] else -1.0": "side = -1.0",
        "rows.power * precision": "precision",
        "tril[p, q] += total": "tril[p, q] = total",
        "tril[p, p] = precision": "tril[p, p] = 0.0",
        "math.log1p(-levels[k, 0])": "math.log(levels[k, 0])",
        "(angle, high) if angle < 0.0": "(angle, high) if angle > 0.0",
        "1.0 if owners[n] == k else -1.0": "-1.0",
        "total *= rows.power": "total *= 1.0",
    },
    ("models/losses/hinge.py", "inference/classifiers/test_scored.py -k tensor_code"): {
        "is_smaller = uniform * (violation + root) > root": "is_smaller = False",
        "root / (violation * violation)": "root / violation",
    },
    ("inference/classifiers/_numba_hyperplanes.py", "inference/gibbs/test_ddpm.py -k scores_with_their"): {
        "scores[n] = power * (": "scores[n] = (",
    },
    ("inference/gibbs/moves/tempering.py", "inference/gibbs/test_block_fits.py -k tensor_code"): {
        "return self.loss, self.power": "return self.loss, 1.0",
    },
    ("inference/classifiers/natural.py", "inference/classifiers/test_natural.py"): {
        "q.squares[:, : variance.shape[1]]": "q.squares[:, : variance.shape[1]] * 0.9",
        ".add_(spread)": ".add_(0.0 * spread)",
        "self._seen(rows), q[[k]]": "self._seen(rows), q[[0]]",
        "(negative + weight * (positive - negative)": "(positive + weight * (negative - positive)",
        "precision, shift, self.counted(r)": "precision, shift, r",
        "accepted.sum(-1) - rejection": "accepted.sum(-1) + rejection",
        "q.towards(natural, rho)": "q.towards(natural, rho * rho)",
        "(1 - scale) / weight_scale**2": "1 / weight_scale**2",
        "each = self.counted(self.loss": "each = (self.loss",
        "dtype=torch.float64)) - q.kl": "dtype=torch.float64)) + q.kl",
    },
    (
        "inference/classifiers/scored.py",
        "inference/classifiers/test_scored.py inference/classifiers/test_minimum.py "
        "inference/small_variance/test_small_variance.py "
        "inference/small_variance/test_small_variance_repelling.py -k 'minimum or step or owner or scored'",
    ): {
        "losses() + ridge": "losses() - ridge",
        "(2 * self.weight_scale**2)": "self.weight_scale**2",
        "map(self.counted, observed)\n        return ridges": "observed\n        return ridges",
        "map(self.counted, observed)\n        return owner": "observed\n        return owner",
        "self.counted(torch.ones_like(": "(torch.ones_like(",
        "place[self.owner] >= 0": "place[self.owner] >= 1",
        "observed.shift + observed.precision * reference": "observed.shift - observed.precision * reference",
        "owners.unsqueeze(1) == labels, 1.0, -1.0": "owners.unsqueeze(1) == labels, -1.0, 1.0",
        "(accepts - rejects)": "(accepts + rejects)",
        "math.log(2 * math.pi * weight_scale**2)": "math.log(2 * math.pi * weight_scale)",
    },
    (
        "inference/classifiers/_numba_duals.py",
        "inference/classifiers/test_duals.py -k 'minimum_that or improved or rounding'",
    ): {
        "_LITTLE * enough / (rows[1] - rows[0])": "0.0",
        "if stays[c] or cost < costs[c]:": "if stays[c]:",
        "cost = _dot(weights, c, weights, c) / (2.0 * box[5])": "cost = 0.0",
        "slope = box[0][n, c] + squares[n] * tilt[n, c] - ": "slope = box[0][n, c] - ",
        "enough = primal, tolerance * primal": "enough = primal, 1e9 * primal",
    },
    (
        "inference/classifiers/_numba_duals.py",
        "inference/small_variance/test_small_variance_repelling.py -k 'changed_sides or last_fit'",
    ): {
        "tilt[n, k], stays[k] = np.nan, False": "tilt[n, k] = np.nan",
        "for k in (before[n], labels[n]):": "for k in (before[n], before[n]):",
    },
    (
        "inference/small_variance/hyperplanes.py",
        "inference/small_variance/test_small_variance_repelling.py -k 'changed_sides or last_fit'",
    ): {
        "fitted.num_steps >= num_steps": "fitted.num_steps >= 0",
        "torch.where(start.stays, fitted.num_steps, num_steps)": "fitted.num_steps",
        "label[index] = torch.arange(len(index))": "label[index] = index",
    },
    (
        "inference/small_variance/repelling.py",
        "inference/small_variance/test_small_variance_repelling.py -k hopeless",
    ): {
        "> most_fall * landscape.saved(costs, first)": "> torch.inf",
    },
    (
        "inference/small_variance/landscape.py",
        "inference/small_variance/test_small_variance_repelling.py -k points_save",
    ): {
        "counted(own - costs.amin(1))": "counted(own)",
    },
    ("inference/classifiers/_numba_duals.py", "inference/classifiers/test_duals.py -k newton_steps"): {
        "t += scores[n] / box[3][n]": "t += 0.0",
        "_NUM_HALVINGS = 30": "_NUM_HALVINGS = 0",
        "matrix[p, p] = 1.0 / box[5]": "matrix[p, p] = 0.1 / box[5]",
        " and t != 0.0:": ":",
    },
    ("inference/classifiers/duals.py", "inference/classifiers/test_duals.py -k block_of_rows"): {
        "weights[k], tilt[rows] = found.weights.T, found.tilt.double()": "weights[k] = found.weights.T",
        "weights = weight_scale**2 * torch.stack": "weights = torch.stack",
    },
    ("inference/classifiers/dual_problem.py", "inference/classifiers/test_duals.py -k block_of_rows"): {
        "None if self.row_weights is None else self.row_weights[rows]": "None",
    },
    ("inference/classifiers/duals.py", "inference/classifiers/test_duals.py -k rounding"): {
        "_LITTLE * tolerance / gap * gaps.mean()": "0.0",
    },
    ("inference/gibbs/partition.py", "inference/gibbs/test_tempering.py -k partitions_start"): {
        "range(_NUM_PLAIN * num_sweeps)": "range(num_sweeps)",
    },
    ("inference/classifiers/duals.py", "inference/classifiers/test_duals.py -k many_turns"): {
        "_STEPS, _ROW = 10**7": "_STEPS, _ROW = 10**4",
    },
    ("inference/classifiers/primal_newton.py", "inference/classifiers/test_duals.py -k newton"): {
        "problem.count * inside / box.curvature": "problem.count / box.curvature",
        "precision * (weights - found)": "precision * weights - found",
        "best[2] > tolerance and": "True and",
        "torch.where(higher, step / 2, step)": "step",
        "(2 * problem.weight_scale**2)": "problem.weight_scale**2",
        "num_steps = min(best, (found": "num_steps = max(best, (found",
    },
    ("inference/classifiers/dual_newton.py", "inference/classifiers/test_duals.py -k 'solved'"): {
        "theta = at.high / at.above + (": "theta = at.high / at.above - (",
        "@ weights - self.linear": "@ weights - 0.9 * self.linear",
        "torch.where(slope < 0, above": "torch.where(slope < 0, 0 * above",
    },
    (
        "inference/classifiers/minimum.py",
        "inference/classifiers/test_minimum.py inference/small_variance/test_small_variance.py "
        "inference/small_variance/test_small_variance_repelling.py -k 'minimum or step or owner or newton'",
    ): {
        "~found & (moved_cost <= fit.cost)": "~found",
        "(power, 0.25**power)": "(power, 0.5)",
        "observed.shift + precision * reference": "observed.shift - precision * reference",
        "row_weights=None if problem.row_weights is None else problem.row_weights[order]": "row_weights=None",
        "tilt=problem.counted(tilt), gap=gap": "tilt=tilt, gap=gap",
        "/ (2 * problem.weight_scale**2)": "/ problem.weight_scale**2",
        "lower[problem.owner]": "lower[problem.owner.flip(0)]",
        "range(1, _NUM_SHARES), found)": "range(1, _NUM_SHARES))",
        "problem.counted(targets.abs()).nansum()": "targets.abs().nansum()",
    },
    ("inference/markov/_numba_paths.py", "inference/markov/test_markov.py -m 'not slow'"): {
        "log_weight + math.log(product)": "log_weight",
        "min(t + BLOCK, rows[1])": "min(t + BLOCK - 1, rows[1])",
        "log_weight += tops[row]": "log_weight += tops[0]",
        "(message[k] + floor[k]) * scale": "message[k] + floor[k]",
        "(message[k] + floor[k])": "message[k]",
        "neglected += source[k] if message[k] < least else 0.0": "neglected += 0.0",
        "source[k] * scale if message[k] >= least else 0.0": "source[k] * scale",
        "not 1e-30 < product < 1e30": "not 1e-150 < product < 1e150",
        "(0.0 if gaps[i] <= -700.0 else gaps[i])": "0.0",
        "inflow[k] += math.log(total[k]) if total[k] > 0.0 else 0.0": "inflow[k] += 0.0",
        "                multiply_row(ratio, columns, flow)\n": "",
        "if np.isnan(log_weights[b])": "if b == 0",
    },
    ("inference/markov/paths.py", "inference/markov/test_markov.py -m 'not slow'"): {
        "emission if in_place and alone": "emission if in_place",
        "if np.isnan(log_weights).any()": "if False",
        "* transition\n        result": "\n        result",
    },
    ("models/compiled/scalars.py", "inference/compiled/test_machine.py"): {
        "builder.mul(index, width), column": "builder.mul(index, width), first",
        'array.layout == "C"': "array.ndim",
    },
    ("inference/markov/tensors.py", "inference/markov/test_markov.py -m 'not slow'"): {
        "messages[:, t] + behind).softmax(1)": "messages[:, t] - behind).softmax(1)",
        "value + emission[:, t], best)": "value, best)",
    },
    ("inference/posterior/diagnostics.py", "inference/posterior/test_diagnostics.py"): {
        "0.375) / (columns.shape[1] + 0.25)": "0.375) / (columns.shape[1] + 1.25)",
        "pairs.cummin(0).values": "pairs",
    },
    ("inference/posterior/components.py", "inference/posterior/test_sample.py -k its_prior"): {
        "model.weight_scale**2 * model": "model",
        "variance[:, -1] = unseen": "variance[:, 0] = unseen",
    },
    ("inference/posterior/scores.py", "inference/posterior/test_posterior.py -k ratio_of_averages"): {
        "if mean.shape[-1] > 1:": "if False:",
    },
    ("inference/posterior/stacking.py", "inference/posterior/test_sequence_posterior.py -k those_of_enumeration"): {
        "else value.new_full(shape, fill)": "else value.new_zeros(shape)",
    },
    ("inference/posterior/clustering.py", "inference/posterior/test_posterior.py -k rows_left_out"): {
        "log_weights.argmax(1)": "log_weights.argmin(1)",
    },
    ("inference/posterior/features.py", "inference/posterior/test_sample.py -k features"): {
        "mean + variance.sqrt() * normals": "mean + 0 * normals",
        "uniforms(odds.shape, own_stream) < odds": "uniforms(odds.shape, own_stream) < 0.5",
        'bits @ draw["weights"] + model.features': "model.features",
    },
    ("inference/posterior/topics.py", "inference/posterior/test_sample.py -k documents"): {
        "counts / lengths[rows, None].clamp(min=1.0)": "counts",
        "log_dirichlet(alpha, generator)": "log_dirichlet(2 * alpha, generator)",
        "split_counts(counts[some][n, k], k, topics": "split_counts(counts[some][n, k], 0 * k, topics",
        "number.to(X), accumulate=True": "number.to(X)",
    },
    ("inference/posterior/multi_label.py", "inference/posterior/test_sample.py -k label_sets"): {
        "return logit(psi), classifier_view": "return 0 * psi, classifier_view",
        "psi * row_scores(self.model, X, draw).sigmoid()": "psi",
    },
    ("inference/distributed/tables.py", "inference/distributed/test_sources.py"): {
        "X[:, place] =": "X[:, -place] =",
        "if column.null_count:": "if False:",
        "start += len(batch)": "start = len(batch)",
        "if kinds == {pa.float32()}": "if False",
        "if name not in index": "if True",
    },
    ("inference/distributed/tables.py", "cli/test_cli_ranks.py -k 'what_one_process or sentence'"): {
        "slice(cuts[number], cuts[number + 1])": "slice(cuts[0], cuts[number + 1])",
        "slice(int(ends[own.start]), int(ends[own.stop]))": "slice(0, int(ends[own.stop] - ends[own.start]))",
        "or (np.diff(ends[cuts]) < 2).any()": "",
    },
    ("cli/commands.py", "cli/test_cli_ranks.py -k 'what_one_process or sentence'"): {
        "on_all(lambda: _given(table, options))": "_given(table, options)",
        "    if not rank()[0]:": "    if True:",
    },
    ("inference/distributed/sources.py", "inference/distributed/test_sources.py"): {
        "start, missing = start + missing,": "start, missing = start + size,",
        "kept, missing = [], size": "missing = size",
    },
    ("inference/distributed/mapped.py", "inference/distributed/test_sources.py -k answers"): {
        "total += len(found)": "total = len(found)",
        "found.shape[:1] != (number,)": "False",
        "enumerate(found.T)": "enumerate(found)",
    },
    ("estimators/streams.py", "estimators/test_estimators_from_files.py"): {
        "np.union1d(found, some) if len(found) else some": "some",
        "if value is not None:": "if False:",
        "step**2 * others * len(y) / number": "0.0",
        "mean += step * len(y) / number": "mean += step",
        "number += X.shape[0]": "number = X.shape[0]",
    },
    ("inference/distributed/stream.py", "inference/distributed/test_sources.py"): {
        "if found != self.num_own:": "if False:",
        "~torch.isin(classes, first)": "torch.isin(classes, first)",
        "[_gist(torch.cat([*said, values]), coding.has_classes)]": "[_gist(values, coding.has_classes)]",
        "torch.cat([ends, y[missing][:1]])": "ends",
        "if total >= _NUM_DEFAULTS:": "if False:",
        "max(largest, number), missing or some": "max(largest, number), some",
    },
    ("inference/distributed/stream.py", "inference/distributed/test_source_checkpoints.py -k 'DPM or wherever'"): {
        "if step != self._next:": "if self._next < 0:",
        "        self._next = -1  # until it has been read\n": "",
        "max(0, skipped - number) % number": "0",
    },
    (
        "inference/running/fingerprints.py",
        "inference/distributed/test_source_checkpoints.py -k 'refused or of_their_own'",
    ): {
        '"rows": value.num_own': '"rows": value.num_data',
        "_hashed(first.encode())": '""',
        "those.objects(own)": "[own]",
    },
    ("inference/running/engine.py", "inference/distributed/test_source_checkpoints.py -k 'their_own and small'"): {
        'shard_of(data, "num_own")': 'shard_of(data, "num_kept")',
    },
    ("inference/svi/steps.py", "inference/distributed/test_ranks.py -k gets_shorter"): {
        'on_all(lambda: data.at(step), "go on")': "data.at(step)",
    },
    (
        "inference/svi/allocations.py",
        "inference/distributed/test_ranks.py -k 'find_what and minibatches and InfiniteSVM'",
    ): {
        "bound = batch.scale * said - penalty": "bound = batch.scale * local.bound",
    },
    (
        "inference/distributed/stream.py",
        "inference/distributed/test_source_checkpoints.py -k 'among_other_ranks and InfiniteSVM'",
    ): {
        "_NUM_DEFAULTS - span(total)[0]": "_NUM_DEFAULTS",
    },
    (
        "inference/running/fingerprints.py",
        "inference/distributed/test_source_checkpoints.py -k 'among_other_ranks or another_source'",
    ): {
        "at, total = span(value.num_own)": "at, total = 0, span(value.num_own)[1]",
        "            start += data.num_data\n        return found": "        return found",
        "sums = all_sum(on_all(passed": "sums = (on_all(passed",
    },
    ("inference/distributed/stream.py", "inference/distributed/test_ranks.py -k source"): {
        "number = all_count(total)": "number = total",
        "all_count(largest)": "largest",
    },
    ("inference/distributed/passes.py", "inference/small_variance/test_passes.py"): {
        "with among(self):": "if True:",
        "else join(tape.part, tensor)": "else tensor",
        "self.generator.set_state(part.found[1])": "pass",
        "generator.set_state(start)": "pass",
        "self._asked(tensor, torch.maximum)": "self._asked(tensor, torch.add)",
    },
    ("inference/small_variance/partition.py", "inference/small_variance/test_passes.py"): {
        "ratio = self.stream.num_data / all_count(self.problem.num_data)": "ratio = 1.0",
        "sampled_rows(self.stream.num_own, MOST_ROWS, generator)  # as": "# as",
        "or _mark(data) != self.stream.marks[place]": "",
        "state.assignments[rows].long()": "state.assignments[: rows.stop - rows.start].long()",
    },
    (
        "inference/small_variance/partition.py",
        "inference/small_variance/test_passes.py -k 'ranks_have or on_all'",
    ): {
        "chosen - start))": "chosen))",
        "/ all_count(self.problem.num_data)": "/ self.problem.num_data",
    },
    ("inference/distributed/passes.py", "inference/small_variance/test_passes.py -k 'other_numbers or on_all'"): {
        "= self.first + place": "= place",
        'on_all(passed, "go on")': "passed()",
        "if tape.join is torch.add]": "]",
        "with among(None):  # ranks": "with among(those):  # ranks",
    },
    ("inference/svi/factors.py", "inference/running/test_changed_states.py -k first_full_sweep"): {
        '    require_shape("gram", state.gram, tuple(state.precision_tril.shape))\n': "",
        '    require_shape("linear", state.linear, tuple(state.mean.shape))\n': "",
    },
    ("inference/svi/factors.py", "inference/distributed/test_ranks.py -k 'find_what and SVI and DPM and not full'"): {
        "counts, statistics, *said = all_sums(": "counts, statistics, *said = (",
    },
    ("inference/svi/features/factors.py", "inference/distributed/test_ranks.py -k 'find_what and SVI-features'"): {
        "+ _total(of_rows, whole) +": "+ of_rows +",
    },
    ("inference/classifiers/scored.py", "inference/distributed/test_ranks.py -k 'find_what and small and SVM'"): {
        "zip(known, sums, strict=True)": "zip(known, sums[::-1], strict=True)",
    },
    ("models/host.py", "test_threads.py -k 'one_thread or again'"): {
        "                torch.set_num_threads(own.before)": "                pass",
        "            if not own.running:\n": "            if True:\n",
        "        if not _ALL.running:\n": "        if True:\n",
        "_ALL.before if is_new else known": "known",
        "known == 1 and not own.before and _ALL.running": "known == 1 and _ALL.running",
        "        torch.set_num_threads(1)": "        pass",
    },
    ("inference/running/interrupts.py", "inference/running/test_interrupts.py -k own_handler"): {
        "                previous(signal.SIGINT, None)": "                pass",
        "if self.noted and callable(previous)": "if callable(previous)",
    },
    ("inference/posterior/base.py", "inference/posterior/test_posterior.py -k without_arviz"): {
        "except ImportError as error": "except OSError as error",
    },
    ("inference/markov/paths.py", "inference/markov/test_markov.py -k numpy_set"): {
        "torch.from_numpy(products[:, :K]) * transition": "products[:, :K] * transition.numpy()",
        'np.errstate(under="ignore")': "np.errstate()",
    },
    ("cli/files.py", "cli/test_cli.py -k encoding"): {
        "return sys.stdout if buffer is None else": "return sys.stdout if True else",
        'getwriter("utf-8")': 'getwriter("utf-16")',
    },
    ("cli/__init__.py", "cli/test_cli.py -k encoding"): {
        'stream.reconfigure(errors="replace")': "pass",
    },
    ("models/warning.py", "models/test_warning.py"): {
        "            found[message] = category\n            return": "            return",
        "((categories, found), *_WITHHELD.get())": "((categories, found),)",
        "if issubclass(category, categories)": "if True",
        "        _WITHHELD.reset(token)": "        pass",
    },
    ("models/host.py", "test_threads.py -k child"): {
        "_LOCK, _ALL.running = Lock(), _OWN.contexts.running": "_LOCK = Lock()",
    },
    ("inference/pyro_engines/backend.py", "test_threads.py -k child"): {
        "    _PYRO = RLock()\n\n": "    pass\n\n",
    },
    ("inference/pyro_engines/backend.py", "inference/pyro_engines/test_pyro_engines.py -k handlers"): {
        "        stack.clear()": "        pass",
        "            stack[:] = own": "            pass",
        "_PYRO_STACK, _DIM_ALLOCATOR._stack": "(_PYRO_STACK,)",
    },
    ("inference/posterior/label_calibration.py", "models/test_bnmc.py -k 'calibrat or against_itself'"): {
        "slopes = heard * slopes": "slopes = slopes.clone()",
        "heard.view(-1, 1, 1) * views": "views",
        "classifiers]).double() + offset.double()": "classifiers]).double()",
        "base = -offset.double()": "base = 0 * offset.double()",
    },
    ("models/sums.py", "inference/distributed/test_ranks.py -k 'find_what and DPM'"): {
        "all_sums(tensor)[0] if _WAITING.get() else those.sum(tensor)": "tensor",
        "[part.numel() for part in every]": "[part.numel() for part in every[::-1]]",
        "int(sizes[:own].sum()), int": "0, int",
    },
    ("models/sums.py", "inference/distributed/test_ranks.py -k needed_later"): {
        "    waiting.clear()\n": "    pass\n",
        "sums[len(tensors) :]": "sums[: len(waiting)]",
        "found[those.number] = value": "found[0] = value",
        "values.amax() if": "values.amin() if",
    },
    ("inference/distributed/picked.py", "inference/distributed/test_ranks.py -k 'find_what and DPM'"): {
        "found[own] = mine": "found[~own] = mine",
        "before + ends": "ends",
    },
    ("inference/svi/label_sets/coupled.py", "inference/distributed/test_ranks.py -k 'find_what and BNMC'"): {
        "ones, known = all_sums(": "ones, known = (",
        "total, told = all_sums(total, told)": "total = all_sums(total)[0]",
    },
    (
        "inference/small_variance/label_sets/moves.py",
        "inference/distributed/test_ranks.py --nightly -k 'find_what and BNMC'",
    ): {
        ", len(change), span)": ", 0, span)",
    },
    ("inference/bits/loadings.py", "inference/distributed/test_ranks.py -k 'SVI and (bits or blocks)'"): {
        "if not each and len(observed.precision)": "if len(observed.precision)",
    },
    ("models/likelihoods/blocks.py", "inference/distributed/test_ranks.py -k 'SVI and (bits or blocks)'"): {
        "rows = 1 if same else len(found[0].shift)": "rows = max(len(one.precision) for one in found)",
    },
    (
        "inference/distributed/picked.py",
        "inference/distributed/test_ranks.py -k 'no_feature_is or bits or equal_values'",
    ): {
        "ranks() is None or not columns": "ranks() is None",
        "(equal.cumsum(0) <= count - above.sum())": "(equal.cumsum(0) > equal.sum() - count + above.sum())",
        "index = index.sort().values": "index = index.sort(descending=True).values",
    },
    (
        "inference/small_variance/sequence.py",
        "inference/small_variance/test_small_variance_repelling.py -k own_sequence",
    ): {
        "torch.maximum(seen.cumsum(0) - 1, first)": "(seen.cumsum(0) - 1).clamp(min=0)",
        "assignments[source].where(known, 0)": "assignments[source]",
    },
    ("inference/distributed/stream.py", "inference/distributed/test_sources.py -k true_and_false"): {
        "first.to(classes) if first.dtype == torch.bool else first": "first",
    },
    ("cli/tables.py", "cli/test_cli.py -k durations"): {
        'pc.binary_join_element_wise(text, cells.type.unit, " ")': "text",
    },
    ("inference/distributed/tables.py", "inference/distributed/test_sources.py -k other_types"): {
        "pa.uint8() if pa.types.is_boolean(field.type) else field.type": "field.type",
        "reduce(_wider, others, field)": "field",
    },
    ("inference/distributed/tables.py", "inference/distributed/test_sources.py -k other_columns"): {
        "in ((other, first), (first, other))": "in ((other, first),)",
        "if name not in schemas[file].names": "if name not in schemas[whole].names",
    },
    ("inference/distributed/together.py", "inference/distributed/test_ranks.py -k one_order"): {
        "names = source.column_names or names": "names = []",
    },
    ("inference/row_weights.py", "inference/distributed/test_ranks.py -k too_few"): {
        "    if left < min(least, given):": "    if False:",
    },
    ("models/latent_features.py", "inference/distributed/test_ranks.py -k rows_of_one_rank"): {
        "(empty := all_sum(observed.double().sum(0)) == 0)": "(empty := observed.double().sum(0) == 0)",
    },
    ("inference/distributed/picked.py", "inference/distributed/test_ranks.py -k changes_what_the_one_before"): {
        "now = before + all_sum(": "now = 0 * before + all_sum(",
    },
    ("inference/seeding.py", "inference/test_weights.py -k seeds"): {
        "weights is None else weights[some]": "True else None",
    },
    ("inference/small_variance/births.py", "inference/small_variance/test_small_variance.py -k no_block_raises"): {
        "(saved[:, best] > 0)": "(saved[:, best] >= 0)",
        "assignments[points[movers]]": "assignments[movers]",
    },
    ("inference/small_variance/births.py", "inference/small_variance/test_small_variance.py -k cheaper_at_once"): {
        "left = (old - old[:, best, None])": "left = (old - 0 * old[:, best, None])",
    },
    ("inference/small_variance/assignment.py", "inference/small_variance/test_small_variance.py -k no_block_raises"): {
        "(cost - problem.base).unsqueeze(1)": "cost.unsqueeze(1)",
    },
    ("inference/small_variance/assignment.py", "inference/small_variance/test_small_variance.py -k do_not_show"): {
        "saving.append(some + rows.start)": "saving.append(some)",
        "lead - rounding, own": "lead - rounding, own - 1.0",
    },
    ("inference/small_variance/assignment.py", "inference/test_weights.py -k weights_pay"): {
        "own *= problem.data.weights[rows][some].to(own).unsqueeze(1)": "pass",
    },
    (
        "inference/small_variance/features/births.py",
        "inference/small_variance/test_small_variance_features.py -k refined_together",
    ): {
        "torch.where(more.unsqueeze(1), moved, loadings)": "moved",
        "torch.where(more, moved_totals, totals)": "moved_totals",
    },
    (
        "inference/small_variance/features/births.py",
        "inference/distributed/test_ranks.py --nightly -k 'find_what and logistic'",
    ): {
        "shared = all_sum(columns.T.double() @ columns.double())": "shared = columns.T.double() @ columns.double()",
    },
    ("inference/small_variance/sequence.py", "inference/distributed/test_ranks.py -k 'find_what and IHMM'"): {
        "return Later(count_transitions(": "return (lambda own: lambda: own)(count_transitions(",
    },
    ("inference/bits/shared_projection.py", "inference/test_projection_steps.py -k ranks_set_bits"): {
        "number = 1 + changed[0] if changed else len(some)": "number = len(some)",
        "scores = scores + (1 - 2 * found[d, k]) * double._step(d, k)": "pass",
        "all_sum(torch.stack(own))": "torch.stack(own)",
    },
    ("inference/distributed/picked.py", "inference/distributed/test_ranks.py -k 'find_what and single and DPM'"): {
        "pad(best + start, spare)": "pad(best, spare)",
    },
    (
        "inference/small_variance/features/fit.py",
        "inference/small_variance/test_small_variance_features.py -k single_creation",
    ): {
        "            if not len(some):\n                break\n": "",
    },
    ("models/likelihoods/linear_gaussian.py", "inference/distributed/test_ranks.py -k 'find_what and features'"): {
        "all_sum((counted * X).sum(0))": "(counted * X).sum(0)",
    },
    ("inference/bits/rows.py", "inference/test_feature_steps.py -k settle_each"): {
        "moving = moving[change > tolerance]": "moving = moving[:0]",
        "margin(moving)": "margin(torch.arange(len(moving)))",
    },
    ("inference/classifiers/elliptical_slice.py", "inference/gibbs/test_gibbs.py -k elliptical"): {
        "accepted.long().argmax(0)": "accepted.long().argmin(0)",
        "found[0] + log_height": "found[0]",
    },
    ("inference/gibbs/scans/slice.py", "inference/distributed/test_exact_ranks.py -k 'label_sets and slice'"): {
        "least = largest_later(": "least = (lambda own: lambda: own)(",
    },
    ("inference/gibbs/scans/slice.py", "inference/gibbs/test_gibbs.py -k down_to_the_least"): {
        "state.assignments, log_levels, ": "state.assignments, 0.9 * log_levels, ",
        'log_levels, "amin")': 'log_levels, "amax")',
    },
    ("inference/gibbs/partition.py", "inference/distributed/test_exact_ranks.py -k 'paths_of_two'"): {
        "tally = Later(": "tally = (lambda own: lambda: own)(",
    },
    ("inference/gibbs/features/kernel.py", "inference/distributed/test_exact_ranks.py -k 'features and blocked'"): {
        "Later(own_counts(state))": "(lambda own: lambda: own)(own_counts(state))",
    },
    ("inference/running/engine.py", "inference/distributed/test_faults.py -k ctrl_c"): {
        "self.asked = agreed_later(": "self.asked = (lambda *own: lambda: own)(",
    },
    ("inference/gibbs/scans/paths.py", "inference/distributed/test_ranks.py -k 'gibbs and IHMM'"): {
        "-all_largest(-log_slices.amin())": "log_slices.amin()",
    },
    ("inference/gibbs/rows.py", "inference/distributed/test_exact_ranks.py"): {
        "return all_sum(own_moves(state, data))": "return own_moves(state, data)",
    },
    ("inference/svi/sequence/climb.py", "inference/svi/test_svi_sequence.py -k what_is_climbed"): {
        "T + own_slope": "T + 1 + own_slope",
        "(1 - rho) * log_rows[:-1].sum(0)": "log_rows[:-1].sum(0)",
        "b - mean_top": "b",
        "mean * (prior_rate - by_alpha)": "mean * (prior_rate + by_alpha)",
    },
    ("inference/svi/sequence/kernel.py", "inference/distributed/test_ranks.py -k 'find_what and (IHMM or DIH)'"): {
        "index - first for index in chosen": "index for index in chosen",
    },
    ("inference/svi/topics/kernel.py", "inference/distributed/test_ranks.py -k 'find_what and LDA'"): {
        "words[own_of(rows, data.num_data)]": "words[rows % data.num_data]",
        "(*anew(": "(*started(",
        "num_data / all_count(rows.num_data)": "num_data / rows.num_data",
    },
    ("inference/distributed/collectives.py", "inference/distributed/test_ranks.py -k 'own_streams or find_what'"): {
        "manual_seed(seed + those.number)": "manual_seed(seed)",
    },
    ("inference/distributed/collectives.py", "inference/small_variance/test_passes.py -k who_has_them"): {
        "draw(total, generator)[start:stop]": "draw(total, generator)[:number]",
        "max(0, start - first) : stop - first": "0 : stop - first",
        "manual_seed(seed + first // _BLOCK)": "manual_seed(seed)",
    },
    (
        "inference/gibbs/hyperplanes.py",
        "models/test_hyperplanes.py inference/gibbs/test_ddpm.py -k 'default or reserve'",
    ): {
        "near.log_ratio(candidates)": "-near.log_ratio(candidates)",
    },
    ("inference/running/emptied.py", "inference/gibbs/test_ddpm.py -k 'default_strength or ten_rows or many_small'"): {
        "if held > 1": "if held > 2",
        "len(labels) / 20": "len(labels) / 2000",
        "not one_is_left(labels)": "one_is_left(labels)",
        "sizes.sum() - sizes.max()": "sizes.sum() - sizes.min()",
    },
    ("inference/truncation.py", "inference/svi/test_svi.py -k 'truncation or nearly_full'"): {
        "share=0.85 if coding_of(model) is None else 1.0": "share=0.85",
        "least = total if most == total else share * total": "least = total",
    },
    ("estimators/clusters.py", "estimators/test_sequence_estimator.py -k more_states"): {
        "likelihood=found.likelihood, truncation=found.truncation": "likelihood=found.likelihood",
    },
    ("estimators/clusters.py", "estimators/test_estimators_as_peers.py -k as_many_clusters"): {
        "while _is_full(best.clusters, best.model):": "while False:",
        "_best_of_families(ordered, 2 * best.model.truncation)": "_best_of_families(ordered, best.model.truncation)",
    },
    ("models/arrays.py", "models/test_arrays.py -k missing_labels"): {
        " and int((classes < 0).sum()) == 1": "",
    },
    ("models/targets/ordinal.py", "models/test_targets.py -k minus_one"): {
        "and len(levels) > 3": "and len(levels) > 9",
        "self.classes is None and levels[:2]": "levels[:2]",
    },
    ("inference/posterior/partition.py", "inference/posterior/test_posterior.py -k variational_draws"): {
        "in self.score_mixtures(X, spread=True):": "in self.score_mixtures(X):",
    },
    ("estimators/reading.py", "test_doors.py -k dates_alone"): {
        'values.dtype.kind in "OmM"': 'values.dtype.kind == "O"',
        'if values.dtype.kind in "mM"': "if False",
    },
    ("inference/row_weights.py", "inference/distributed/test_ranks.py -k weight"): {
        "not all_any(weights != 1)": "not (weights != 1).any()",
        "all_any(losses != 1)": "(losses != 1).any()",
        "counting and all_any(weights[seen] != 1)": "counting and bool((weights[seen] != 1).any())",
        'shard.sizes | {"N": self.sizes}': "shard.sizes",
        "on_all(lambda: _given(backend, model, X, y, sample_weight, loss_weight))": (
            "_given(backend, model, X, y, sample_weight, loss_weight)"
        ),
    },
    ("inference/posterior/clustering.py", "inference/distributed/test_ranks.py -k gathered"): {
        "posterior.shard is None and len(labels) > 1": "len(labels) > 1",
    },
    ("models/ddpm.py", "inference/gibbs/test_ddpm.py -k default_strength"): {
        "strength=0.1": "strength=1.0",
    },
    ("estimators/clusters.py", "estimators/test_estimators_as_peers.py -k covariances"): {
        "return found.bound": "return -found.bound",
    },
    ("estimators/clusters.py", "estimators/test_estimators_as_peers.py -k 'correlations_may or long_clusters'"): {
        "FullGaussian(degrees_of_freedom=columns + 2)": "FullGaussian()",
        'DPM(FullGaussian(scale="covariance"))': "DPM(FullGaussian())",
        "best.clusters == 1": "best.clusters == 0",
    },
    ("estimators/clusters.py", "estimators/test_estimators_as_peers.py -k 'far_apart or far_away or no_clusters_of'"): {
        "families.append(DiagonalGaussian(rate=narrow_rate(rows)))": "pass",
        "rows.weights.sum() <= _MOST_REPEATED * len(rows.X)": "True",
    },
    ("estimators/clusters.py", "estimators/test_estimators_as_peers.py -k 'middle_half or rows_of_0'"): {
        "order = X.argsort(0)": "order, weights = X.argsort(0), np.ones(len(X))",
        "np.average(X, 0, weights)) ** 2, 0, weights)": "0.0) ** 2, 0, weights)",
        "X.shape[1] > 2 and bool(": "bool(",
        "return _pilot(DPM(BernoulliBeta(), truncation=truncation), rows)": "pass",
    },
    ("estimators/parts.py", "models/test_losses.py -k standardized"): {
        '("loss", model.loss)': '("loss", model.coding)',
    },
    ("testing/losses.py", "models/test_losses.py -k standardized"): {
        "if targets is not None and": "if False and",
    },
    ("estimators/partition.py", "estimators/test_estimators_cv.py -k effective"): {
        "self._effective(labels, sizes)": "num_rows",
        "(sizes @ factors) ** 2": "sizes.sum() ** 2",
        "factors /= factors.max()": "pass",
    },
    ("models/bnmc.py", "models/test_bnmc.py -k coupled_joints"): {
        "isinstance(own, Logistic) and own.is_likelihood": "own.is_likelihood",
    },
    ("models/likelihoods/base.py", "inference/posterior/test_sample.py -k whole_numbers"): {
        "generator).to(next(iter(parameters.values())))": "generator)",
    },
    ("estimators/clusters.py", "estimators/test_estimators_as_peers.py -k many_rows_are_found"): {
        "if _is_full(self.n_components_, choice.model) and not": "if False and not",
    },
    ("estimators/partition.py", "estimators/test_estimators_cv.py -k few_rows"): {
        "(num_rows - float(sizes.max()))": "num_rows",
        "int(2 * size // (num_columns + 1))": "_MOST_COMPONENTS",
        "None if weights is None else weights[positive])": "None)",
    },
    ("estimators/clusters.py", "estimators/test_estimators_as_peers.py -k 'order_of_rows or that_chose'"): {
        "choice.posterior.over_rows(torch.from_numpy(choice.place))": "choice.posterior",
        "warn(message, category)": "pass",
    },
    ("inference/svi/backend.py", "inference/svi/test_svi_unions.py -k end_with"): {
        " and not united": "",
    },
    ("inference/svi/allocations.py", "inference/svi/test_svi_rows.py -k given_up"): {
        "if better.bound > state.bound + left": "if True or better.bound > state.bound + left",
    },
    ("inference/svi/allocations.py", "inference/svi/test_svi_unions.py -k rounds"): {
        "number == 2 and lacking >= rise": "number == 2 and lacking >= 0",
        "lacking * (last - rise) >= rise * rise": "lacking >= rise",
    },
    ("inference/svi/partition/kernel.py", "inference/svi/test_svi_unions.py -k chain"): {
        "set(pair).union(*linked)": "set(pair)",
        "model, kept, *absorbed)": "model, kept, absorbed[0])",
    },
    ("estimators/clusters.py", "estimators/test_sequence_estimator.py -k covariances"): {
        "steps[~np.isnan(steps).any(1)]": "steps",
    },
    ("estimators/multi.py", "estimators/test_label_estimator.py -k more_folds"): {
        "X.shape[0] <= _FEW_ROWS": "X.shape[0] < _FEW_ROWS",
    },
    ("estimators/partition.py", "estimators/test_estimators_features.py -k 'slope or the_default_is or sure'"): {
        "rows.y[held], counted": "rows.y, rows.weights",
        "rows.taken(*train).sorted": "rows.taken(*test).sorted",
        "parts[0].loss.is_likelihood": "False",
        "return slope if slope < 1 else None": "return slope",
        "merge=True).num_different // 2)": "merge=True).num_different)",
    },
    ("estimators/rows.py", "estimators/test_estimators_cv.py -k 'equal_rows or dealt'"): {
        "_dealt_before(ends - counts[order], number)": "_dealt_before(ends - 1, number)",
        "(weights if whole else weights > 0)": "weights",
        "unit = weights / np.maximum(copies, 1)": "unit = weights",
    },
    ("estimators/base.py", "estimators/test_estimators_cv.py -k dealt"): {
        "np.ones(X.shape[0]) if weights is None else weights": "np.ones(X.shape[0])",
    },
    ("estimators/base.py", "estimators/test_estimators_from_files.py -k by_their_names"): {
        'self.__dict__.pop("feature_names_in_", None)': "pass",
    },
    ("estimators/task_cv.py", "estimators/test_other_searches.py -k 'task or targets or each_fold'"): {
        "deal(ordered, kind.ravel(), number, copies)": "deal(ordered, 0 * kind.ravel(), number, copies)",
        "1 - np.nanmean((y - decisions) ** 2, 1)": "1 - np.nanmean(abs(y - decisions), 1)",
        "np.asarray(known)": "np.ones(len(known))",
        "at(parts[0], *found.best.steps[-1])": "parts[0]",
    },
    ("estimators/search.py", "estimators/test_estimators_cv.py -k 'gains or components_have'"): {
        "together > 1 and alone > 1": "together > 1",
        "self._gains(found, place, first)[-1]": "self._gains(found, place, best)[-1]",
    },
    ("estimators/search.py", "estimators/test_estimators_cv.py -k 'decide_together'"): {
        "self._together(found, best) if starts else [best]": "[best]",
        "np.tensordot(shares, decisions, 1)": "10 * decisions[0]",
        "each[axis] == best[axis]": "True",
    },
    ("estimators/slopes.py", "estimators/test_estimators_cv.py -k shares"): {
        "p - targets, scores": "p, scores",
        "- (mean * weights) @ mean.T": "- 0 * (mean * weights) @ mean.T",
        "slopes = slopes / sizes": "slopes = slopes * sizes",
        "np.sqrt(weights) * (decisions": "weights * (decisions",
        "found / found.sum()": "found",
    },
    ("inference/posterior/partition.py", "estimators/test_estimators_cv.py -k 'decide_together or average'"): {
        'return 0 if "share" in': 'return 1 if "share" in',
        'one if "temperature" in one.samples else': "one if True else",
        "if not kin or not same(": "if not kin and not same(",
        'if name != "slope"': "if name",
        "abs(sum(found) - 1) > _ROUNDING": "False",
        'if name != "share"': 'if name not in ("share", "temperature")',
    },
    ("inference/posterior/scores.py", "estimators/test_estimators_cv.py -k decide_together"): {
        'self.samples["share"].unsqueeze(1).expand_as(weights)': "weights.softmax(0)",
        '{"slope", "share"}': '{"slope"}',
    },
    ("estimators/multi_cv.py", "estimators/test_other_searches.py"): {
        "f1 + (hits - f1 * total)": "f1 + (hits - total)",
        "(decisions > 0) & known": "decisions > 0.5",
    },
    ("inference/posterior/new_data.py", "inference/posterior/test_sample.py -k 'components or labels_of'"): {
        "index // width, index % width": "index // width, index // width",
    },
    ("inference/posterior/partition.py", "inference/posterior/test_sample.py -k 'components or labels_of'"): {
        "self.draw_targets(mean[rows, own]": "self.draw_targets(mean[rows, 0 * own]",
    },
    ("inference/posterior/scores.py", "inference/posterior/test_sample.py -k 'labels_of or targets'"): {
        "mean, variance if self.averages_probabilities else None": "mean, None",
        'if "slope" in self.samples:\n            probabilities': "if False:\n            probabilities",
        "variance.sqrt() * normals(": "variance * normals(",
    },
    (
        "inference/posterior/partition_losses.py",
        "inference/posterior/test_consensus.py inference/posterior/test_posterior.py -m 'not slow'",
    ): {
        "float(2 * entropy(table)": "float(entropy(table)",
    },
    ("inference/svi/rules.py", "inference/svi/test_svi_features.py -k loops"): {
        "-said.value(old.mean).sum()": "-said.value(2 * old.mean).sum()",
        "return said.bound(old.q)": "return 2 * said.bound(old.q)",
    },
    ("inference/svi/projection/margins.py", "inference/svi/test_svi_projections.py -k 'augmented_updates or frozen'"): {
        "own[:, k] - others - matrix.diagonal() / 2": "own[:, k] - others - matrix.diagonal()",
        "+ mu[K:, None] * mu[:K]": "",
        "+ linear[:, k] + pull[:, k]": "+ linear[:, k]",
    },
    ("inference/gibbs/partition.py", "models/test_priors_without_sticks.py -k bound_the_number"): {
        "points.log_density(state) == -torch.inf": "False",
    },
    ("models/likelihoods/product.py", "models/test_product_likelihood.py -k 'no_value_at_zero'"): {
        "return base.where(weights > 0, 0.0)": "return base",
    },
    ("testing/likelihoods.py", "models/test_likelihoods.py -k outside_of"): {
        "whole = torch.equal(kept, family.prior())": "whole = True",
    },
    ("testing/feature_maps.py", "models/test_feature_maps.py -k names_what"): {
        'require(not changed, "resolve"': 'require(True, "resolve"',
        '    _require_equal(found, features, "resolve"': '    _require_equal(features, features, "resolve"',
        '    _require_equal(again, features, "resolve"': '    _require_equal(features, features, "resolve"',
    },
    ("models/compiled/__init__.py", "models/test_outsider.py -k same_name"): {
        "_TIMES[whole] += 1": "pass",
    },
    ("testing/compiled_forms.py", "models/test_outsider.py -k check_finds"): {
        "gap = _bounded(found) - _bounded(exact)": "gap = _bounded(found) - _bounded(found)",
        'require(table.shape == shape, "summed"': 'require(True, "summed"',
        "visitor.state = placed(rows, table)": "pass",
    },
    ("models/likelihoods/linear_bernoulli.py", "models/test_linear_likelihoods.py -k often"): {
        "float(all_sum(weights.sum(dtype=torch.float64)))": "len(weights)",
        "1 / (2 * max(number, 1.0))": "1 / max(number, 1.0)",
    },
    ("models/likelihoods/_numba_bernoulli.py", "models/test_product_likelihood.py -k 'conditionals or missing'"): {
        "(rows[ones, k] if is_one else b + observed)": "rows[ones, k]",
        "under[k] *= b + observed - rows[ones, k]": "under[k] *= b + observed",
        "own_over *= a + rows[ones, own] - 1.0 if is_one else total": "own_over *= a + rows[ones, own] - 1.0",
        "rows[ones, own] - 1.0 if has_zero else total": "rows[ones, own] - 1.0",
        "if is_one or has_zero:": "if is_one:",
        "observed = rows[2, k] - rows[3 + width + d, k] if masked else rows[2, k]": "observed = rows[2, k]",
    },
    ("models/likelihoods/_numba_bernoulli.py", "models/test_product_likelihood.py -k conform"): {
        "observed = size - missing if len(missing) else size": "observed = size",
    },
    ("models/likelihoods/_numba_bernoulli.py", "models/test_likelihoods.py -k conformance"): {
        "where=zeros > 0": "where=zeros >= 0",
    },
    ("models/likelihoods/_numba_product.py", "inference/gibbs/test_collapsed.py -k 'tensor_scan or outlier'"): {
        "total[k] += out[k]": "total[k] = out[k]",
        "sign) or stale": "sign)",
        "return _shift_each(parts[1:], n, k, sign) or stale": "return stale",
        "1 + np.cumsum(": "np.cumsum(",
    },
    ("inference/svi/projection/_numba_bits.py", "inference/svi/test_svi_projections.py -k 'compiled_bits'"): {
        "base[d] + matrix[d, d] * column[d]": "base[d]",
    },
    ("inference/svi/projection/kernel.py", "inference/test_projection_steps.py -k sweep_has"): {
        "UPDATES[rule](_around(state, model, outer), data": "UPDATES[rule](state, data",
    },
    ("inference/svi/topics/kernel.py", "inference/svi/test_svi_topics.py -k 'from_every_seed or from_a_chain'"): {
        "replace(state, word_counts=scanned_counts(state, data, model, generator, _NUM_FIRST_STEPS))": "state",
    },
    ("inference/svi/topics/start.py", "inference/svi/test_svi_topics.py -k scans_start_at"): {
        "total / num_kept": "total / num_scans",
        "if num_scans < _FEWEST_SCANS": "if num_scans < 1",
        "manual_seed(seed)": "manual_seed(0)",
        "logs[part.columns] + shares": "shares",
    },
    ("inference/svi/topics/start.py", "inference/distributed/test_ranks.py -k 'find_what and LDA'"): {
        "all_rows(part).cpu()": "part.cpu()",
    },
    ("inference/svi/topics/tokens.py", "inference/svi/test_svi_topics.py -k augmented_bound"): {
        "grams -= (weight": "grams += (weight",
        "square[some] -= own": "square[some] += own",
    },
    ("inference/svi/features/_numba_rows.py", "inference/svi/test_svi_features.py -k compiled_margins"): {
        "force = w * heights[c, start + i]": "force = heights[c, start + i]",
        "odds[later, i] -= w": "odds[later, i] += w",
        "logit - mass * slopes[j, following]": "logit + mass * slopes[j, following]",
    },
    ("inference/svi/topics/_numba_topics.py", "inference/svi/test_svi_topics.py -k compiled_documents"): {
        "pull[k] += factor * weights[word, k]": "pull[k] += factor",
        "min(max(found, box[1, n, c]), box[2, n, c])": "found",
    },
    ("inference/svi/topics/_numba_topics.py", "inference/svi/test_svi_topics.py -k compiled_tokens"): {
        "times * own[k]": "own[j] * own[k]",
        "step[k] += own[k]": "step[k] += 0.0",
    },
    ("inference/svi/features/growth.py", "inference/svi/test_svi_features.py -k open"): {
        "if not found.bound > state.bound:": "if False:",
        "for side in (bits, ~bits)]": "for side in (bits, bits)]",
        "part / size + (total - part) / (number - size)": "part / number + (total - part) / number",
        "shift - precision * mean": "shift",
        "weights * (places > middle)": "places > middle",
        "data.row_weights.squeeze(1) * (left @ direction)": "left @ direction",
    },
    ("inference/svi/features/kernel.py", "inference/svi/test_svi_features.py -k start_at_random"): {
        "start = scattered if data.targets.shape[1] else grown": "start = grown",
    },
    ("inference/svi/features/kernel.py", "inference/svi/test_svi_gaps.py -k joint_hinge_of_many"): {
        "DualLimits(LAST_GAP, 4000)": "DualLimits(LAST_GAP, 1000)",
        "DualLimits(1e-3, 45)": "DualLimits(1e-3, 4000)",
    },
    ("inference/svi/features/margins.py", "inference/svi/test_svi_features.py -k loops"): {
        "scale * data.row_weights.squeeze(1)": "scale * torch.ones_like(data.row_weights.squeeze(1))",
    },
    (
        "inference/svi/allocations.py",
        "inference/svi/test_svi_epochs.py inference/svi/test_svi_rows.py -k 'of_a_partition or given_up'",
    ): {
        "batch.scale * said - penalty": "batch.scale * (said - penalty)",
        "return replace(state, may_merge=False)": "return state",
    },
    (
        "inference/svi/factors.py",
        "inference/svi/test_svi.py inference/svi/test_svi_rows.py -k 'no_block or full_stochastic or sums_are'",
    ): {
        "points.X, points.counted(state.of_points(data, slice(None)))": "points.X, state.of_points(data, slice(None))",
        "+= found.log_total + some": "+= found.log_total - some",
        "chi).towards(target, model, rho)": "chi)",
        "state.prior_kl(model) + components_kl": "2 * state.prior_kl(model) + components_kl",
        "joined(r, kept, *absorbed), seen)": "r, seen)",
    },
    (
        "inference/svi/partition/factors.py",
        "inference/svi/test_svi.py inference/svi/test_svi_priors.py -k 'no_block or stochastic or diverg or best_of'",
    ): {
        "(responsibilities, data.counted(log_total)": "(responsibilities, 2 * data.counted(log_total)",
        "state = update_prior(self, model)": "state = self",
        "if best - now > _ALIKE": "if now - best > _ALIKE",
        "+ prior.log_normalizer": "",
    },
    ("inference/svi/projection/kernel.py", "inference/svi/test_svi_projections.py -k opposite"): {
        "(directions * exist)": "directions",
    },
    ("estimators/rows.py", "estimators/test_estimators_features.py -k moments_of"): {
        "(len(values) - 1) / spread": "1.0 / spread",
        "2 * np.sqrt(variances)": "9 * np.sqrt(variances)",
        "np.exp(logs / 2), np.exp(common / 2)": "np.exp(logs), np.exp(common)",
        "y = np.sort(y, axis=0)": "y = 1.0 * y",
        "mean[drawn], mean[~seen] = ": "mean[drawn], _ = ",
    },
    ("estimators/multi.py", "estimators/test_estimators_features.py -k mean_over_tasks"): {
        "if own.sum() > 1": "if own.any()",
    },
    ("estimators/label_sets.py", "estimators/test_label_estimator.py -k 'minus_one or column_is'"): {
        "return np.where(missing, np.nan, labels)": "return labels",
        "labels.shape[1] > 1 or classes": "True or classes",
    },
    ("estimators/multi.py", "estimators/test_label_estimator.py -k column_is"): {
        "scores.shape[1] == 1 and not self.has_matrix": "scores.shape[1] == 1",
    },
    ("estimators/multi.py", "estimators/test_estimators_features.py -k have_units"): {
        "self.target_mean_ + self.target_scale_ * standard": "self.target_mean_ + standard",
        "(targets - self.target_mean_) / self.target_scale_": "targets - self.target_mean_",
    },
    ("estimators/rows.py", "estimators/test_estimators.py -k units"): {
        "*(targets if exact else [])": "*targets",
        "_mixed(_mixed(first, words), words).byteswap()": "first",
        "weights[order] > 0) > 0": "weights[order] > -1) > 0",
    },
    ("estimators/rows.py", "estimators/test_estimators_as_peers.py -k all_alike"): {
        "differs[1:2] |= not differs[1:].any()": "pass",
    },
    ("estimators/search.py", "estimators/test_estimators_cv.py -k decides_not"): {
        "else self._best(found, list(counted))": "else list(counted)[0]",
        "strict=True) if share}": "strict=True)}",
    },
    ("inference/svi/partition/unions.py", "inference/svi/test_svi_unions.py"): {
        "(times * seen.gain).sum(1) + seen.rejection": "(times * seen.gain).sum(1)",
        "entr(shares.sum(1)) - entr": "entr(shares.sum(1)) + entr",
    },
    ("inference/svi/label_sets/unions.py", "inference/svi/test_svi_label_unions.py"): {
        "chi[kept] += chi[absorbed] - model.family.prior()": "chi[kept] += chi[absorbed]",
        "*pair) > 0 for": "*pair) > 1e9 for",
        "joined(state.statistics.T, kept, absorbed).T": "state.statistics",
    },
    ("inference/svi/label_sets/_numba_labels.py", "inference/svi/test_svi_label_unions.py -k marginals"): {
        "float(one[v]) + float(other[v]) - less[v]": "float(one[v]) + float(other[v])",
    },
    ("inference/svi/label_sets/kernel.py", "inference/svi/test_svi_label_unions.py"): {
        "- state.prior_kl(model.mixture) - kl_of(laws)": "- state.prior_kl(model.mixture)",
        "some.margins.counted(log_total)": "log_total",
    },
    ("models/likelihoods/counts.py", "inference/svi/test_svi_label_unions.py -k rising"): {
        "level @ (columns + j).log()": "level @ columns.log()",
        "torch.lgamma(a + _SMALL)": "torch.lgamma(a)",
    },
    ("inference/classifiers/ridge.py", "inference/svi/test_svi_label_unions.py -k products"): {
        "linear.addmm_((counted * shift": "linear.addmm_((shift",
    },
    (
        "inference/svi/sequence/factors.py",
        "inference/svi/test_svi_sequence.py -k 'enumeration or blocks_together or first_steps'",
    ): {
        "into = smoothed.transitions[:T, T:] + smoothed": "into = smoothed",
        "until - before": "until",
        "starts * self.transitions[-1:]": "self.transitions[-1:]",
        "- inner(moves, log_rows)": "",
        "if data.at_start else torch.zeros_like": "if True else torch.zeros_like",
    },
    ("inference/svi/topics/kernel.py", "estimators/test_estimators_as_peers.py -k batches"): {
        '(sizes + kept["topics"].shape[1] * beta)': "sizes",
    },
    ("inference/svi/online.py", "inference/svi/test_svi_online.py -k goes_on"): {
        "(scale + backend.delay) **": "scale **",
    },
    ("inference/svi/partition/kernel.py", "inference/svi/test_svi_online.py -k goes_on"): {
        '"sticks": kept["sticks"],': '"sticks": torch.ones_like(kept["sticks"]),',
    },
    ("inference/posterior/topics.py", "estimators/test_estimators_as_peers.py -k score_of_topics"): {
        "words - kl_divergence(": "words - 0 * kl_divergence(",
    },
    ("inference/posterior/scores.py", "estimators/test_estimators_as_peers.py -k spread_of_a_mean"): {
        "within = within + mixture.variance": "within = within + 0 * mixture.variance",
        "between + torch.stack(squares)": "torch.stack(squares)",
    },
    ("inference/posterior/clustering.py", "estimators/test_estimators_as_peers.py -k count_twice"): {
        "samples.setdefault(EXPECTED_LOSS, expected_loss(": "samples.setdefault(EXPECTED_LOSS, -expected_loss(",
    },
    ("estimators/rows.py", "estimators/test_estimators_as_peers.py -k folds_of_groups"): {
        "np.bincount(place, weights * y) / sizes": "np.bincount(place, y) / sizes",
    },
    ("datasets/downloads.py", "datasets/test_downloads.py"): {
        "table[:, :520] != 100": "(table[:, :520] != 100) & (table[:, :520] != 0)",
        '("time", "phone", "user")': '("phone", "user", "time")',
        'np.argsort(seconds, kind="stable")': "np.argsort(seconds)[::-1]",
        '"time": seconds[order]': '"time": seconds',
        "X[:, np.ptp(X, axis=0) > 0]": "X",
        "table[:, 499:].toarray()": "table[:, 498:].toarray()",
        "registry=home.files": "registry=dict.fromkeys(home.files)",
        'f"{part.shape}".encode() + ': "",
    },
    ("datasets/real.py", "datasets/test_downloads.py -k differs"): {
        "data.X_test, data.y_test) != HOMES": "data.X_test, data.y_test) == HOMES",
    },
    ("models/feature_maps/base.py", "models/test_feature_maps.py -k 'too_few or constant_of_one'"): {
        "    intercept: NonNegative = 1.0\n\n    @abstractmethod": "    intercept: NonNegative\n\n    @abstractmethod",
        "        _require_rows(found, X)\n": "",
    },
    ("models/likelihoods/exponential_family.py", "models/test_likelihoods.py -k terms_of_a_divergence"): {
        "if type(self).divergence_terms is ExponentialFamily.divergence_terms:": "if True:",
    },
    ("testing/likelihoods.py", "models/test_likelihoods.py -k 'would_not_notice or one_thread'"): {
        "        _check_weights(likelihood, X)\n": "        pass\n",
        "    _check_size(family, X, U, generator)\n": "",
        "    _close(family.founding_divergence(U), founding,": "    _close(founding, founding,",
        "@host.one_thread()\n": "",
    },
    (
        "testing/likelihoods.py",
        "models/test_likelihoods.py -k 'in_place or itself or constant_is or told_with'",
    ): {
        "    _require(not changed, message)\n": "    _require(family is not likelihood, message)\n",
        "    check_mass(family, X)\n": "",
        "    with named_errors(likelihood):\n": "    if True:\n",
        "    _check_support(family, X)\n": "",
        "    _check_shapes(family, X)\n": "",
    },
    ("testing/normalization.py", "models/test_normalization.py"): {
        "for adaptive in (False, True):": "for adaptive in (False,):",
        "torch.cat([t, ((u - middle) / scale).asinh().clamp(first, last)]).unique()": "t",
        "    if support not in _ENDS or len(own.unique()) < len(own):": "    if support not in _ENDS:",
    },
    ("testing/priors.py", "models/test_priors.py -k 'value_alone or with_its_method'"): {
        "for at in (h, *_quartiles(prior, h)):": "for at in (h,):",
        "    with named_errors(prior):\n": "    if True:\n",
    },
    ("testing/targets.py", "models/test_targets.py -k 'code_table or refused_as'"): {
        "        assert found == expected, what\n": "        pass\n",
        "    with named_errors(model, *OF_ARGUMENTS):": "    with named_errors(model):",
    },
    ("models/priors/base.py", "models/test_priors.py -k without_hyperparameters"): {
        "a.to(like), b.to(like)": "a, b",
        "return a.expand(q.shape[1], -1), b.expand(q.shape[1], -1)": "return a, b",
    },
    ("models/priors/hyper.py", "models/test_priors.py -k without_hyperparameters"): {
        "next(iter(h.values()), torch.zeros((), dtype=torch.float64))": "next(iter(h.values()))",
        " if axes else like.new_empty(0, 1)": "",
    },
    ("testing/probabilities.py", "models/test_losses.py -k names_the_method"): {
        "(further <= _NEAR).all()": "True",
    },
    ("testing/losses.py", "models/test_losses.py -k names_the_method"): {
        "torch.equal(first, again) and not repeats": "True",
        "require_close(found, torch.cat(factors, 1)": "require_close(found, found",
        "        _check_parabola(loss, scores + 0.0137, y)\n": "",
        '"parabola", f"precision {message}", 0.01)': '"parabola", f"precision {message}", 3.0)',
        '(shift - precision * scores)[smooth], slope[smooth], "parabola"': 'slope[smooth], slope[smooth], "parabola"',
    },
    ("testing/losses.py", "models/test_losses.py -k 'no_reading_of_one or one_thread'"): {
        "    require(found.shape == several.shape,": "    require(True,",
        "    require_close(found[:, 1:], alone,": "    require_close(alone, alone,",
        "    require_close(total, torch.ones_like(total),": "    require_close(total, total,",
        "@one_thread()\n": "",
    },
}


def copy_to(folder: Path) -> None:
    """The package as Python imports it, in a folder of its own."""
    shutil.copytree(ROOT / "src" / "regbayes", folder / "regbayes")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / "regbayes" / name)


def fails(copy: Path, tests: str) -> bool:
    """Whether one of the tests fails with the package in the copy."""
    command = f'"{sys.executable}" -m pytest -q -x --nightly -p no:cacheprovider {tests}'
    found = os.environ | {"PYTHONPATH": str(copy)}
    done = subprocess.run(command, shell=True, cwd=ROOT / "tests", env=found, capture_output=True)
    if done.returncode in (2, 3, 4, 5):
        raise ValueError(f"pytest {tests} ran no test:\n{done.stdout.decode()[-500:]}")
    return done.returncode != 0  # 1, or that of a signal, where compiled code wrote outside its arrays


def is_noticed(copy: Path, file: str, tests: str, line: str, broken: str) -> bool:
    """Whether a test fails with the line broken in the copy, which is whole again afterwards."""
    path = copy / "regbayes" / file
    whole = path.read_text()
    if whole.count(line) != 1:
        raise ValueError(f"{file} has {line!r} {whole.count(line)} times; a mutant breaks one place.")
    path.write_text(whole.replace(line, broken))
    try:
        return fails(copy, tests)
    finally:
        path.write_text(whole)


def main(copy: Path, words: list[str]) -> int:
    """Run the mutants of files with one of these words in their path; the number that no test noticed."""
    missed = tried = 0
    copy_to(copy)
    for (file, tests), lines in MUTANTS.items():
        if words and not any(word in file for word in words):
            continue
        if fails(copy, tests):
            raise ValueError(f"pytest {tests} fails with nothing broken, so that it can notice nothing.")
        for line, broken in lines.items():
            noticed = is_noticed(copy, file, tests, line, broken)
            tried, missed = tried + 1, missed + (not noticed)
            print(f"{'noticed' if noticed else 'MISSED '}  {file}: {line}  ->  {broken}", flush=True)
    print(f"{tried - missed} of {tried} noticed")
    return missed


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(main(Path(folder), sys.argv[1:]) > 0)
