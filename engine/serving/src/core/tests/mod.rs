//! The engine thread against a scripted backend: whatever is in flight, every client gets the
//! answer that it would have got alone.

mod fake;
mod hang;
mod host;
mod in_flight_steps;
mod lost;
mod pool_watch;
mod queue;
mod refusals;
mod texts;

use std::sync::Arc;
use std::time::Duration;

use ebb_block_manager::PoolConfig;
use ebb_block_manager::precision::LevelTable;
use ebb_kernels::kv::KvGeometry;
use ebb_models::model::GenerationDefaults;
use ebb_models::model::gguf::{GgufTokenizer, TokenType};
use ebb_models::tokenizer::{SpecialIds, Tokenizer};
use ebb_scheduler::{Config, Mode};

use self::fake::Fake;
use super::pulse::{Clock, real_clock};
use super::{
    EngineHandle, FinishReason, GenerateStream, ModelInfo, Prompt, Request, RequestError, Served,
    StreamEvent, TokenLogprobs,
};
use crate::client_memory::ClientMemory;
use crate::kv_plan::KvPlan;
use crate::kv_state::KvFacts;
use crate::metrics::Recorder;
use crate::sampling::SamplingOptions;

const VOCAB: usize = 200;
/// After this time without a step the engine counts as hung.
const HANG_TIMEOUT: Duration = Duration::from_millis(300);
/// The model's end token.
const END: u32 = 7;

/// A token that is left out of texts, `SPECIAL_TEXT`.
const SPECIAL: u32 = 199;
const SPECIAL_TEXT: &str = "\u{1c7}";

const GEOMETRY: KvGeometry = KvGeometry {
    layers: 1,
    kv_heads: 1,
    head_dim: 16,
    windowed: ebb_kernels::kv::WindowedLayers::NONE,
};

/// An engine on `backend` with a pool of `frames` frames of 16 tokens.
fn engine(backend: Fake, frames: u32) -> EngineHandle {
    queueing(backend, frames, (16, Config::default().max_waiting))
}

/// The same, in which so many requests may run and so many more wait.
fn queueing(backend: Fake, frames: u32, places: (usize, usize)) -> EngineHandle {
    counting(backend, frames, places, ClientMemory::unlimited())
}

/// The same, whose clients have so much memory.
fn counting(
    backend: Fake,
    frames: u32,
    places: (usize, usize),
    client_memory: ClientMemory,
) -> EngineHandle {
    let parts = Parts {
        places,
        client_memory,
        ..Parts::default()
    };
    started(backend, frames, parts)
}

/// The same, whose hangs are measured by `clock`.
fn clocked(
    backend: Fake,
    frames: u32,
    places: (usize, usize),
    client_memory: ClientMemory,
    clock: Clock,
) -> EngineHandle {
    let parts = Parts {
        places,
        client_memory,
        clock,
        ..Parts::default()
    };
    started(backend, frames, parts)
}

/// What else an engine is made of.
struct Parts {
    /// How many requests may run, and how many more wait.
    places: (usize, usize),
    client_memory: ClientMemory,
    clock: Clock,
    recorder: Recorder,
    /// Frames of a block at 16 bit and at 2, where blocks shrink.
    levels: Option<[u32; 2]>,
}

impl Default for Parts {
    fn default() -> Self {
        Self {
            places: (16, 16),
            client_memory: ClientMemory::unlimited(),
            clock: real_clock(),
            recorder: Recorder::disabled(),
            levels: None,
        }
    }
}

