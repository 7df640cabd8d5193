//! Parameters of the kernels of recurrent layers.

use crate::cuda::params::{DevicePtr, KernelParams};

/// `ebb::SeqStates` of ops/recurrent.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct SeqStates {
    pub(super) seqs: DevicePtr,
    pub(super) seq_count: DevicePtr,
    pub(super) states: DevicePtr,
    pub(super) slot_floats: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct ConvParams {
    pub(super) states: SeqStates,
    pub(super) heads: DevicePtr,
    pub(super) out: DevicePtr,
    pub(super) weight: DevicePtr,
    pub(super) bias: DevicePtr,
    pub(super) in_bias: DevicePtr,
    pub(super) channels: u32,
    pub(super) taps: u32,
    pub(super) in_width: u32,
    pub(super) reserved: u32,
}
// SAFETY: field for field `ebb::ConvParams` of ops/convolve.cu.
unsafe impl KernelParams for ConvParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct ConvChunkParams {
    pub(super) conv: ConvParams,
    pub(super) chunks: DevicePtr,
    pub(super) before: DevicePtr,
}
// SAFETY: field for field `ebb::ConvChunkParams` of ops/convolve.cu.
unsafe impl KernelParams for ConvChunkParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct RuleParams {
    pub(super) states: SeqStates,
    pub(super) heads: DevicePtr,
    pub(super) out: DevicePtr,
    pub(super) decay: DevicePtr,
    pub(super) decay_bias: DevicePtr,
    pub(super) norm: DevicePtr,
    pub(super) skip: DevicePtr,
    pub(super) k_heads: u32,
    pub(super) v_heads: u32,
    pub(super) k_dim: u32,
    pub(super) v_dim: u32,
    pub(super) in_width: u32,
    pub(super) lanes: u32,
    pub(super) eps: f32,
    pub(super) queries_at: u32,
    pub(super) keys_at: u32,
    pub(super) values_at: u32,
    pub(super) least_step: f32,
    pub(super) most_step: f32,
}
// SAFETY: field for field `ebb::RuleParams` of ops/recurrent.cuh.
unsafe impl KernelParams for RuleParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct RuleChunkParams {
    pub(super) rule: RuleParams,
    pub(super) chunks: DevicePtr,
    pub(super) chunked: DevicePtr,
    pub(super) records: DevicePtr,
    pub(super) record_words: u32,
    pub(super) reserved: u32,
}
// SAFETY: field for field `ebb::RuleChunkParams` of ops/rule_chunks.cuh.
unsafe impl KernelParams for RuleChunkParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct MambaNormParams {
    pub(super) out: DevicePtr,
    pub(super) weight: DevicePtr,
    pub(super) parts: u32,
    pub(super) len: u32,
    pub(super) eps: f32,
    pub(super) reserved: u32,
}
// SAFETY: field for field `ebb::MambaNormParams` of ops/mamba.cu.
unsafe impl KernelParams for MambaNormParams {}
