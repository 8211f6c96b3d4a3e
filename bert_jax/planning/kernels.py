"""What a compiled program runs one after the other: FLOPs and memory traffic of each kernel."""

from dataclasses import dataclass

from bert_jax.planning.hlo import (
    COLLECTIVES,
    FUSIONS,
    Computation,
    Instruction,
    Module,
    Shape,
    executed,
    instruction_flops,
    parse,
)

# They move no data themselves: names for it, or what they call does.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("while", "call", "conditional", "partition-id", "replica-id", "opt-barrier", "domain"),
}
# Notes of the TPU compiler to itself that it writes as calls.
_FREE_CALLS = ("AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast")
_SLICING = {"slice", "dynamic-slice", "gather"}


@dataclass(frozen=True, slots=True)
class Kernel:
    """An instruction outside any fusion, with all that is fused into it.

    flops: of its dots and convolutions, each time it runs.
    bytes: between the device's memory and the chip, each time it runs.
    times: how often it runs in a step.
    """

    flops: int
    bytes: int
    times: int


def kernels(text: str) -> list[Kernel]:
    """The kernels of a module; collectives are none, nor what costs nothing.

    A kernel moves its operands and results that do not lie on the chip (layouts with S(1) and
    such). Of what is only sliced, the slice counts; of what is updated in place, the update.
    """
    module = parse(text)
    found = []
    for computation, instruction, times, fused in executed(module, module.entry):
        kind = instruction.opcode.removesuffix("-start").removesuffix("-done")
        if fused or kind in COLLECTIVES:
            continue
        flops = instruction_flops(computation, instruction)
        if instruction.opcode in FUSIONS:
            inner = executed(module, instruction.called("calls") or "")
            flops = sum(n * instruction_flops(where, part) for where, part, n, _ in inner)
        moved = _traffic(module, computation, instruction)
        if flops or moved:
            found.append(Kernel(flops, moved, times))
    return found


def _traffic(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Bytes between memory and chip of an instruction outside a fusion."""
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith("-start"):
        return 0
    if any(f'custom_call_target="{name}"' in instruction.attributes for name in _FREE_CALLS):
        return 0
    given = instruction
    if opcode.endswith("-done"):  # what was started is paid for where it ends
        given = computation.instructions[instruction.operands[0]]
        opcode = opcode.removesuffix("-done")
    operands = [computation.instructions[name].shapes for name in given.operands]
    written = sum(
        shape.hbm_bytes for shape in instruction.shapes if not _is_lent(instruction, shape)
    )
    if opcode in _SLICING:
        source = operands[0][0]
        return written + (0 if source.space else sum(shape.bytes for shape in instruction.shapes))
    if opcode == "dynamic-update-slice":
        update = operands[1][0]
        return update.hbm_bytes + (0 if instruction.shapes[0].space else update.bytes)
    if opcode == "fusion":
        fused = module.computations[given.called("calls") or ""]
        return _fusion_traffic(module, fused, operands, instruction.shapes)
    return written + sum(shape.hbm_bytes for shapes in operands for shape in shapes)


def _fusion_traffic(
    module: Module,
    fused: Computation,
    operands: list[tuple[Shape, ...]],
    results: tuple[Shape, ...],
) -> int:
    read = sum(
        min(sum(shape.hbm_bytes for shape in shapes), _read(module, fused, index))
        for index, shapes in enumerate(operands)
    )
    root = fused.instructions[fused.root]
    if root.is_of_cublas:
        return read + sum(shape.hbm_bytes for shape in results if not _is_lent(root, shape))
    names = root.operands if root.opcode == "tuple" else (fused.root,)
    written = sum(
        min(shape.bytes, _written(fused, name))
        for name, shape in zip(names, results, strict=False)
        if not shape.space
    )
    return read + written


def _read(module: Module, fused: Computation, index: int) -> int:
    """Bytes that a fusion reads of its operand `index`, at most."""
    parameter = next(
        (
            instruction
            for instruction in fused.instructions.values()
            if instruction.opcode == "parameter" and instruction.arguments == str(index)
        ),
        None,
    )
    if not parameter:
        return 0
    total, aliases = 0, {parameter.name}
    for user in fused.instructions.values():
        used = [place for place, name in enumerate(user.operands) if name in aliases]
        if not used:
            continue
        if user.opcode == "bitcast":
            aliases.add(user.name)
        elif user.opcode in _SLICING and used == [0]:
            total += user.shapes[0].bytes
        elif user.opcode == "dynamic-update-slice" and used == [0]:
            continue  # in place
        elif user.opcode == "fusion":
            inner = module.computations[user.called("calls") or ""]
            total += sum(_read(module, inner, place) for place in used)
        else:
            return parameter.shapes[0].bytes
    return total


def _written(fused: Computation, name: str) -> int:
    """Bytes that a fusion writes of a result: of one that is updated in place, the update."""
    instruction = fused.instructions[name]
    while instruction.opcode == "bitcast" and instruction.operands[0] in fused.instructions:
        instruction = fused.instructions[instruction.operands[0]]
    shape = instruction.shapes[0]
    if instruction.opcode == "dynamic-update-slice":
        return fused.operand(instruction, 1).bytes
    if instruction.opcode == "get-tuple-element":
        return 0 if _is_lent(fused.instructions[instruction.operands[0]], shape) else shape.bytes
    return shape.bytes


def _is_lent(instruction: Instruction, shape: Shape) -> bool:
    """Whether a result is what cuBLAS is lent to work in: bytes, which stay in the cache."""
    return instruction.is_of_cublas and shape.dtype == "s8"
