//! Query-key products over polar keys in three ways, and over 16-bit keys.

use std::sync::Arc;

use half::bf16;

use super::cold::{ColdL2, time_graph};
use crate::BLOCK_TOKENS;
use crate::cuda::driver::{Device, DeviceBuffer, Kernel, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::params::{DevicePtr, KernelParams};
use crate::cuda::selftest::Rng;
use crate::formats::{FormatId, RecordShape};
use crate::kv::Side;

const HEAD_DIM: usize = 128;
const QUERIES: usize = 4;
const THREADS: u32 = 256;
/// Blocks that are unlike; the others repeat them.
const DISTINCT: usize = 64;
const SHAPE: RecordShape = RecordShape {
    side: Side::K,
    head_dim: HEAD_DIM,
};

/// `ebb::PolarProductParams` of probe/polar.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct PolarProductParams {
    keys: DevicePtr,
    queries: DevicePtr,
    most: DevicePtr,
    products: DevicePtr,
    blocks: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<PolarProductParams>() == 40);
// SAFETY: field for field `ebb::PolarProductParams` of probe/polar.cu.
unsafe impl KernelParams for PolarProductParams {}

/// How products with keys are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolarWay {
    /// polar44: radius times a table of the query's product with each of a pair's sixteen
    /// directions (the decode of PolarQuant's code), a table for each block.
    Tables,
    /// polar44g64: the same with one table for all blocks (PolarQuant's section 3.3).
    GridTables,
    /// polar44: pairs converted to Cartesian fp16, then tensor cores.
    Cartesian,
    /// bf16 rows, tensor cores.
    Rows,
}

impl PolarWay {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Tables, Self::GridTables, Self::Cartesian, Self::Rows];

    /// A name for tables of figures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tables => "polar44 tables",
            Self::GridTables => "polar44g64 table",
            Self::Cartesian => "polar44 cartesian",
            Self::Rows => "bf16",
        }
    }

    const fn kernel(self) -> &'static str {
        match self {
            Self::Tables => "probe_polar_tables",
            Self::GridTables => "probe_polar_grid_table",
            Self::Cartesian => "probe_polar_products",
            Self::Rows => "probe_polar_rows",
        }
    }
}

/// Random keys of one KV head, 128 channels, in blocks side by side, and four queries.
#[derive(Debug)]
pub struct PolarProbe {
    stream: Stream,
    kernel: Kernel<PolarProductParams>,
    grid: u32,
    blocks: usize,
    record_bytes: usize,
    keys: DeviceBuffer<u8>,
    queries: DeviceBuffer<bf16>,
    most: DeviceBuffer<f32>,
    /// What products should be, `[DISTINCT][QUERIES][128]`: of what the CPU's codec decodes, in
    /// f64.
    want: Vec<f64>,
}

