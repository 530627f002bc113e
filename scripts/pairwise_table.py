#!/usr/bin/env python3
"""Writes tests/mpi/oracle_pairwise.inc: a set of combinations in which every valid pair of values of any two factors
occurs. Run it after a change of the factors and commit the result:  python3 scripts/pairwise_table.py
"""
import itertools
import pathlib

GRIDS = [(8, 1, 1), (4, 2, 1), (4, 1, 2), (2, 4, 1), (2, 1, 4), (2, 2, 2), (1, 8, 1), (1, 4, 2), (1, 2, 4), (1, 1, 8),
         (4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2), (1, 1, 4), (2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 1)]
FACTORS = [GRIDS, [False, True], [("gpipe", 1), ("one_f_one_b", 1), ("interleaved", 2), ("interleaved", 3)],
           ["none", "selective", "full"], [1, 2, 4], ["fp64", "fp32"]]
GLOBAL_BATCH = 16


def valid(c):
    (d, t, p), sequence, (schedule, chunks), _, micro, _ = c
    if GLOBAL_BATCH % (d * micro):
        return False
    if sequence and t == 1:
        return False
    if p == 1:
        return schedule == "one_f_one_b"
    return schedule != "interleaved" or (GLOBAL_BATCH // (d * micro)) % p == 0


def pairs(c):
    return {((i, c[i]), (j, c[j])) for i, j in itertools.combinations(range(len(c)), 2)}


def main():
    candidates = [c for c in itertools.product(*FACTORS) if valid(c)]
    missing = set().union(*(pairs(c) for c in candidates))
    chosen = []
    while missing:
        best = max(candidates, key=lambda c: len(pairs(c) & missing))
        chosen.append(best)
        missing -= pairs(best)
    lines = ["// Made by scripts/pairwise_table.py: grid, sequence parallelism, schedule, chunks, recompute, micro-batch."]
    for (d, t, p), sequence, (schedule, chunks), recompute, micro, precision in sorted(chosen, key=str):
        lines.append(f"{{{d}, {t}, {p}, {str(sequence).lower()}, {schedule}, {chunks}, {recompute}, {micro}, {precision}}},")
    path = pathlib.Path(__file__).parent.parent / "tests/mpi/oracle_pairwise.inc"
    path.write_text("\n".join(lines) + "\n")
    print(len(chosen), "combinations of", len(candidates), "in", path)


main()
