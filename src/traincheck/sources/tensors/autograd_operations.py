"""Names that autograd gives the operations in the graph of a loss.

`node.name()` adds the number of an overload to each (`MulBackward0`), so compare with `startswith`.
"""

from __future__ import annotations

CAST, CLONE = "ToCopyBackward", "CloneBackward"
SAME_FORM = ("AliasBackward", CLONE, CAST)
"""Operations that keep all dimensions and elements."""

VIEWS = ("ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward")
RESHAPES = (*VIEWS, "SqueezeBackward")
"""Operations that divide the elements into other dimensions."""

PERMUTE, TRANSPOSE = "PermuteBackward", "TransposeBackward"
MOVES = (PERMUTE, TRANSPOSE, "TBackward")
"""Operations that move dimensions. The last one transposes a matrix, such as the weight of a layer."""

SELECT, SLICE, UNSQUEEZE = "SelectBackward", "SliceBackward", "UnsqueezeBackward"
PARTS = (SELECT, SLICE, UNSQUEEZE)
"""Operations that take a part, or add a dimension."""

EXPAND, INDEX = "ExpandBackward", "IndexBackward"

MULTIPLICATION, DIVISION = "MulBackward", "DivBackward"
SCALES = (MULTIPLICATION, DIVISION)

BATCHED, LINEAR, CONVOLUTION = "BmmBackward", "LinearBackward", "ConvolutionBackward"
MATRICES = ("AddmmBackward", "MmBackward")
PRODUCTS = (*MATRICES, BATCHED, "BaddbmmBackward", LINEAR, CONVOLUTION)
"""Products of matrices, and convolutions."""

FUSED_ATTENTION, DROPOUT = "ScaledDotProduct", "NativeDropoutBackward"
SIGMOID, LOG_SOFTMAX = "SigmoidBackward", "LogSoftmaxBackward"
SOFTMAX, SAFE_SOFTMAX = "SoftmaxBackward", "SafeSoftmaxBackward"

ACCUMULATE = "AccumulateGrad"
"""The end of a name: the operation that adds to the gradient of a leaf."""
