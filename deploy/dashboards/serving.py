"""Serving: what clients get. Only vLLM's metric names, so the board also shows a vLLM server."""

from panels import (
    RATE,
    S,
    board,
    choice,
    heatmap,
    mean,
    quantile,
    quantiles,
    rate,
    row,
    selector,
    series,
    stat,
    table,
    total,
)

TTFT, ITL = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
E2E, QUEUE = "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds"


def within(histogram, objective):
    """Share of samples not above a bucket's bound; newer Prometheus writes 1 as 1.0."""
    good = f'sum (rate({histogram}_bucket{{{S},le=~"{objective}([.]0)?"}}[{RATE}]))'
    return f"{good} / {rate(histogram + '_count')}"


PANELS = [
    row("Now"),
    stat(
        "Requests",
        "Choices that ended each second, by whatever reason.",
        "reqps",
        rate("vllm:request_success_total"),
    ),
    stat(
        "Tokens out", "Tokens generated each second.", "short", rate("vllm:generation_tokens_total")
    ),
    stat("Running", "Sequences in the batch.", "short", total("vllm:num_requests_running")),
    stat("Waiting", "Requests in the queue.", "short", total("vllm:num_requests_waiting")),
    stat(
        "TTFT p99",
        "Ninety-nine of a hundred requests had their first token within this time.",
        "s",
        quantile(0.99, TTFT),
    ),
    stat(
        "ITL p99",
        "Ninety-nine of a hundred gaps between tokens were no longer than this.",
        "s",
        quantile(0.99, ITL),
    ),
    row("Rates"),
    series(
        "Requests by how they ended",
        "Choices each second. stop: the model or a stop string ended them; length: "
        "max_tokens did; abort: clients or deadlines did; error: the engine failed.",
        "reqps",
        (rate("vllm:request_success_total", "finished_reason"), "{{finished_reason}}"),
        stack=True,
    ),
    series(
        "Tokens",
        "Prompt tokens read and tokens generated each second.",
        "short",
        (rate("vllm:prompt_tokens_total"), "prompt"),
        (rate("vllm:generation_tokens_total"), "generated"),
    ),
    series(
        "Refused",
        "Requests refused at arrival each second: the queue is full, or the server is "
        "shutting down.",
        "reqps",
        (rate("vllm:admission_rejections_total", "reason"), "{{reason}}"),
    ),
    row("Latency"),
    series(
        "Time to first token",
        "From a request's arrival to its first token, queueing included.",
        "s",
        *quantiles(TTFT),
    ),
    series(
        "Inter-token latency",
        "Between two deliveries of tokens of one choice.",
        "s",
        *quantiles(ITL),
    ),
    series(
        "End to end",
        "From arrival to the last token; it grows with the length of answers.",
        "s",
        *quantiles(E2E),
    ),
    heatmap(
        "Time to first token, spread",
        "Requests by time to first token: two bands are two kinds of traffic, or a cache "
        "that sometimes hits.",
        "s",
        TTFT,
    ),
    heatmap(
        "Inter-token latency, spread",
        "Gaps between tokens: a second band well above the first are steps in which "
        "prompts were read.",
        "s",
        ITL,
    ),
    heatmap("End to end, spread", "Requests by their whole time.", "s", E2E),
    series(
        "Where the time goes",
        "Mean seconds of a request in the queue, in its prefill and in its decode.",
        "s",
        (mean(QUEUE), "queue"),
        (mean("vllm:request_prefill_time_seconds"), "prefill"),
        (mean("vllm:request_decode_time_seconds"), "decode"),
        stack=True,
        width=12,
    ),
    row("Objectives"),
    series(
        "Within the objectives",
        "Share of first tokens and of gaps between tokens within the objectives chosen above.",
        "percentunit",
        (within(TTFT, "$ttft"), "first token"),
        (within(ITL, "$itl"), "between tokens"),
        most=1,
        least=None,
    ),
    series("Queue time", "From arrival to the first step.", "s", *quantiles(QUEUE)),
    series(
        "Queue",
        "Requests that wait, and sequences that run.",
        "short",
        (total("vllm:num_requests_waiting"), "waiting"),
        (total("vllm:num_requests_running"), "running"),
    ),
    row("Requests"),
    series(
        "Prompt length",
        "Tokens of the prompts of requests that completed.",
        "short",
        *quantiles("vllm:request_prompt_tokens"),
    ),
    series(
        "Answer length",
        "Tokens that a choice was long when it ended; and the max_tokens of its request, "
        "for which Ebb promises memory.",
        "short",
        *quantiles("vllm:request_generation_tokens"),
        (quantile(0.5, "vllm:request_params_max_tokens"), "allowed, p50"),
    ),
    series(
        "Prefix cache hits",
        "Share of prompt tokens found in the prefix cache.",
        "percentunit",
        (
            f"{rate('vllm:prefix_cache_hits_total')} / {rate('vllm:prefix_cache_queries_total')}",
            "hits",
        ),
        most=1,
    ),
    row("Models"),
    table(
        "By model",
        "A line for each model that is served.",
        (rate("vllm:request_success_total", "model_name"), "requests", "reqps"),
        (rate("vllm:prompt_tokens_total", "model_name"), "prompt tokens/s", "short"),
        (rate("vllm:generation_tokens_total", "model_name"), "tokens/s", "short"),
        (quantile(0.99, TTFT, "model_name"), "TTFT p99", "s"),
        (quantile(0.99, ITL, "model_name"), "ITL p99", "s"),
        (total("vllm:num_requests_running", "model_name"), "running", "short"),
        (total("vllm:num_requests_waiting", "model_name"), "waiting", "short"),
        (
            f"avg by (model_name) (vllm:kv_cache_usage_perc{{{selector({})}}})",
            "KV in use",
            "percentunit",
        ),
        key="model_name",
    ),
]

BOARD = board(
    "ebb-serving",
    "Ebb / Serving",
    "Rates, latencies and objectives, as clients see them.",
    PANELS,
    [
        choice("ttft", "First token within", ["0.25", "0.5", "1", "2.5", "5", "10"], "2.5"),
        choice("itl", "Between tokens within", ["0.025", "0.05", "0.1", "0.2", "0.5", "1"], "0.1"),
    ],
)
