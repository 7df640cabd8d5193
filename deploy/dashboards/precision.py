"""Precision: what the KV cache gives up under pressure, and what that buys."""

from panels import RATE, S, board, heatmap, rate, row, selector, series, stat, total

SHRINK = {"phase": "shrink"}
STEPS = rate("vllm:iteration_tokens_total_count")


def average(metric, **labels):
    """The mean over replicas."""
    return f"avg ({metric}{{{selector(labels)}}})"


def spent(metric, label):
    """How far bits are from 16 towards the floor, the mean over replicas."""
    bits = f"{metric}{{{selector(label)}}}"
    floor = f"ebb:kv_bits{{{selector({'of': 'floor'})}}}"
    return f"avg ((16 - {bits}) / ignoring (stat, of) clamp_min(16 - {floor}, 0.001))"


FORMATS_HELD = f"sum by (format) (ebb:kv_format_bytes{{{S}}}) > 0"

LEFT = f'sum (ebb:kv_shrinkable_bytes{{{S}}}) / sum (ebb:kv_bytes{{{S},state="live"}})'

PANELS = [
    row("Now"),
    stat(
        "Bits stored",
        "Mean bits of a stored key or value; 16 while memory is free.",
        "suffix: bit",
        average("ebb:kv_bits", of="stored"),
        3,
    ),
    stat(
        "Bits read",
        "Mean bits of what running requests have read: this is what answers are computed from.",
        "suffix: bit",
        average("ebb:request_kv_bits", stat="mean"),
        3,
    ),
    stat(
        "Lowest read",
        "The narrowest page that a running request has read.",
        "suffix: bit",
        f'min (ebb:request_kv_bits{{{S},stat="lowest"}})',
        3,
    ),
    stat(
        "Left to shrink",
        "Share of what running requests hold that can shrink further; at zero everything "
        "is at its floor.",
        "percentunit",
        LEFT,
        3,
    ),
    stat(
        "Spent",
        "How far running requests are from 16 bit towards the floor; in mode progressive "
        "the autoscaler's KV pressure.",
        "percentunit",
        spent("ebb:request_kv_bits", {"stat": "mean"}),
        3,
    ),
    stat(
        "Preemptions avoided",
        "Sequences that would have been preempted in the last hour, had nothing shrunk.",
        "short",
        f"sum (increase(ebb:preemptions_avoided_total{{{S}}}[1h]))",
        5,
    ),
    stat(
        "Preemptions",
        "Sequences that were preempted in the last hour.",
        "short",
        f"sum (increase(vllm:num_preemptions_total{{{S}}}[1h]))",
    ),
    row("What is stored"),
    series(
        "Bytes by format",
        "KV memory by page format. All f16: memory is free. The more of it is int4 and "
        "below, the more has been spent.",
        "bytes",
        (FORMATS_HELD, "{{format}}"),
        stack=True,
        width=12,
    ),
    series(
        "Pages by format",
        "Pages (a block's part for one layer and side) by format: many pages in few bytes "
        "is what shrinking is for.",
        "short",
        (f"sum by (format) (ebb:kv_format_pages{{{S}}}) > 0", "{{format}}"),
        stack=True,
        width=12,
    ),
    series(
        "Bits",
        "Means over replicas: bits stored, bits read by running requests, the lowest that "
        "one has read, and the floor.",
        "suffix: bit",
        (average("ebb:kv_bits", of="stored"), "stored"),
        (average("ebb:request_kv_bits", stat="mean"), "read"),
        (f'min (ebb:request_kv_bits{{{S},stat="lowest"}})', "lowest read"),
        (average("ebb:kv_bits", of="floor"), "floor"),
        width=12,
        most=16,
    ),
    series(
        "Precision level",
        "Level changes of the shrink order that blocks have made: the mean, the furthest, "
        "and all there are.",
        "short",
        (average("ebb:kv_schedule_steps", stat="mean"), "mean"),
        (f'max (ebb:kv_schedule_steps{{{S},stat="max"}})', "furthest"),
        (average("ebb:kv_schedule_steps", stat="all"), "all"),
        width=12,
    ),
    row("What it costs"),
    series(
        "Bytes shrunk",
        "KV memory rewritten each second, as it was before.",
        "Bps",
        (rate("ebb:kv_shrunk_bytes_total"), "shrunk"),
    ),
    series(
        "Blocks shrunk",
        "Blocks each second, by who held them: those of the prefix cache go first.",
        "short",
        (rate("ebb:kv_shrinks_total", "holder"), "{{holder}}"),
        stack=True,
    ),
    series(
        "Time spent shrinking",
        "Mean time that shrinking adds to a step, over all steps; --kv-shrink-rate bounds it.",
        "s",
        (f"{rate('ebb:step_time_seconds_sum', **SHRINK)} / {STEPS}", "a step"),
    ),
    series(
        "Left to shrink",
        "Share of what running requests hold that can shrink further: where it stays near "
        "zero, more memory or replicas are due.",
        "percentunit",
        (LEFT, "left"),
        most=1,
    ),
    series(
        "Stalls and failures",
        "Sequences that waited a step for memory to come free, and blocks that could not "
        "shrink (values that no code can hold).",
        "short",
        (rate("ebb:kv_stalls_total"), "stalls"),
        (rate("ebb:kv_shrink_failures_total"), "failures"),
    ),
    row("What it buys"),
    series(
        "Preemptions",
        "Each minute: those that shrinking avoided, and those that happened.",
        "short",
        (f"60 * {rate('ebb:preemptions_avoided_total')}", "avoided"),
        (f"60 * {rate('vllm:num_preemptions_total')}", "happened"),
    ),
    series(
        "Prefix cache by format",
        "What only the prefix cache keeps, by format. A prompt that begins alike reads "
        "it as it is.",
        "bytes",
        (f"sum by (format) (ebb:kv_cached_format_bytes{{{S}}}) > 0", "{{format}}"),
        stack=True,
    ),
    series(
        "Prompt tokens by source",
        "Prompt tokens computed, and found in the prefix cache, each second.",
        "short",
        (rate("vllm:prompt_tokens_by_source_total", "source"), "{{source}}"),
        stack=True,
    ),
    heatmap(
        "Bits of finished requests",
        "Choices by the mean bits that they were computed from: the record of what clients got.",
        "suffix: bit",
        "ebb:request_mean_kv_bits",
        width=24,
    ),
]

BOARD = board("ebb-precision", "Ebb / Precision", "KV-cache precision as it is spent.", PANELS)
