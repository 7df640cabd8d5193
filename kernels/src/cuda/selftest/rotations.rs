//! Backends of whole models that rotate keys or values in every step, and what they are compared
//! with.

use std::fmt::Display;
use std::sync::Arc;

use super::model::RandomWeights;
use crate::backend::Backend;
use crate::cpu::{CpuBackend, CpuOptions};
use crate::cuda::driver::Device;
use crate::cuda::{CudaBackend, CudaConfig, CudaError};
use crate::formats::rotation::Rotation;
use crate::kv::{KvArena, KvLayout};
use crate::model::{ModelSpec, Rotated};

/// What a CUDA backend rotates in every step, and what it is compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rotations {
    pub(super) online: Rotation,
    pub(super) against: Against,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Against {
    /// The CPU backend, which rotates the same in every step.
    Cpu,
    /// A CUDA backend with V's rotation in its weights.
    Folded,
}

impl Rotations {
    pub(super) const NONE: Self = Self {
        online: Rotation::NONE,
        against: Against::Cpu,
    };
    const KEYS: Self = Self {
        online: Rotation { k: true, v: false },
        against: Against::Cpu,
    };
    const VALUES: Self = Self {
        online: Rotation { k: false, v: true },
        against: Against::Cpu,
    };
    const VALUES_FOLDED: Self = Self {
        against: Against::Folded,
        ..Self::VALUES
    };
    pub(super) const ALL: [(&str, Self); 3] = [
        ("keys rotated", Self::KEYS),
        ("values rotated", Self::VALUES),
        ("values rotated or folded", Self::VALUES_FOLDED),
    ];

    /// How far logits may be apart where a device's may be `of_device` from the CPU's. Those of two
    /// devices each have an error of that size, in directions of their own: other values are
    /// rounded. Values that are not rotated back are some 1 away.
    pub(super) fn limit(self, of_device: f64) -> f64 {
        match self.against {
            Against::Cpu => of_device,
            Against::Folded => std::f64::consts::SQRT_2 * of_device,
        }
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
    rotations: Rotations,
) -> Result<(CudaBackend, Reference), CudaError> {
    fn failed(e: impl Display) -> CudaError {
        CudaError::Unsupported(format!("a backend of the test: {e}"))
    }
    let Rotations { online, against } = rotations;
    let weights = RandomWeights(spec);
    let config = CudaConfig {
        rotate_k: online.k,
        rotate_v_online: online.v,
        ..config
    };
    let nothing = &mut |_, _| ();
    let of = spec.clone();
    let cuda = CudaBackend::with_pages(device, of, config, layout, &weights, nothing);
    let cuda = cuda.map_err(failed)?;
    let reference = match against {
        Against::Cpu => {
            let arena = KvArena::new(layout.frame(), config.frames).map_err(failed)?;
            let options = CpuOptions {
                layout: Some(layout.clone()),
                rotation: online,
                rotate_v_online: true,
                ..CpuOptions::new(1)
            };
            let cpu = CpuBackend::with_options(spec.clone(), &weights, arena, options, nothing);
            Reference::Cpu(Box::new(cpu.map_err(failed)?))
        }
        Against::Folded => {
            let config = CudaConfig {
                rotate_v_online: false,
                ..config
            };
            let folded = Rotated::new(spec, weights);
            let of = spec.clone();
            let cuda = CudaBackend::with_pages(device, of, config, layout, &folded, nothing);
            Reference::Cuda(Box::new(cuda.map_err(failed)?))
        }
    };
    Ok((cuda, reference))
}
