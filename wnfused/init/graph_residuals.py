"""Residual blocks in a recorded graph: which sums add a branch to a shortcut, and which blocks form a stage."""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from wnfused.init.graph import Graph, Node
from wnfused.init.graph_ops import SUMS


@dataclass(eq=False)
class Block:
    """A residual block, identified by its sum. ``fork`` is the value it starts from; ``shortcut`` and ``branch`` are
    the operands of the sum. All are node indices."""

    sum: int
    fork: int
    shortcut: int
    branch: int
    shortcut_nodes: set[int]  # after the fork, up to the shortcut operand
    branch_layers: int
    passes_through: bool  # some path from the fork to the shortcut operand has no layer
    outer: "Block | None" = None  # the smallest block whose branch contains this one
    number: int = 1  # in its stage, counted from 1
    stage_blocks: int = 1


@dataclass
class _Path:
    """The nodes between a fork and one operand of a sum."""

    operand: int
    nodes: set[int]
    longest: int  # number of layers on the longest path
    shortest: int
    closed: bool  # depends on nothing but the fork
    taps: int

    @property
    def length(self) -> tuple[bool, int, bool]:
        """Sorts shortcuts first: paths without layers, then those with fewer layers, then a single pointwise layer."""
        return self.shortest > 0, self.longest, self.longest == 1 and self.taps > 1


def residual_blocks(graph: Graph) -> dict[int, Block]:
    """The residual blocks by their sums, in execution order."""
    blocks: dict[int, Block] = {}
    for index, node in enumerate(graph.nodes):
        block = _block_at(graph.nodes, index) if node.op in SUMS and len(node.inputs) == 2 else None
        if block is not None:
            blocks[index] = block
            for inner in block_nodes(graph.nodes, block):
                if inner in blocks and blocks[inner].outer is None:
                    blocks[inner].outer = block
    _number_stages(graph.nodes, blocks)
    return blocks


def _block_at(nodes: list[Node], index: int) -> Block | None:
    first, second = nodes[index].inputs
    fork, sides = _nearest_fork(nodes, first, second)
    if fork is None:
        return None
    paths = [_path(nodes, fork, operand, side) for operand, side in zip((first, second), sides, strict=True)]
    short, long = sorted(paths, key=lambda path: path.length)
    # A shortcut with a layer looks like any parallel path, unless both sides depend on the fork and nothing else.
    told_apart = short.closed and (short.shortest == 0 or long.closed)
    if short.length == long.length or long.longest == 0 or not told_apart:
        return None
    return Block(index, fork, short.operand, long.operand, short.nodes, long.longest, short.shortest == 0)


def _nearest_fork(nodes: list[Node], first: int, second: int) -> tuple[int | None, tuple[set[int], set[int]]]:
    """The latest node that both operands depend on, and what each depends on after it."""
    reached = {first: 1, second: 2}  # bit mask of the operands that depend on the node
    waiting = [-first, -second]
    heapify(waiting)
    while waiting:  # latest first, so that a node's mask is complete when it is visited
        index = -heappop(waiting)
        if reached[index] == 3:
            later = {node: mask for node, mask in reached.items() if node > index}
            return index, ({n for n, m in later.items() if m == 1}, {n for n, m in later.items() if m == 2})
        for source in nodes[index].inputs:
            if source not in reached:
                reached[source] = 0
                heappush(waiting, -source)
            reached[source] |= reached[index]
    return None, (set(), set())


def _path(nodes: list[Node], fork: int, operand: int, side: set[int]) -> _Path:
    longest, shortest, closed, taps = {fork: 0}, {fork: 0}, True, 0
    for index in sorted(side):
        node, known = nodes[index], [source for source in nodes[index].inputs if source in longest]
        closed = closed and len(known) == len(node.inputs) > 0
        if known:
            longest[index] = max(longest[source] for source in known) + node.weighted
            shortest[index] = min(shortest[source] for source in known) + node.weighted
            taps = max(taps, node.taps)
    return _Path(operand, side, longest[operand], shortest[operand], closed, taps)


def block_nodes(nodes: list[Node], block: Block) -> Iterable[int]:
    """The nodes of the branch: everything after the fork that its operand depends on."""
    found, waiting = set(), [block.branch]
    while waiting:
        index = waiting.pop()
        if index > block.fork and index not in found:
            found.add(index)
            waiting.extend(nodes[index].inputs)
    return found


def _number_stages(nodes: list[Node], blocks: dict[int, Block]) -> None:
    """A block continues the stage of the one before it on the main path if both sums have the same shape."""
    before = {index: _block_before(nodes, blocks, block) for index, block in blocks.items()}
    for index, block in blocks.items():
        last = before[index]
        block.number = 1 if last is None else last.number + 1
    after = dict.fromkeys(blocks, 0)
    for index in reversed(blocks):
        blocks[index].stage_blocks = blocks[index].number + after[index]
        last = before[index]
        if last is not None:
            after[last.sum] = max(after[last.sum], after[index] + 1)


def _block_before(nodes: list[Node], blocks: dict[int, Block], block: Block) -> Block | None:
    index = block.shortcut if block.passes_through else block.fork
    while index not in blocks:
        node = nodes[index]
        if node.weighted or len(node.inputs) != 1:
            return None
        index = node.inputs[0]
    last = blocks[index]
    return last if last.outer is block.outer and nodes[last.sum].shape == nodes[block.sum].shape else None
