"""Reads the text of an optimized HLO module: its instructions, its collectives, its FLOPs.

`jax.stages.Compiled.as_text()` gives such a text, of one device's program. XLA's own
`cost_analysis` counts the body of a loop once, and the layers of a model are a loop; here
everything counts as often as it runs.
"""

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
FUSIONS = ("fusion", "fusion-start")
_BITS = {"pred": 8, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "token": 0, "opaque": 0}
# As XLA writes it, and as it tells cuBLAS.
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')
# By a kernel for a TPU, and by one for a GPU.
_DECLARED = re.compile(r'(?:"cost_estimate": ?\{[^}]*"flops": ?|[{,]flops=)"?(\d+)')
_HOST_MEMORY = 5  # of the memory spaces that a layout's S(n) names; 0 is HBM, the rest on-chip


@dataclass(frozen=True, slots=True)
class Shape:
    """An array: its element type, its dimensions and the memory space that it lies in (0: HBM)."""

    dtype: str
    dims: tuple[int, ...]
    space: int = 0

    @property
    def bytes(self) -> int:
        """Without what the tiles of a TPU's layout pad it to."""
        known = _BITS.get(self.dtype)
        width = re.search(r"\d+", self.dtype)
        bits = known if known is not None else int(width[0]) if width else 0
        return math.prod(self.dims) * bits // 8

    @property
    def hbm_bytes(self) -> int:
        """As `bytes`; 0 where it lies on the chip."""
        return 0 if self.space else self.bytes


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation; `shapes` are its result's, a tuple's leaves in their order."""

    name: str
    shapes: tuple[Shape, ...]
    opcode: str
    operands: tuple[str, ...]
    arguments: str
    attributes: str

    @property
    def is_of_cublas(self) -> bool:
        """Whether it is a product that NVIDIA's library computes."""
        return 'custom_call_target="__cublas$' in self.attributes

    def called(self, attribute: str) -> str | None:
        """The computation that an attribute such as `calls` names."""
        found = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.attributes)
        return found[1] if found else None


@dataclass(frozen=True, slots=True)
class Computation:
    """Instructions by their names, in their order."""

    name: str
    instructions: dict[str, Instruction]
    root: str

    def operand(self, instruction: Instruction, index: int) -> Shape:
        """The shape of an operand that is an array."""
        return self.instructions[instruction.operands[index]].shapes[0]


