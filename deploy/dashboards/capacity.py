"""Capacity: how full it is, and what limits it."""

from panels import RATE, S, board, mean, quantile, rate, row, selector, series, stat, table, total

STEP = "ebb:step_time_seconds"


def of_limit(used, state):
    return f"{total(used)} / {total('ebb:max_requests', state=state)}"


PROMISED = f"{total('ebb:kv_promised_bytes')} / {total('ebb:kv_pool_bytes')}"
BUSY = f'avg (sum by (instance) (rate({STEP}_sum{{{S},phase=~"plan|forward|sample"}}[{RATE}])))'
HELD = f'sum (ebb:kv_bytes{{{S},state=~"live|cached"}})'

PANELS = [
    row("Now"),
    stat(
        "Replicas",
        "Servers that Prometheus reaches.",
        "short",
        'sum (up{job=~"$job",instance=~"$instance"})',
    ),
    stat(
        "Batch",
        "Share of the batch slots in use.",
        "percentunit",
        of_limit("vllm:num_requests_running", "running"),
    ),
    stat(
        "Queue",
        "Share of the queue in use; at 100 % requests are refused.",
        "percentunit",
        of_limit("vllm:num_requests_waiting", "waiting"),
    ),
    stat(
        "Promised KV",
        "Share of the pool promised to running requests at their longest, at their floor; "
        "at 100 % the next one waits.",
        "percentunit",
        PROMISED,
    ),
    stat(
        "KV in use",
        "Share of the pool that running requests hold now.",
        "percentunit",
        f"avg (vllm:kv_cache_usage_perc{{{S}}})",
    ),
    stat(
        "Busy", "Share of the time in which a step runs; the mean of replicas.", "percentunit", BUSY
    ),
    row("KV memory"),
    series(
        "KV memory against its watermarks",
        "What requests hold, what the prefix cache keeps, and the marks: above the upper "
        "one blocks shrink, down to the lower one.",
        "bytes",
        (total("ebb:kv_bytes", state="live"), "requests"),
        (total("ebb:kv_bytes", state="cached"), "prefix cache"),
        (total("ebb:kv_pool_bytes"), "pool"),
        (
            f"{total('ebb:kv_pool_bytes')} - {total('ebb:kv_watermark_bytes', mark='low')}",
            "shrinking begins",
        ),
        (
            f"{total('ebb:kv_pool_bytes')} - {total('ebb:kv_watermark_bytes', mark='high')}",
            "shrinking ends",
        ),
        width=12,
    ),
    series(
        "Promised KV",
        "Room promised to running requests, against the pool: admission stops where the "
        "lines meet, in mode static a prompt's chunk earlier. Mode preempt-only promises nothing.",
        "bytes",
        (total("ebb:kv_promised_bytes"), "promised"),
        (total("ebb:kv_pool_bytes"), "pool"),
        width=6,
    ),
    series(
        "Fragmentation",
        "Share of held memory that holds nothing: unfilled rows of open blocks, ends of "
        "last frames.",
        "percentunit",
        (f"{total('ebb:kv_waste_bytes')} / {HELD}", "waste"),
        width=6,
    ),
    row("Admission"),
    series(
        "Batch",
        "Sequences that run, against --max-running.",
        "short",
        (total("vllm:num_requests_running"), "running"),
        (total("ebb:max_requests", state="running"), "limit"),
    ),
    series(
        "Queue",
        "Requests that wait, against --max-waiting.",
        "short",
        (total("vllm:num_requests_waiting"), "waiting"),
        (total("ebb:max_requests", state="waiting"), "limit"),
    ),
    series(
        "Requests by outcome",
        "Requests that ended each second. invalid: refused with INVALID_ARGUMENT; "
        "slow_reader: the client did not read.",
        "reqps",
        (rate("ebb:requests_ended_total", "outcome"), "{{outcome}}"),
        stack=True,
    ),
    row("Clients"),
    series(
        "Connections",
        "Connections to the gRPC port (grpc), the HTTP API's (api) and the metrics port (http), "
        "against --max-connections and what descriptors allow.",
        "short",
        (total("ebb:connections", "port"), "{{port}}"),
        (total("ebb:max_connections", "port"), "limit of {{port}}"),
    ),
    series(
        "Connections closed by the server",
        "Idle ones that made way for newcomers, those that did not finish their handshake or "
        "ask for anything in time, and newcomers refused because all others were busy.",
        "cps",
        (rate("ebb:connections_closed_total", "port, reason"), "{{port}} {{reason}}"),
        stack=True,
    ),
    series(
        "Client memory",
        "What clients make the servers hold beside the KV cache, against --client-memory: messages "
        "on their way, texts being tokenised, answers not read yet.",
        "bytes",
        (total("ebb:client_memory_bytes"), "held"),
        (total("ebb:max_client_memory_bytes"), "limit"),
    ),
    series(
        "Texts waiting to be tokenised",
        "Long ones wait for each other; short ones go first.",
        "short",
        (total("ebb:texts_waiting"), "waiting"),
    ),
    series(
        "Refused for client memory, or late",
        "Messages, texts and answers refused because clients hold as much as they may, and calls "
        "whose message did not arrive in time.",
        "cps",
        (rate("ebb:client_memory_refusals_total"), "refused"),
        (rate("ebb:late_messages_total"), "late"),
    ),
    row("Steps"),
    series(
        "Step time by phase, p50",
        "Half of the steps spent less than this: planning, computing (shrinking is a part "
        "of it), sampling and handing out.",
        "s",
        (quantile(0.5, STEP, "phase"), "{{phase}}"),
    ),
    series(
        "Step time by phase, p99",
        "Of a hundred steps the longest but one.",
        "s",
        (quantile(0.99, STEP, "phase"), "{{phase}}"),
    ),
    series(
        "Tokens per step",
        "Mean of prompt and generated tokens in a step; near --max-step-tokens prompts are "
        "being read.",
        "short",
        (mean("vllm:iteration_tokens_total"), "tokens"),
    ),
    series(
        "Steps",
        "Steps that each replica makes in a second.",
        "short",
        (rate("ebb:steps_total", "instance"), "{{instance}}"),
    ),
    series(
        "Tokens computed",
        "Each second, prompts and answers; and of those what preemptions threw away.",
        "short",
        (rate("ebb:tokens_computed_total"), "computed"),
        (rate("ebb:tokens_thrown_away_total"), "thrown away"),
    ),
    series(
        "Saturation",
        "What is nearest to its limit: time, batch slots, or memory. The next "
        "replica relieves the highest.",
        "percentunit",
        (BUSY, "time"),
        (of_limit("vllm:num_requests_running", "running"), "batch"),
        (PROMISED, "memory"),
        most=1,
    ),
    row("Replicas"),
    series(
        "Calls by code",
        "Calls of the gRPC API that ended each second, by method and status.",
        "reqps",
        (rate("ebb:rpcs_total", "method, code"), "{{method}} {{code}}"),
        width=12,
    ),
    series(
        "Running by replica",
        "Uneven lines are clients that do not balance.",
        "short",
        (total("vllm:num_requests_running", "instance"), "{{instance}}"),
        width=12,
    ),
    table(
        "By replica",
        "A line for each server.",
        (f"max by (instance, version) (ebb:build_info{{{S}}})", "up", "short"),
        (total("vllm:num_requests_running", "instance"), "running", "short"),
        (total("vllm:num_requests_waiting", "instance"), "waiting", "short"),
        (f"max by (instance) (vllm:kv_cache_usage_perc{{{S}}})", "KV in use", "percentunit"),
        (f'max by (instance) (ebb:kv_bits{{{S},of="stored"}})', "bits stored", "suffix: bit"),
        (total("ebb:kv_pool_bytes", "instance"), "pool", "bytes"),
        (total("ebb:weights_bytes", "instance"), "weights", "bytes"),
        key="instance",
    ),
]

BOARD = board(
    "ebb-capacity", "Ebb / Capacity", "Memory, batch, queue and steps against their limits.", PANELS
)
