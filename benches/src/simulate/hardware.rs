//! The device, and how long a step takes on it.
//!
//! ```text
//! time      = both(weights, products) + both(KV, attention) + shrink + overhead
//! both(m,c) = (m^2 + c^2)^(1/2)
//! weights   = weight bytes / bytes a second
//! products  = (2 x row_parameters x rows + 2 x logit_parameters x sampled rows) / FLOP a second
//! KV        = (KV read + KV written) / bytes a second
//! attention = 4 x layers x query heads x head_dim x (sum over rows of the tokens attended to)
//!             / FLOP a second
//! shrink    = (bytes read + bytes written) / bytes a second
//!
//! bytes a second = bandwidth x bandwidth_efficiency
//! FLOP a second  = flops x flops_efficiency
//! ```
//!
//! Products and attention are kernels of their own, one after the other. In each, what waits for
//! memory and what computes overlap in part: it takes longer than the longer of both alone, and
//! less than their sum.
//!
//! KV read is, for each slice, the bytes of the sequence's blocks as they stand: codes and metadata
//! of sealed blocks, the tokens of the open one at 16 bit. A prompt's chunk reads them once, as a
//! tiled kernel with its tiles in cache does. Bytes of shrunk blocks count `1 / shrunk_efficiency`
//! fold: unpacking may keep a kernel from the bandwidth.

use super::shape::Shape;

/// A device. All constants of the cost model are here.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Hardware {
    /// Bytes a second that a plain copy moves, reads and writes together.
    pub bandwidth: f64,
    /// Share of it that a step's kernels get.
    pub bandwidth_efficiency: f64,
    /// FLOP a second of a large dense bf16 matrix product.
    pub flops: f64,
    /// Share of it that a step's kernels get.
    pub flops_efficiency: f64,
    /// Share of the bandwidth that reading shrunk blocks gets, of what reading 16-bit ones gets.
    pub shrunk_efficiency: f64,
    /// Seconds of a step in which the device does none of the above: launches, sampling, the host's
    /// part.
    pub overhead: f64,
}

/// One H200 SXM. Bandwidth and FLOP/s as large copies and cuBLASLt products achieve them (the data
/// sheet says 4.8e12 and 989e12); the shares so that most workloads take within 3 % of what was
/// measured (`benches/results/simulate`): weights and KV are read faster than a copy moves bytes,
/// and under load the card's power leaves products three quarters of their clock.
pub const H200: Hardware = Hardware {
    bandwidth: 4.26e12,
    bandwidth_efficiency: 0.98,
    flops: 830e12,
    flops_efficiency: 0.74,
    shrunk_efficiency: 0.6,
    overhead: 0.5e-3,
};

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Tokens computed.
    pub rows: u64,
    /// Of these, rows that are sampled from.
    pub logit_rows: u64,
    /// Sum over rows of the tokens each attends to, itself included.
    pub attended: u64,
    /// KV bytes read from blocks at 16 bit, and of open ones.
    pub kv_whole: u64,
    /// KV bytes read from shrunk blocks.
    pub kv_shrunk: u64,
    /// KV bytes written for the new tokens.
    pub kv_written: u64,
    /// Bytes of the blocks transcoded, before and after.
    pub shrink: u64,
}

/// Tokens that `rows` rows attend to, the first of which stands at `position`.
pub fn attended(position: u64, rows: u64) -> u64 {
    rows * position + rows * (rows + 1) / 2
}

impl Hardware {
    /// Seconds that a step takes.
    pub fn step_seconds(&self, shape: &Shape, work: &Work) -> f64 {
        let bandwidth = self.bandwidth * self.bandwidth_efficiency;
        let kv = work.kv_whole as f64 + work.kv_shrunk as f64 / self.shrunk_efficiency;
        let shrink = work.shrink as f64 / bandwidth;
        if work.rows == 0 {
            return shrink + self.overhead;
        }
        let flops = self.flops * self.flops_efficiency;
        let products = 2.0 * shape.row_parameters * work.rows as f64
            + 2.0 * shape.logit_parameters * work.logit_rows as f64;
        let heads = shape.geometry.layers * shape.query_heads * shape.geometry.head_dim;
        let attention = 4.0 * heads as f64 * work.attended as f64;
        let both = |bytes: f64, flop: f64| (bytes / bandwidth).hypot(flop / flops);
        both(shape.weight_bytes, products)
            + both(kv + work.kv_written as f64, attention)
            + shrink
            + self.overhead
    }
}
