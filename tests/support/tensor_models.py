# SPDX-License-Identifier: Apache-2.0
"""Small models whose layers are split over ranks, and their training, split or in one process."""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

import smdist.modelparallel.torch as smp
from smdist.modelparallel.torch.tensor_splits import split_of

WORDS, WIDTH, ROWS, LENGTH = 64, 16, 8, 6


class Mlp(nn.Module):
    """Two MLPs with a norm and dropout between them, and a table that shares its weight."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.up = nn.Linear(WIDTH, 24)
        self.down = nn.Linear(24, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.gate = nn.Linear(WIDTH, 12, bias=False)
        self.value = nn.Linear(WIDTH, 12, bias=False)
        self.out = nn.Linear(12, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        x = self.table(ids)
        x = self.norm(x + self.dropout(self.down(torch.tanh(self.up(x)))))
        return self.head(x + self.out(torch.sigmoid(self.gate(x)) * self.value(x)))


def mlp():
    """Return the MLPs."""
    return Mlp()


def gpt2():
    """Return a small GPT-2: fused projections, `Conv1D`, a tied table."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_embd": WIDTH, "n_head": 4, "n_positions": 32, "vocab_size": WORDS}
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **ids, attn_pdrop=0.0, use_cache=False))


def llama():
    """Return a small Llama: grouped queries, gated MLPs, no biases."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    rest = {"vocab_size": WORDS, "max_position_embeddings": 32, "use_cache": False}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **rest))


def experts():
    """Return a small GPT-OSS: stacked experts with biases, attention with sinks."""
    from transformers import GptOssConfig, GptOssForCausalLM

    sizes = {"hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WORDS}
    routed = {"num_local_experts": 4, "num_experts_per_tok": 2}
    rest = {"use_cache": False, "experts_implementation": "batched_mm"}
    return GptOssForCausalLM(GptOssConfig(**sizes, **heads, **routed, **rest))


class Encoder(nn.Module):
    """Two layers of torch's encoder with a causal mask, between a table and a head."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 24, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], dtype=torch.float64)
        return self.head(self.layers(self.table(ids), mask, is_causal=True))


def encoder():
    """Return the encoder of torch's own layers."""
    return Encoder()


class Attention(nn.Module):
    """Attention that reads its width from its input, as many hand-written models do."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.num_heads = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), 4
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("mask", torch.ones(32, 32).tril().bool())

    def forward(self, x):
        rows, length, width = x.size()
        shape = rows, length, self.num_heads, width // self.num_heads
        query, key, value = (
            each.view(shape).transpose(1, 2) for each in self.qkv(x).split(width, dim=2)
        )
        scores = query @ key.transpose(-2, -1) / key.size(-1) ** 0.5
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf")).softmax(-1)
        found = (self.dropout(scores) @ value).transpose(1, 2).contiguous()
        return self.dropout(self.out(found.view(rows, length, width)))


class Written(nn.Module):
    """GPT by hand: pre-norm blocks with attention that reads its width, and a tied head."""

    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(WIDTH),
                    "attention": Attention(),
                    "mlp": nn.Sequential(
                        nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)
                    ),
                }
            )
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = x + block["attention"](block["norm"](x))
            x = x + block["mlp"](x)
        return self.head(x)


class SmpLayers(smp.nn.DistributedTransformerLMHead):
    """Two layers of SMP v1, called with ids alone."""

    def forward(self, ids):
        return super().forward((ids, None, None, None, None))


def smp_layers():
    """Return a small model of SMP's layers: attention with a causal mask, MLPs, a tied head."""
    sizes = {"num_layers": 2, "num_attention_heads": 4, "attention_head_size": 4}
    widths = {"hidden_size": WIDTH, "intermediate_size": 24, "vocab_size": WORDS}
    rest = {"num_positions": 8, "causal_mask_size": 8, "pre_layernorm": True}
    return SmpLayers(**sizes, **widths, **rest, post_layernorm=False, attention_dropout_prob=0.0)


