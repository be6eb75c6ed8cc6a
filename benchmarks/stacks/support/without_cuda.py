"""Lets packages run on CPU whose releases expect CUDA.

AFTER: for the name of a module, a function that is called with the module after its import.
"""

import os


def name_missing_operators(_):
    """Give torchvision the operators that its import needs; those of its release are compiled with CUDA."""
    import torch  # here, as sitecustomize imports this file at the start of every process

    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")


def convert_numbers(interpreter):
    """Let kernels that Triton interprets get floats as they get them compiled: as scalars with a type."""
    convert, language = interpreter._implicit_cvt, interpreter.tl

    def convert_float(argument):
        if not isinstance(argument, float):
            return convert(argument)
        value = interpreter.np.array([argument], dtype=interpreter.np.float32)
        return language.tensor(interpreter.TensorHandle(value, language.float32), language.float32)

    interpreter._implicit_cvt = convert_float


def name_functions(library):
    """Give kernels that Triton interprets the functions that it takes from CUDA's library when it compiles them."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        import triton.language as language

        # The functions of the language are looked up at each call: Triton replaces them while it interprets a kernel.
        library.rsqrt = lambda value: language.math.rsqrt(value)
        library.tanh = lambda value: 1 - 2 / (language.math.exp(2 * value) + 1)


AFTER = {
    "torchvision.extension": name_missing_operators,
    "triton.runtime.interpreter": convert_numbers,
    "triton.language.extra.libdevice": name_functions,
}
