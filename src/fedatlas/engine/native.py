"""A fused graph as one C function: `emit`'s Python calls, compiled whole. An optional accelerator of dense networks.

    emit_native(flat) -> text of ``bind`` (Python: what stays, memory, pointers) and of ``step`` (C: every operator of a step)

`NotNative` refuses unknown operators and types other than float32 and float64; `emit` is then used instead. Sums run in another
order than in torch, so results agree with it within tolerance. Between workers, and between runs on one machine, bits are equal.
"""

from __future__ import annotations

import operator
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedatlas.engine.emit import Emitted, Emitter, only_loss
from fedatlas.engine.graph import Flat, Op, is_op, is_view, value

aten = torch.ops.aten

KERNELS = resources.files("fedatlas.engine").joinpath("kernels.h").read_text(encoding="utf-8")

# Element by element; {0}, {1} ... are the operands, {alpha} the factor of a sum. Comparisons pass a NaN on, as in torch.
ELEMENTS = {
    "abs": "fabs({0})",
    "add": "{0} + {alpha} * {1}",
    "clamp_min": "({0} < {1} ? {1} : {0})",
    "clone": "{0}",
    "copy": "{1}",
    "div": "{0} / {1}",
    "eq": "({0} == {1})",
    "exp": "exp({0})",
    "ge": "({0} >= {1})",
    "log": "log({0})",
    "log_sigmoid_backward": "{0} / (1 + exp({1}))",
    "log_sigmoid_forward": "(({0} < 0 ? {0} : 0) - log1p(exp(-fabs({0}))))",
    "masked_fill": "({1} ? {2} : {0})",
    "mul": "{0} * {1}",
    "neg": "-{0}",
    "reciprocal": "1 / {0}",
    "relu": "({0} < 0 ? 0 : {0})",
    "sigmoid": "1 / (1 + exp(-{0}))",
    "sigmoid_backward": "{0} * (1 - {1}) * {1}",
    "sqrt": "sqrt({0})",
    "sub": "{0} - {alpha} * {1}",
    "tanh": "tanh({0})",
    "tanh_backward": "{0} * (1 - {1} * {1})",
    "threshold_backward": "({1} <= {2} ? 0 : {0})",
    "where": "({0} ? {1} : {2})",
}
TOTALS = {"mean": "{0} / {count}", "mse_loss": "({0} - {1}) * ({0} - {1}) / {count}", "dot": "{0} * {1}"}
PRODUCTS = {"mm", "addmm"}
REALS = {torch.float32: "float", torch.float64: "double"}


class NotNative(Exception):
    """Raised if a graph has no C form; the message gives the reason."""


class Addend(NamedTuple):
    """A sum postponed so that the next product reads its tensor once: t <- own * t + other * tensor."""

    node: Op
    own: str
    other: str
    tensor: Op


def emit_native(flat: Flat) -> Emitted:
    """Return the program of a fused graph with its step in C. NotNative, with the reason, if an operator has no C form."""
    emitter = _Native(flat)
    source = emitter.source()
    note = f"native: {len(emitter.lines)} operations in C"
    return Emitted(source, emitter.reads, flat.fixed, note, emitter.code())


