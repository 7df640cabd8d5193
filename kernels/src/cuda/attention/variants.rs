//! Compiled shapes of the 16-bit decode kernels.

use super::super::driver::Device;
use super::super::error::CudaError;
use super::{UNIT_HEADS, tile_row_bytes};
use crate::{BLOCK_TOKENS, SUB_BLOCK_TOKENS};

/// How a decode kernel brings the cache into shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeWay {
    /// Each of so many warps copies its own tiles (sm_80).
    Ring {
        /// Warps of a CTA.
        warps: usize,
    },
    /// A warp has the copy engine bring chunks for all (sm_90).
    Bulk,
}

/// A compiled shape of the decode kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeVariant {
    /// Name of the kernel.
    pub name: &'static str,
    /// Channels per head.
    pub head_dim: usize,
    /// How it reads.
    pub way: DecodeWay,
    /// Stages of a ring: tiles of 16 tokens of a warp, or one side of a chunk of all.
    pub stages: usize,
    /// Name of the same kernel for scores of any kind, if there is one.
    any: Option<&'static str>,
}

impl DecodeVariant {
    /// The same, of which there is a kernel for scores of any kind.
    const fn with(self, any: &'static str) -> Self {
        Self {
            any: Some(any),
            ..self
        }
    }

    /// Name of the kernel for scores of any kind (windows, soft caps, sinks).
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn any(&self) -> Result<&'static str, CudaError> {
        let none = || CudaError::Unsupported(format!("{} for any scores", self.name));
        self.any.ok_or_else(none)
    }

    /// Whether there is a kernel for scores of any kind.
    pub fn takes_any_scores(&self) -> bool {
        self.any.is_some()
    }

    /// Bytes of shared memory; `kSharedBytes` of decode.cuh or decode_bulk.cuh.
    pub(super) fn shared_bytes(&self) -> usize {
        match self.way {
            DecodeWay::Ring { warps } => {
                let tile = 2 * SUB_BLOCK_TOKENS * tile_row_bytes(self.head_dim);
                warps * self.stages * tile + warps * (8 * UNIT_HEADS + 4) + 16
            }
            DecodeWay::Bulk => {
                let tiles = self.head_dim / 16;
                let chunk_side = tiles * 32 * self.head_dim;
                let exchange = 4 * tiles * 32 + 2 * tiles * 256;
                let items = self.stages / 2 + 2;
                let item = UNIT_HEADS * self.head_dim * 2 + 32 + 8;
                let asks = match self.finishes() {
                    true => items * 16 + items.div_ceil(2) * 8,
                    false => 0,
                };
                self.stages * (chunk_side + 16) + exchange + items * item + asks
            }
        }
    }

    pub(super) fn threads(&self) -> u32 {
        match self.way {
            DecodeWay::Ring { warps } => warps as u32 * 32,
            DecodeWay::Bulk => (self.head_dim as u32 / 16 + 1 + u32::from(self.finishes())) * 32,
        }
    }

    /// Fewest blocks of a unit that is cut so that all are under way at once: as many as the ring
    /// of a CTA holds, or fewer where that holds many.
    pub(super) fn blocks_in_ring(&self) -> usize {
        match self.way {
            DecodeWay::Ring { warps } => {
                (warps * self.stages * SUB_BLOCK_TOKENS).div_ceil(BLOCK_TOKENS)
            }
            DecodeWay::Bulk => 3,
        }
    }

    /// Whether it has a warp that finishes heads of Q, K and V as their projection left them.
    pub(super) fn finishes(&self) -> bool {
        DEEP_VARIANTS.contains(self)
    }

    /// Whether the device can run it.
    pub fn runs_on(&self, device: &Device) -> bool {
        (self.way != DecodeWay::Bulk || device.has_copy_engine())
            && self.shared_bytes() <= device.shared_bytes_max()
    }
}

