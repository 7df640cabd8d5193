//! Tensors as the emulated copy engine sees them.

use crate::cuda::error::CudaError;
use crate::cuda::params::{DevicePtr, TensorDim};

const RANK_MAX: usize = 4;

/// `TensorMap` of cuda/emulator/tensor_copy.h.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct TensorMap {
    magic: u64,
    base: u64,
    rank: u64,
    dims: [u64; RANK_MAX],
    strides: [u64; RANK_MAX - 1],
    tile: [u64; RANK_MAX],
    unused: [u64; 2],
}
const _: () = assert!(size_of::<TensorMap>() == 128);

impl TensorMap {
    /// In the place of one that nobody copies by; a copy by it ends the process.
    pub(in crate::cuda) const NONE: Self = Self {
        magic: 0,
        base: 0,
        rank: 0,
        dims: [0; RANK_MAX],
        strides: [0; RANK_MAX - 1],
        tile: [0; RANK_MAX],
        unused: [0; 2],
    };

    /// Describes the tensor of `dims`, innermost first, at `address`; refuses what the driver
    /// refuses.
    pub(in crate::cuda) fn new(address: DevicePtr, dims: &[TensorDim]) -> Result<Self, CudaError> {
        let refused = !address.is_multiple_of(16)
            || !(3..=RANK_MAX).contains(&dims.len())
            || dims[0].tile != 64
            || dims
                .iter()
                .any(|d| d.len == 0 || d.len > 1 << 32 || d.tile == 0 || d.tile > 256)
            || dims[1..]
                .iter()
                .any(|d| !d.stride_bytes.is_multiple_of(16) || d.stride_bytes >= 1 << 40);
        if refused {
            return Err(CudaError::Driver {
                operation: "describing a tensor to the copy engine",
                code: format!("{dims:?} at {address:#x}"),
            });
        }
        let mut map = Self {
            magic: u64::from_le_bytes(*b"tnsormap"),
            base: address,
            rank: dims.len() as u64,
            dims: [1; RANK_MAX],
            strides: [0; RANK_MAX - 1],
            tile: [1; RANK_MAX],
            unused: [0; 2],
        };
        for (i, d) in dims.iter().enumerate() {
            map.dims[i] = d.len;
            map.tile[i] = u64::from(d.tile);
            if i > 0 {
                map.strides[i - 1] = d.stride_bytes;
            }
        }
        Ok(map)
    }
}
