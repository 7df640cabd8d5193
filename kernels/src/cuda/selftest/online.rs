//! Backends of whole models that rotate keys or values, or scale keys, in every step, and what they
//! are compared with.

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;

use half::bf16;

use super::model::RandomWeights;
use super::packed::{PackedSource, Packing};
use crate::backend::Backend;
use crate::cpu::{CpuBackend, CpuOptions};
use crate::cuda::driver::Device;
use crate::cuda::{CudaBackend, CudaConfig, CudaError};
use crate::formats::rotation::Rotation;
use crate::kv::{KvArena, KvLayout};
use crate::model::{LayerTensor, ModelSpec, OnlineKeyScales, Rotated, TensorName, WeightSource};
use crate::weight_formats::{Codes, Quantisation, WeightFormat};

/// What a CUDA backend does in every step, and what it is compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Online {
    rotation: Rotation,
    /// Exponents of two that the λ of keys have, if they are scaled: up to this.
    scales: Option<f32>,
    packed: Packing,
    pub(super) against: Against,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Against {
    /// The CPU backend, which rotates the same in every step.
    Cpu,
    /// A CUDA backend with V's rotation in its weights.
    Folded,
}

impl Online {
    pub(super) const NONE: Self = Self {
        rotation: Rotation::NONE,
        scales: None,
        packed: Packing::None,
        against: Against::Cpu,
    };
    /// Packed weights, against the CPU's expanded ones.
    pub(super) const PACKED: [(&str, Self); 4] = [
        (
            "8-bit floats in blocks",
            Self {
                packed: Packing::All(Quantisation::Nearest(WeightFormat {
                    codes: Codes::E4M3,
                    group: 128,
                    has_offsets: false,
                })),
                ..Self::NONE
            },
        ),
        (
            "8-bit floats",
            Self {
                packed: Packing::All(Quantisation::Fp8),
                ..Self::NONE
            },
        ),
        (
            "4-bit integers, values rotated",
            Self {
                packed: Packing::All(Quantisation::Int4),
                ..Self::VALUES
            },
        ),
        (
            "values of 8 and others of 4 bits",
            Self {
                packed: Packing::Values8,
                ..Self::NONE
            },
        ),
    ];
    const VALUES: Self = Self {
        rotation: Rotation { k: false, v: true },
        ..Self::NONE
    };
    pub(super) const ROTATIONS: [(&str, Self); 3] = [
        (
            "keys rotated",
            Self {
                rotation: Rotation { k: true, v: false },
                ..Self::NONE
            },
        ),
        ("values rotated", Self::VALUES),
        (
            "values rotated or folded",
            Self {
                against: Against::Folded,
                ..Self::VALUES
            },
        ),
    ];
    pub(super) const SCALES: [(&str, Self); 2] = [
        (
            "keys scaled",
            Self {
                scales: Some(0.7),
                ..Self::NONE
            },
        ),
        (
            "keys scaled or folded",
            Self {
                scales: Some(1.0),
                against: Against::Folded,
                ..Self::NONE
            },
        ),
    ];

    /// How far logits may be apart where a device's may be `of_device` from the CPU's. Those of two
    /// devices each have an error of that size, in directions of their own: other values are
    /// rounded. Values that are not rotated back are some 1 away. Powers of two change no rounding,
    /// so the emulator gives the same bits; on a GPU each backend tunes its products by their
    /// times, and another product adds in another order.
    pub(super) fn limit(self, of_device: f64) -> f64 {
        const OTHER_ORDER: f64 = 1e-6;
        match self.against {
            // Of three layers' rows.
            Against::Cpu if self.quantises_rows() => 7.0 * of_device,
            // Scales and offsets are rounded, too.
            Against::Cpu if self.has_offsets() => 1.5 * of_device,
            Against::Cpu => of_device,
            Against::Folded if self.rotation == Rotation::NONE => {
                if cfg!(feature = "cuda-emulator") {
                    0.0
                } else {
                    OTHER_ORDER
                }
            }
            Against::Folded => std::f64::consts::SQRT_2 * of_device,
        }
    }

    /// Whether tensor cores multiply prompts with weights of eight-bit floats, so that rows are
    /// quantised to such, too: to three bits behind the first, 2.6 % at random.
    pub(super) fn quantises_rows(self) -> bool {
        matches!(self.packed, Packing::All(Quantisation::Fp8))
    }

    /// Whether packed weights have offsets.
    pub(super) fn has_offsets(self) -> bool {
        matches!(
            self.packed,
            Packing::Values8 | Packing::All(Quantisation::Int4)
        )
    }

    /// λ of a model's keys, one for each pair of channels of each head.
    fn key_scales(self, spec: &ModelSpec) -> Option<Arc<OnlineKeyScales>> {
        let (heads, exponent) = (spec.heads(), self.scales?);
        let pairs = heads.kv_heads * heads.head_dim / 2;
        let layers = spec.kv_geometry().layers;
        let scale = |layer: usize, pair: usize| {
            let power = ((pair * 5 + layer) % 7) as f32 - 3.0;
            (exponent * power).exp2()
        };
        let of_layer = |layer| (0..pairs).map(|pair| scale(layer, pair)).collect();
        Some(Arc::new(OnlineKeyScales {
            heads: heads.kv_heads,
            scales: (0..layers).map(of_layer).collect(),
        }))
    }
}

