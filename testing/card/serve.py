"""A served model in a pod of `make card`: tokens a second of a decoder with 1.3 billion random weights.

    serve.py NAME FOLDER SHARERS

One step gives each of 2, 8 and 32 requests a token, over a KV cache of 512, as one CUDA graph. SHARERS programs begin
each measurement at the same moment, by files in FOLDER. Prints one JSON object. With CARD_FAKE it measures nothing.
"""
import json
import os
import sys
import time

LAYERS, WIDTH, HEADS, WORDS, CACHE = 24, 2048, 16, 32000, 512
REQUESTS = (2, 8, 32)
SECONDS = 2.0
LATEST = 120.0  # seconds until the last sharer has loaded


def meet(folder, name, sharers, what):
    """Returns once all sharers have come here."""
    open(os.path.join(folder, f"{what}.{name}"), "w").close()
    end = time.monotonic() + LATEST
    while sum(file.startswith(what + ".") for file in os.listdir(folder)) < sharers:
        if time.monotonic() > end:
            raise TimeoutError(f"of {sharers} sharers some never came to `{what}`")
        time.sleep(0.002)


class Decoder:
    """The weights, and steps over them."""

    def __init__(self, torch):
        torch.manual_seed(1)
        self.torch = torch
        like = {"device": "cuda", "dtype": torch.bfloat16}

        def weights(*shape):
            return torch.randn(*shape, **like) * 0.02

        self.layers = [
            (weights(WIDTH, 3 * WIDTH), weights(WIDTH, WIDTH), weights(WIDTH, 4 * WIDTH), weights(4 * WIDTH, WIDTH))
            for _ in range(LAYERS)
        ]
        self.embedding = weights(WORDS, WIDTH)
        self.like = like

    def step_of(self, requests):
        """A function that writes the next token of each request, from memory that stays where it is."""
        torch, size = self.torch, WIDTH // HEADS
        normal = torch.nn.functional.layer_norm
        caches = [torch.randn(2, requests, HEADS, CACHE, size, **self.like) for _ in self.layers]
        tokens = torch.zeros(requests, dtype=torch.long, device="cuda")

        def step():
            state = self.embedding[tokens]
            for (attend, out, up, down), cache in zip(self.layers, caches):
                query, key, value = (normal(state, (WIDTH,)) @ attend).view(requests, 3, HEADS, size).unbind(1)
                cache[0, :, :, -1], cache[1, :, :, -1] = key, value
                seen = torch.nn.functional.scaled_dot_product_attention(query.unsqueeze(2), cache[0], cache[1])
                state = state + seen.reshape(requests, WIDTH) @ out
                hidden = torch.nn.functional.gelu(normal(state, (WIDTH,)) @ up)
                state = state + hidden @ down
            tokens.copy_((normal(state, (WIDTH,)) @ self.embedding.T).argmax(-1))

        return step

    def graph_of(self, requests):
        """The step, which owns the memory, and a CUDA graph of it that has run before."""
        torch, step = self.torch, self.step_of(requests)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
        return step, graph


def main(name, folder, sharers):
    sharers = int(sharers)
    if "CARD_FAKE" in os.environ:
        meet(folder, name, sharers, "fake")
        return {"tokens": [float(requests) for requests in REQUESTS]}
    import torch

    decoder, tokens = Decoder(torch), []
    for requests in REQUESTS:
        step, graph = decoder.graph_of(requests)
        meet(folder, name, sharers, f"begin{requests}")
        begin, steps = time.monotonic(), 0
        while time.monotonic() - begin < SECONDS:
            graph.replay()
            torch.cuda.synchronize()
            steps += 1
        tokens.append(requests * steps / (time.monotonic() - begin))
        meet(folder, name, sharers, f"end{requests}")
        del step, graph
        torch.cuda.empty_cache()
    return {"tokens": tokens, "mib": torch.cuda.max_memory_reserved() >> 20}


if __name__ == "__main__":
    try:
        print(json.dumps(main(*sys.argv[1:])), flush=True)
    except Exception as error:  # The pod's log is the only place where it can be told.
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        sys.exit(1)
