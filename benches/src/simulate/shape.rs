//! Models as the cost model sees them.

use ebb_kernels::kv::KvGeometry;

/// What a model costs, by its shape. Weights are bf16.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Name on the command line.
    pub name: &'static str,
    /// Its KV cache.
    pub geometry: KvGeometry,
    /// Query heads of a layer.
    pub query_heads: usize,
    /// Parameters that every row is multiplied with: all but the embedding and the output layer.
    pub row_parameters: f64,
    /// Parameters of the output layer, multiplied with the rows that are sampled from.
    pub logit_parameters: f64,
    /// Bytes of weights that a step reads, however many rows it has.
    pub weight_bytes: f64,
}

/// The shapes known.
pub const SHAPES: [Shape; 2] = [
    // Llama-3.1-8B: 8.03e9 parameters, of which 128,256 x 4,096 each are embedding and output
    // layer. The whole 16 GB counts as read, though of the embedding only rows are.
    Shape {
        name: "8b",
        geometry: KvGeometry {
            layers: 32,
            kv_heads: 8,
            head_dim: 128,
            windowed: ebb_kernels::kv::WindowedLayers::NONE,
        },
        query_heads: 32,
        row_parameters: 6.98e9,
        logit_parameters: 0.525e9,
        weight_bytes: 16e9,
    },
    // 134.5e6 parameters; the output layer is the embedding, 49,152 x 576.
    Shape {
        name: "smollm2-135m",
        geometry: KvGeometry {
            layers: 30,
            kv_heads: 3,
            head_dim: 64,
            windowed: ebb_kernels::kv::WindowedLayers::NONE,
        },
        query_heads: 9,
        row_parameters: 106.2e6,
        logit_parameters: 28.3e6,
        weight_bytes: 269e6,
    },
];

impl Shape {
    /// The shape of that name.
    ///
    /// # Errors
    /// A sentence with the names there are.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = SHAPES.iter().find(|shape| shape.name == name);
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
            format!(
                "{name:?} is not a model shape; choose one of {}",
                names.join(", ")
            )
        })
    }
}
