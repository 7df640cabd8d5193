//! Attention of a layer, as data.

use super::query_growth::QueryGrowth;
#[cfg(doc)]
use super::spec::ModelSpec;

/// Grouped-query attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Query heads; a multiple of `kv_heads`.
    pub q_heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// The layer before whose keys and values it reads; it has none of its own then, and heads of
    /// the same shape (Gemma 4).
    pub kv_from: Option<usize>,
    /// Channels of a head; a multiple of 8. A GPU takes multiples of 16 up to 256.
    pub head_dim: usize,
    /// Index into [`ModelSpec::ropes`]; a layer without one knows no positions.
    pub rope: Option<usize>,
    /// Multiplier of query-key products.
    pub scale: f32,
    /// Tokens that a query sees, itself included; all when absent.
    pub window: Option<usize>,
    /// The window is a chunk: a query sees from the last multiple of its length on (Llama 4).
    pub chunked: bool,
    /// Each query head has a learned score that takes part in the softmax alone (gpt-oss).
    pub sinks: bool,
    /// Scores become `cap * tanh(score / cap)` (Gemma 2).
    pub soft_cap: Option<f32>,
    /// Q, K and V projections have a bias (Qwen2).
    pub qkv_bias: bool,
    /// The output projection has a bias.
    pub o_bias: bool,
    /// How queries and keys are normalised.
    pub qk_norm: QkNorm,
    /// Its `V` tensor is its `K` tensor, which checkpoints store once (Gemma 4). Where weights lie
    /// depends on it, what is computed does not.
    pub v_is_k: bool,
    /// Values are RMS-normalised by head, without weights (Gemma 4).
    pub v_norm: bool,
    /// What attention puts out is multiplied by gates.
    pub output_gate: Option<OutputGate>,
    /// How queries grow with their position.
    pub query_growth: Option<QueryGrowth>,
}

/// How queries and keys are RMS-normalised, before RoPE but for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QkNorm {
    /// Not at all.
    #[default]
    None,
    /// Every head by itself; weights `[head_dim]` (Qwen3).
    PerHead,
    /// The projection as a whole; weights as wide as it (OLMo 2).
    Whole,
    /// Every head by itself behind RoPE; weights `[head_dim]` (HunYuan).
    PerHeadBehindRope,
}

/// Gates of what attention puts out, functions of a product of their own with what it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputGate {
    /// `ln(1 + e^x)` of the product (Laguna), not its sigmoid.
    pub softplus: bool,
    /// Each query head has one (Laguna), not each of its channels.
    pub per_head: bool,
}

impl OutputGate {
    /// A sigmoid for each channel (Qwen3-Next).
    pub const SIGMOIDS: Self = Self {
        softplus: false,
        per_head: false,
    };
}

/// Which tokens queries see, none of which come behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seen {
    /// See [`AttentionSpec::window`]; not 0.
    pub window: Option<usize>,
    /// See [`AttentionSpec::chunked`].
    pub chunked: bool,
}

impl Seen {
    /// So many tokens, all if absent.
    pub const fn window(window: Option<usize>) -> Self {
        Self {
            window,
            chunked: false,
        }
    }

    /// Those of a chunk.
    pub const fn chunk(tokens: usize) -> Self {
        Self {
            window: Some(tokens),
            chunked: true,
        }
    }

    /// The first token that a query at `position` sees.
    #[inline(always)]
    pub fn first(self, position: usize) -> usize {
        match (self.window, self.chunked) {
            (None, _) => 0,
            (Some(window), false) => (position + 1).saturating_sub(window),
            (Some(window), true) => position - position % window,
        }
    }
}

/// Heads of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadShape {
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
}

impl HeadShape {
    /// Query heads that share a KV head.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }

    /// Channels of all query heads.
    pub fn q_width(&self) -> usize {
        self.q_heads * self.head_dim
    }

    /// Channels of all key (or value) heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Channels of queries, keys and values.
    pub fn qkv_width(&self) -> usize {
        self.q_width() + 2 * self.kv_width()
    }
}

impl AttentionSpec {
    /// Plain attention: every token seen, scores scaled by `1 / sqrt(head_dim)`, RoPE 0.
    pub fn new(q_heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            q_heads,
            kv_heads,
            kv_from: None,
            head_dim,
            rope: Some(0),
            scale: Self::default_scale(head_dim),
            window: None,
            chunked: false,
            sinks: false,
            soft_cap: None,
            qkv_bias: false,
            o_bias: false,
            qk_norm: QkNorm::None,
            v_is_k: false,
            v_norm: false,
            output_gate: None,
            query_growth: None,
        }
    }

    /// `1 / sqrt(head_dim)`, in f32.
    pub fn default_scale(head_dim: usize) -> f32 {
        1.0 / (head_dim as f32).sqrt()
    }

    /// Channels of the queries, and of its own keys and values.
    pub fn heads_width(&self) -> usize {
        match self.kv_from {
            Some(_) => self.heads().q_width(),
            None => self.heads().qkv_width(),
        }
    }

    /// Which tokens its queries see.
    pub fn seen(&self) -> Seen {
        Seen {
            window: self.window,
            chunked: self.chunked,
        }
    }

    /// Its heads.
    pub fn heads(&self) -> HeadShape {
        HeadShape {
            q_heads: self.q_heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }
}