MODELS = {
    "mlp": mlp,
    "gpt2": gpt2,
    "llama": llama,
    "smp": smp_layers,
    "experts": experts,
    "encoder": encoder,
    "written": Written,
}


def made(name, dtype=torch.float64, dropout=0.0):
    """Return a model with the same weights in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = MODELS[name]().to(dtype)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = dropout
    return model


def batches(steps):
    """Return the ids of all replicas together, for each step."""
    numbers = torch.Generator().manual_seed(1)
    return torch.randint(WORDS, (steps, ROWS, LENGTH), generator=numbers)


def loss_of(output, ids):
    """Return the mean loss of predicting each id from itself."""
    scores = getattr(output, "logits", output)
    return cross_entropy(scores.flatten(0, 1), ids.flatten())


@dataclass
class Trained:
    """Losses, gradients and weights of one training run, with whole tensors on every rank."""

    losses: list = field(default_factory=list)
    norms: list = field(default_factory=list)
    grads: dict = field(default_factory=dict)
    state: dict = field(default_factory=dict)
    split: list = field(default_factory=list)
    num_elements: int = 0


def optimizer_of(model, kind="sgd"):
    """Return SGD with momentum, or AdamW."""
    if kind == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-2)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def alone(name, *, dtype=torch.float64, steps=3, kind="sgd"):
    """Train in this process alone."""
    model, found = made(name, dtype), Trained()
    optimizer = optimizer_of(model, kind)
    for ids in batches(steps):
        optimizer.zero_grad()
        loss = loss_of(model(ids), ids)
        loss.backward()
        if not found.grads:
            found.grads = {key: p.grad.clone() for key, p in model.named_parameters()}
        found.norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        found.losses.append(loss.item())
        optimizer.step()
    found.state = model.state_dict()
    return found


@smp.step
def train_step(model, ids):
    loss = loss_of(model(ids), ids)
    model.backward(loss)
    return loss


def start(degree, **options):
    """Start a session with split layers."""
    plain = {"ddp": True, "microbatches": 2}
    stages = {"pipeline_parallel_degree": 1} if degree == 1 else {}
    smp.init({"tensor_parallel_degree": degree, **plain, **stages, **options})


def split(name, *, dtype=torch.float64, dropout=0.0, kind="sgd"):
    """Return the model and its optimizer, to be split in the first step."""
    model = smp.DistributedModel(made(name, dtype, dropout), trace_device="cpu")
    return model, smp.DistributedOptimizer(optimizer_of(model, kind))


def train(model, optimizer, steps=3, first=0, step=train_step):
    """Train on this replica's rows; return whole tensors."""
    found = Trained()
    for ids in batches(first + steps)[first:]:
        optimizer.zero_grad()
        loss = step(model, ids[smp.rdp_rank() :: smp.rdp_size()]).reduce_mean()
        if not found.grads:
            found.grads = {key: whole(p.grad, p) for key, p in model.named_parameters()}
        found.norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        found.losses.append(loss.item())
        optimizer.step()
    found.state = model.state_dict()
    plan = model.tensor_plan
    found.split = [(each.name, each.role.value) for each in plan.modules] if plan else []
    found.num_elements = sum(p.numel() for p in model.parameters())
    return found


def whole(value, parameter):
    """Return the whole tensor of which this rank has a part, or a shard of its part."""
    value = value.full_tensor() if isinstance(value, DTensor) else value
    part = split_of(parameter)
    if part is None:
        return value.clone()
    return part.joined(part.peers.all_gather(value.contiguous()))


def worst(found, expected):
    """Return the largest difference of tensors by name, relative to the largest number of each."""
    assert found.keys() == expected.keys()
    return max(
        float((found[key] - value).abs().max() / value.abs().max().clamp_min(1e-12))
        for key, value in expected.items()
        if value.is_floating_point()
    )
