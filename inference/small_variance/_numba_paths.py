"""Compiled moves of single steps of sequences to the states where their total change of cost is least.

The structure of a path is in the transition counts `counts` [K + 1, K] between states (last row: starts), their row
sums `exits` [K + 1] and the numbers of `successors` [K + 1] of the rows. `gains` [m] are F(m + 1) - F(m), F(m) = m log
m.
"""

from ..compiled.decorators import entry, part


@part
def count(j, k, sign, counts, exits, successors, successor, weight, gains):
    """Add (sign 1) or remove (-1) a transition from j to k; return its cost, or minus what its removal saves."""
    if sign < 0:
        counts[j, k] -= 1
        exits[j] -= 1
        successors[j] -= counts[j, k] == 0
    cost = weight * (gains[exits[j]] - gains[counts[j, k]])
    if counts[j, k] == 0 and successors[j] > 0:
        cost += successor
    if sign > 0:
        successors[j] += counts[j, k] == 0
        counts[j, k] += 1
        exits[j] += 1
    return cost


@entry
def move_steps(costs, starts, penalty, successor, weight, gains, counts, exits, successors, sizes, states, most):
    """Move every step to its cheapest state, one after another, until a pass over the steps moves none.

    Besides the step's cost [N, K], a state without steps costs `penalty`, and a new kind of transition `successor`. The
    states [N], their sizes [K] and the three arrays of transition counts change in place.
    """
    N, K = costs.shape
    table = counts, exits, successors, successor, weight, gains
    for _ in range(most):
        moved = False
        for t in range(N):
            before, own = K if starts[t] else states[t - 1], states[t]
            after = -1 if t + 1 == N or starts[t + 1] else states[t + 1]
            count(before, own, -1, *table)
            if after >= 0:
                count(own, after, -1, *table)
            sizes[own] -= 1
            best, least = own, 0.0
            for place in range(K):
                k = (own + place) % K  # starts with its own state, which is kept on a tie
                cost = costs[t, k] + (penalty if sizes[k] == 0 else 0.0)
                cost += count(before, k, 1, *table)
                if after >= 0:
                    cost += count(k, after, 1, *table)
                    count(k, after, -1, *table)
                count(before, k, -1, *table)
                if place == 0 or cost < least - 1e-9 * (1.0 + abs(least)):
                    best, least = k, cost
            count(before, best, 1, *table)
            if after >= 0:
                count(best, after, 1, *table)
            sizes[best] += 1
            states[t] = best
            moved = moved or best != own
        if not moved:
            break