class _Native(Emitter):
    def __init__(self, flat: Flat) -> None:
        super().__init__(flat)
        self.lines: list[str] = []  # the body of the C function
        self.pointers: dict[str, str] = {}  # name in bind -> C variable
        self.numbers: dict[str, str] = {}  # the same for plain numbers
        self.given: dict[Op, str] = {}  # batch arguments and views of them -> C variable
        self.locals: dict[Op, str] = {}  # numbers that a step computes -> C variable
        self.tests: set[Op] = set()  # comparisons, written out where their result is used
        self.put_off: dict[Op, Addend] = {}  # by root
        self.dtype = next(value(node).dtype for node, path in self.places.paths.items() if path.startswith("params/"))
        if self.dtype not in REALS:
            raise NotNative(f"{self.dtype} has no C")

    def source(self) -> str:
        """Return the text of ``bind``: torch makes the constants, and the step passes all addresses to the C function."""
        self.write_all()
        output: Op = self.flat.graph.output_node()
        loss = output.args[0][0]
        if loss not in self.locals:
            raise NotNative(f"the loss is made by {loss.target}")
        self.lines.append(f"return {self.locals[loss]};")
        ending = self.optimiser()
        batch = self.batch()
        names = ", ".join(batch)
        held = ", ".join(self.pointers)
        outer = [
            *self.bind,
            f"held = [{held}]",
            f"pointers = (ctypes.c_void_p * {len(self.pointers)})(*[x.data_ptr() for x in held])",
            f"numbers = (ctypes.c_double * {len(self.numbers)})({', '.join(self.numbers)})",
            f"native.argtypes, native.restype = [ctypes.c_void_p] * {len(batch) + 2}, ctypes.c_double",
        ]
        inner = [f"{name} = {name}.contiguous()" for name in batch]
        places = ", ".join(f"{name}.data_ptr()" for name in batch)
        called = f"native(pointers, numbers, {places})"
        inner += [f"loss = {called}", *ending, "return loss"] if ending else [f"return {called}"]
        return self.text_of(outer, names, inner, "step.held = held")

    def code(self) -> str:
        """Return the C text: kernels and the step."""
        given = "".join(f", const {self.c_type(node)} *{name}" for name, node in self.batch().items())
        taken = [f"real *{c} = p[{i}];" for i, c in enumerate(self.pointers.values())]
        taken += [f"const real {c} = n[{i}];" for i, c in enumerate(self.numbers.values())]
        body = "\n".join(f"  {line}" for line in [*taken, *self.lines])
        real = REALS[self.dtype]
        return f"#define REAL {real}\n{KERNELS}\ndouble step(real **p, const double *n{given}) {{\n{body}\n}}\n"

    def batch(self) -> dict[str, Op]:
        """Return the arguments of a step in their order."""
        paths = self.places.paths
        return {self.name[node]: node for node, path in paths.items() if path.startswith("batch/")}

    # ------------------------------------------------------------------ nodes

    def write(self, node: Op) -> None:
        kind = self.places.kind[node]
        if kind == "passing" and node.op == "placeholder":
            self.given[node] = self.call_it(node, self.places.paths[node].partition("/")[2])
            if not value(node).is_contiguous():
                raise NotNative("the rows are not contiguous in memory")
        elif kind == "passing" and is_view(node) and node.args[0] in self.given:
            if not is_op(node.args[0]) or value(node).storage_offset():
                raise NotNative(f"{node.target} of the rows starts inside them")
            self.given[node] = self.given[node.args[0]]
        else:
            super().write(node)

    def passing(self, node: Op) -> None:
        """Write values that torch's calls would compute in each step: numbers become variables, tensors get a place."""
        pair = node.args[0] if node.target is operator.getitem else node
        if pair.target is aten.log_sigmoid_forward.default:
            if node is not pair and node.args[1] == 0:  # the other result of the two is not needed
                self.allocate(node)
                self.elements(node, node, "log_sigmoid_forward", pair.args)
        elif node.target is operator.getitem and only_loss(pair):
            self.loss(node, *pair.args)
        elif not isinstance(node.meta.get("val"), Tensor):
            raise NotNative(f"{node.target} has several results")
        elif value(node).dim() == 0:
            self.number_of(node)
        elif is_view(node):
            self.prepare(node)
        elif value(node).dtype == torch.bool:
            self.tests.add(node)
        else:
            self.into_place(node)

    def number_of(self, node: Op) -> None:
        """Write a number that a step computes: a sum over elements, or an expression of other numbers."""
        method, first = method_of(node), node.args[0]
        if method in TOTALS:
            terms = [self.element(x, first) for x in node.args if is_op(x)]
            total = self.local(node)
            line = TOTALS[method].format(*terms, count=value(first).numel())
            self.loop([f"{total} += {line};"], first)
        else:
            texts = [self.element(a) for a in node.args]
            line = self.expression_of(node, method, texts)
            self.lines.append(f"{self.local(node)} = {line};")

    def loss(self, node: Op, scores: Op, y: Op, weight: Any, reduction: int, ignore: int) -> None:
        if weight is not None or reduction != 1 or y not in self.given or value(scores).dim() != 2:
            raise NotNative("this form of the loss has no C")
        (i, j), (yi, *_) = value(scores).stride(), value(y).stride()
        rows, classes = value(scores).shape
        found = f"nll({rows}, {classes}, {self.pointer(scores)}, {i}, {j}, {self.given[y]}, {yi}, {ignore})"
        self.lines.append(f"{self.local(node)} = {found};")

    def local(self, node: Op) -> str:
        self.locals[node] = f"made_{len(self.locals)}"
        self.lines.append(f"real {self.locals[node]} = 0;")
        return self.locals[node]

    def overwrite(self, node: Op) -> None:
        """Write an operator that writes into an argument."""
        owner = self.owner_of(node)
        method = method_of(node).removesuffix("_")
        if method == "add" and self.is_put_off(node, owner):
            return
        if method == "addmv":
            self.vector(node, owner)
        elif method in PRODUCTS:
            _, a, b = node.args
            self.product(node, owner, a, b, owner, scale(node, "beta"), scale(node))
        else:
            self.elements(node, owner, method)

    def into_place(self, node: Op) -> None:
        """Write an operator whose result has a place: its first operand's memory, or memory laid out for it."""
        if value(node).dim() == 0:
            return self.number_of(node)
        over, method = self.takes_over(node), method_of(node)
        if method in PRODUCTS:
            *z, a, b = node.args
            beta = scale(node, "beta") if z else 0
            self.product(node, node, a, b, z[0] if z else None, beta, scale(node))
        elif method == "_log_softmax":
            self.log_softmax(node)
        elif method == "scatter_add" and over:
            self.scatter_add(node)
        elif method in ("sum", "linalg_vector_norm"):
            self.sum(node, method)
        elif method == "mse_loss_backward":
            g, a, b = (self.element(x, node) for x in node.args[:3])
            self.loop([f"{self.element(node)} = 2 * {g} * ({a} - {b}) / {value(node).numel()};"], node)
        elif method == "log_sigmoid_backward":
            self.elements(node, node, method, node.args[:2])  # without the buffer that `passing` left out
        else:
            self.elements(node, node, "clone" if method == "_to_copy" else method)
        return None

    # ------------------------------------------------------------------ operators

    def elements(self, node: Op, out: Op, method: str, operands: Any = None) -> None:
        """Write a loop over the result's elements."""
        if method not in ELEMENTS:
            raise NotNative(f"{node.target} has no C")
        operands = node.args if operands is None else operands
        read = [a for a in operands if is_op(a)]
        read += [b for a in read if a in self.tests for b in a.args if is_op(b)]
        flat = value(out).is_contiguous() and all(alike(a, out) for a in read if value(a).dim())
        texts = [self.element(a, out, flat) for a in operands]
        self.loop([f"{self.element(out, out, flat)} = {self.expression_of(node, method, texts)};"], out, flat)

    def expression_of(self, node: Op, method: str, texts: list[str]) -> str:
        """Return an operator on the texts of its operands."""
        if method == "clamp":  # one bound or both
            low, high = (*node.args[1:], None)[:2]
            text = texts[0]
            if low is not None:
                text = ELEMENTS["clamp_min"].format(text, texts[1])
            return text if high is None else f"({text} > {texts[2]} ? {texts[2]} : {text})"
        if method not in ELEMENTS:
            raise NotNative(f"{node.target} has no C")
        return ELEMENTS[method].format(*texts, alpha=self.factor(scale(node)))

    def loop(self, body: list[str], over: Op, flat: bool = False) -> None:
        """Write nested loops over the elements of ``over``, or a single one over its memory."""
        sizes = [value(over).numel()] if flat else list(value(over).shape)
        heads = [f"for (long i{d} = 0; i{d} < {size}; i{d}++)" for d, size in enumerate(sizes)]
        self.lines.append(" ".join([*heads, "{", *body, "}"]))

    def element(self, a: Any, like: Op | None = None, flat: bool = False) -> str:
        """Return an operand at the loops' position in ``like`` (or in itself); a number as it is."""
        if a is None:
            return ""
        if not is_op(a) or value(a).dim() == 0:
            return self.factor(a)
        if a in self.tests:
            return ELEMENTS[method_of(a)].format(*(self.element(b, like, flat) for b in a.args))
        if flat:
            return f"{self.pointer(a)}[i0]"
        shape, stride = value(a).shape, value(a).stride()
        ahead = (value(like).dim() if like is not None else len(shape)) - len(shape)
        steps = [f"i{d + ahead} * {s}" for d, s in enumerate(stride) if shape[d] > 1]
        return f"{self.pointer(a)}[{' + '.join(steps) or 0}]"

    def product(self, node: Op, out: Op, a: Op, b: Op, z: Op | None, beta: Any, alpha: Any) -> None:
        """Write out <- beta Z + alpha A B; the memory layout decides which loop is inside."""
        addend = self.put_off.pop(self.places.root[out], None)
        (rows, inner), columns = value(a).shape, value(b).shape[1]
        (ai, ak), (bk, bj), (oi, oj) = value(a).stride(), value(b).stride(), value(out).stride()
        x, y, to = self.pointer(a), self.pointer(b), self.pointer(out)
        factor = self.factor(alpha)
        apart = z is not out and z is not None and addend is None
        if ak == bk == 1 and (apart or z is None):
            shift = "0, 0, 0, 0"
            if z is not None:
                zi, zj = value(z).expand(value(out).shape).stride()
                shift = f"{self.pointer(z)}, {zi}, {zj}, {self.factor(beta)}"
            sizes = f"{rows}, {columns}, {inner}, {to}, {oi}, {oj}, {x}, {ai}, {y}, {bj}"
            self.lines.append(f"product_dots({sizes}, {shift}, {factor});")
            return
        if apart:
            self.loop([f"{self.element(out)} = {self.factor(beta)} * {self.element(z, out)};"], out)
            beta, z = 1, out
        if oj != 1 or bj != 1:  # transposed: the columns of B A are the rows of A B
            (rows, columns), (x, y) = (columns, rows), (y, x)
            (oi, oj), (ai, ak), (bk, bj) = (oj, oi), (bj, bk), (ak, ai)
        if oj != 1 or bj != 1:
            raise NotNative(f"{node.target}: neither rows nor columns are contiguous")
        own, other, more = "0" if z is None else self.factor(beta), "0", "0, 0"
        if addend is not None:
            own, other = addend.own, addend.other
            strides = value(addend.tensor).stride()
            more = f"{self.pointer(addend.tensor)}, {strides[0] if strides[1] == 1 else strides[1]}"
        self.lines.append(
            f"product_outer({rows}, {columns}, {inner}, {to}, {oi}, {x}, {ai}, {ak}, {y}, {bk}, {more}, {own}, {other}, {factor});"
        )

    def is_put_off(self, node: Op, owner: Op) -> bool:
        """Return whether a sum of a weight and a fixed value can wait for the product that is added next."""
        root = self.places.root[owner]
        first, second = node.args
        factor = self.factor(scale(node))
        mine = [is_op(a) and self.places.root[a] is root for a in (first, second)]
        if mine.count(True) != 1:
            return False
        tensor = second if mine[0] else first
        own, other = ("1", factor) if mine[0] else (factor, "1")
        later = self.places.nodes[self.places.nodes.index(node) + 1 :]
        heirs = [n for n in later if any(self.places.root[a] is root for a in n.all_input_nodes)]
        if not heirs or heirs[0].target is not aten.addmm_.default or heirs[0].kwargs.get("beta", 1) != 1:
            return False
        if any(is_op(a) and self.places.root[a] is root for a in heirs[0].args[1:]):
            return False
        if not is_op(tensor) or self.places.kind[tensor] != "fixed" or not alike(tensor, owner):
            return False
        self.put_off[root] = Addend(node, own, other, tensor)
        return True

    def vector(self, node: Op, out: Op) -> None:
        """Write v <- beta v + alpha M u."""
        _, matrix, vector = node.args
        (rows, inner), (mi, mk) = value(matrix).shape, value(matrix).stride()
        (vi,), (ui,) = value(out).stride(), value(vector).stride()
        beta, alpha = self.factor(scale(node, "beta")), self.factor(scale(node))
        v, m, u = self.pointer(out), self.pointer(matrix), self.pointer(vector)
        self.lines.append(f"for (long i = 0; i < {rows}; i++) {v}[i * {vi}] *= {beta};")
        self.lines.append(
            f"for (long k = 0; k < {inner}; k++) for (long i = 0; i < {rows}; i++) "
            f"{v}[i * {vi}] += {alpha} * {u}[k * {ui}] * {m}[i * {mi} + k * {mk}];"
        )

    def log_softmax(self, node: Op) -> None:
        a, dim, _ = node.args
        x, out = value(a), value(node)
        if x.dim() != 2 or dim not in (1, -1) or x.stride()[1] != 1 or out.stride()[1] != 1:
            raise NotNative("a log-softmax that does not run along rows has no C")
        rows, columns = x.shape
        places = f"{self.pointer(node)}, {out.stride()[0]}, {self.pointer(a)}, {x.stride()[0]}"
        self.lines.append(f"log_softmax({rows}, {columns}, {places});")

    def scatter_add(self, node: Op) -> None:
        out, dim, index, source = node.args
        if dim != 1 or value(index).dim() != 2 or value(index).shape[1] != 1 or index not in self.given:
            raise NotNative(f"{node.target}: this form has no C")
        (i, j), at = value(out).stride(), value(index).stride()[0]
        more = f"{self.pointer(source)}[i * {value(source).stride()[0]}]"
        column = f"{self.given[index]}[i * {at}]"
        inside = f"if ({column} >= 0 && {column} < {value(out).shape[1]})"  # a label that is not a class writes nothing
        rows = f"for (long i = 0; i < {value(index).shape[0]}; i++)"
        self.lines.append(f"{rows} {inside} {self.pointer(out)}[i * {i} + {column} * {j}] += {more};")

    def sum(self, node: Op, method: str) -> None:
        """Write sums over some dimensions, or the Euclidean norms along them."""
        a, *given = node.args
        order, dims, *keep = given if method != "sum" else (1, *given)
        if order not in (1, 2) or (order == 1 and method != "sum"):
            raise NotNative(f"{node.target}: this norm has no C")
        x, stride = value(a), value(node).stride()
        dims = {d % x.dim() for d in dims}
        kept = [d for d in range(x.dim()) if d not in dims]
        steps = {d: stride[d if keep and keep[0] else n] for n, d in enumerate(kept)}
        place = f"{self.pointer(node)}[{' + '.join(f'i{d} * {s}' for d, s in steps.items()) or 0}]"
        own, one = self.element(node), self.element(a)
        self.loop([f"{own} = 0;"], node)
        self.loop([f"{place} += {one if order == 1 else f'{one} * {one}'};"], a)
        if order == 2:
            self.loop([f"{own} = sqrt({own});"], node)

    # ------------------------------------------------------------------ operands

    def pointer(self, node: Op) -> str:
        """Return the C variable of a tensor: of the batch, or one that ``bind`` passes."""
        if value(node).dtype != self.dtype or (node not in self.given and node not in self.name):
            raise NotNative(f"{node.target}: {value(node).dtype} together with {self.dtype} has no C")
        if node in self.given:
            return self.given[node]
        return self.pointers.setdefault(self.name[node], f"t{len(self.pointers)}")

    def c_type(self, node: Op) -> str:
        """Return the C name of a batch argument's type."""
        names = {self.dtype: "real", torch.int64: "int64_t"}
        if value(node).dtype not in names:
            raise NotNative(f"rows of {value(node).dtype} have no C")
        return names[value(node).dtype]

    def factor(self, a: Any) -> str:
        """Return a number: written out, or one that ``bind`` passes."""
        if not is_op(a):
            if not isinstance(a, int | float):
                raise NotNative(f"an operand {a!r} has no C")
            return f"(real){float(a)!r}"
        if a in self.locals:
            return self.locals[a]
        if self.places.kind[a] != "fixed" or value(a).dim():
            raise NotNative(f"{a.target}: a number computed in every step has no C")
        return self.numbers.setdefault(self.number(a), f"n{len(self.numbers)}")


def scale(node: Op, name: str = "alpha") -> Any:
    """Return a factor of an operator; 1 if it has none."""
    return node.kwargs.get(name, 1)


def method_of(node: Op) -> str:
    """Return the name of an operator."""
    return str(node.target).split(".")[1]


def alike(a: Op, b: Op) -> bool:
    """Return whether two tensors agree in shape and strides."""
    return value(a).shape == value(b).shape and value(a).stride() == value(b).stride()