fn started(backend: Fake, frames: u32, parts: Parts) -> EngineHandle {
    let Parts {
        places: (max_running, max_waiting),
        client_memory,
        clock,
        recorder,
        levels,
    } = parts;
    // One more than the model has.
    let tokens = (0x100..=0x100 + VOCAB as u32).filter_map(char::from_u32);
    let mut token_types = vec![TokenType::Normal; VOCAB];
    token_types[SPECIAL as usize] = TokenType::Control;
    token_types.push(TokenType::UserDefined);
    let tokenizer = Tokenizer::from_gguf(GgufTokenizer {
        model: "gpt2".to_owned(),
        pre: None,
        tokens: tokens.map(String::from).collect(),
        scores: None,
        token_types: Some(token_types),
        merges: Some(Vec::new()),
        bos: None,
        eos: None,
        eot: None,
        eom: None,
        unknown: None,
        add_bos: None,
        add_eos: None,
        add_space_prefix: None,
        chat_template: None,
    });
    let served = Served {
        info: ModelInfo {
            name: "scripted".into(),
            aliases: Vec::new(),
            description: String::new(),
            device: String::new(),
            max_context: 512,
            max_running,
            vocab: VOCAB,
            eos_token_ids: vec![END],
            special: SpecialIds::default(),
            has_chat_template: false,
            kv_bytes_per_token: GEOMETRY.token_bytes() as u64,
        },
        tokenizer: Arc::new(tokenizer.expect("a vocabulary")),
        template: None,
        generation: GenerationDefaults::default(),
        max_live: max_running + max_waiting,
        client_memory,
        kv: KvFacts::new(&KvPlan::sixteen_bit(GEOMETRY).expect("a geometry")),
        hang_timeout: Some(HANG_TIMEOUT),
        clock,
    };
    let layout = GEOMETRY.frame_layout();
    let pool = PoolConfig::whole(
        frames,
        layout.frame_bytes as u64,
        layout.frames_per_sub_block as u32,
    );
    let mode = match levels {
        Some(_) => Mode::Progressive,
        None => Mode::default(),
    };
    let levels = levels.map_or(pool.levels.clone(), |frames| LevelTable::of_frames(&frames));
    let pool = PoolConfig {
        max_blocks_per_seq: 4,
        levels,
        ..pool
    };
    let limits = Config {
        max_running,
        max_waiting,
        max_step_tokens: 48,
        prefill_chunk: 32,
        max_logit_rows: 40,
        headroom_tokens: 0,
        mode,
        ..Config::default()
    };
    let backend = Box::new(backend);
    EngineHandle::start(served, limits, pool, backend, recorder, None).expect("sound limits")
}

/// An engine whose device is lost in its first step.
pub(crate) fn lost_at_once() -> EngineHandle {
    engine(Fake::new(400, 2, |_| Some(fake::Trouble::Lost)), 400)
}

/// A request for `prompt`.
pub(crate) fn request(prompt: &[u32], options: SamplingOptions) -> Request {
    Request::new(Prompt::Tokens(prompt.to_vec()), options)
}

/// What one choice came to.
#[derive(Debug, Clone, Default, PartialEq)]
struct Answer {
    text: String,
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    end: Option<(FinishReason, Option<u32>)>,
}

/// What one request came to: its choices, its prompt's scores, and the error that ended it.
type Outcome = (Vec<Answer>, Vec<TokenLogprobs>, Option<RequestError>);

async fn read(mut stream: GenerateStream, n: u32) -> Outcome {
    let mut answers = vec![Answer::default(); n as usize];
    let mut prompt = Vec::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(StreamEvent::Started {
                prompt_logprobs, ..
            }) => prompt = prompt_logprobs,
            Ok(StreamEvent::Delta {
                choice,
                text,
                token_ids,
                logprobs,
            }) => {
                let answer = &mut answers[choice as usize];
                assert_eq!(answer.end, None, "choice {choice} goes on after its end");
                answer.text.push_str(&text);
                answer.tokens.extend(token_ids);
                answer.logprobs.extend(logprobs);
            }
            Ok(StreamEvent::Finished { choice, end }) => {
                answers[choice as usize].end = Some((end.reason, end.stop_token));
            }
            Err(error) => return (answers, prompt, Some(error)),
        }
    }
    (answers, prompt, None)
}
