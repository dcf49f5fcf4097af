"""The PTX emulator's memory and control flow: what runs, and what it refuses to run."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.support.ptx import assembly
from tests.support.ptx.failures import Failure, OutOfBounds, Race
from tests.support.ptx.launch import POISONS, Conditions, Launch, program_of

THREADS = 64
MINE = ["mad.wide.u32 %rd11, %r1, 4, %rd1;", "mad.wide.u32 %rd12, %r1, 4, %rd2;"]  # elements of x and of y
LOAD, STORE = "ld.global.b32 %r10, [%rd11];", "st.global.b32 [%rd12], %r10;"
SHARED = "shl.b32 %r2, %r1, 2;"  # this thread's word
NEIGHBOUR = ["xor.b32 %r3, %r1, 32;", "shl.b32 %r4, %r3, 2;"]  # the word of a thread of the other warp
COPY, COMMIT = "cp.async.ca.shared.global [%r2], [%rd11], 4;", "cp.async.commit_group;"


def run(lines: Sequence[str], threads: int = THREADS, **options: object) -> np.ndarray:
    """y after the lines, of x = 0, 1, 2, ..."""
    arrays = {"x": np.arange(THREADS, dtype=np.uint32), "y": np.zeros(THREADS, np.uint32)}
    assembly.run([*MINE, *lines], arrays, threads, shared=4 * THREADS, **options)
    return arrays["y"]


def test_copy() -> None:
    assert [*run([LOAD, STORE])] == [*range(THREADS)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["ld.global.b32 %r10, [%rd11+4];"], f"x: 4 bytes at offset {4 * THREADS}, outside its {4 * THREADS} bytes"),
        (["ld.global.b32 %r10, [%rd11+-4];"], "x: 4 bytes at offset -4"),
        (["st.global.b32 [%rd12+4], %r1;"], "y: 4 bytes at offset"),
        (
            ["setp.lt.u32 %p1, %r1, 8;", "@%p1 ld.global.v2.b32 {%r10, %r11}, [%rd11];"],
            "x: 8 bytes at offset 4, not aligned to 8",
        ),
        (["mov.b64 %rd90, 4;", "ld.global.b32 %r10, [%rd90];"], "belongs to no tensor"),
        (["cp.async.ca.shared.global [0], [%rd11+400000], 4;"], "x: 4 bytes at offset 400000"),
    ],
)
def test_addresses_outside_tensors(lines: list[str], message: str) -> None:
    with pytest.raises(OutOfBounds, match=message):
        run(lines)


def test_a_mask_protects() -> None:
    assert [*run(["setp.lt.u32 %p1, %r1, 60;", "@%p1 ld.global.b32 %r10, [%rd11+16];", "@%p1 " + STORE])[:60]] == [
        *range(4, 64)
    ]


def test_gaps_between_rows_belong_to_nobody() -> None:
    room = torch.arange(64, dtype=torch.int32).view(8, 8)
    text = "ld.param.b64 %rd1, [x];\nmov.u32 %r1, %tid.x;\nmad.wide.u32 %rd2, %r1, 4, %rd1;\nld.global.b32 %r2, [%rd2];"
    program = program_of(f".entry gaps(\n.param .u64 x\n)\n.reqntid 32\n{{\n{text}\nret;\n}}\n")
    Launch(program, (1, 1, 1), {"x": ("*i32", room)}).run()
    with pytest.raises(OutOfBounds, match="x: 4 bytes at offset 28"):
        Launch(program, (1, 1, 1), {"x": ("*i32", room[:, :7])}).run()


def test_shared_memory_between_warps() -> None:
    y = run(
        [SHARED, *NEIGHBOUR, LOAD, "st.shared.b32 [%r2], %r10;", "bar.sync 0;", "ld.shared.b32 %r10, [%r4];", STORE]
    )
    assert [*y] == [i ^ 32 for i in range(THREADS)]


@pytest.mark.parametrize(
    "lines",
    [
        ["st.shared.b32 [%r2], %r1;", "ld.shared.b32 %r10, [%r4];"],
        ["ld.shared.b32 %r10, [%r4];", "st.shared.b32 [%r2], %r1;"],
        ["st.shared.b32 [%r2], %r1;", "st.shared.b32 [%r4], %r1;"],
        ["st.shared.b32 [%r2], %r1;", "bar.warp.sync -1;", "ld.shared.b32 %r10, [%r4];"],
        ["st.shared.b16 [%r2], %rs1;", "ld.shared.b32 %r10, [%r4];"],
        [COPY, COMMIT, "cp.async.wait_group 0;", "ld.shared.b32 %r10, [%r4];"],
        ["ld.shared.b32 %r10, [%r4];", COPY],
    ],
    ids=[
        "load after store",
        "store after load",
        "two stores",
        "a barrier of the warp only",
        "a part",
        "copy",
        "reused",
    ],
)
def test_races(lines: list[str]) -> None:
    """Accesses of two warps to one byte, of which one writes: a barrier makes each of them right."""
    with pytest.raises(Race, match=r"no barrier between|in flight"):
        run([SHARED, *NEIGHBOUR, *lines])
    last = max(i for i, line in enumerate(lines) if "shared" in line)
    run([SHARED, *NEIGHBOUR, *lines[:last], "bar.sync 0;", *lines[last:]])


def test_a_barrier_of_the_warp_orders_its_own_threads() -> None:
    near = ["xor.b32 %r3, %r1, 1;", "shl.b32 %r4, %r3, 2;"]
    lines = ["st.shared.b32 [%r2], %r1;", "bar.warp.sync -1;", "ld.shared.b32 %r10, [%r4];", STORE]
    assert [*run([SHARED, *near, *lines])] == [i ^ 1 for i in range(THREADS)]
    with pytest.raises(Race):
        run([SHARED, *near, lines[0], *lines[2:]])


@pytest.mark.parametrize("in_flight", [0, 1])
def test_copies_in_flight(in_flight: int) -> None:
    """A thread's own copy is there once it has waited for its group, not for the one before."""
    wait = f"cp.async.wait_group {in_flight};"
    lines = [SHARED, COPY, COMMIT, wait, "ld.shared.b32 %r10, [%r2];", STORE]
    if in_flight == 0:
        assert [*run(lines)] == [*range(THREADS)]
    else:
        with pytest.raises(Race, match="in flight"):
            run(lines)
        assert [*run([*lines[:3], COMMIT, *lines[3:]])] == [*range(THREADS)]