@dataclass(frozen=True, slots=True)
class Module:
    """Computations by their names, and the name of the one that is run."""

    computations: dict[str, Computation]
    entry: str


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective instruction; a start and its done are one.

    kind: its opcode: all-reduce, all-gather, reduce-scatter, all-to-all, collective-permute, ...
    shapes: the arrays of one device: of the operands or of the results, whichever are larger.
    group: the devices that take part with the first one, by their numbers in the mesh.
    times: how often it runs in a step.
    asynchronous: whether other work runs beside it.
    op_name: the operation of the source program that it was made for.
    """

    kind: str
    shapes: tuple[Shape, ...]
    group: tuple[int, ...]
    times: int
    asynchronous: bool
    op_name: str

    @property
    def dtype(self) -> str:
        """Element types, `f32` or `bf16+f32`."""
        return "+".join(sorted({shape.dtype for shape in self.shapes}))

    @property
    def bytes(self) -> int:
        """Of the arrays of one device, each time it runs."""
        return sum(shape.bytes for shape in self.shapes)

    @property
    def group_size(self) -> int:
        """Devices that take part together."""
        return len(self.group)


def collectives(text: str) -> list[Collective]:
    """The collectives of a module, in the order of its text's call graph.

    Those among one device alone are none.
    """
    module = parse(text)
    found, beside = [], set()
    for computation, instruction, times, _ in executed(module, module.entry):
        kind = instruction.opcode.removesuffix("-start")
        if kind not in COLLECTIVES:
            continue
        # One that runs beside several computations stands in the fusion of each.
        channel = re.search(r"channel_id=(\d+)", instruction.attributes)
        fused = "async_collective_fusion_config" in instruction.attributes
        if channel and fused:
            if channel[1] in beside:
                continue
            beside.add(channel[1])
        group = _group(instruction.attributes)
        if len(group) == 1:
            continue
        if kind == "all-reduce" and "all-reduce-scatter" in computation.name:
            kind = "reduce-scatter"  # so the TPU compiler writes it: a fusion with the slice
        given = [s for name in instruction.operands for s in computation.instructions[name].shapes]
        # A start's result holds the operands too; only an all-gather's is larger than those.
        gathered = instruction.shapes[-len(given) :] if kind == "all-gather" else ()
        name = re.search(r'op_name="([^"]*)"', instruction.attributes)
        asynchronous = fused or instruction.opcode.endswith("-start")
        op_name = name[1] if name else ""
        found.append(
            Collective(kind, tuple(gathered or given), group, times, asynchronous, op_name)
        )
    return found


def flops(text: str) -> int:
    """FLOPs of a step on one device: of dots and convolutions, two a multiply-add.

    Kernels count what they declare; elementwise work does not count.
    """
    module = parse(text)
    return sum(
        times * instruction_flops(computation, instruction)
        for computation, instruction, times, _ in executed(module, module.entry)
    )


@functools.lru_cache(maxsize=2)  # the questions about one text read it once
def parse(text: str) -> Module:
    """The computations of an HLO module's text.

    Raises:
      ValueError: there is no entry computation in it.
    """
    # A kernel that XLA has fused something into says its cost in several lines of JSON.
    text = re.sub(r'\{\n(?:".*\n)+\}', lambda told: told[0].replace("\n", ""), text)
    computations, entry = {}, ""
    name, root, instructions = "", "", {}
    for line in text.splitlines():
        if header := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line):
            name, root, instructions = header[2], "", {}
            entry = name if header[1] else entry
        elif line.startswith("}") and name:
            computations[name] = Computation(name, instructions, root or [*instructions][-1])
            name = ""
        elif name and (found := re.match(r"\s+(ROOT )?%?([\w.\-]+) = ", line)):
            instructions[found[2]] = _instruction(found[2], line[found.end() :])
            root = found[2] if found[1] else root
    if not entry:
        raise ValueError("no entry computation: not the text of an HLO module")
    return Module(computations, entry)


def _instruction(name: str, text: str) -> Instruction:
    """Parse `TYPE opcode(operands), attributes`."""
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    opened = text.index("(", end)
    closed = _closing(text, opened)
    arguments = text[opened + 1 : closed]
    return Instruction(
        name,
        tuple(
            Shape(
                dtype,
                tuple(int(size.lstrip("<=")) for size in dims.split(",") if size),
                _space(layout),
            )
            for dtype, dims, layout in re.findall(
                r"\b([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?", text[:end]
            )
        ),
        text[end:opened].strip(),
        tuple(re.findall(r"%([\w.\-]+)", arguments)),
        arguments,
        text[closed + 1 :],
    )


def _space(layout: str) -> int:
    found = re.search(r"S\((\d+)\)", layout)
    return int(found[1]) if found and int(found[1]) != _HOST_MEMORY else 0


def _closing(text: str, opened: int) -> int:
    """Where the parenthesis that opens at `opened` closes."""
    depth = 0
    for found in re.finditer(r"[()]", text[opened:]):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return opened + found.start()
    raise ValueError(f"unbalanced parentheses: {text[:80]}")


def executed(module: Module, root: str) -> Iterator[tuple[Computation, Instruction, int, bool]]:
    """Every instruction that runs with `root`: where it stands, how often, whether in a fusion.

    Raises:
      ValueError: it is not in the text how often a loop runs.
    """

    def walk(name: str, times: int, fused: bool) -> Iterator:
        computation = module.computations[name]
        for instruction in computation.instructions.values():
            yield computation, instruction, times, fused
            if instruction.opcode == "while":
                trips = _trip_count(module, instruction)
                yield from walk(instruction.called("body") or "", times * trips, fused)
            elif instruction.opcode == "conditional":
                for branch in _branches(instruction):
                    yield from walk(branch, times, fused)
            elif instruction.opcode in (*FUSIONS, "async-start"):
                called = instruction.called("calls") or ""
                yield from walk(called, times, fused or instruction.opcode in FUSIONS)
            elif instruction.opcode == "call":
                yield from walk(instruction.called("to_apply") or "", times, fused)

    return walk(root, 1, False)


def _branches(instruction: Instruction) -> list[str]:
    listed = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
    pair = [instruction.called(f"{value}_computation") for value in ("true", "false")]
    return re.findall(r"%([\w.\-]+)", listed[1]) if listed else [name for name in pair if name]


def _trip_count(module: Module, loop: Instruction) -> int:
    """How often a loop runs: as XLA says, else up to the constant that its condition compares with.

    A scan counts from 0 in steps of 1.

    Raises:
      ValueError: the text does not say.
    """
    if known := re.search(r'known_trip_count":\s*\{"n":\s*"(\d+)"', loop.attributes):
        return int(known[1])
    condition = module.computations[loop.called("condition") or ""]
    constants = [
        int(instruction.arguments)
        for instruction in condition.instructions.values()
        if instruction.opcode == "constant" and instruction.arguments.isdigit()
    ]
    if len(constants) != 1:
        raise ValueError(f"loop {loop.name}: how often it runs is not in the program")
    return constants[0]


def _group(attributes: str) -> tuple[int, ...]:
    """The first group of devices of a collective, in whichever notation it is written."""
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", attributes):
        sizes = {axis: int(size) for axis, size in re.findall(r"'(\w+)'=(\d+)", named[1])}
        devices = np.arange(math.prod(sizes.values())).reshape(*sizes.values())
        picked = re.findall(r"'(\w+)'", named[2])
        group = devices[tuple(slice(None) if axis in picked else 0 for axis in sizes)]
    elif iota := re.search(
        r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes
    ):
        groups, dims, order = (_integers(part or "") for part in iota.groups())
        devices = np.arange(math.prod(dims)).reshape(dims)
        group = devices.transpose(order or None).reshape(groups)[0]
    else:
        listed = re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]+)\}", attributes)
        group = np.array(_integers(listed[1] if listed else ""), int)
    return tuple(int(device) for device in group.flat)


def _integers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def instruction_flops(computation: Computation, instruction: Instruction) -> int:
    """FLOPs of one instruction, without what it calls."""
    if instruction.opcode == "dot" or instruction.is_of_cublas:
        contracted = _CONTRACTED.search(instruction.attributes)
        lhs = computation.operand(instruction, 0).dims
        depth = math.prod(lhs[axis] for axis in _integers(contracted[1] if contracted else ""))
        return 2 * depth * math.prod(instruction.shapes[0].dims)
    if instruction.opcode == "convolution":
        return _convolution_flops(computation, instruction)
    if instruction.opcode == "custom-call":
        declared = _DECLARED.search(instruction.attributes)
        return int(declared[1]) if declared else 0
    return 0


def _convolution_flops(computation: Computation, instruction: Instruction) -> int:
    """As XLA's `HloCostAnalysis::HandleConvolution` counts: what falls on padding is no work.

    The TPU compiler writes every product of matrices as a convolution; the batch and contracted
    axes become windows with dilation and padding, of which most positions are empty.
    """
    lhs, rhs = (computation.operand(instruction, index).dims for index in (0, 1))
    out = instruction.shapes[0].dims
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    if not labels:
        raise ValueError(f"convolution {instruction.name} has no dim_labels")
    in_labels, kernel_labels, out_labels = labels.groups()

    def window(field: str, default: int) -> list[int]:
        found = re.search(rf"window=\{{[^}}]*\b{field}=([\dx]+)", instruction.attributes)
        return _integers(found[1]) if found else [default] * (len(out) - 2)

    strides, dilations, kernel_dilations = (
        window(field, 1) for field in ("stride", "lhs_dilate", "rhs_dilate")
    )
    low = re.search(r"window=\{[^}]*\bpad=([-\d_x]+)", instruction.attributes)
    pads = [int(pair.split("_")[0]) for pair in low[1].split("x")] if low else [0] * (len(out) - 2)
    positions = 1
    for axis in range(len(out) - 2):
        label = str(axis)
        outputs = np.arange(out[out_labels.index(label)])[:, None] * strides[axis]
        taps = np.arange(rhs[kernel_labels.index(label)]) * kernel_dilations[axis]
        at = outputs + taps - pads[axis]
        last = (lhs[in_labels.index(label)] - 1) * dilations[axis]
        positions *= int(((at >= 0) & (at <= last) & (at % dilations[axis] == 0)).sum())
    groups = re.search(r"batch_group_count=(\d+)", instruction.attributes)
    batch = lhs[in_labels.index("b")] // (int(groups[1]) if groups else 1)
    # The kernel's input features are those of one group.
    features = rhs[kernel_labels.index("i")] * out[out_labels.index("f")]
    return 2 * batch * features * positions