/// What a CUDA backend is compared with.
#[derive(Debug)]
pub(super) enum Reference {
    Cpu(Box<CpuBackend>),
    Cuda(Box<CudaBackend>),
}

impl Reference {
    pub(super) fn backend(&mut self) -> &mut dyn Backend {
        match self {
            Self::Cpu(cpu) => &mut **cpu,
            Self::Cuda(cuda) => &mut **cuda,
        }
    }

    /// Sets all frames of the pool.
    pub(super) fn write(&mut self, pool: &[u8]) -> Result<(), CudaError> {
        match self {
            Self::Cpu(cpu) => {
                let bytes = cpu.arena().frame_bytes();
                for (frame, part) in (0..).zip(pool.chunks_exact(bytes)) {
                    cpu.arena_mut().frame_mut(frame).copy_from_slice(part);
                }
                Ok(())
            }
            Self::Cuda(cuda) => cuda.arena_mut().write_all(pool),
        }
    }

    /// The bytes of a frame.
    pub(super) fn frame(&mut self, frame: u32) -> Result<Vec<u8>, CudaError> {
        match self {
            Self::Cpu(cpu) => Ok(cpu.arena().frame(frame).to_vec()),
            Self::Cuda(cuda) => cuda.arena_mut().read_frame(frame),
        }
    }
}

/// A backend of random weights and its reference.
pub(super) fn start(
    device: &Arc<Device>,
    spec: &ModelSpec,
    config: CudaConfig,
    layout: &KvLayout,
    online: Online,
) -> Result<(CudaBackend, Reference), CudaError> {
    fn failed(e: impl Display) -> CudaError {
        CudaError::Unsupported(format!("a backend of the test: {e}"))
    }
    let key_scales = online.key_scales(spec);
    let rotation = online.rotation;
    let weights = PackedSource {
        source: RandomWeights(spec),
        packing: online.packed,
    };
    let config = CudaConfig {
        rotate_k: rotation.k,
        rotate_v_online: rotation.v,
        scale_k_online: key_scales.clone(),
        expand_weights: false,
        ..config
    };
    let nothing = &mut |_, _| ();
    let (of, with) = (spec.clone(), config.clone());
    let cuda = CudaBackend::with_pages(device, of, with, layout, &weights, nothing);
    let cuda = cuda.map_err(failed)?;
    let reference = match online.against {
        Against::Cpu => {
            let arena = KvArena::new(layout.frame(), config.frames).map_err(failed)?;
            let options = CpuOptions {
                layout: Some(layout.clone()),
                rotation,
                rotate_v_online: true,
                scale_k_online: key_scales,
                expand_weights: true,
                ..CpuOptions::new(1)
            };
            let cpu = CpuBackend::with_options(spec.clone(), &weights, arena, options, nothing);
            Reference::Cpu(Box::new(cpu.map_err(failed)?))
        }
        Against::Folded => {
            let config = CudaConfig {
                rotate_v_online: false,
                scale_k_online: None,
                ..config
            };
            let scaled = Scaled {
                weights: weights.source,
                key_scales,
            };
            let of = spec.clone();
            let cuda = if rotation.v {
                let folded = Rotated::new(spec, scaled);
                CudaBackend::with_pages(device, of, config, layout, &folded, nothing)
                    .map_err(failed)?
            } else {
                CudaBackend::with_pages(device, of, config, layout, &scaled, nothing)
                    .map_err(failed)?
            };
            Reference::Cuda(Box::new(cuda))
        }
    };
    Ok((cuda, reference))
}

/// Random weights with key scales folded in, of a model without norms of heads.
struct Scaled<'a> {
    weights: RandomWeights<'a>,
    key_scales: Option<Arc<OnlineKeyScales>>,
}

impl WeightSource for Scaled<'_> {
    type Error = Infallible;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, Infallible> {
        self.weights.shape(name)
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), Infallible> {
        use LayerTensor as L;
        self.weights.read_rows(name, first_row, out)?;
        let spec = self.weights.0;
        let heads = spec.heads();
        let (Some(scales), TensorName::Layer(layer, tensor)) = (&self.key_scales, name) else {
            return Ok(());
        };
        let (first_head, width) = match tensor {
            L::Q => (0, spec.hidden),
            L::K => (heads.q_heads, spec.hidden),
            L::QBias => (0, 1),
            L::KBias => (heads.q_heads, 1),
            _ => return Ok(()),
        };
        let (factors, pairs) = (scales.factors(spec, layer), heads.head_dim / 2);
        for (channel, row) in (first_row..).zip(out.chunks_exact_mut(width)) {
            let head = first_head + channel / heads.head_dim;
            let factor = factors[head * pairs + channel % pairs];
            row.iter_mut()
                .for_each(|w| *w = bf16::from_f32(w.to_f32() * factor));
        }
        Ok(())
    }
}
