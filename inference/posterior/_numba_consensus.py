"""Compiled greedy search for a consensus of partitions (SALSO).

A search has blocks [N] of the rows (-1: in none), their sizes [B] and, for each draw s, the number `counts[s, j, b]` of
rows that are in block j of the draw and in block b of the candidate. `gains` are the g of these numbers; g(m) = F(m +
1) - F(m) is all that depends on the loss.
"""

import numpy as np

from ..compiled.decorators import entry, part


@part
def shuffle(stream, rows):
    """Rows [N] in a random order, by Fisher and Yates; `stream` [1] uint64 is a xorshift generator, never 0."""
    for n in range(len(rows) - 1, 0, -1):
        x = stream[0]
        x ^= x << np.uint64(13)
        x ^= x >> np.uint64(7)
        x ^= x << np.uint64(17)
        stream[0] = x
        m = np.int64(x >> np.uint64(11)) % (n + 1)
        rows[n], rows[m] = rows[m], rows[n]


@part
def put(n, block, sign, labels, blocks, sizes, counts, gains, steps):
    """Put row n into a block (sign 1) or take it out (-1)."""
    blocks[n] = block if sign > 0 else -1
    sizes[block] += sign
    for s in range(labels.shape[1]):
        j = labels[n, s]
        counts[s, j, block] += sign
        gains[s, j, block] = steps[counts[s, j, block]]


@part
def cheapest(n, own, labels, sizes, gains, steps, costs):
    """The cheapest block for row n, which is in none; on a tie its former block `own`, if it had one."""
    top, empty = 0, -1
    for b in range(len(sizes)):
        if sizes[b] > 0:
            top = b + 1
        elif empty < 0:
            empty = b
    top = max(top, empty + 1, own + 1)
    costs[:top] = 0.0
    for s in range(labels.shape[1]):
        row = gains[s, labels[n, s]]
        for b in range(top):
            costs[b] += row[b]
    best = own
    for b in range(top):
        costs[b] = steps[sizes[b]] - 2.0 * costs[b] / labels.shape[1]
        # all empty blocks cost the same
        if (sizes[b] > 0 or b == empty) and (best < 0 or costs[b] < costs[best] - 1e-9 * (1.0 + abs(costs[best]))):
            best = b
    return best


@part
def sweeten(stream, order, most, labels, blocks, sizes, counts, gains, steps, costs):
    """Put every row into its cheapest block, in random order, until a pass moves none; rows in no block are placed."""
    for _ in range(most):
        moved = False
        shuffle(stream, order)
        for n in order:
            own = blocks[n]
            if own >= 0:
                put(n, own, -1, labels, blocks, sizes, counts, gains, steps)
            block = cheapest(n, own, labels, sizes, gains, steps, costs)
            put(n, block, 1, labels, blocks, sizes, counts, gains, steps)
            moved = moved or block != own
        if not moved:
            break


@part
def loss_of(sizes, counts, values):
    """sum_b F(A_b) - 2 / S sum_sjb F(n^s_jb): the expected loss up to its scale and a constant."""
    shared, own = 0.0, 0.0
    for number in counts.ravel():
        shared += values[number]
    for size in sizes:
        own += values[size]
    return own - 2.0 * shared / len(counts)


@part
def become(target, labels, blocks, sizes, counts, gains, steps):
    """Move rows so that their blocks are `target` [N], -1 for none."""
    for n in range(len(blocks)):
        if blocks[n] != target[n]:
            if blocks[n] >= 0:
                put(n, blocks[n], -1, labels, blocks, sizes, counts, gains, steps)
            if target[n] >= 0:
                put(n, target[n], 1, labels, blocks, sizes, counts, gains, steps)


@entry
def search(stream, start, labels, num_labels, num_blocks, values, steps, most, tries):
    """Run one search from blocks [N] (-1: the row is placed first); return the blocks and their `loss_of`.

    Sweetening never raises the loss, and a block that was destroyed is restored if that did not lower the loss.
    """
    N, S = labels.shape
    order, blocks, sizes = np.arange(N), np.full(N, -1), np.zeros(num_blocks, np.int64)
    counts = np.zeros((S, num_labels, num_blocks), np.int32)
    gains, costs = np.full((S, num_labels, num_blocks), steps[0]), np.empty(num_blocks)
    become(start, labels, blocks, sizes, counts, gains, steps)
    sweeten(stream, order, most, labels, blocks, sizes, counts, gains, steps, costs)
    lowest = loss_of(sizes, counts, values)
    queue = np.arange(num_blocks)
    shuffle(stream, queue)
    for block in queue:
        if sizes[block] == 0 or tries == 0:
            continue
        tries -= 1
        kept = blocks.copy()
        become(np.where(kept == block, -1, kept), labels, blocks, sizes, counts, gains, steps)
        sweeten(stream, order, most, labels, blocks, sizes, counts, gains, steps, costs)
        found = loss_of(sizes, counts, values)
        if found < lowest:
            lowest = found
        else:
            become(kept, labels, blocks, sizes, counts, gains, steps)
    return blocks, lowest


@entry
def shared_values(candidates, draws, num_candidates, num_labels, values, totals):
    """Set totals [C] to the means over draws of sum_jb F(n_jb), for candidates [C, N] and draws [S, N]."""
    table = np.zeros((num_candidates, num_labels), np.int64)
    for c in range(len(candidates)):
        for s in range(len(draws)):
            table[:] = 0
            for n in range(candidates.shape[1]):
                table[candidates[c, n], draws[s, n]] += 1
            for number in table.ravel():
                totals[c] += values[number]
        totals[c] /= len(draws)
