"""Megatron-Core's GPT model, each layer divided over two ranks, two copies: groups are made at each entry, and a copy's
part is named. Arguments: folder, steps, seconds of pause after a step."""

import sys
import time

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from sample_data import write

import belay_training as bt

steps, pause = int(sys.argv[2]), float(sys.argv[3])
VOCABULARY, LENGTH = 64, 16


class Attention(MegatronModule):
    """PyTorch's attention in the place of Megatron's, whose work memory is on a GPU."""

    def __init__(self, config: TransformerConfig, *_: object, **__: object) -> None:
        super().__init__(config=config)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object):
        by_head = [tensor.permute(1, 2, 0, 3) for tensor in (query, key, value)]
        out = torch.nn.functional.scaled_dot_product_attention(*by_head, is_causal=True)
        return out.permute(2, 0, 1, 3).flatten(2)


def gpt() -> GPTModel:
    """A small model of two layers, whose weights Megatron draws on the CPU."""
    config = TransformerConfig(
        num_layers=2,
        hidden_size=16,
        num_attention_heads=2,
        tensor_model_parallel_size=2,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )
    layer = get_gpt_layer_local_spec(normalization="LayerNorm")
    layer.submodules.self_attention.submodules.core_attention = Attention
    return GPTModel(config, layer, VOCABULARY, LENGTH)


def tokens(step: int, copy: int) -> torch.Tensor:
    """The same rows for both parts of a copy."""
    return torch.randint(VOCABULARY, (4, LENGTH), generator=torch.Generator().manual_seed(100 * step + copy))


@bt.protect(late=True)
def train(run: bt.Run) -> None:
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()  # a survivor's groups name the ranks before the repair
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    part = parallel_state.get_tensor_model_parallel_rank()
    copies, copy = parallel_state.get_data_parallel_group(), parallel_state.get_data_parallel_rank()

    torch.manual_seed(1)
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    run.protect(model=model, optimizer=optimizer, schedule=schedule, part=f"tensor part {part}")

    places = torch.arange(LENGTH).expand(4, LENGTH)
    for step in run.steps(steps):
        rows = tokens(step, copy)
        loss = model(rows, places, None, labels=rows.roll(-1, 1)).mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=copies)
        with run.updating(step):
            optimizer.step()
            schedule.step()
        optimizer.zero_grad()
        write(run.rank, step, loss.detach(), model)
        time.sleep(pause)


train()