/// Every compiled decode kernel, the preferred ones first.
pub const DECODE_VARIANTS: &[DecodeVariant] = &[
    bulk("decode_bulk_d128_s2", 128, 2).with("decode_bulk_d128_s2_any"),
    bulk("decode_bulk_d128_s3", 128, 3),
    bulk("decode_bulk_d128_s6", 128, 6).with("decode_bulk_d128_s6_any"),
    bulk("decode_bulk_d64_s8", 64, 8).with("decode_bulk_d64_s8_any"),
    bulk("decode_bulk_d64_s24", 64, 24).with("decode_bulk_d64_s24_any"),
    ring("decode_d128_w4_s2", 128, 4, 2).with("decode_d128_w4_s2_any"),
    ring("decode_d128_w4_s3", 128, 4, 3),
    ring("decode_d128_w2_s3", 128, 2, 3),
    ring("decode_d128_w2_s4", 128, 2, 4),
    ring("decode_d128_w8_s3", 128, 8, 3),
    ring("decode_d64_w4_s4", 64, 4, 4).with("decode_d64_w4_s4_any"),
    ring("decode_d64_w4_s6", 64, 4, 6),
    ring("decode_d16_w4_s6", 16, 4, 6).with("decode_d16_w4_s6_any"),
    ring("decode_d32_w4_s6", 32, 4, 6).with("decode_d32_w4_s6_any"),
    ring("decode_d48_w4_s5", 48, 4, 5).with("decode_d48_w4_s5_any"),
    ring("decode_d80_w4_s3", 80, 4, 3).with("decode_d80_w4_s3_any"),
    ring("decode_d96_w4_s2", 96, 4, 2).with("decode_d96_w4_s2_any"),
    ring("decode_d112_w4_s2", 112, 4, 2).with("decode_d112_w4_s2_any"),
    ring("decode_d144_w2_s2", 144, 2, 2).with("decode_d144_w2_s2_any"),
    ring("decode_d160_w2_s2", 160, 2, 2).with("decode_d160_w2_s2_any"),
    ring("decode_d176_w2_s2", 176, 2, 2).with("decode_d176_w2_s2_any"),
    ring("decode_d192_w2_s2", 192, 2, 2).with("decode_d192_w2_s2_any"),
    ring("decode_d208_w2_s2", 208, 2, 2).with("decode_d208_w2_s2_any"),
    ring("decode_d224_w2_s2", 224, 2, 2).with("decode_d224_w2_s2_any"),
    ring("decode_d240_w2_s2", 240, 2, 2).with("decode_d240_w2_s2_any"),
    ring("decode_d256_w2_s2", 256, 2, 2).with("decode_d256_w2_s2_any"),
];

const fn bulk(name: &'static str, head_dim: usize, stages: usize) -> DecodeVariant {
    DecodeVariant {
        name,
        head_dim,
        way: DecodeWay::Bulk,
        stages,
        any: None,
    }
}

const fn ring(name: &'static str, head_dim: usize, warps: usize, stages: usize) -> DecodeVariant {
    DecodeVariant {
        name,
        head_dim,
        way: DecodeWay::Ring { warps },
        stages,
        any: None,
    }
}

/// The kernel for steps of few units, all of them whole sequences or all under way at once: one CTA
/// of a multiprocessor with all of the shared memory, the same arithmetic to the bit.
pub(super) const DEEP_VARIANTS: [DecodeVariant; 2] = [
    bulk("decode_bulk_d128_s6", 128, 6).with("decode_bulk_d128_s6_any"),
    bulk("decode_bulk_d64_s24", 64, 24).with("decode_bulk_d64_s24_any"),
];

#[cfg(all(test, feature = "cuda-emulator"))]
mod tests {
    use super::*;
    use crate::cuda::PREFILL_VARIANTS;

    #[test]
    fn every_width_has_kernels_that_run_on_every_device() {
        for capability in ["8.0", "8.6", "9.0"] {
            let device = Device::open_as(0, Some(capability.parse().unwrap())).unwrap();
            for head_dim in (16..=256).step_by(16) {
                let mut decode = DECODE_VARIANTS.iter().filter(|v| v.runs_on(&device));
                assert!(decode.any(|v| v.head_dim == head_dim), "{head_dim}");
                let mut prefill = PREFILL_VARIANTS.iter();
                assert!(prefill.any(|v| v.fits(&device, head_dim)), "{head_dim}");
            }
        }
    }
}
