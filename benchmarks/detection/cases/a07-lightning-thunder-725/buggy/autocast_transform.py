"""The autocast transform: puts casts before the primitives that shall run in low precision, or in float32."""

import torch
import torch.nn.functional as F
from torch import fx

LOW_PRECISION = {
    torch.bmm,
    torch.baddbmm,
    torch.conv1d,
    torch.conv2d,
    F.scaled_dot_product_attention,
}
FLOAT32 = {F.layer_norm, F.softmax, F.log_softmax, torch.exp, torch.log, F.mse_loss, F.cross_entropy}


def autocast(graph, dtype):
    """A copy of the graph for a region of autocast to `dtype`."""
    result = fx.Graph()
    result.output(result.graph_copy(graph, {}))
    for node in list(result.nodes):
        if node.op != "call_function":
            continue
        if node.target in LOW_PRECISION:
            cast_inputs(result, node, dtype)
        elif node.target in FLOAT32:
            cast_inputs(result, node, torch.float32)
    return result


def cast_inputs(graph, node, dtype):
    with graph.inserting_before(node):
        node.args = fx.node.map_arg(node.args, lambda value: graph.call_method("to", (value, dtype)))
        node.kwargs = fx.node.map_arg(node.kwargs, lambda value: graph.call_method("to", (value, dtype)))