def test_a_masked_copy_fills_with_zeros() -> None:
    lines = ["setp.lt.u32 %p1, %r1, 3;", "selp.b32 %r5, 4, 0, %p1;", COPY.replace(", 4;", ", 4, %r5;"), COMMIT]
    y = run([SHARED, *lines, "cp.async.wait_group 0;", "ld.shared.b32 %r10, [%r2];", STORE])
    assert [*y] == [0, 1, 2] + [0] * (THREADS - 3)


def test_shared_memory_has_an_end() -> None:
    with pytest.raises(Failure, match=f"shared address {4 * THREADS} is past the CTA's {4 * THREADS} bytes"):
        run([SHARED, "st.shared.b32 [%r2+4], %r1;"])
    with pytest.raises(Failure, match="shared address 2 is no multiple of 4"):
        run([SHARED, "setp.lt.u32 %p1, %r1, 1;", "@%p1 st.shared.b32 [%r2+2], %r1;"])


def test_registers_and_shared_memory_start_poisoned() -> None:
    for lines in (["st.global.b32 [%rd12], %r99;"], [SHARED, "ld.shared.b32 %r10, [%r2];", STORE]):
        found = [run(lines, conditions=Conditions(poison=poison)) for poison in POISONS]
        assert (found[0] != found[1]).all()


def test_divergent_threads() -> None:
    """Thread i adds 2 to itself i times, in a loop that each leaves when it is done."""
    loop = [
        "mov.b32 %r10, 0;", "mov.b32 %r11, 0;", "$LOOP:", "setp.ge.u32 %p1, %r11, %r1;", "@%p1 bra $DONE;",
        "add.s32 %r10, %r10, 2;", "add.s32 %r11, %r11, 1;", "bra.uni $LOOP;", "$DONE:", STORE,
    ]  # fmt: skip
    assert [*run(loop)] == [2 * i for i in range(THREADS)]


@pytest.mark.parametrize("other", [[], ["bar.sync 0;"]], ids=["ends", "another barrier"])
def test_a_barrier_needs_every_thread(other: list[str]) -> None:
    lines = ["setp.lt.u32 %p1, %r1, 32;", "@%p1 bra $FIRST;", *other, "ret;", "$FIRST:", "bar.sync 0;"]
    with pytest.raises(Failure, match=r"a barrier that not every thread reaches\s+PTX line \d+: bar.sync 0"):
        run(lines)


def test_stores_to_one_address() -> None:
    """Reported where values differ; which of them stays is drawn."""
    same, mine = ["mov.b32 %r10, 5;", "st.global.b32 [%rd2], %r10;"], ["st.global.b32 [%rd2], %r1;"]
    arrays = {"x": np.zeros(4), "y": np.zeros(4)}
    assert not assembly.run(same, arrays) and assembly.run(mine, arrays)
    assert len({run(mine, conditions=Conditions(seed))[0] for seed in range(20)}) == 2


def test_the_order_of_ctas_is_drawn() -> None:
    lines = ["mov.u32 %r5, %ctaid.x;", "st.global.b32 [%rd12], %r5;"]
    last = {int(run(lines, ctas=200, conditions=Conditions(seed))[0]) for seed in range(10)}
    assert len(last) > 5


def test_a_trap_ends_the_run() -> None:
    with pytest.raises(Failure, match="a trap"):
        run(["trap;"])
