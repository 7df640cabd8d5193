//! What the engine counts and times, exposed in Prometheus' text format under vLLM's names.
//!
//! A [`Recorder`] is made once per engine. The engine calls it in four places:
//!
//! 1. a request arrives: [`Recorder::request`] gives a [`RequestMeter`], kept beside the request's
//!    other state;
//! 2. its first slice is planned: [`RequestMeter::scheduled`]; it loses its pages:
//!    [`RequestMeter::preempted`];
//! 3. tokens are handed to its reader: [`RequestMeter::tokens`]; a choice is complete:
//!    [`RequestMeter::choice_finished`]; the request is over: [`RequestMeter::end`] (a meter that
//!    is dropped without it counts as aborted, so every request is accounted for);
//! 4. a step is done: [`Recorder::step`].
//!
//! Gauges, and counters that the engine keeps anyway, are read when somebody looks:
//! [`Recorder::render`] takes them as an [`EngineGauges`]. All handles are registered up front;
//! recording is a few atomic operations and no look-up. Histograms buffer samples until
//! [`Recorder::upkeep`] or `render` sorts them into buckets: `ebb serve` calls `upkeep` often, off
//! the engine thread; without a server, `step` does it now and then.
//!
//! # What is exposed
//! Every metric carries `model_name` and `engine="0"`; counters end in `_total`. Names, types and
//! buckets are those of vLLM 0.33 wherever a metric means the same here. For `n = 1` so do the
//! numbers; with more choices, `vllm:request_success` and `vllm:request_generation_tokens` count
//! choices, everything else counts requests. Histograms whose name starts with `vllm:request_`
//! cover requests that completed, and those that were aborted or failed after a first step.
//!
//! Not exposed, because nothing here corresponds to them: `num_requests_kv_fetch_by_stage`,
//! `engine_sleep_state`, `corrupted_requests`, `watermark_requests`, `external_prefix_cache_*`,
//! `mm_cache_*`, `prompt_tokens_cached_by_source`, `lora_requests_info`; and, not measured yet,
//! `kv_block_lifetime_seconds`, `kv_block_idle_before_evict_seconds`, `kv_block_reuse_gap_seconds`.
//!
//! `ebb:` metrics hold what vLLM has no name for:
//!
//! | type | name | labels | meaning |
//! |---|---|---|---|
//! | counter | `ebb:requests_received` | | requests that arrived, refused ones included |
//! | counter | `ebb:requests_ended` | outcome | how they ended, see [`Outcome`]; equal to the former when idle |
//! | counter | `ebb:rpcs` | method, code | gRPC calls by their status, invalid ones included |
//! | counter | `ebb:http_requests` | route, status | calls of the HTTP API by their status; a stream's is that of its beginning, 499 stands for clients that left before |
//! | counter | `ebb:steps` | | model steps |
//! | gauge | `ebb:step_age_seconds` | | time since the last step while requests wait for one; 0 while none does |
//! | histogram | `ebb:step_time_seconds` | phase | time per step: `plan`, `forward`, `sample`; `shrink` is a part of `forward` |
//! | gauge | `ebb:weights_bytes` | format | size of the weights, by what is held: `bf16`, or codes such as `int4` and `e4m3` with their scales |
//! | gauge | `ebb:kv_pool_bytes` | | size of the KV pool |
//! | gauge | `ebb:kv_bytes` | state | bytes of it that are `live`, `cached`, `free` |
//! | gauge | `ebb:kv_format_bytes`, `ebb:kv_format_pages` | format | what is stored, by page format |
//! | gauge | `ebb:kv_cached_format_bytes` | format | of the former, what only the prefix cache keeps |
//! | gauge | `ebb:kv_waste_bytes` | | held and not used: unfilled places of open blocks, ends of last frames |
//! | gauge | `ebb:kv_shrinkable_bytes` | | of what requests hold, blocks that can shrink further: 0 when all are at their floor |
//! | gauge | `ebb:kv_watermark_bytes` | mark | free bytes below which blocks begin to shrink (`low`) and at which they stop (`high`) |
//! | gauge | `ebb:kv_promised_bytes` | | what running requests take at their longest, at their floor |
//! | gauge | `ebb:kv_bits` | of | mean bits `stored`, and those at the `floor` |
//! | gauge | `ebb:kv_schedule_steps` | stat | level changes taken: `mean`, `max`, and `all` there are |
//! | gauge | `ebb:request_kv_bits` | stat | bits that running sequences have read: `mean`, `lowest` |
//! | histogram | `ebb:request_mean_kv_bits` | | the same of finished choices |
//! | counter | `ebb:kv_shrinks`, `ebb:kv_shrunk_bytes`, `ebb:kv_shrink_failures` | holder (of the first) | blocks shrunk, their bytes before, and blocks that could not be |
//! | counter | `ebb:preemptions_avoided`, `ebb:kv_stalls` | | what shrinking saved, and waits for it |
//! | counter | `ebb:tokens_computed`, `ebb:tokens_thrown_away` | | tokens of steps; of those, what preemptions cost |
//! | counter | `ebb:trajectories` | outcome | with `--trajectory-log`: trajectories `logged`, and `lost` because the file could not be written |
//! | gauge | `ebb:max_requests` | state | sequences that may be `running`, requests that may be `waiting` |
//! | gauge | `ebb:connections`, `ebb:max_connections` | port | connections to `grpc`, `api` (the HTTP API) and `http` (metrics), and how many there may be |
//! | counter | `ebb:connections_accepted` | port | connections that clients opened, refused ones included |
//! | counter | `ebb:connections_closed` | port, reason | those that the server closed: idle ones that `made_way`, `no_handshake` or `no_request` in time or left an answer `unread`, newcomers `refused`, and failed handshakes of `tls` |
//! | gauge | `ebb:texts_waiting` | | texts and templates that wait for a thread |
//! | gauge | `ebb:client_memory_bytes`, `ebb:max_client_memory_bytes` | | what clients make the server hold (messages, texts being tokenised, prompts, unread answers), and may |
//! | counter | `ebb:client_memory_refusals`, `ebb:late_messages` | | what was refused beyond that, and calls whose message did not arrive in time |
//! | gauge | `ebb:build_info` | version | always 1 |

mod buckets;
mod clients;
mod recorder;
mod register;
mod request;

pub use clients::{ClientGauges, PortGauges};
pub use recorder::{CacheConfig, EngineGauges, Recorder, StepStats};
pub use request::{Finish, Outcome, RequestMeter};