impl PolarProbe {
    /// `blocks` blocks of 128 tokens. All ways have the same queries and encode the same keys.
    pub fn new(device: &Arc<Device>, way: PolarWay, blocks: usize) -> Result<Self, CudaError> {
        let mut rng = Rng(44);
        let queries = rng.values(QUERIES * HEAD_DIM, 2.0);
        let format = match way {
            PolarWay::Rows => FormatId::F16,
            PolarWay::GridTables => FormatId::Polar44G64,
            PolarWay::Tables | PolarWay::Cartesian => FormatId::Polar44,
        };
        let unsupported = |e: crate::formats::FormatError| CudaError::Unsupported(e.to_string());
        let record_bytes = format.record_bytes(SHAPE).map_err(unsupported)?;
        let mut image = vec![0; DISTINCT * record_bytes];
        let mut want = Vec::with_capacity(DISTINCT * QUERIES * BLOCK_TOKENS);
        let mut decoded = vec![0.0; SHAPE.elements()];
        for record in image.chunks_exact_mut(record_bytes) {
            let mut rows = rng.values(SHAPE.elements(), 1.0);
            // As of models with biases: some channels far from zero, which narrows their pairs'
            // angles.
            for (i, x) in rows.iter_mut().enumerate() {
                let shift = if i % HEAD_DIM % 7 == 3 { 4.0 } else { 0.0 };
                *x = bf16::from_f32(x.to_f32() + shift);
            }
            format.encode(SHAPE, &rows, record).map_err(unsupported)?;
            format
                .dequantise(SHAPE, record, &mut decoded)
                .map_err(unsupported)?;
            for query in queries.chunks_exact(HEAD_DIM) {
                want.extend(decoded.chunks_exact(HEAD_DIM).map(|key| {
                    let terms = key.iter().zip(query);
                    terms.map(|(k, q)| f64::from(*k) * q.to_f64()).sum::<f64>()
                }));
            }
        }
        let mut keys = DeviceBuffer::new(device, blocks * record_bytes, "keys")?;
        for first in (0..blocks).step_by(DISTINCT) {
            let count = DISTINCT.min(blocks - first);
            keys.write(first * record_bytes, &image[..count * record_bytes])?;
        }
        let kernel = device.kernel(way.kernel(), 0)?;
        let ctas = kernel.ctas_per_multiprocessor(THREADS)? * device.multiprocessors();
        Ok(Self {
            stream: Stream::new(device)?,
            grid: ctas.min(blocks) as u32,
            kernel,
            blocks,
            record_bytes,
            keys,
            queries: DeviceBuffer::from_slice(device, &queries, "queries")?,
            most: DeviceBuffer::filled(device, blocks * QUERIES, 0xff, "greatest products")?,
            want,
        })
    }

    /// Bytes of keys that a run reads.
    pub fn bytes(&self) -> usize {
        self.blocks * self.record_bytes
    }

    /// Tokens of a run.
    pub fn tokens(&self) -> usize {
        self.blocks * BLOCK_TOKENS
    }

    /// The largest relative error of the products of any block and query, against those of what the
    /// CPU's codec decodes, in f64; infinite if a greatest product is not the greatest.
    pub fn error(&mut self) -> Result<f64, CudaError> {
        let count = self.blocks * QUERIES * BLOCK_TOKENS;
        let device = self.stream.device();
        let products: DeviceBuffer<f32> = DeviceBuffer::filled(device, count, 0xff, "products")?;
        self.enqueue(products.ptr())?;
        self.stream.synchronize()?;
        let mut got = vec![0.0; count];
        products.read(0, &mut got)?;
        let mut most = vec![0.0; self.blocks * QUERIES];
        self.most.read(0, &mut most)?;
        let rows = got.chunks_exact(BLOCK_TOKENS).zip(&most);
        let want = self.want.chunks_exact(BLOCK_TOKENS).cycle();
        let error = rows.zip(want).map(|((got, most), want)| {
            let greatest = got.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let terms = || got.iter().zip(want);
            let off: f64 = terms().map(|(g, w)| (f64::from(*g) - w).powi(2)).sum();
            let norm: f64 = want.iter().map(|w| w * w).sum();
            let error = (off / norm).sqrt();
            // Also where the error is not a number.
            if greatest == *most && error >= 0.0 {
                error
            } else {
                f64::INFINITY
            }
        });
        Ok(error.fold(0.0, f64::max))
    }

    /// Times `repeats` runs that write the greatest products alone, graph-replayed, each with a
    /// cold L2. Microseconds, sorted.
    pub fn time(&mut self, repeats: usize) -> Result<Vec<f64>, CudaError> {
        let graph = self.stream.capture(|| self.enqueue(0))?;
        time_graph(&self.stream, &graph, repeats, ColdL2::Written)
    }

    fn enqueue(&self, products: DevicePtr) -> Result<(), CudaError> {
        let params = PolarProductParams {
            keys: self.keys.ptr(),
            queries: self.queries.ptr(),
            most: self.most.ptr(),
            products,
            blocks: self.blocks as u32,
            reserved: 0,
        };
        // SAFETY: the buffers have the sizes of so many blocks and live as long as `self`, or as
        // the caller waits for the stream.
        unsafe {
            self.kernel
                .launch(&self.stream, (self.grid, 1), THREADS, &params)
        }
    }
}
