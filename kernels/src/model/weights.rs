//! Names of the tensors a backend loads, and the interface it loads them through.

use std::fmt;
use std::num::NonZero;

use half::bf16;

use super::TransformerSpec;

/// A tensor of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorName {
    /// `[vocab][hidden]`.
    Embedding,
    /// `[hidden]`.
    FinalNorm,
    /// `[vocab][hidden]`; absent if the embeddings are tied.
    LmHead,
    /// A tensor of one layer, counted from 0.
    Layer(usize, LayerTensor),
}

/// A tensor of a layer. Projections are `[out][in]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerTensor {
    /// `[hidden]`.
    AttnNorm,
    /// `[q_heads * head_dim][hidden]`, in half-split RoPE order.
    Q,
    /// `[kv_heads * head_dim][hidden]`, in half-split RoPE order.
    K,
    /// `[kv_heads * head_dim][hidden]`.
    V,
    /// `[q_heads * head_dim]`, only with `qkv_bias`.
    QBias,
    /// `[kv_heads * head_dim]`, only with `qkv_bias`.
    KBias,
    /// `[kv_heads * head_dim]`, only with `qkv_bias`.
    VBias,
    /// `[head_dim]`, only with `qk_norm`.
    QNorm,
    /// `[head_dim]`, only with `qk_norm`.
    KNorm,
    /// `[hidden][q_heads * head_dim]`.
    O,
    /// `[hidden]`.
    MlpNorm,
    /// `[intermediate][hidden]`.
    Gate,
    /// `[intermediate][hidden]`.
    Up,
    /// `[hidden][intermediate]`.
    Down,
}

impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedding => f.write_str("embedding"),
            Self::FinalNorm => f.write_str("final norm"),
            Self::LmHead => f.write_str("output projection"),
            Self::Layer(layer, tensor) => write!(f, "layer {layer} {tensor:?}"),
        }
    }
}

impl TensorName {
    /// The shape this tensor must have in a model of `spec`: row-major, `[out][in]` or `[len]`.
    pub fn shape(self, spec: &TransformerSpec) -> Vec<usize> {
        let (h, q, kv, i) = (
            spec.hidden,
            spec.q_width(),
            spec.kv_width(),
            spec.intermediate,
        );
        match self {
            Self::Embedding | Self::LmHead => vec![spec.vocab, h],
            Self::FinalNorm => vec![h],
            Self::Layer(_, tensor) => match tensor {
                LayerTensor::AttnNorm | LayerTensor::MlpNorm => vec![h],
                LayerTensor::Q => vec![q, h],
                LayerTensor::K | LayerTensor::V => vec![kv, h],
                LayerTensor::QBias => vec![q],
                LayerTensor::KBias | LayerTensor::VBias => vec![kv],
                LayerTensor::QNorm | LayerTensor::KNorm => vec![spec.head_dim],
                LayerTensor::O => vec![h, q],
                LayerTensor::Gate | LayerTensor::Up => vec![i, h],
                LayerTensor::Down => vec![h, i],
            },
        }
    }

    /// Every tensor that a model of `spec` has, in load order.
    pub fn all(spec: &TransformerSpec) -> Vec<TensorName> {
        use LayerTensor as L;
        let mut names = vec![Self::Embedding];
        for layer in 0..spec.layers {
            let mut add = |tensors: &[L]| {
                names.extend(tensors.iter().map(|t| Self::Layer(layer, *t)));
            };
            add(&[L::AttnNorm, L::Q, L::K, L::V]);
            if spec.qkv_bias {
                add(&[L::QBias, L::KBias, L::VBias]);
            }
            if spec.qk_norm {
                add(&[L::QNorm, L::KNorm]);
            }
            add(&[L::O, L::MlpNorm, L::Gate, L::Up, L::Down]);
        }
        names.push(Self::FinalNorm);
        if !spec.tied_embeddings {
            names.push(Self::LmHead);
        }
        names
    }
}

/// Where a backend's weights come from: a directory, a GGUF file, random numbers.
///
/// Tensors are row-major `[out][in]`, in Hugging Face orientation and half-split RoPE order. A
/// vector is one row.
pub trait WeightSource: Sync {
    /// What can go wrong while reading.
    type Error: std::error::Error + Send + Sync + 'static;

