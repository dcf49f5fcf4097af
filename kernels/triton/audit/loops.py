"""Natural loops of a disassembled kernel: a backward jump, and all code between its target and the jump."""

from collections.abc import Callable
from typing import NamedTuple


class Instruction(NamedTuple):
    opcode: str  # with its modifiers
    target: str | None = None  # the label it may jump to
    ends: bool = False  # nothing falls through


class Listing(NamedTuple):
    instructions: list[Instruction]
    labels: dict[str, int]  # the index of the instruction that follows


def natural_loops(listing: Listing) -> list[list[int]]:
    """The instructions of each loop, as indices; loops that share a header are one."""
    starts = _block_starts(listing)
    edges = _edges(listing, starts)
    loops: dict[int, set[int]] = {}
    for tail, header in _back_edges(edges):
        loops.setdefault(header, set()).update(_body(edges, header, tail))
    end = dict(zip(starts, [*starts[1:], len(listing.instructions)], strict=True))
    return [[i for start in sorted(body) for i in range(start, end[start])] for body in loops.values()]


def main_loop(listing: Listing, weight: Callable[[str], int]) -> list[str] | None:
    """Opcodes of the loop with the largest total weight, the shortest if several are equal; None if there is no loop.

    Weights below a thousand count only if there are none above: of two loops with equally many matrix products, the
    one with more loads is not the main loop for that reason.
    """
    loops = [[listing.instructions[i].opcode for i in loop] for loop in natural_loops(listing)]
    loops = [loop for loop in loops if len(loop) > 4]  # shorter ones only wait (barriers, the trap at the end)

    def rank(loop: list[str]) -> tuple[int, int]:
        total = sum(map(weight, loop))
        return total // 1000 * 1000 or total, -len(loop)

    return max(loops, key=rank, default=None)


def _block_starts(listing: Listing) -> list[int]:
    count = len(listing.instructions)
    after = {i + 1 for i, instruction in enumerate(listing.instructions) if instruction.target or instruction.ends}
    return sorted(i for i in {0, *listing.labels.values(), *after} if i < count)


def _edges(listing: Listing, starts: list[int]) -> dict[int, list[int]]:
    edges = {}
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        last = listing.instructions[(len(listing.instructions) if following is None else following) - 1]
        next_blocks = [] if last.ends or following is None else [following]
        if last.target in listing.labels and listing.labels[last.target] < len(listing.instructions):
            next_blocks.append(listing.labels[last.target])
        edges[start] = next_blocks
    return edges


def _back_edges(edges: dict[int, list[int]]) -> list[tuple[int, int]]:
    """Edges to a block that is still open in a depth-first walk from the entry."""
    found, state = [], {}
    stack = [(0, iter(edges.get(0, [])))]
    state[0] = "open"
    while stack:
        block, rest = stack[-1]
        following = next(rest, None)
        if following is None:
            state[block] = "done"
            stack.pop()
        elif following not in state:
            state[following] = "open"
            stack.append((following, iter(edges[following])))
        elif state[following] == "open":
            found.append((block, following))
    return found


def _body(edges: dict[int, list[int]], header: int, tail: int) -> set[int]:
    """The blocks from which tail is reached without passing the header, and the header."""
    before: dict[int, list[int]] = {}
    for block, following in edges.items():
        for other in following:
            before.setdefault(other, []).append(block)
    body, todo = {header}, [tail]
    while todo:
        block = todo.pop()
        if block not in body:
            body.add(block)
            todo += before.get(block, [])
    return body
