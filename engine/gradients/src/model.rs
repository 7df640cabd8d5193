//! What a model is to this crate: shapes, constants, plain f32 weights.

/// RMSNorm, grouped-query attention with half-split RoPE, SwiGLU.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub q_heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Rows of the output projection.
    pub vocab: usize,
    /// Added to the mean square in every RMSNorm.
    pub norm_eps: f32,
    /// Angle per position of each channel pair, `head_dim / 2` entries, scaling applied.
    pub inv_freq: Vec<f32>,
    /// Multiplier of cosine and sine.
    pub rope_scale: f32,
}

/// A layer's weights, row-major `[out][in]`.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerWeights {
    /// `[hidden]`.
    pub attn_norm: Vec<f32>,
    /// `[q_heads * head_dim][hidden]`.
    pub q: Vec<f32>,
    /// `[kv_heads * head_dim][hidden]`.
    pub k: Vec<f32>,
    /// `[kv_heads * head_dim][hidden]`.
    pub v: Vec<f32>,
    /// Biases of Q, K and V, of models that have them.
    pub qkv_bias: Option<[Vec<f32>; 3]>,
    /// Norms of the heads of Q and K before RoPE, `[head_dim]`, of models that have them.
    pub qk_norm: Option<[Vec<f32>; 2]>,
    /// `[hidden][q_heads * head_dim]`.
    pub o: Vec<f32>,
    /// `[hidden]`.
    pub mlp_norm: Vec<f32>,
    /// `[intermediate][hidden]`.
    pub gate: Vec<f32>,
    /// `[intermediate][hidden]`.
    pub up: Vec<f32>,
    /// `[hidden][intermediate]`.
    pub down: Vec<f32>,
}

/// Where weights come from; each is asked for twice a text, and not kept.
pub trait Weights: Sync {
    /// What can go wrong.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Embeddings of tokens, `[tokens][hidden]`.
    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, Self::Error>;

    /// A layer's weights.
    fn layer(&self, index: usize) -> Result<LayerWeights, Self::Error>;

    /// `[hidden]`.
    fn final_norm(&self) -> Result<Vec<f32>, Self::Error>;

    /// The output projection, `[vocab][hidden]`; the embedding, where the two are tied.
    fn head(&self) -> Result<Vec<f32>, Self::Error>;
}
