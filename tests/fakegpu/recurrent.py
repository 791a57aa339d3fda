"""The cells of LSTM and GRU, which PyTorch fuses on devices and for which the CPU has no such kernel."""

from __future__ import annotations

import torch

Bias = torch.Tensor | None


def register(library: torch.library.Library) -> None:
    """Add the cells to ``library`` (of aten) above autograd, which then differentiates their plain operators."""
    library.impl("_thnn_fused_lstm_cell", _lstm_cell, "AutogradPrivateUse1")
    library.impl("_thnn_fused_gru_cell", _gru_cell, "AutogradPrivateUse1")


def _lstm_cell(
    from_input: torch.Tensor, from_hidden: torch.Tensor, cell: torch.Tensor, input_bias: Bias = None, hidden_bias: Bias = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gates = _biased(from_input, input_bias) + _biased(from_hidden, hidden_bias)
    take, keep, candidate, show = gates.chunk(4, 1)
    cell = keep.sigmoid() * cell + take.sigmoid() * candidate.tanh()
    return show.sigmoid() * cell.tanh(), cell, gates


def _gru_cell(
    from_input: torch.Tensor, from_hidden: torch.Tensor, hidden: torch.Tensor, input_bias: Bias = None, hidden_bias: Bias = None
) -> tuple[torch.Tensor, torch.Tensor]:
    input_reset, input_update, input_new = _biased(from_input, input_bias).chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = _biased(from_hidden, hidden_bias).chunk(3, 1)
    reset, update = (input_reset + hidden_reset).sigmoid(), (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    return new + update * (hidden - new), from_input


def _biased(gates: torch.Tensor, bias: Bias) -> torch.Tensor:
    return gates if bias is None else gates + bias
