"""A real training script, small but honest: a transformer, AdamW, cross entropy. Its memory grows with the batch."""

import argparse
import time

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(tokens)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    model = Model(arguments.vocabulary, arguments.width, arguments.layers).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
    print(f"model ready, {torch.cuda.memory_allocated() / 2**30:.2f} GiB", flush=True)
    for step in range(1, arguments.steps + 1):
        started = time.monotonic()
        tokens = torch.randint(arguments.vocabulary, (arguments.batch_size, arguments.seq_len), device="cuda")
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.view(-1, arguments.vocabulary), tokens.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(
            f"step {step}/{arguments.steps} loss {loss.item():.4f} peak {peak:.1f} GiB "
            f"{time.monotonic() - started:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
