//! What layers do with scores beside scaling them.

use crate::cuda::error::CudaError;
use crate::cuda::params::DevicePtr;
use crate::cuda::plan::Windows;
use crate::model::{AttentionSpec, Seen};

/// What a layer does with scores beside scaling them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ScoreSpec {
    /// [`AttentionSpec::window`] and [`AttentionSpec::chunked`]; chunks are powers of two.
    pub seen: Seen,
    /// [`AttentionSpec::soft_cap`].
    pub soft_cap: Option<f32>,
    /// [`AttentionSpec::sinks`].
    pub sinks: bool,
}

impl ScoreSpec {
    /// Of a layer's attention.
    pub(in crate::cuda) fn of(attention: &AttentionSpec) -> Self {
        Self {
            seen: attention.seen(),
            soft_cap: attention.soft_cap,
            sinks: attention.sinks,
        }
    }

    /// Whether kernels need not know of it.
    pub(in crate::cuda) fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Of layers.
    pub(in crate::cuda) fn windows(layers: &[Self]) -> Windows {
        Windows::of(layers.iter().map(|layer| layer.seen))
    }
}

/// A kernel for scores that are plain, and the same for scores of any kind, if layers have such.
#[derive(Debug)]
pub(in crate::cuda) struct Scored<T> {
    plain: T,
    any: Option<T>,
}

impl<T> Scored<T> {
    /// `load` is told whether scores are plain; `any`: whether those of some layer are not.
    pub(in crate::cuda) fn load(
        any: bool,
        load: impl Fn(bool) -> Result<T, CudaError>,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            plain: load(true)?,
            any: any.then(|| load(false)).transpose()?,
        })
    }

    /// The one for a layer's scores.
    pub(in crate::cuda) fn of(&self, is_plain: bool) -> &T {
        match (is_plain, &self.any) {
            (true, _) => &self.plain,
            (false, Some(any)) => any,
            (false, None) => unreachable!("kernels were loaded for the layers"),
        }
    }
}

/// A layer to attend in.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct ScoredLayer {
    pub(in crate::cuda) index: usize,
    pub(in crate::cuda) scores: ScoreSpec,
    /// `[q_heads]` in bf16, if it has sinks.
    pub(in crate::cuda) sinks: DevicePtr,
}

impl ScoredLayer {
    pub(in crate::cuda) fn params(&self) -> ScoreParams {
        let ScoreSpec { seen, soft_cap, .. } = self.scores;
        let window = seen.window.and_then(|w| u32::try_from(w).ok());
        ScoreParams {
            sinks: self.sinks,
            cap: soft_cap.map_or(0.0, |cap| cap * std::f32::consts::LOG2_E),
            cap_exponent: soft_cap.map_or(0.0, |cap| 2.0 / cap),
            window: window.unwrap_or(u32::MAX),
            chunk_mask: window.filter(|_| seen.chunked).map_or(0, |w| !(w - 1)),
        }
    }
}

/// `ebb::ScoreParams` of attention/scores.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct ScoreParams {
    sinks: DevicePtr,
    cap: f32,
    cap_exponent: f32,
    window: u32,
    chunk_mask: u32,
}
const _: () = assert!(size_of::<ScoreParams>() == 24);