    /// The shape of a tensor, without reading it.
    fn shape(&self, name: TensorName) -> Result<Vec<usize>, Self::Error>;

    /// Reads rows from `first_row` on, rounded to bf16, into all of `out`, which is whole rows
    /// within the tensor. Backends call this from several threads at once.
    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), Self::Error>;

    /// Reads a tensor whole, on as many threads as pay.
    fn load(&self, name: TensorName) -> Result<Vec<bf16>, Self::Error> {
        let (rows, width) = rows_of(&self.shape(name)?);
        let mut values = vec![bf16::ZERO; rows * width];
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = (values.len() / MIN_VALUES_PER_THREAD).clamp(1, cores);
        let rows_each = rows.div_ceil(threads).max(1);
        if threads == 1 || rows_each >= rows {
            self.read_rows(name, 0, &mut values)?;
            return Ok(values);
        }
        std::thread::scope(|scope| {
            let parts = values.chunks_mut(rows_each * width).enumerate();
            let readers: Vec<_> = parts
                .map(|(part, out)| scope.spawn(move || self.read_rows(name, part * rows_each, out)))
                .collect();
            readers.into_iter().try_for_each(|reader| {
                reader
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })?;
        Ok(values)
    }
}

/// Below this many values a tensor is read on the calling thread: starting threads costs more.
const MIN_VALUES_PER_THREAD: usize = 1 << 18;

/// Rows of a tensor of this shape, and values of each.
pub(crate) fn rows_of(shape: &[usize]) -> (usize, usize) {
    match shape {
        [rows @ .., width] => (rows.iter().product(), *width),
        [] => (1, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Rope;

    /// Value `i` of every tensor is `i`, or an error from row 700 on.
    struct Counting {
        fails: bool,
    }

    impl WeightSource for Counting {
        type Error = std::io::Error;

        fn shape(&self, name: TensorName) -> Result<Vec<usize>, Self::Error> {
            Ok(match name {
                TensorName::FinalNorm => vec![77],
                _ => vec![1003, 1001],
            })
        }

        fn read_rows(
            &self,
            _: TensorName,
            first_row: usize,
            out: &mut [bf16],
        ) -> Result<(), Self::Error> {
            if self.fails && (first_row + out.len() / 1001) > 700 {
                return Err(std::io::Error::other("gone"));
            }
            for (i, value) in out.iter_mut().enumerate() {
                *value = bf16::from_bits((first_row * 1001 + i) as u16);
            }
            Ok(())
        }
    }

    #[test]
    fn a_tensor_read_in_parts_is_the_tensor() {
        let source = Counting { fails: false };
        let big = source.load(TensorName::LmHead).unwrap();
        assert_eq!(big.len(), 1003 * 1001);
        assert!(big.iter().enumerate().all(|(i, v)| v.to_bits() == i as u16));
        assert_eq!(source.load(TensorName::FinalNorm).unwrap().len(), 77);
        let error = Counting { fails: true }.load(TensorName::LmHead);
        assert_eq!(error.unwrap_err().to_string(), "gone");
        assert_eq!(
            [rows_of(&[]), rows_of(&[5]), rows_of(&[2, 3])],
            [(1, 1), (1, 5), (2, 3)]
        );
    }

    #[test]
    fn names_follow_the_family() {
        let mut spec = TransformerSpec {
            hidden: 576,
            layers: 2,
            q_heads: 9,
            kv_heads: 3,
            head_dim: 64,
            intermediate: 1536,
            vocab: 49152,
            norm_eps: 1e-5,
            rope: Rope {
                inv_freq: vec![1.0; 32],
                scale: 1.0,
            },
            qkv_bias: false,
            qk_norm: false,
            tied_embeddings: true,
            max_positions: 8192,
        };
        assert_eq!(spec.validate(), Ok(()));
        assert_eq!(TensorName::all(&spec).len(), 2 + 2 * 9);
        spec.qkv_bias = true;
        spec.qk_norm = true;
        spec.tied_embeddings = false;
        assert_eq!(TensorName::all(&spec).len(), 3 + 2 * 14);
        let k = TensorName::Layer(1, LayerTensor::K);
        assert_eq!(k.shape(&spec), [192, 576]);
        assert_eq!(k.to_string(), "layer 1 K");
    }
}
